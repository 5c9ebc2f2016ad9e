"""Graphs, and their partitioning among clients."""
