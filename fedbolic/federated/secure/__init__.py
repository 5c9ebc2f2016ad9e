"""Secure sums: a cohort's updates are added without anybody reading one."""

from fedbolic.federated.secure.keys import write_identities
from fedbolic.federated.secure.method import SecureSum

__all__ = [
    "SecureSum",
    "write_identities",
]
