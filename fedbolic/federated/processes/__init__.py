"""Clients in other processes and threads."""
