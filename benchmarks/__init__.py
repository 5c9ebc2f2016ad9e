"""Measurements against stated goals: ``python -m benchmarks.<name>``. Not installed."""
