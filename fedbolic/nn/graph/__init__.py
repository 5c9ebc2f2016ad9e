"""Hyperbolic graph convolutions."""
