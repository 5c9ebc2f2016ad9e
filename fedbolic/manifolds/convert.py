"""Maps between the two models, and between curvatures of one model."""

from jaxtyping import Float
from torch import Tensor

from fedbolic.formulas.numerics import bounded, dot, in_float32, per_point, to_point
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold, PointTensor
from fedbolic.manifolds.poincare import Poincare


def to_poincare(
    space: Lorentz, x: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch ambient-1"]:
    r"""Isometry from the hyperboloid to the ball of the same curvature.

    .. math:: x_s / (1 + \sqrt c \, x_0)

    Args:
        space: Space of ``x``.
        x: Points, with any number of batch axes.

    Returns:
        Points of ``Poincare(space.c)``.

    Example:
        >>> to_poincare(Lorentz(), Lorentz().origin(3))
        tensor([0., 0.])
    """
    return Poincare(space.c).projx(_to_ball(space, x))


def to_lorentz(space: Poincare, x: Float[Tensor, "*batch dim"]) -> Float[Tensor, "*batch dim+1"]:
    r"""Isometry from the ball to the hyperboloid of the same curvature, which must be above 0.

    .. math:: x_s = 2 x / (1 - c |x|^2)

    Args:
        space: Space of ``x``.
        x: Points, with any number of batch axes.

    Returns:
        Points of ``Lorentz(space.c)``.

    Raises:
        ValueError: If the curvature is the number 0: flat space has no hyperboloid.

    Example:
        >>> import torch
        >>> to_lorentz(Poincare(), torch.zeros(2))
        tensor([1., 0., 0.])
    """
    lorentz = Lorentz(space.c)
    return lorentz.projx(lorentz.lift(_to_hyperboloid(space, x)))


def push_to_poincare(
    space: Lorentz, x: Float[Tensor, "*batch ambient"], u: Float[Tensor, "*batch ambient"]
) -> Float[Tensor, "*batch ambient-1"]:
    """Differential of ``to_poincare`` at ``x``, which preserves inner products of tangents.

    Args:
        space: Space of ``x``.
        x: Points.
        u: Tangents at ``x``.

    Returns:
        Tangents at ``to_poincare(space, x)``.
    """
    return _push_to_ball(space, x, u)


def push_to_lorentz(
    space: Poincare, x: Float[Tensor, "*batch dim"], u: Float[Tensor, "*batch dim"]
) -> Float[Tensor, "*batch dim+1"]:
    """Differential of ``to_lorentz`` at ``x``, which preserves inner products of tangents.

    At the origin it doubles coordinates, because lengths there are twice the Euclidean ones in the
    ball.

    Args:
        space: Space of ``x``.
        x: Points.
        u: Tangents at ``x``.

    Returns:
        Tangents at ``to_lorentz(space, x)``.
    """
    return _push_to_hyperboloid(space, x, u)


def change_curvature(
    x: Float[Tensor, "*batch ambient"], old: Manifold, new: Manifold
) -> Float[Tensor, "*batch ambient"]:
    r"""Map to another curvature of the same model, which keeps every length in radii.

    .. math:: x' = x \sqrt{c / c'}, \quad \sqrt{c'} \, d'(x', y') = \sqrt c \, d(x, y)

    Args:
        x: Points of ``old``.
        old: Space of ``x``, with ``c`` above 0.
        new: Space of the result, the same model with another ``c`` above 0.

    Returns:
        Points of ``new``.

    Raises:
        ValueError: If the spaces are of different models, or a curvature is the number 0.

    Example:
        >>> import torch
        >>> change_curvature(torch.tensor([0.5]), Poincare(1.0), Poincare(0.25))
        tensor([1.])
    """
    if type(old) is not type(new):
        raise ValueError(f"{old} and {new} are different models: use to_poincare or to_lorentz")
    if any(not isinstance(space.c, Tensor) and space.c == 0 for space in (old, new)):
        raise ValueError(f"flat space has no unit of length, got {old} and {new}: keep c above 0")
    return _rescale(new, x, old=old)


@in_float32
def _to_ball(space: Lorentz, x: PointTensor) -> Tensor:
    s, time = space._read(x)
    return s / (1 + time)


@in_float32
def _to_hyperboloid(space: Poincare, x: PointTensor) -> Tensor:
    x, gap = space._read(x)
    return 2 * x / gap


@in_float32
def _push_to_ball(space: Lorentz, x: PointTensor, u: PointTensor) -> Tensor:
    (s, time), u = space._read(x), u[..., 1:]
    later = per_point(space.c, s) * dot(s / time, u)
    return (u - s / (1 + time) * later) / (1 + time)


@in_float32
def _push_to_hyperboloid(space: Poincare, x: PointTensor, u: PointTensor) -> Tensor:
    x, gap = space._read(x)
    lorentz = Lorentz(space.c)
    pushed = 2 / gap * (u + 2 * per_point(space.c, x) * dot(x, u) / gap * x)
    return lorentz._tangent(2 * x / gap, 2 / gap - 1, pushed)


@to_point
def _rescale(new: Manifold, x: Tensor, *, old: Manifold) -> Tensor:
    ratio = per_point(bounded(old.c), x) / per_point(new.c, x)
    return new.within(x * ratio**0.5)
