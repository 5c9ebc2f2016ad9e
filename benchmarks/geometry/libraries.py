"""Manifolds of this library, geoopt and hypll, whose operations have the same names."""

import importlib
import importlib.util
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

LIBRARIES = ("fedbolic", "geoopt", "hypll")


def installed(library: str) -> bool:
    """True if a package is installed."""
    return importlib.util.find_spec(library) is not None


def space_of(
    library: str,
    model: str,
    c: float = 1.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Any:
    """A manifold of a library; ``None`` if the library lacks the model or is not installed.

    Args:
        library: One of ``LIBRARIES``.
        model: ``ball``; any other name is the hyperboloid.
        c: Minus the curvature.
        dtype: Type of a peer's curvature, which would be rounded otherwise.
        device: Device of a peer's curvature.
    """
    of_ball = model == "ball"
    if library == "fedbolic":
        from fedbolic.manifolds import Lorentz, Poincare

        return Poincare(c) if of_ball else Lorentz(c)
    if not installed(library):
        return None
    if library == "geoopt":
        geoopt = importlib.import_module("geoopt")
        held = torch.tensor(c if of_ball else 1 / c, dtype=dtype)  # the squared radius there
        return (geoopt.PoincareBall if of_ball else geoopt.Lorentz)(held).to(device)
    return _hypll(torch.tensor(c, dtype=dtype, device=device)) if of_ball else None


def _hypll(c: torch.Tensor) -> SimpleNamespace:
    """Hypll's formulas on ordinary tensors."""
    math = importlib.import_module("hypll.manifolds.poincare_ball.math")
    names = "dist", "expmap", "expmap0", "logmap", "logmap0", "mobius_add", "transp"
    space = SimpleNamespace(**{name: partial(getattr(math.diffgeom, name), c=c) for name in names})
    space.transp0 = lambda y, v: space.transp(torch.zeros_like(y[0]), y, v)
    space.centroid = partial(math.stats.midpoint, c=c, batch_dim=[0])
    space.frechet_mean = partial(math.stats.frechet_mean, c=c)
    space.cdist = lambda x, y: math.diffgeom.cdist(x.unsqueeze(0), y.unsqueeze(0), c).squeeze(0)
    return space


def hypll_ball() -> Any:
    """The ball of hypll with the curvature -1, for its layers."""
    curved = importlib.import_module("hypll.manifolds.poincare_ball")
    return curved.PoincareBall(curved.Curvature(1.0, constraining_strategy=lambda value: value))
