"""Rounds of graph convolutions."""
