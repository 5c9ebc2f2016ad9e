"""Scores of predictions, and the metrics made of them."""
