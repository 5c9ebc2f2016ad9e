"""Engines: execution of the clients of an exchange."""
