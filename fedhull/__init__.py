"""FedHull: a federated hyperbolic SVM from quantised convex hulls (Prakash et al., TMLR 2024)."""

from fedbolic.core.imports import extra

with extra("hull", "fedhull"):
    from fedhull.boundary import EuclideanBoundary, HyperbolicBoundary
    from fedhull.central import Central
    from fedhull.classifier import HyperbolicSVC, ToBall
    from fedhull.core import Farthest, HullPeeling, ValidatedCore
    from fedhull.geometry.hull import hull
    from fedhull.grouping import Assignment, KernighanLin, Spectral
    from fedhull.labels import Binary, BoseChowla
    from fedhull.method import FedHull
    from fedhull.quantise import PolarGrid
    from fedhull.vote import VotedCore

__all__ = [
    "Assignment",
    "Binary",
    "BoseChowla",
    "Central",
    "EuclideanBoundary",
    "Farthest",
    "FedHull",
    "HullPeeling",
    "HyperbolicBoundary",
    "HyperbolicSVC",
    "KernighanLin",
    "PolarGrid",
    "Spectral",
    "ToBall",
    "ValidatedCore",
    "VotedCore",
    "hull",
]
