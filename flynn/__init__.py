"""FlyNN: one-round federated nearest neighbours with Fly Bloom filters (Ram and Sinha, 2022)."""

from fedbolic.core.imports import extra

with extra("fly", "flynn"):
    from flynn.estimators import FlyHash, FlyNNClassifier
    from flynn.method import FlyNN
    from flynn.private import Histogram, Paper, Parallel, Peel
    from flynn.scaling import PublicBounds, ZScores

__all__ = [
    "FlyHash",
    "FlyNN",
    "FlyNNClassifier",
    "Histogram",
    "Paper",
    "Parallel",
    "Peel",
    "PublicBounds",
    "ZScores",
]
