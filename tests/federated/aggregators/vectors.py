"""Client updates from the rows of a matrix, and back."""

import numpy as np
import torch
from hypothesis import strategies as st

from fedbolic.federated import Update

seeds = st.integers(0, 2**31)


def rows(num, dim, seed, *, spread=1.0):
    """Normal rows around a common mean that is far from 0."""
    rng = np.random.default_rng(seed)
    return 3 * rng.standard_normal(dim) + spread * rng.standard_normal((num, dim))


def updates(x, weights=None, dtype=torch.float64):
    """One update per row: the delta in two leaves, a buffer and an integer count."""
    weights = [1.0] * len(x) if weights is None else weights
    found = []
    for i, (row, weight) in enumerate(zip(x, weights, strict=True)):
        values = torch.as_tensor(np.asarray(row), dtype=dtype)
        delta = {"w": values[1:].clone(), "b": {"c": values[0].clone()}}
        buffers = {"mean": torch.tensor([float(i), -2.0 * i]), "count": torch.tensor(10 * i)}
        found.append((2 * i, Update({"delta": delta, "buffers": buffers}, float(weight))))
    return found


def vector(total):
    """The aggregated delta as one row."""
    delta = total.payload["delta"]
    return np.concatenate([delta["b"]["c"].reshape(1).numpy(), delta["w"].numpy()])
