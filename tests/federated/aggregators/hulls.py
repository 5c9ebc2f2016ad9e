"""Random vectors for the tests of least-norm points, and their reference solution."""

import itertools

import numpy as np
import torch
from hypothesis import strategies as st

from fedbolic.federated import Update

seeds = st.integers(0, 2**31)


@st.composite
def hulls(draw, *, most=12):
    """Vectors of any rank, some of them repeated or of very different lengths."""
    k, dim = draw(st.integers(1, most)), draw(st.integers(1, 8))
    rng = np.random.default_rng(draw(seeds))
    x = rng.standard_normal((k, dim)) + draw(st.sampled_from([0, 1, 5]))
    x = draw(
        st.sampled_from([x, np.round(x), x[rng.integers(0, k, k)], x * 10.0 ** rng.uniform(-4, 0)])
    )
    return torch.from_numpy(x)


def uniform(k):
    return torch.full((k,), 1 / k, dtype=torch.float64)


def nearest_by_faces(x):
    """The least-norm point of a hull by trying every face: least squares on its affine span."""
    best = None
    for size in range(1, len(x) + 1):
        for face in itertools.combinations(range(len(x)), size):
            first, *others = x[list(face)].numpy()
            spans = np.array(others).reshape(-1, x.shape[1]) - first
            w = np.linalg.lstsq(spans.T, -first, rcond=None)[0]
            if (w >= -1e-12).all() and w.sum() <= 1 + 1e-12:
                point = first + w @ spans
                if best is None or point @ point < best @ best:
                    best = point
    return torch.from_numpy(best)


def updates(x, weights=None, dtype=torch.float64):
    """One update per row, with its delta split over a nested tree and with buffers."""
    weights = [1.0] * len(x) if weights is None else weights
    return {
        i: Update(
            {
                "delta": {"a": row[:1].to(dtype), "b": {"c": row[1:].reshape(-1, 1).to(dtype)}},
                "buffers": {"mean": torch.tensor([float(i)]), "steps": torch.tensor(10 * i)},
            },
            float(weight),
        )
        for i, (row, weight) in enumerate(zip(x, weights, strict=True))
    }
