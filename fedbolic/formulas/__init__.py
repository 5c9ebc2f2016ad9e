"""Formulas of the geometry on plain tensors, accurate up to rounding."""
