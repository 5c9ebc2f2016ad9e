"""Accounts of privacy: the ledger of a run and its accountants."""
