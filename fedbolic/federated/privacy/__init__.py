"""Differential privacy of whole clients, with a ledger of what has been spent."""
