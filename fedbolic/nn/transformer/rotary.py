"""Rotary positions: rotations of space coordinates, which keep every distance from the origin."""

import torch
from jaxtyping import Float
from torch import Tensor


def rotated(
    s: Float[Tensor, "*batch dim"], base: float, *, start: int = 0, axis: int = -2
) -> Float[Tensor, "*batch dim"]:
    r"""Coordinates turned by angles that are proportional to their positions.

    .. math:: (s_k, s_{k + d/2}) \mapsto R(p \, b^{-2 k / d}) \, (s_k, s_{k + d/2}),
        \quad k < d / 2

    with the rotation :math:`R` by an angle. A rotation of space coordinates is an isometry of the
    hyperboloid that fixes the origin, so a Lorentz product of two turned points depends on the
    difference of their positions alone. On tangents at the origin it is the same rotation.

    Args:
        s: Space coordinates or tangents, of even dimension.
        base: The base :math:`b` of the frequencies, above 1.
        start: Position :math:`p` of the first point.
        axis: Axis of the positions, below -1.

    References:
        Su et al. (2021), arXiv:2104.09864, Eq. (34), whose pairs are neighbours; the halves of a
        vector need no strides.

    Example:
        >>> rotated(torch.tensor([[1.0, 0.0]] * 2), 10000.0)
        tensor([[1.0000, 0.0000],
                [0.5403, 0.8415]])
    """
    n, dim = s.shape[axis], s.shape[-1]
    axes = torch.arange(0, dim, 2, dtype=torch.float64, device=s.device)
    places = torch.arange(start, start + n, dtype=torch.float64, device=s.device)
    angle = places.view(n, *(1,) * (-1 - axis)) * base ** (-axes / dim)
    cos, sin = angle.cos(), angle.sin()
    cos, sin = (torch.cat(of, -1).to(s.dtype) for of in ((cos, cos), (-sin, sin)))
    return torch.addcmul(s * cos, s.roll(dim // 2, -1), sin)
