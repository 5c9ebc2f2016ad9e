"""Tabular data sets."""
