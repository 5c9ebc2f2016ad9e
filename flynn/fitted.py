"""Fitted parts of an estimator's hash: connections, signs and a feature scaler."""

from typing import Any, Literal, NamedTuple, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from torch import Tensor

from fedbolic.core import check
from flynn.channels import Channels, channel_signs, check_channels, width
from flynn.fly_hash import check_active, connections, fly_hash

Rescaling: TypeAlias = Literal["standard", "range"] | None

ROWS_PER_FEATURE = 256
"""Hash length per feature if ``dim`` is ``None``; the paper's range is from 2 to 2048."""


@runtime_checkable
class Settings(Protocol):
    """Settings common to :class:`~flynn.FlyHash` and :class:`~flynn.FlyNNClassifier`."""

    dim: int | None
    fan_in: int | None
    active: int | None
    channels: Channels
    scaling: Rescaling
    seed: int
    n_features_in_: int


class Fitted(NamedTuple):
    """Fitted parameters of a hash, which become attributes of the estimators."""

    rows: NDArray[np.int32]
    num_winners: int
    signs: NDArray[np.int32] | None
    scaler: StandardScaler | MinMaxScaler | None


def draw_lift(
    model: Settings, X: NDArray[Any], weights: NDArray[np.float64] | None = None
) -> Fitted:
    """Draw the lift and the signs of an estimator, and fit its scaler.

    Args:
        model: Estimator with its settings and ``n_features_in_``.
        X: Examples to fit the scaler, (n, d).
        weights: Weight of each example, at least 0; ``None`` for 1 each.

    Raises:
        ValueError: If a size does not fit the features, or a name is unknown.
    """
    check.at_least(0, seed=model.seed)
    check_channels(model.channels)
    num_inputs = model.n_features_in_
    num_values = width(model.channels, num_inputs)
    dim = ROWS_PER_FEATURE * num_inputs if model.dim is None else model.dim
    fan_in = -(-num_values // 10) if model.fan_in is None else model.fan_in
    active = max(1, min(32, dim // 2)) if model.active is None else model.active
    if fan_in > num_values:
        times = ", twice with on-off" if num_values > num_inputs else ""
        raise ValueError(
            f"fan_in is {fan_in}, but there are {num_inputs} features{times}: use a smaller fan_in"
        )
    rows = connections(dim, num_values, fan_in, model.seed).numpy().copy()
    check_active(active, dim)
    signs = channel_signs(model.channels, num_inputs, model.seed)
    scaler = _scaler(model.scaling, X, weights)
    return Fitted(rows, active, None if signs is None else signs.numpy(), scaler)


def _scaler(
    scaling: Rescaling, X: NDArray[Any], weights: NDArray[np.float64] | None
) -> StandardScaler | MinMaxScaler | None:
    """Scaler fitted to the examples, or ``None``."""
    if scaling is None:
        return None
    check.one_of(("standard", "range"), scaling=scaling)
    X = X.astype(np.float64)
    if scaling == "standard":
        return StandardScaler().fit(X, sample_weight=weights)
    return MinMaxScaler((-1, 1)).fit(X if weights is None else X[weights > 0])


def hashes(X: NDArray[Any], fitted: Fitted) -> Tensor:
    """Positions of the ones in the hashes of examples.

    Args:
        X: Examples, (n, d), of any numeric type.
        fitted: Fitted parameters of the hash.
    """
    if fitted.scaler is not None:
        X = np.asarray(fitted.scaler.transform(X.astype(np.float64)))
    whole = X if X.dtype.kind in "iuf" else X.astype(np.float64)
    x = np.require(whole, requirements=("C", "W"))  # torch warns of memory that is read-only
    known = x if x.dtype.kind != "u" or x.dtype == np.uint8 else x.astype(np.float64)
    signs = None if fitted.signs is None else torch.from_numpy(fitted.signs)
    rows = torch.from_numpy(fitted.rows)
    return fly_hash(torch.from_numpy(known), rows, fitted.num_winners, signs=signs)
