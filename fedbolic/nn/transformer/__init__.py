"""Transformers on the hyperboloid: attention, blocks, and whole networks."""
