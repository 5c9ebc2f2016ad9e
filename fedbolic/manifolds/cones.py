"""Entailment cones: nested cones around the rays from the origin, for hierarchies."""

import torch
from torch import Tensor

from fedbolic.core.check import positive
from fedbolic.formulas.numerics import dot, in_float32, per_point, root, square, unit
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import PointTensor, Scalars
from fedbolic.manifolds.poincare import Poincare


def half_aperture(space: Lorentz | Poincare, x: PointTensor, *, k: float = 0.1) -> Scalars:
    r"""Half aperture of the entailment cone with the apex ``x``, in radians.

    .. math:: \psi(x) = \arcsin \frac{K (1 - c |x|^2)}{\sqrt c \, |x|}
        \quad \text{(ball)}, \qquad
        \psi(x) = \arcsin \frac{2 K}{\sqrt c \, |x_s|} \quad \text{(hyperboloid)}

    Both are :math:`\arcsin(2 K / \sinh(\sqrt c \, r))` at the distance :math:`r` from the origin.
    Cones are defined from :math:`\sinh(\sqrt c \, r) = 2 K` on; in the ball this is
    :math:`\sqrt c \, |x| = 2 K / (1 + \sqrt{1 + 4 K^2})`. Nearer to the origin, and in flat space,
    the half aperture is clamped to :math:`\pi / 2` and its gradient is 0.

    Args:
        space: Space of the points.
        x: Apexes.
        k: The constant ``K`` of the references, above 0; 0.1 in both.

    Raises:
        ValueError: If ``k`` is not a positive number, or ``space`` is of another kind.

    References:
        Ganea et al. (2018), Sec. 4, arXiv:1804.01882; Desai et al. (2023), Sec. 3,
        arXiv:2304.09172.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> half_aperture(space, torch.tensor([[1.0, 0.0], [1.25, 0.75]]), k=0.1)
        tensor([1.5708, 0.2699])
    """
    _require_curved(space)
    positive(k=k)
    return _half_aperture(space, x, k=k)


def exterior_angle(space: Lorentz | Poincare, x: PointTensor, y: PointTensor) -> Scalars:
    r"""Angle at ``x`` between the geodesic to ``y`` and the ray away from the origin, in radians.

    In the ball, written for :math:`c = 1`,

    .. math:: \Xi(x, y) = \arccos \frac{x \cdot y \, (1 + |x|^2) - |x|^2 (1 + |y|^2)}
        {|x| \, |x - y| \sqrt{1 + |x|^2 |y|^2 - 2 \, x \cdot y}}

    and on the hyperboloid

    .. math:: \Xi(x, y) = \arccos \frac{\sqrt c \, (y_0 + x_0 \, c \langle x, y \rangle)}
        {\sqrt c \, |x_s| \sqrt{(c \langle x, y \rangle)^2 - 1}}

    The angle is computed as the arctangent of two components of the tangent from ``x`` to ``y``,
    across and along the ray. Neither loses digits near 0, :math:`\pi / 2` or :math:`\pi`. The
    error is that of the direction of ``x``: ``eps`` times :math:`\cosh(\sqrt c \, d(0, x))`.

    The angle is 0 by convention where it has no definition, at ``y = x`` and from the origin: a
    point entails itself, and the origin entails all. Gradients are 0 there, and finite everywhere.

    Args:
        space: Space of the points; in flat space, the angle is the Euclidean one.
        x: Apexes.
        y: Points seen from ``x``.

    Returns:
        Angles in [0, pi]; 0 if ``y`` lies on the ray behind ``x``.

    Raises:
        ValueError: If ``space`` is of another kind.

    References:
        Ganea et al. (2018), Eq. (28), arXiv:1804.01882; Desai et al. (2023), Eq. (6),
        arXiv:2304.09172; the form without cancellation is ours.

    Example:
        >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([[0.8, 0.0], [0.0, 0.0]])
        >>> exterior_angle(Poincare(c=1.0), x, y)
        tensor([0.0000, 3.1416])
    """
    _require_curved(space)
    return _exterior_angle(space, x, y)


def entailment_loss(
    space: Lorentz | Poincare, x: PointTensor, y: PointTensor, *, k: float = 0.1
) -> Scalars:
    r"""Angle by which ``y`` lies outside the entailment cone of ``x``, 0 inside.

    .. math:: E(x, y) = \max(0, \Xi(x, y) - \psi(x))

    Args:
        space: Space of the points.
        x: Apexes, the more general concepts.
        y: Points that ``x`` should entail.
        k: The constant of ``half_aperture``.

    Raises:
        ValueError: If ``k`` is not a positive number, or ``space`` is of another kind.

    References:
        Ganea et al. (2018), Sec. 5, arXiv:1804.01882; Desai et al. (2023), Sec. 3,
        arXiv:2304.09172.

    Example:
        >>> x, y = torch.tensor([0.5, 0.0]), torch.tensor([[0.8, 0.0], [0.0, 0.8]])
        >>> entailment_loss(Poincare(c=1.0), x, y)
        tensor([0.0000, 2.3593])
    """
    return (exterior_angle(space, x, y) - half_aperture(space, x, k=k)).relu()


def _require_curved(space: object) -> None:
    if not isinstance(space, Lorentz | Poincare):
        raise ValueError(
            f"space must be Lorentz or Poincare, got {space!r}: cones narrow by negative curvature"
        )


@in_float32
def _half_aperture(space: Lorentz | Poincare, x: PointTensor, *, k: float) -> Scalars:
    if isinstance(space, Lorentz):
        s, _ = space._read(x)
    else:
        x, gap = space._read(x)
        s = 2 * x / gap
    sinh = root(per_point(space.c, s) * square(s))
    ahead = root((sinh - 2 * k) * (sinh + 2 * k))
    return torch.atan2(torch.full_like(sinh, 2 * k), ahead).squeeze(-1)


@in_float32
def _exterior_angle(space: Lorentz | Poincare, x: PointTensor, y: PointTensor) -> Scalars:
    if isinstance(space, Lorentz):
        x, y = x[..., 1:], y[..., 1:]
        ray = _direction(x)
        across, along = _on_hyperboloid(space, x, y, ray)
    else:
        ray = _direction(x)
        across, along = _in_ball(space, x, y, ray)
    defined = (square(ray) > 0) & ((across > 0) | (along != 0))
    across = torch.where(defined, across, 0.0)
    return torch.atan2(across, torch.where(defined, along, 1.0)).squeeze(-1)


def _direction(x: Tensor) -> Tensor:
    """``unit`` for vectors of any length, also those whose square underflows."""
    return unit(x / _size(x))


def _size(x: Tensor) -> Tensor:
    """Largest absolute coordinate, as a constant that is not 0.

    A ratio of components has the same value and derivatives if both are divided by a constant.
    """
    size = x.detach().abs().amax(-1, keepdim=True)
    return torch.where(size > 0, size, 1.0)


def _split(gap: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Components of a vector along a unit vector and across it."""
    along = dot(gap, ray)
    return along, root(square(gap - along * ray))


def _in_ball(space: Poincare, x: Tensor, y: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    """Components across and along the ray of a multiple of ``logmap(x, y)``."""
    (x, gap_x), (y, _) = space._read(x), space._read(y)
    gap = y - x
    size = _size(gap)
    gap = gap / size
    along, across = _split(gap, ray)
    bend = per_point(space.c, x) * square(gap) * size
    return gap_x * across, gap_x * along - bend * root(square(x))


def _on_hyperboloid(space: Lorentz, x: Tensor, y: Tensor, ray: Tensor) -> tuple[Tensor, Tensor]:
    r"""Components across and along the ray of a multiple of ``logmap(x, y)``.

    Let :math:`p` and :math:`q` be the components of :math:`y_s` along and across, and
    :math:`C_p = \sqrt{1 + c p^2}`. The component of the tangent along the ray,

    .. math:: C_x p - |x_s| C_y
        = (C_x p - |x_s| C_p) - |x_s| \frac{c q^2}{C_y + C_p},

    is the sum of the step on the axis and the bend of a geodesic across it. For positive :math:`p`
    the step is :math:`(p^2 - |x_s|^2) / (C_x p + |x_s| C_p)`.
    """
    (x, time_x), (y, time_y) = space._clamped(x), space._clamped(y)
    scale, length = per_point(space.c, x) ** 0.5, root(square(x))
    gap = y - x
    size = _size(gap)
    along, across = _split(gap / size, ray)
    p = dot(y, ray)
    time_p = (1 + (scale * p).square()).sqrt()
    ahead = p > 0
    front = torch.where(ahead, p, 1.0)
    # the difference of y and x is taken before any rounding
    near = along * ((front + length) / (time_x * front + length * time_p))
    far = (time_x * p - length * time_p) / size
    bend = scale * length * across * (scale * across * size / (time_y + time_p))
    return across, torch.where(ahead, near, far) - bend
