"""HyperFed: hyperbolic class prototypes and consistent aggregation (Liao et al., IJCAI 2023)."""

from hyperfed.loss import CrossEntropy, Geodesic, Triplet
from hyperfed.method import HyperFed

__all__ = [
    "CrossEntropy",
    "Geodesic",
    "HyperFed",
    "Triplet",
]
