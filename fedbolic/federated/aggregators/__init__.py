"""Aggregators: client updates to one aggregated update."""
