"""Layers and networks; nothing here knows of federations."""
