"""Engines next to a plain loop and other frameworks."""
