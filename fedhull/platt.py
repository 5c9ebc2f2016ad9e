"""Platt scaling of a classifier's scores to the log-odds of its class."""

import math

import numpy as np
from jaxtyping import Bool, Float

MAX_STEPS, TINY = 100, 1e-12
"""Limit of the Newton steps, usually about ten, and the decrement at which they stop."""

MANY, APART = 2000, 8
"""Number of examples above which a fit starts at that of every eighth of them."""


def platt_scaling(
    scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"], *, shift: bool = True
) -> tuple[float, float]:
    r"""Slope and intercept of a logistic regression of smoothed labels on scores.

    .. math:: \log \frac{P}{1 - P} = a f + b, \quad t_+ = \frac{N_+ + 1}{N_+ + 2}, \quad
        t_- = \frac{1}{N_- + 2}

    Args:
        scores: Scores of the training examples.
        positive: Mask of the examples of the class.
        shift: Fit an intercept; without one, the sign of the score remains the decision.

    References:
        Platt (1999), Probabilistic outputs for support vector machines; Lin, Lin and Weng (2007),
        A note on Platt's probabilistic outputs.

    Example:
        >>> scores = np.array([-1.0, -0.5, 0.5, 1.0])
        >>> a, b = platt_scaling(scores, scores > 0)
        >>> round(a, 2), abs(round(b, 2))
        (1.35, 0.0)
    """
    num_positive = int(positive.sum())
    high = (num_positive + 1) / (num_positive + 2)
    low = 1 / (len(scores) - num_positive + 2)
    targets = np.where(positive, high, low)
    scale = float(np.abs(scores).max()) or 1.0
    inputs = np.stack([scores / scale, np.ones(len(scores))])[: 2 if shift else 1]
    weights = np.zeros(len(inputs))
    if len(scores) > MANY:
        slope, intercept = platt_scaling(scores[::APART], positive[::APART], shift=shift)
        weights = np.array([slope * scale, intercept])[: len(inputs)]
    weights = _minimise(inputs, targets, weights)
    slope, intercept = (*weights, 0.0)[:2]
    return float(slope) / scale, float(intercept)


def _minimise(inputs: np.ndarray, targets: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Weights of the least cross-entropy, by Newton steps that are halved until it falls."""
    share, loss = _share_and_loss(weights @ inputs, targets)
    if loss > math.log(2) * len(targets):  # worse than 0: so far out, steps may not converge
        weights = np.zeros(len(weights))
        share, loss = _share_and_loss(weights @ inputs, targets)
    ridge = TINY * np.eye(len(weights))
    for _ in range(MAX_STEPS):
        gradient = inputs @ (share - targets)
        curvature = (inputs * (share * (1 - share))) @ inputs.T + ridge
        step = np.linalg.solve(curvature, gradient) if len(weights) > 1 else gradient / curvature[0]
        if np.abs(gradient @ step) <= TINY:
            return weights - step
        before, length = loss, 1.0
        while True:
            new = weights - length * step
            share, loss = _share_and_loss(new @ inputs, targets)
            if loss <= before or length <= TINY:
                break
            length /= 2
        weights = new
    return weights


def _share_and_loss(odds: np.ndarray, targets: np.ndarray) -> tuple[np.ndarray, float]:
    """Probabilities of log-odds, and the cross-entropy of soft labels, summed over examples."""
    rare = np.exp(-np.abs(odds))  # the odds of the less probable label, at most 1
    share = np.where(odds < 0, rare, 1.0) / (1 + rare)
    return share, float((np.log1p(rare) + np.maximum(odds, 0)).sum() - targets @ odds)
