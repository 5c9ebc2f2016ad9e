"""Hierarchies, and their partitioning among clients."""
