"""FlyNN: one-round federated nearest neighbours with Fly Bloom filters (Ram and Sinha, 2022)."""

import importlib
from typing import TYPE_CHECKING, Any

from fedbolic.core.imports import extra
from flynn.method import FlyNN
from flynn.private import Histogram, Paper, Parallel, Peel
from flynn.scaling import PublicBounds, ZScores

if TYPE_CHECKING:
    from flynn.estimators import FlyHash, FlyNNClassifier

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


def __getattr__(name: str) -> Any:
    if name in ("FlyHash", "FlyNNClassifier"):  # the method does without scikit-learn
        with extra("fly", f"flynn.{name}"):
            return getattr(importlib.import_module("flynn.estimators"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
