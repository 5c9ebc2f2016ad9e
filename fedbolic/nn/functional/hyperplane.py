r"""Signed distances from points to hyperplanes by one matrix product.

Take the hyperplane at the signed distance :math:`a` from the origin in the direction of the unit
vector :math:`e`. The Minkowski product of a point of the hyperboloid with the normal
:math:`(\sinh(\sqrt c \, a), \cosh(\sqrt c \, a) \, e)` is :math:`\sinh(\sqrt c \, d) / \sqrt c`,
with :math:`d` the signed distance from the point to the hyperplane.
"""

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fedbolic.formulas.analytic import asinhc, sinhc
from fedbolic.formulas.numerics import HYPERBOLOID_RADIUS, LONGEST_STEP
from fedbolic.formulas.registrar import with_kernel
from fedbolic.formulas.sinh_ratio import sinh_ratio_and_cosh
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn.functional.coordinates import on_hyperboloid
from fedbolic.nn.functional.space import rounded, wide


@with_kernel("logits.plane_logits", axes=2, keeps=True)
def hyperplane_logits(
    x: Float[Tensor, "*#batch n d"],
    weight: Float[Tensor, "*#batch m dim"],
    offset: Tensor,
    c: Tensor | float,
    *,
    factor: float,
    hyperboloid: bool,
) -> Float[Tensor, "*#batch n m"]:
    """Signed distances to hyperplanes, times a number and the norms of the rows of ``weight``.

    Args:
        x: Time and space coordinates of points.
        weight: Directions of the hyperplanes at the origin.
        offset: Signed distances of the hyperplanes from the origin, of shape ``(..., 1, m)``.
        c: Minus the sectional curvature, 0 or more, of shape ``(..., 1, 1)``.
        factor: The number.
        hyperboloid: True if time coordinates are in units of length, False if in radii.
    """
    limit = LONGEST_STEP[x.dtype] ** 0.5 / c**0.5
    a = offset.clamp(-limit, limit)
    sinh = a * sinhc(a * a, c)
    length = (weight * weight).sum(-1, keepdim=True).clamp_min(torch.finfo(x.dtype).tiny).sqrt()
    first = -(c**0.5) * sinh if hyperboloid else -sinh
    space = (c * sinh * sinh + 1).sqrt().mT * (weight / length)
    t = x @ torch.cat((first.mT.expand(*space.shape[:-1], 1), space), -1).mT
    limit = (HYPERBOLOID_RADIUS[t.dtype] / c) ** 0.5
    t = t.clamp(-limit, limit)
    return factor * length.mT * t * asinhc(t * t, c)


def timed(
    space: Lorentz | Poincare, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch coordinates"]:
    """Time and space coordinates of points, time as :func:`normals` takes it."""
    if isinstance(space, Lorentz):
        return x
    return rounded(torch.cat(on_hyperboloid(space, x), -1), x.dtype)


def unit_normals(
    space: Lorentz | Poincare,
    weight: Float[Tensor, "m n"],
    length: Float[Tensor, " m"],
    offset: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m n+1"]:
    """Normals of length 1 in the dtype of ``weight``; arguments as in :func:`normals`."""
    unit = wide(weight) / length.unsqueeze(-1)
    return rounded(normals(space, unit, torch.ones_like(length), offset), weight.dtype)


def lengths(weight: Float[Tensor, "m n"]) -> Float[Tensor, " m"]:
    """Norms of the rows, at least the root of the smallest float; the derivative at 0 is 0."""
    return (weight * weight).sum(-1).clamp_min(torch.finfo(weight.dtype).tiny).sqrt()


def normals(
    space: Lorentz | Poincare,
    weight: Float[Tensor, "m n"],
    length: Float[Tensor, " m"],
    offset: Float[Tensor, " m"] | None,
) -> Float[Tensor, "m n+1"]:
    """Normals of hyperplanes as coefficients of time and space coordinates.

    Each normal is as long as its row of ``weight``.

    Args:
        space: Space of the hyperplanes. Time coordinates are in units of length for ``Lorentz`` and
            in radii for ``Poincare``.
        weight: Directions at the origin.
        length: Norms of these rows.
        offset: Signed distances of the hyperplanes from the origin, clamped to 41 radii in float32
            (346 in float64); ``None`` for 0.
    """
    if offset is None:
        return functional.pad(weight, (1, 0))
    sinh, cosh = sinh_ratio_and_cosh(wide(offset), space.c)
    unit = space.c**0.5 if isinstance(space, Lorentz) else 1.0
    return torch.cat(((-unit * sinh * length).unsqueeze(-1), cosh.unsqueeze(-1) * weight), -1)
