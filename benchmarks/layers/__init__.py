"""Costs of layers and of blocks of transformers."""
