"""Losses of pairs and of contrast, the draws they need, and scores of rankings."""
