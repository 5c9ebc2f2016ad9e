"""Platt scaling: from the scores of a classifier to the log-odds of its class."""

import numpy as np
from jaxtyping import Bool, Float
from sklearn.linear_model import LogisticRegression


def platt_scaling(
    scores: Float[np.ndarray, " n"], positive: Bool[np.ndarray, " n"], *, shift: bool = True
) -> tuple[float, float]:
    r"""Slope and intercept of the log-odds: the logistic regression of softened labels on scores.

    .. math:: \log \frac{P}{1 - P} = a f + b, \quad t_+ = \frac{N_+ + 1}{N_+ + 2}, \quad
        t_- = \frac{1}{N_- + 2}

    Args:
        scores: Of the classifier, on training examples.
        positive: Which examples are of its class.
        shift: Whether there is an intercept; without, the sign of the score stays the decision.

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
    # a soft label is two examples of opposite labels that share its weight
    model = LogisticRegression(C=np.inf, fit_intercept=shift, tol=1e-8, solver="newton-cholesky")
    scale = float(np.abs(scores).max()) or 1.0
    model.fit(
        np.tile(scores / scale, 2)[:, None],
        np.repeat([1, 0], len(scores)),
        sample_weight=np.concatenate([targets, 1 - targets]),
    )
    return float(model.coef_[0, 0]) / scale, float(np.ravel(model.intercept_)[0])
