"""Runs: from a configuration to a folder, and from a folder to a network."""
