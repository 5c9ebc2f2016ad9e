"""Scores of the global model and at the clients."""
