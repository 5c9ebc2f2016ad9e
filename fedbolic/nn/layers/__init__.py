"""Hyperbolic layers, one kind a file."""
