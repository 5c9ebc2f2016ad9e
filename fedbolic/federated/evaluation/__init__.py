"""Evaluation of the global model and of the clients' models."""
