"""The support vector machine of a tangent space: no intercept, and a certificate of optimality."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

import numpy as np
from jaxtyping import Float

from fedbolic import check

Loss: TypeAlias = Literal["hinge", "squared_hinge"]

GAP = 1e-9
"""Duality gap over objective at which a solution is good enough; rounding leaves 1e-13 or so."""

SOFTEST, HARDEST = 1.0, 1e-6
"""The first and the last width of the smoothed hinge's corner, in units of the margin."""

MAX_STEPS = 100
"""Newton steps for one smoothed problem, and such problems: a handful of each is usual."""


@dataclass(frozen=True, eq=False)
class Normal:
    """The solution of a support vector machine without intercept.

    Args:
        w: The normal.
        objective: What was minimised, at ``w``.
        gap: How much lower it could be at most, by duality.
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
    r"""The normal of the hyperplane through the origin that separates best.

    .. math:: \min_w \tfrac12 |w|^2 + C \sum_i \ell(1 - y_i \langle v_i, w \rangle), \quad
        \ell(t) = \max(0, t) \text{ or } \max(0, t)^2

    By Newton's method with an exact line search on a loss whose corner is rounded off. For the
    hinge the rounding is taken back by the method of multipliers, until the gap to the dual
    objective, which bounds the error, is below 1e-9 of the objective. So degenerate data (equal
    points, points on the margin) are no special case.

    Args:
        features: Tangent vectors v at the reference point.
        signs: +1 or -1.
        C: The price of a violated margin, above 0: lambda of the paper. Large is hard-margin.
        loss: ``hinge`` as printed in the paper, or ``squared_hinge`` as in the authors' code.

    Raises:
        ValueError: If ``C`` is not above 0, there is no such ``loss``, or not one sign for each
            example.

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
            f"there must be a sign of +1 or -1 for each of {len(features)} examples, got "
            f"{len(signs)} values in {np.unique(signs)[:3].tolist()}"
        )
    signed = features * signs[:, None]
    w, a = np.zeros(features.shape[1]), np.zeros(len(signed))
    if loss == "squared_hinge":
        problem = _Smoothed(signed, C, a, width=0.5, top=np.inf)
        return problem.certified(problem.minimise(w))
    best, width = None, SOFTEST
    for _ in range(MAX_STEPS):
        problem = _Smoothed(signed, C, a, width, top=1.0)
        w = problem.minimise(w)
        solved = problem.certified(w)
        if best is None or solved.gap < best.gap:
            best = solved
        if best.gap <= GAP * best.objective:
            break
        a, width = problem.weights(1 - signed @ w), max(width / 10, HARDEST)
    assert best is not None  # one problem at least was solved
    return best


@dataclass(frozen=True, eq=False)
class _Smoothed:
    """The loss ``max over 0 <= a <= top of a t - width (a - before)^2 / 2`` of violations t.

    It is the squared hinge for ``before`` 0, ``width`` 1/2 and no ``top``.
    """

    signed: Float[np.ndarray, "n dim"]
    C: float
    before: Float[np.ndarray, " n"]
    width: float
    top: float

    def weights(self, violation: np.ndarray) -> np.ndarray:
        """The maximising a of every example: the dual variable over C."""
        return (self.before + violation / self.width).clip(0, self.top)

    def minimise(self, w: np.ndarray) -> np.ndarray:
        for _ in range(MAX_STEPS):
            violation = 1 - self.signed @ w
            a = self.weights(violation)
            gradient = w - self.C * (a @ self.signed)
            corner = (a > 0) & (a < self.top)
            step = self._newton_step(w, a, violation, corner)
            new = w + self._length(w, step, violation) * step
            if np.array_equal(new, w) or abs(step @ gradient) <= 1e-16 * (1 + new @ new):
                return new
            w = new
        return w

    def _newton_step(
        self, w: np.ndarray, a: np.ndarray, violation: np.ndarray, corner: np.ndarray
    ) -> np.ndarray:
        """The step to the quadratic piece's minimiser, by least squares: a Hessian loses digits."""
        shifted = violation[corner] + self.width * self.before[corner]
        target = self.C * ((a * ~corner) @ self.signed) - w
        rows = np.column_stack([self.signed[corner], shifted]) * np.sqrt(self.C / self.width)
        rows = np.vstack([rows, np.column_stack([np.eye(len(w)), target])])
        triangle = np.asarray(np.linalg.qr(rows, mode="r"))
        return np.linalg.solve(triangle[: len(w), : len(w)], triangle[: len(w), -1])

    def _length(self, w: np.ndarray, step: np.ndarray, violation: np.ndarray) -> float:
        """Zero of the derivative along the step, which is increasing and piecewise linear."""
        along = self.signed @ step

        def slope(s: float) -> float:
            a = self.weights(violation - s * along)
            return float((w + s * step) @ step - self.C * (a @ along))

        if abs(slope(1.0)) <= 1e-12 * abs(slope(0.0)):  # the piece reaches to its own minimum
            return 1.0
        moving = along != 0
        shifted = (violation + self.width * self.before)[moving]
        bends = [shifted / along[moving]]
        if np.isfinite(self.top):
            bends.append((shifted - self.width * self.top) / along[moving])
        places = np.sort(np.concatenate(bends))
        places = np.concatenate([[0.0], places[places > 0]])
        low, high = 0, len(places)  # slope(places[low]) <= 0 < slope(places[high])
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if slope(places[middle]) <= 0 else (low, middle)
        start = places[low]
        end = places[high] if high < len(places) else start + 1.0
        at_start, at_end = slope(start), slope(end)
        if at_end <= at_start:  # flat up to rounding
            return float(start)
        return float(start - at_start * (end - start) / (at_end - at_start))

    def certified(self, w: np.ndarray) -> Normal:
        """The solution with the gap between the unsmoothed objective and its dual."""
        violation = 1 - self.signed @ w
        a = self.weights(violation)
        dual_normal = self.C * (a @ self.signed)
        dual = self.C * a.sum() - dual_normal @ dual_normal / 2
        hinge = np.maximum(violation, 0)
        if np.isinf(self.top):
            dual -= self.C * np.square(a).sum() / 4
            hinge = np.square(hinge)
        objective = float(w @ w / 2 + self.C * hinge.sum())
        return Normal(w, objective, max(float(objective - dual), 0.0))
