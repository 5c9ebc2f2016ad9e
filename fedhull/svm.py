"""Support vector machine in a tangent space, without intercept, certified by a duality gap."""

import math
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float
from scipy.linalg import get_lapack_funcs

from fedbolic.core import check
from fedhull.platt import APART, MANY

Loss: TypeAlias = Literal["hinge", "squared_hinge"]

GAP = 1e-9
"""Duality gap over objective at which the solver stops; rounding leaves about 1e-13."""

SOFTEST, HARDEST = 1.0, 1e-6
"""First and last width of the smoothed hinge's corner, in units of the margin."""

_PRECISE = 1e-10
"""Newton decrement, over the squared norm, at which a step is the last."""

_FLAT = 0.1
"""Directional derivative, over that at the start, at which a line search stops."""

_QR, _SOLVE = get_lapack_funcs(("geqrf", "trtrs"), dtype=np.float64)

MAX_STEPS = 100
"""Limit of the Newton steps per smoothed problem, and of such problems; a few of each suffice."""


@dataclass(frozen=True, eq=False)
class Normal:
    """Solution of a support vector machine without intercept.

    Args:
        w: Normal of the hyperplane.
        objective: Value of the objective at ``w``.
        gap: Duality gap, an upper bound on the distance from the optimal objective.
    """

    w: Float[np.ndarray, " dim"]
    objective: float
    gap: float


def fit_normal(
    features: Float[np.ndarray, "n dim"],
    signs: Float[np.ndarray, " n"],
    *,
    C: float,
    loss: Loss = "squared_hinge",
) -> Normal:
    r"""Normal of the maximum-margin hyperplane through the origin.

    .. math:: \min_w \tfrac12 |w|^2 + C \sum_i \ell(1 - y_i \langle v_i, w \rangle), \quad
        \ell(t) = \max(0, t) \text{ or } \max(0, t)^2

    The solver is Newton's method with a line search on a loss with a smoothed corner. For the
    hinge, the method of multipliers removes the effect of smoothing, until the duality gap, which
    bounds the error, is below 1e-9 of the objective. Equal points need no special case.

    Args:
        features: Tangent vectors v at the reference point.
        signs: Labels y, +1 or -1.
        C: Penalty of a violated margin, above 0: lambda of the paper. A large C is a hard margin.
        loss: ``hinge`` as printed in the paper, or ``squared_hinge`` as in the authors' code.

    Raises:
        ValueError: If ``C`` is not above 0, ``loss`` is unknown, or a sign is not +1 or -1.

    References:
        Prakash et al. (2024), Eq. (7), arXiv:2308.06895; Rockafellar (1976), Augmented Lagrangians
        and applications of the proximal point algorithm.

    Example:
        >>> solved = fit_normal(np.array([[2.0, 0.0], [-2.0, 0.0]]), np.array([1.0, -1.0]), C=9.0)
        >>> solved.w.round(3)
        array([0.497, 0.   ])
    """
    check.positive(C=C)
    check.one_of(get_args(Loss), loss=loss)
    if signs.shape != features.shape[:1] or (np.abs(signs) != 1).any():
        raise ValueError(
            f"there must be one sign of +1 or -1 for each of {len(features)} examples, got "
            f"{len(signs)} signs with values such as {np.unique(signs)[:3].tolist()}"
        )
    w = np.zeros(features.shape[1])
    if len(signs) > MANY:
        w = fit_normal(features[::APART], signs[::APART], C=APART * C, loss=loss).w
    # a few long rows, with which products are faster
    columns = np.multiply(features.T, signs, order="C", dtype=np.float64)
    if loss == "hinge":
        return _fit_hinge(columns, C, w)
    problem = _Smoothed(columns, C, np.zeros(len(signs)), width=0.5, top=np.inf)
    return problem.certified(problem.minimise(w))


def _fit_hinge(columns: Float[np.ndarray, "dim n"], C: float, w: np.ndarray) -> Normal:
    """Normal for the hinge loss, by the method of multipliers."""
    a, best, width = np.zeros(columns.shape[1]), None, SOFTEST
    for _ in range(MAX_STEPS):
        problem = _Smoothed(columns, C, a, width, top=1.0)
        w = problem.minimise(w)
        solved = problem.certified(w)
        if best is None or solved.gap < best.gap:
            best = solved
        if best.gap <= GAP * best.objective:
            break
        a, width = problem.weights(1 - w @ columns), max(width / 10, HARDEST)
    assert best is not None  # at least one problem was solved
    return best


@dataclass(frozen=True, eq=False)
class _Smoothed:
    """Smoothed loss ``max over 0 <= a <= top of a t - width (a - before)^2 / 2`` of violations t.

    It is the squared hinge for ``before`` 0, ``width`` 1/2 and infinite ``top``.
    """

    columns: Float[np.ndarray, "dim n"]
    C: float
    before: Float[np.ndarray, " n"]
    width: float
    top: float

    def weights(self, violation: np.ndarray) -> np.ndarray:
        """Maximising a of each example: the dual variable over C."""
        return (self.before + violation / self.width).clip(0, self.top)

    def minimise(self, w: np.ndarray) -> np.ndarray:
        for _ in range(MAX_STEPS):
            violation = 1 - w @ self.columns
            a = self.weights(violation)
            gradient = w - self.C * (self.columns @ a)
            corner = (a > 0) & (a < self.top)
            step = self._newton_step(w, a, violation, corner)
            decrease = float(-step @ gradient)
            if abs(decrease) <= _PRECISE * (w @ w):
                return w + step
            before, w = w, w + self._length(w, step, violation, decrease) * step
            if np.array_equal(before, w):
                break
        return w

    def _newton_step(
        self, w: np.ndarray, a: np.ndarray, violation: np.ndarray, corner: np.ndarray
    ) -> np.ndarray:
        """Step to the quadratic piece's minimiser, by least squares: a Hessian loses digits."""
        inner, dim = np.flatnonzero(corner), len(w)
        system = np.zeros((dim + 1, len(inner) + dim))
        weighed, ridge = system[:, : len(inner)], system[:, len(inner) :]
        np.take(self.columns, inner, axis=1, out=weighed[:dim], mode="clip")  # faster
        weighed[dim] = violation.take(inner) + self.width * self.before.take(inner)
        weighed *= math.sqrt(self.C / self.width)
        ridge[range(dim), range(dim)] = 1.0
        ridge[dim] = -w
        if self.top < math.inf:
            ridge[dim] += self.C * (self.columns @ (a * ~corner))
        triangle = _QR(system.T, overwrite_a=True)[0]  # numpy's takes thrice as long for a few
        return _SOLVE(triangle[:dim, :dim], triangle[:dim, dim])[0]

    def _length(
        self, w: np.ndarray, step: np.ndarray, violation: np.ndarray, decrease: float
    ) -> float:
        """Step length at which the increasing, piecewise linear directional derivative is small.

        It is ``-decrease`` at length 0. The method is Newton's, between bounds.
        """
        along = step @ self.columns
        low, high, length, flat = 0.0, np.inf, 1.0, _FLAT * abs(decrease)
        for _ in range(MAX_STEPS):
            a = self.weights(violation - length * along)
            slope = float((w + length * step) @ step - self.C * (a @ along))
            if abs(slope) <= flat:
                break
            low, high = (low, length) if slope > 0 else (length, high)
            bend = along[(a > 0) & (a < self.top)]
            length -= slope / float(step @ step + self.C / self.width * (bend @ bend))
            if not low < length < high:
                length = (low + high) / 2 if high < np.inf else 2 * low
            if length in (low, high):
                break
        return length

    def certified(self, w: np.ndarray) -> Normal:
        """Solution with the duality gap of the unsmoothed problem."""
        # by rows, for the rounding of whoever computes the objective from the examples
        violation = 1 - np.ascontiguousarray(self.columns.T) @ w
        a = self.weights(violation)
        dual_normal = self.C * (self.columns @ a)
        dual = self.C * a.sum() - dual_normal @ dual_normal / 2
        hinge = np.maximum(violation, 0)
        if np.isinf(self.top):
            dual -= self.C * np.square(a).sum() / 4
            hinge = np.square(hinge)
        objective = float(w @ w / 2 + self.C * hinge.sum())
        return Normal(w, objective, max(float(objective - dual), 0.0))
