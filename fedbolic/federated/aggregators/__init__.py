"""Aggregation of client updates into one aggregated update."""
