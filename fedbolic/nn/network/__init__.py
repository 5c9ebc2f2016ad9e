"""Whole networks, and their interface to federated methods."""
