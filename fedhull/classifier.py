"""The hyperbolic support vector machine as a scikit-learn estimator, and tables into the ball."""

from collections.abc import Iterator

import numpy as np
import torch
from jaxtyping import Float, Int
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from fedbolic import check
from fedbolic.manifolds import Poincare
from fedhull.extreme import extreme_points
from fedhull.hull import require_ball
from fedhull.platt import platt_scaling
from fedhull.reference import Reference, midpoints
from fedhull.svm import Loss, Normal, fit_normal


class HyperbolicSVC(ClassifierMixin, BaseEstimator):
    r"""A support vector machine with geodesic decision boundaries in the Poincare ball.

    .. math:: f(x) = \langle \log_p x, w \rangle

    The reference point p is the midpoint of a nearest pair of corners of the two classes' hulls, of
    ``pairs`` candidates the one with the best training accuracy; w solves the problem of
    :func:`fedhull.svm.fit_normal` in the tangent space at p. Several classes: one against the rest,
    and the most probable one after Platt scaling.

    Args:
        C: The price of a violated margin, above 0: lambda of the paper.
        loss: ``squared_hinge`` as the authors' code, or ``hinge`` as their Eq. (7).
        pairs: Candidates for the reference point, at least 1.
        reference: Pairs of corners (``vertices``), or of the hulls themselves (``exact``, in the
            plane).
        c: Minus the curvature, above 0.

    Attributes:
        classes_: The classes in ascending order.
        points_: A reference point for every class; of two classes, for the second alone.
        normals_: The normals w there.
        platt_: Slope and intercept of the log-odds for each.
        gap_: The largest duality gap of a normal, over its objective.

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
        """Find reference points and normals.

        Args:
            X: Points of the ball.
            y: Their classes.

        Raises:
            ValueError: If there is one class only, a point lies outside the ball, or a setting is
                out of range.
        """
        check.positive(C=self.C, c=self.c)
        check.at_least(1, pairs=self.pairs)
        X, y = map(np.asarray, validate_data(self, X, y, dtype=np.float64))
        check_classification_targets(y)
        require_ball(X, c=self.c)
        self.classes_, codes = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise ValueError(
                f"there must be two classes at least, got one class, {self.classes_[0]}: a class "
                "without points cannot be told apart"
            )
        found = list(self._fit_each(X, codes))
        self.points_ = np.array([point for point, _, _ in found])
        self.normals_ = np.array([normal.w for _, normal, _ in found])
        self.platt_ = np.array([platt for _, _, platt in found])
        self.gap_ = max(normal.gap / normal.objective for _, normal, _ in found)
        return self

    def _fit_each(
        self, X: np.ndarray, codes: Int[np.ndarray, " n"]
    ) -> Iterator[tuple[np.ndarray, Normal, tuple[float, float]]]:
        """Reference point, normal and scaling of every class against the rest."""
        binary = len(self.classes_) == 2
        corners = [X[codes == k] for k in range(len(self.classes_))]
        corners = [points[extreme_points(points, c=self.c)] for points in corners]
        for k in [1] if binary else range(len(self.classes_)):
            rest = np.concatenate([other for j, other in enumerate(corners) if j != k])
            rest = rest[extreme_points(rest, c=self.c)]
            candidates = midpoints(
                corners[k], rest, c=self.c, pairs=self.pairs, reference=self.reference
            )
            positive = codes == k
            best, best_accuracy = None, -1.0
            for point in candidates:
                features = tangents(X, point, c=self.c)
                normal = fit_normal(
                    features, np.where(positive, 1.0, -1.0), C=self.C, loss=self.loss
                )
                found = features @ normal.w
                accuracy = float(np.mean((found > 0) == positive))
                if accuracy > best_accuracy:
                    best, best_accuracy = (point, normal, found), accuracy
            assert best is not None  # there is a pair at least
            point, normal, found = best
            yield point, normal, platt_scaling(found, positive, shift=not binary)

    def decision_function(self, X) -> Float[np.ndarray, "*scores"]:
        """Scores <log_p x, w> of the second class of two; else the log-odds of every class.

        Args:
            X: Points of the ball.
        """
        check_is_fitted(self)
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        require_ball(X, c=self.c)
        raw = scores(X, self.points_, self.normals_, c=self.c)
        return raw[:, 0] if len(self.classes_) == 2 else raw * self.platt_[:, 0] + self.platt_[:, 1]

    def predict(self, X) -> np.ndarray:
        """The class of every point.

        Args:
            X: Points of the ball.
        """
        found = self.decision_function(X)
        return self.classes_[(found > 0).astype(int) if found.ndim == 1 else found.argmax(axis=1)]

    def predict_proba(self, X) -> Float[np.ndarray, "n num_classes"]:
        """The probability of every class after Platt scaling, in proportion.

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
    X: Float[np.ndarray, "n dim"], point: Float[np.ndarray, " dim"], *, c: float = 1.0
) -> Float[np.ndarray, "n dim"]:
    """The logarithms of points at a reference point.

    Args:
        X: Points of the ball.
        point: Where the tangent space is.
        c: Minus the curvature.
    """
    return Poincare(c).logmap(torch.from_numpy(point), torch.from_numpy(X)).numpy()


def scores(
    X: Float[np.ndarray, "n dim"],
    points: Float[np.ndarray, "k dim"],
    normals: Float[np.ndarray, "k dim"],
    *,
    c: float = 1.0,
) -> Float[np.ndarray, "n k"]:
    """The scores <log_p x, w> of every hyperplane.

    Args:
        X: Points of the ball.
        points: Reference points p.
        normals: Normals w there.
        c: Minus the curvature.
    """
    pairs = zip(points, normals, strict=True)
    return np.stack([tangents(X, p, c=c) @ w for p, w in pairs], axis=1)


class ToBall(TransformerMixin, BaseEstimator):
    r"""Maps any table into the Poincare ball, rows as tangent vectors at the origin.

    .. math:: x = \exp_0(\text{scale} \cdot v)

    Args:
        scale: Of the rows, above 0: at distance 20 or so from the origin the ball of doubles ends
            for most purposes.
        c: Minus the curvature, above 0.

    Example:
        >>> ToBall().fit_transform([[1.0, 0.0], [0.0, 0.0]]).round(4)
        array([[0.7616, 0.    ],
               [0.    , 0.    ]])
    """

    def __init__(self, scale: float = 1.0, *, c: float = 1.0) -> None:
        self.scale, self.c = scale, c

    def fit(self, X, y=None) -> "ToBall":
        """Look at the number of columns only.

        Args:
            X: A table.
            y: Ignored.
        """
        del y
        check.positive(scale=self.scale, c=self.c)
        validate_data(self, X, dtype=np.float64)
        return self

    def transform(self, X) -> Float[np.ndarray, "n dim"]:
        """The points of the ball.

        Args:
            X: A table of as many columns as at the fit.
        """
        check_is_fitted(self, "n_features_in_")
        X = np.asarray(validate_data(self, X, dtype=np.float64, reset=False))
        return Poincare(self.c).expmap0(torch.from_numpy(X * self.scale)).numpy()
