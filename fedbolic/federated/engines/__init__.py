"""Engines, which execute the clients of an exchange."""
