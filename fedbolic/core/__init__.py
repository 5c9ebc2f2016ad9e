"""Basis of all rooms: types, trees of tensors, random streams, checks, files."""
