"""Interfaces of methods, of those that train by gradient steps, and of engines."""
