"""Secure aggregation: the server learns the sum of a cohort's updates, and no single update."""

from fedbolic.core.imports import extra

with extra("secure", "fedbolic.federated.secure"):
    from fedbolic.federated.secure.keys import write_identities
    from fedbolic.federated.secure.method import SecureSum
    from fedbolic.federated.secure.neighbours import NeighbourGraph

__all__ = [
    "NeighbourGraph",
    "SecureSum",
    "write_identities",
]
