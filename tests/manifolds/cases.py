"""Manifolds, their operations and random arguments for them, shared by all manifold tests."""

import torch
from torch.nn import functional

from fedbolic.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    Stereographic,
    change_curvature,
    frechet_mean,
    midpoint,
    push_to_lorentz,
    push_to_poincare,
    to_lorentz,
    to_poincare,
)


def spherical(c):
    """The sphere of the sectional curvature ``c``."""
    return Stereographic(-c)


CONFORMAL = (Poincare, Stereographic, spherical)
"""Kinds whose metric at the origin is four times the Euclidean one."""

KINDS = (Lorentz, Euclidean, *CONFORMAL)
CURVED = (Lorentz, Poincare)

# arguments of each operation: x y points, u v tangents at x, o a tangent at the origin, a an
# ambient vector, X Y sets of points, w weights
ROLES = {
    "dist": "xy",
    "dist0": "x",
    "cdist": "XY",
    "cdist mm": "XY",
    "cdist mm64": "XY",
    "cdist broadcast": "XY",
    "expmap": "xu",
    "expmap0": "o",
    "logmap": "xy",
    "logmap0": "y",
    "transp": "xyu",
    "transp0": "yo",
    "projx": "a",
    "proju": "xa",
    "egrad2rgrad": "xa",
    "inner": "xuv",
    "norm": "xu",
    "dist2plane": "yxu",
    "centroid": "Xw",
    "frechet_mean": "Xw",
    "midpoint": "xy",
}
OWN = {
    Lorentz: {"to_poincare": "x", "push_to_poincare": "xu", "change_curvature": "x"},
    Poincare: {
        "mobius_add": "xy",
        "to_lorentz": "x",
        "push_to_lorentz": "xu",
        "change_curvature": "x",
    },
    Euclidean: {},
    Stereographic: {"mobius_add": "xy"},
    spherical: {"mobius_add": "xy"},
}
FUNCTIONS = {
    f.__name__: f
    for f in (
        frechet_mean,
        midpoint,
        push_to_lorentz,
        push_to_poincare,
        to_lorentz,
        to_poincare,
    )
}
ALL = [(kind, name) for kind in KINDS for name in ROLES | OWN[kind]]
IDS = [f"{kind.__name__}-{name.replace(' ', '-')}" for kind, name in ALL]


def make(kind, c=1.0):
    return Euclidean() if kind is Euclidean else kind(c)


def call(kind, name, c, *tensors, **options):
    """Call the operation ``name`` on the manifold of curvature ``c``."""
    space = make(kind, c)
    if name == "change_curvature":
        return change_curvature(*tensors, space, kind(0.5))
    if name in FUNCTIONS:
        return FUNCTIONS[name](space, *tensors, **options)
    operation, *mode = name.split()
    return getattr(space, operation)(*tensors, **({"mode": mode[0]} if mode else {}))


def normal(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def lifted(kind, v):
    return functional.pad(v, (1, 0)) if kind is Lorentz else v


def halved(kind, v, c):
    """Vectors whose exponential at the origin has about the length of ``v``.

    On a sphere all lie within 0.7 radii, so that two points are less than a right angle apart.
    """
    if kind is spherical:
        return v / 2 / (1 + c**0.5 * v.norm(dim=-1, keepdim=True) / 0.7)
    return v / 2 if kind in CONFORMAL else v


def points(kind, c, seed, *shape, dtype=torch.float64, radius=1.0):
    """Points whose distance from the origin is about ``radius`` times the root of the dimension."""
    v = normal(seed, *shape, dtype=dtype) * radius
    return make(kind, c).expmap0(lifted(kind, halved(kind, v, c)))


def tangents(kind, c, seed, x, length=1.0):
    """Tangents at ``x`` of about the given length, whatever the radius of ``x``."""
    n = x.shape[-1] - (kind is Lorentz)
    v = normal(seed, *x.shape[:-1], n, dtype=x.dtype) * length
    return make(kind, c).transp0(x, lifted(kind, halved(kind, v, c)))


def arguments(kind, name, c=1.0, *, seed=0, batch=(3,), dim=3, dtype=torch.float64):
    """Ordinary arguments for an operation."""
    x = points(kind, c, seed, *batch, dim, dtype=dtype)
    made = {
        "x": x,
        "y": points(kind, c, seed + 1, *batch, dim, dtype=dtype),
        "u": tangents(kind, c, seed + 2, x),
        "v": tangents(kind, c, seed + 3, x),
        "o": lifted(kind, normal(seed + 4, *batch, dim, dtype=dtype)),
        "a": normal(seed + 5, *x.shape, dtype=dtype) / 2,
        "X": points(kind, c, seed + 6, *batch, 4, dim, dtype=dtype),
        "Y": points(kind, c, seed + 7, *batch, 2, dim, dtype=dtype),
        "w": normal(seed + 8, *batch, 4, dtype=dtype).abs() + 0.1,
    }
    return tuple(made[role] for role in (ROLES | OWN[kind])[name])
