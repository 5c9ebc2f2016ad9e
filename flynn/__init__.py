"""FlyNN: one-round federated nearest neighbours by Fly Bloom filters (Ram and Sinha, AAAI 2022)."""

from flynn.estimators import FlyHash, FlyNNClassifier
from flynn.method import FlyNN

__all__ = ["FlyHash", "FlyNN", "FlyNNClassifier"]
