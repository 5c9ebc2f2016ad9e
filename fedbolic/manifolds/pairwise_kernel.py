"""Pairwise distances by the kernels for CUDA, and their derivatives."""

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.autograd import forward_ad

from fedbolic import kernels
from fedbolic.manifolds.analytic import gap_length
from fedbolic.manifolds.ball_formulas import ball_gap
from fedbolic.manifolds.lorentz_formulas import hyperboloid_gap
from fedbolic.manifolds.numerics import dot

KnownPoints: TypeAlias = tuple[Tensor, Tensor]
"""Coordinates within the range of a manifold, and time coordinates in radii or gaps."""


def has_kernel(x: Tensor, y: Tensor) -> bool:
    """True if the distances between points are computed by a kernel, also under ``vmap``.

    A compiler and forward derivatives take torch's operators.
    """
    free = not torch.compiler.is_compiling() and forward_ad._current_level < 0
    return free and kernels.replace_operators(x, y)


def kernel_distances(
    points: KnownPoints, others: KnownPoints, c: Tensor | float, *, hyperboloid: bool
) -> Tensor:
    """All distances between two sets of points, differentiable any number of times.

    First derivatives are kernels, too; higher ones are those of torch's operators.

    Args:
        points: Coordinates of shape ``(..., n, d)`` and numbers of shape ``(..., n, 1)``.
        others: The same of ``m`` other points.
        c: Minus the sectional curvature, one value per matrix.
        hyperboloid: True for points of the hyperboloid, False for those of the ball.
    """
    if not isinstance(c, Tensor):
        c = points[0].new_full((), c)
    return _Distances.apply(hyperboloid, *points, *others, c.reshape(c.shape or (1, 1)))


class _Distances(torch.autograd.Function):
    """The matrix of distances of :func:`kernel_distances`."""

    @staticmethod
    def forward(hyperboloid: bool, *tensors: Tensor) -> Tensor:
        from fedbolic.kernels.pairs import pair_distances

        x, a, y, b, c = tensors
        return pair_distances((x, a), (y, b), c, hyperboloid=hyperboloid)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: Tensor) -> None:
        hyperboloid, *tensors = inputs
        ctx.hyperboloid = hyperboloid
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        curved = ctx.needs_input_grad[-1]
        options = ctx.hyperboloid, curved
        by_x, by_a, by_y, by_b, *by_c = _Gradients.apply(options, *grad_outputs, *ctx.saved_tensors)
        if ctx.hyperboloid:  # time coordinates are functions of the others
            by_a = by_b = None
        return None, by_x, by_a, by_y, by_b, by_c[0] if curved else None

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[Tensor, int]:
        hyperboloid, *tensors = inputs
        return _Distances.apply(hyperboloid, *_batch_first(tensors, in_dims[1:])), 0


class _Gradients(torch.autograd.Function):
    """Gradients of :class:`_Distances` with respect to all its tensors."""

    @staticmethod
    def forward(options: tuple[bool, bool], *tensors: Tensor) -> tuple[Tensor, ...]:
        from fedbolic.kernels.pairs import pair_gradients

        (hyperboloid, curved), (g, x, a, y, b, c) = options, tensors
        some = pair_gradients(g, (x, a), (y, b), c, hyperboloid=hyperboloid, curved=curved)
        more = pair_gradients(g.mT, (y, b), (x, a), c, hyperboloid=hyperboloid)
        both = [(x, a, some.vector, some.radial), (y, b, more.vector, more.radial)]
        if hyperboloid:
            both = [(p, a, _with_radial(p, a, v, r, c), r) for p, a, v, r in both]
        made = [
            grad.sum_to_size(given.shape) for p, a, v, r in both for grad, given in ((v, p), (r, a))
        ]
        if some.curvature is not None:
            made.append(some.curvature.sum_to_size(c.shape))
        return tuple(made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple[Tensor, ...]) -> None:
        ctx.options, *tensors = inputs
        ctx.save_for_backward(*tensors)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Tensor) -> tuple[Tensor | None, ...]:
        hyperboloid, curved = ctx.options

        def gradients(g: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
            gradient = torch.func.vjp(_by_operators(hyperboloid), *tensors)[1]
            return gradient(g)[: 4 + curved]

        return None, *torch.func.vjp(gradients, *ctx.saved_tensors)[1](grad_outputs)

    @staticmethod
    def vmap(info: Any, in_dims: tuple, *inputs: Any) -> tuple[tuple[Tensor, ...], Any]:
        options, *tensors = inputs
        # every gradient has the axis, so every tensor needs it
        tensors = [
            t.expand(info.batch_size, *t.shape) if dim is None else t.movedim(dim, 0)
            for t, dim in zip(tensors, in_dims[1:], strict=True)
        ]
        made = _Gradients.apply(options, *_batch_first(tensors, (0,) * len(tensors)))
        shapes = [t.shape for t in tensors[1 : 1 + len(made)]]
        made = tuple(t.reshape(shape) for t, shape in zip(made, shapes, strict=True))
        return made, (0,) * len(made)


def _with_radial(x: Tensor, a: Tensor, vector: Tensor, radial: Tensor, c: Tensor) -> Tensor:
    """Half the vector, with the component along the point that it should have."""
    return torch.addcmul(vector, c * a.pow(-2) * (radial - dot(x, vector)), x) / 2


def _by_operators(hyperboloid: bool) -> Callable[..., Tensor]:
    """The function of :class:`_Distances` in operators of torch."""

    def distances(x: Tensor, a: Tensor, y: Tensor, b: Tensor, c: Tensor) -> Tensor:
        x, a = x.unsqueeze(-2), a.unsqueeze(-2)
        y, b = y.unsqueeze(-3), b.unsqueeze(-3)
        c = c.unsqueeze(-1)
        q = hyperboloid_gap(x, a, y, b, c) if hyperboloid else ball_gap(x, a, y, b)
        return gap_length(q, c).squeeze(-1)

    return distances


def _batch_first(tensors: list[Tensor], in_dims: tuple) -> list[Tensor]:
    """Tensors with the mapped axis before all axes of all tensors."""
    moved = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims, strict=True)]
    most = max(t.ndim - (d is not None) for t, d in zip(moved, in_dims, strict=True))
    return [
        t if d is None else t.reshape(len(t), *[1] * (most + 1 - t.ndim), *t.shape[1:])
        for t, d in zip(moved, in_dims, strict=True)
    ]
