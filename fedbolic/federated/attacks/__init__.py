"""Simulated attacks of clients on federated training, for experiments with robust aggregation."""
