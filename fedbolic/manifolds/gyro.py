"""Gyrovector operations of the conformal models, the ball and the stereographic model."""

from collections.abc import Callable
from typing import TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.numerics import (
    in_float32,
    per_point,
    root,
    square,
    to_point,
    unit,
)
from fedbolic.manifolds.manifold import PointTensor, Scalars
from fedbolic.manifolds.poincare import Poincare
from fedbolic.manifolds.stereographic import Stereographic

Conformal: TypeAlias = Poincare | Stereographic
"""Spaces whose metric is a multiple of the Euclidean one at every point."""


def conformal_factor(space: Conformal, x: PointTensor) -> Scalars:
    r"""Length of a tangent at ``x`` over its Euclidean length.

    .. math:: \lambda_x = \frac{2}{1 - c |x|^2}

    Raises:
        ValueError: If ``space`` is of another kind.

    Example:
        >>> import torch
        >>> conformal_factor(Poincare(), torch.tensor([0.6, 0.0]))
        tensor(3.1250)
    """
    require_conformal(space)
    return _factor(space, x)


def mobius_fn_apply(
    space: Conformal, function: Callable[[Tensor], Tensor], x: PointTensor
) -> Tensor:
    r"""Apply a function in the tangent space at the origin, :math:`\exp_0(f(\log_0 x))`.

    Args:
        space: Space of the points.
        function: Function of tangents along the last axis; it may change their number.
        x: Points.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ganea et al. (2018), Def. 3.2, arXiv:1805.09112.

    Example:
        >>> import torch
        >>> mobius_fn_apply(Poincare(), torch.neg, torch.tensor([0.5, 0.0]))
        tensor([-0.5000, -0.0000])
    """
    require_conformal(space)
    return space.expmap0(function(space.logmap0(x)))


def mobius_scalar_mul(space: Conformal, r: Scalars | float, x: PointTensor) -> PointTensor:
    r"""Möbius multiple :math:`r \otimes x`, at ``r`` times the distance from the origin.

    Args:
        space: Space of the points.
        r: One number, or one per point.
        x: Points.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ganea et al. (2018), Eq. (3), arXiv:1805.09112.

    Example:
        >>> import torch
        >>> x, space = torch.tensor([0.5, 0.0]), Poincare()
        >>> torch.allclose(mobius_scalar_mul(space, 2.0, x), space.mobius_add(x, x))
        True
    """
    factor = r.unsqueeze(-1) if isinstance(r, Tensor) else r
    return mobius_fn_apply(space, lambda v: factor * v, x)


def mobius_pointwise_mul(space: Conformal, w: PointTensor, x: PointTensor) -> PointTensor:
    r"""Möbius version of the product of coordinates, :math:`\exp_0(w \cdot \log_0 x)`.

    Raises:
        ValueError: If ``space`` is of another kind.
    """
    return mobius_fn_apply(space, lambda v: w * v, x)


def mobius_matvec(
    space: Conformal, m: Float[Tensor, "*#batch out n"], x: Float[Tensor, "*#batch n"]
) -> Float[Tensor, "*#batch out"]:
    r"""Möbius product of a matrix and a point, :math:`\exp_0(M \log_0 x)`.

    Args:
        space: Space of the points.
        m: One matrix, or one per point.
        x: Points.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ganea et al. (2018), Eq. (27), arXiv:1805.09112.
    """
    return mobius_fn_apply(space, lambda v: (m @ v.unsqueeze(-1)).squeeze(-1), x)


def gyration(space: Conformal, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
    r"""Gyration :math:`\mathrm{gyr}[x, y] v`, the rotation by which the Möbius sum is associative.

    .. math:: x \oplus (y \oplus z) = (x \oplus y) \oplus \mathrm{gyr}[x, y] z

    It is parallel transport from :math:`-y` to :math:`x` without the ratio of conformal factors.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ungar (2008), Def. 2.7; Ganea et al. (2018), Sec. 2.3, arXiv:1805.09112.
    """
    require_conformal(space)
    ratio = conformal_factor(space, x) / conformal_factor(space, -y)
    return space.transp(-y, x, v) * ratio.unsqueeze(-1)


def mobius_coadd(space: Conformal, x: PointTensor, y: PointTensor) -> PointTensor:
    r"""Coaddition :math:`x \boxplus y = x \oplus \mathrm{gyr}[x, -y] y`, which commutes.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ungar (2008), Def. 2.9.

    Example:
        >>> import torch
        >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([0.0, 0.5])
        >>> mobius_coadd(Poincare(), x, y)
        tensor([0.4000, 0.4000])
    """
    return space.mobius_add(x, gyration(space, x, -y, y))


@to_point
def antipode(space: Conformal, x: PointTensor) -> PointTensor:
    r"""The opposite point :math:`x / (c |x|^2)` of a sphere; :math:`-x` for ``c`` of 0 or more.

    The antipode of the origin has no coordinates: it is clamped, on the first axis.

    Raises:
        ValueError: If ``space`` is of another kind.

    Example:
        >>> import torch
        >>> antipode(Stereographic(-1.0), torch.tensor([0.5, 0.0]))
        tensor([-2., -0.])
    """
    require_conformal(space)
    (x, _), c = space._read(x), per_point(space.c, x)
    c = torch.as_tensor(c, dtype=x.dtype, device=x.device)
    sphere, size = c < 0, x.abs().amax(-1, keepdim=True)  # the square of a small point would be 0
    first = -1.0 * (torch.arange(x.shape[-1], device=x.device) == 0)
    way = torch.where(size > 0, x / torch.where(size > 0, size, 1.0), first)
    k = torch.where(sphere, -c, 1.0)
    length = (size * root(square(way))).clamp_min(torch.finfo(x.dtype).eps ** 1.5 / k.sqrt())
    return torch.where(sphere, space.within(-unit(way) / (k * length)), -x)


def require_conformal(space: object) -> None:
    """Refuse a space that is not conformal.

    Raises:
        ValueError: If ``space`` is neither ``Poincare`` nor ``Stereographic``.
    """
    if not isinstance(space, Poincare | Stereographic):
        raise ValueError(
            f"Moebius operations need Poincare or Stereographic, got {space!r}: "
            "use expmap, logmap and transp, or convert points with to_poincare"
        )


@in_float32
def _factor(space: Conformal, x: PointTensor) -> Scalars:
    return (2 / space._read(x)[1]).squeeze(-1)
