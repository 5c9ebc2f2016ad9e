"""HyperFed: hyperbolic class prototypes and consistent aggregation (Liao et al., IJCAI 2023)."""

from hyperfed.flat import CosineCrossEntropy, EuclideanCrossEntropy, FedETF, Harmonic
from hyperfed.loss import CrossEntropy, Geodesic, Triplet
from hyperfed.method import HyperFed

__all__ = [
    "CosineCrossEntropy",
    "CrossEntropy",
    "EuclideanCrossEntropy",
    "FedETF",
    "Geodesic",
    "Harmonic",
    "HyperFed",
    "Triplet",
]
