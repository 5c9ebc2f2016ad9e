"""Decision boundaries that the server trains on points and the clients apply."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import get_args

import numpy as np
import torch
from jaxtyping import Float
from sklearn.svm import LinearSVC
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Tree
from fedbolic.manifolds import Poincare
from fedhull.classifier import HyperbolicSVC, scores
from fedhull.geometry.hull import BallPoints, PointLabels
from fedhull.geometry.reference import Reference
from fedhull.platt import platt_scaling
from fedhull.svm import Loss

NUM_CURVE, FAR = 200, 12.0
"""Points of a drawn curve, and half the length of a drawn geodesic, in units of length."""


class Boundary(ABC):
    """Training algorithm for decision boundaries; parameters are a tree of float64 tensors."""

    @abstractmethod
    def fit(self, points: BallPoints, labels: PointLabels, *, c: float) -> Tree:
        """Parameters of the boundaries between two or more classes, numbered from 0 without gaps.

        Args:
            points: Points of the Poincare ball.
            labels: Their classes.
            c: Minus the curvature, above 0.

        Raises:
            ValueError: If a class has no point.
        """

    @abstractmethod
    def log_odds(
        self, learned: Tree, points: BallPoints, *, c: float
    ) -> Float[np.ndarray, "n num_classes"]:
        """Log-odds of each class; the class with the largest is the prediction."""

    @abstractmethod
    def curves(self, learned: Tree, *, c: float) -> list[Float[np.ndarray, "m 2"]]:
        """Points of the plane on each class's decision boundary; one boundary for two classes."""


@dataclass(frozen=True)
class HyperbolicBoundary(Boundary):
    """Geodesic boundaries, or planes, of :class:`fedhull.classifier.HyperbolicSVC`.

    Args:
        C: Penalty of a violated margin, above 0: lambda of the paper.
        loss: ``squared_hinge`` as in the authors' code, or ``hinge`` as in their Eq. (7).
        pairs: Number of candidate reference points, at least 1.
        reference: Nearest pairs of corners (``vertices``) or of points of the hulls (``exact``).
    """

    C: float = 0.1
    loss: Loss = "squared_hinge"
    pairs: int = 3
    reference: Reference = "vertices"

    def __post_init__(self) -> None:
        check.positive(C=self.C)
        check.at_least(1, pairs=self.pairs)
        check.one_of(get_args(Loss), loss=self.loss)
        check.one_of(get_args(Reference), reference=self.reference)

    @override
    def fit(self, points: BallPoints, labels: PointLabels, *, c: float) -> Tree:
        model = HyperbolicSVC(
            self.C, loss=self.loss, pairs=self.pairs, reference=self.reference, c=c
        )
        model.fit(points, labels)
        return _tree(points=model.points_, normals=model.normals_, platt=model.platt_)

    @override
    def log_odds(
        self, learned: Tree, points: BallPoints, *, c: float
    ) -> Float[np.ndarray, "n num_classes"]:
        at, normals = (learned[name].double().cpu().numpy() for name in ("points", "normals"))
        return _scaled(scores(points, at, normals, c=c), learned)

    @override
    def curves(self, learned: Tree, *, c: float) -> list[Float[np.ndarray, "m 2"]]:
        at, normals = (learned[name].double().cpu() for name in ("points", "normals"))
        across = torch.nn.functional.normalize(normals.flip(1) * torch.tensor([-1.0, 1.0]).to(at))
        reach = torch.linspace(-1, 1, NUM_CURVE, dtype=torch.float64)[:, None] * FAR / c**0.5
        space = Poincare(c)
        unit = across / space.norm(at, across)[:, None]
        return [space.expmap(p, reach * u).numpy() for p, u in zip(at, unit, strict=True)]


@dataclass(frozen=True)
class EuclideanBoundary(Boundary):
    """Straight boundaries in the coordinates of the ball, the paper's Euclidean baseline.

    They are one-vs-rest linear support vector machines with an intercept, and Platt scaling.

    Args:
        C: Penalty of a violated margin, above 0.
    """

    C: float = 0.1

    def __post_init__(self) -> None:
        check.positive(C=self.C)

    @override
    def fit(self, points: BallPoints, labels: PointLabels, *, c: float) -> Tree:
        del c
        num_classes = int(labels.max()) + 1
        if len(np.unique(labels)) < max(num_classes, 2):
            raise ValueError(f"every class needs a point, got labels {np.unique(labels).tolist()}")
        normals, offsets, platt = [], [], []
        for k in [1] if num_classes == 2 else range(num_classes):
            model = LinearSVC(C=self.C, tol=1e-8).fit(points, labels == k)
            found = model.decision_function(points)
            normals.append(model.coef_[0])
            offsets.append(float(np.ravel(model.intercept_)[0]))
            platt.append(platt_scaling(found, labels == k, shift=num_classes > 2))
        return _tree(normals=np.array(normals), offsets=np.array(offsets), platt=np.array(platt))

    @override
    def log_odds(
        self, learned: Tree, points: BallPoints, *, c: float
    ) -> Float[np.ndarray, "n num_classes"]:
        del c
        normals, offsets = (learned[name].double().cpu().numpy() for name in ("normals", "offsets"))
        return _scaled(points @ normals.T + offsets, learned)

    @override
    def curves(self, learned: Tree, *, c: float) -> list[Float[np.ndarray, "m 2"]]:
        lines = []
        for normal, offset in zip(
            learned["normals"].double().cpu().numpy(),
            learned["offsets"].double().cpu().numpy(),
            strict=True,
        ):
            near = -offset * normal / (normal @ normal)
            half = np.sqrt(max(0.999 / c - near @ near, 0))  # a line outside the disc is a dot
            near *= min(1.0, 0.999 / c**0.5 / max(np.linalg.norm(near), 1e-300))
            across = np.array([-normal[1], normal[0]]) / np.linalg.norm(normal)
            lines.append(near + np.linspace(-half, half, NUM_CURVE)[:, None] * across)
        return lines


def _tree(**arrays: np.ndarray) -> Tree:
    return {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}


def _scaled(found: np.ndarray, learned: Tree) -> np.ndarray:
    """Log-odds of each class; for two classes, the first has minus those of the second."""
    platt = learned["platt"].double().cpu().numpy()
    odds = found * platt[:, 0] + platt[:, 1]
    return np.concatenate([-odds, odds], axis=1) if odds.shape[1] == 1 else odds
