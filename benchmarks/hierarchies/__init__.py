"""Hierarchies: flat controls, exact rows, layouts, and other libraries."""
