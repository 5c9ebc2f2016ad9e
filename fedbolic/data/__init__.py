"""Clients, the data they hold, and how data sets are split among them."""
