"""Scikit-learn estimators: a hyperbolic support vector machine, and a map into the ball."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedbolic.core import check
from fedbolic.manifolds import Poincare
from fedhull.geometry.extreme import extreme_points
from fedhull.geometry.hull import BallPoints, PointLabels, require_ball
from fedhull.geometry.reference import Reference, midpoints
from fedhull.platt import platt_scaling
from fedhull.svm import Loss, Normal, fit_normal


class HyperbolicSVC(ClassifierMixin, BaseEstimator):
    r"""Support vector machine with geodesic decision boundaries in the Poincare ball.

    .. math:: f(x) = \langle \log_p x, w \rangle

    The candidates for the reference point p are the midpoints of the ``pairs`` nearest pairs of
    corners of the two classes' hulls; the one with the best training accuracy is chosen. The normal
    w solves the problem of :func:`fedhull.svm.fit_normal` in the tangent space at p. Three or more
    classes are trained one-vs-rest; the prediction is the most probable class after Platt scaling.

    Args:
        C: Penalty of a violated margin, above 0: lambda of the paper.
        loss: ``squared_hinge`` as in the authors' code, or ``hinge`` as in their Eq. (7).
        pairs: Number of candidates for the reference point, at least 1.
        reference: Pairs of corners (``vertices``), or of points of the hulls (``exact``, in the
            plane).
        c: Minus the curvature, above 0.

    Attributes:
        classes_: The classes in ascending order.
        points_: One reference point per class; for two classes, only that of the second.
        normals_: The normals w at these points.
        platt_: Slope and intercept of the log-odds at each of these points.
        gap_: Largest ratio of a duality gap to its objective.

    References:
        Prakash et al. (2024), Sec. 3 and App. H, arXiv:2308.06895.

    Example:
        >>> x = np.array([[0.5, 0.1], [0.6, -0.1], [-0.5, 0.1], [-0.6, 0.0]])
        >>> model = HyperbolicSVC(C=1.0).fit(x, ["a", "a", "b", "b"])
        >>> model.predict([[0.1, 0.5], [-0.1, 0.5]]).tolist()
        ['a', 'b']
    """

    def __init__(
        self,
        C: float = 0.1,
        *,
        loss: Loss = "squared_hinge",
        pairs: int = 3,
        reference: Reference = "vertices",
        c: float = 1.0,
    ) -> None:
        self.C, self.pairs, self.c = C, pairs, c
        self.loss: Loss = loss
        self.reference: Reference = reference

    def fit(self, X, y) -> "HyperbolicSVC":
        """Train the reference points, normals and Platt scaling.

        Args:
            X: Points of the ball.
            y: Their classes.

        Raises:
            ValueError: If there is only one class, a point lies outside the ball, or a setting is
                outside its range.
        """
        check.positive(C=self.C, c=self.c)
        check.at_least(1, pairs=self.pairs)
        X, y = map(np.asarray, validate_data(self, X, y, dtype=np.float64))
        if y.dtype.kind not in "biuU":  # whole numbers and texts are classes: their check is long
            check_classification_targets(y)
        require_ball(X, c=self.c)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"there must be at least two classes, got one class, {self.classes_[0]}: a class "
                "without points cannot be told apart"
            )
        found = list(self._fit_each(X, codes))
        self.points_ = np.array([point for point, _, _ in found])
        self.normals_ = np.array([normal.w for _, normal, _ in found])
        self.platt_ = np.array([platt for _, _, platt in found])
        self.gap_ = max(normal.gap / normal.objective for _, normal, _ in found)
        return self

    def _fit_each(
        self, X: np.ndarray, codes: PointLabels
    ) -> Iterator[tuple[np.ndarray, Normal, tuple[float, float]]]:
        """Reference point, normal and Platt scaling of each class against the rest."""
        binary = len(self.classes_) == 2
        corners = [X.take(np.flatnonzero(codes == k), axis=0) for k in range(len(self.classes_))]
        corners = [points[extreme_points(points, c=self.c)] for points in corners]
        for k in [1] if binary else range(len(self.classes_)):
            rest = np.concatenate([other for j, other in enumerate(corners) if j != k])
            rest = rest if binary else rest[extreme_points(rest, c=self.c)]
            candidates = midpoints(
                corners[k], rest, c=self.c, pairs=self.pairs, reference=self.reference
            )
            positive = codes == k
            signs = np.where(positive, 1.0, -1.0)
            best, best_accuracy = None, -1.0
            for point, features in zip(candidates, tangents(X, candidates, c=self.c), strict=True):
                normal = fit_normal(features, signs, C=self.C, loss=self.loss)
                found = features @ normal.w
                accuracy = float(np.mean((found > 0) == positive))
                if accuracy > best_accuracy:
                    best, best_accuracy = (point, normal, found), accuracy
            assert best is not None  # there is at least one candidate
            point, normal, found = best
            yield point, normal, platt_scaling(found, positive, shift=not binary)

    def decision_function(self, X) -> Float[np.ndarray, "*scores"]:
        """Scores <log_p x, w> of the second of two classes, or log-odds of three or more classes.

        Args:
            X: Points of the ball.
        """
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        require_ball(X, c=self.c)
        raw = scores(X, self.points_, self.normals_, c=self.c)
        return raw[:, 0] if len(self.classes_) == 2 else raw * self.platt_[:, 0] + self.platt_[:, 1]

    def predict(self, X) -> np.ndarray:
        """Predicted class of each point.

        Args:
            X: Points of the ball.
        """
        found = self.decision_function(X)
        return self.classes_[(found > 0).astype(int) if found.ndim == 1 else found.argmax(axis=1)]

    def predict_proba(self, X) -> Float[np.ndarray, "n num_classes"]:
        """Probability of each class after Platt scaling, normalized to sum to 1.

        Args:
            X: Points of the ball.
        """
        odds = self.decision_function(X)
        if odds.ndim == 1:
            odds = odds * self.platt_[0, 0]
            odds = np.stack([-odds, odds], axis=1)
        share = np.exp(-np.logaddexp(0, -odds))
        return share / share.sum(axis=1, keepdims=True)


def tangents(
    X: BallPoints, points: Float[np.ndarray, "k dim"], *, c: float = 1.0
) -> Float[np.ndarray, "k n dim"]:
    """Logarithms of points at each reference point.

    Args:
        X: Points of the ball.
        points: Reference points, the base points of the tangent spaces.
        c: Minus the curvature, above 0.
    """
    columns = torch.from_numpy(np.ascontiguousarray(X.T))  # sums over few coordinates: faster
    return Poincare(c).logmap(torch.from_numpy(points)[:, None], columns.T).numpy()


def scores(
    X: BallPoints,
    points: Float[np.ndarray, "k dim"],
    normals: Float[np.ndarray, "k dim"],
    *,
    c: float = 1.0,
) -> Float[np.ndarray, "n k"]:
    """Scores <log_p x, w> of points for each hyperplane.

    Args:
        X: Points of the ball.
        points: Reference points p.
        normals: Normals w at these points.
        c: Minus the curvature, above 0.
    """
    return np.einsum("knd,kd->nk", tangents(X, points, c=c), normals)


class ToBall(TransformerMixin, BaseEstimator):
    r"""Transformer of table rows into the Poincare ball, as tangent vectors at the origin.

    .. math:: x = \exp_0(\text{scale} \cdot v)

    Args:
        scale: Factor of the rows, above 0; in double precision, points farther than about 20 from
            the origin are rarely usable.
        c: Minus the curvature, above 0.

    Example:
        >>> ToBall().fit_transform([[1.0, 0.0], [0.0, 0.0]]).round(4)
        array([[0.7616, 0.    ],
               [0.    , 0.    ]])
    """

    def __init__(self, scale: float = 1.0, *, c: float = 1.0) -> None:
        self.scale, self.c = scale, c

    def fit(self, X, y=None) -> "ToBall":
        """Check the settings and record the number of columns.

        Args:
            X: A table.
            y: Ignored.
        """
        del y
        check.positive(scale=self.scale, c=self.c)
        validate_data(self, X, dtype=np.float64)
        return self

    def transform(self, X) -> BallPoints:
        """Map rows to points of the ball.

        Args:
            X: A table with the same number of columns as in ``fit``.
        """
        check_is_fitted(self, "n_features_in_")
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        return Poincare(self.c).expmap0(torch.from_numpy(X * self.scale)).numpy()
