"""HyperFed: hyperbolic class prototypes and consistent aggregation (Liao et al., IJCAI 2023)."""

from hyperfed.class_tree import Arrangement, ClassTree
from hyperfed.cones import Cones
from hyperfed.flat import CosineCrossEntropy, EuclideanCrossEntropy, FedETF, Harmonic
from hyperfed.loss import CrossEntropy, Geodesic, Triplet
from hyperfed.method import HyperFed

__all__ = [
    "Arrangement",
    "ClassTree",
    "Cones",
    "CosineCrossEntropy",
    "CrossEntropy",
    "EuclideanCrossEntropy",
    "FedETF",
    "Geodesic",
    "Harmonic",
    "HyperFed",
    "Triplet",
]
