"""Clients on other machines: nodes, their transport and the Flower app."""
