"""Errors of logits against 60 digits and of convolutions against float64, of kernels and operators.

Points and parameters are rounded once to the type; true logits are the published formulas in 60
digits, true derivatives their differences.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple
from unittest import mock

import torch
from mpmath import mp, mpf, workdps
from torch import Tensor
from torch.func import vmap
from torch.nn.functional import conv2d

from benchmarks.geometry import truth
from benchmarks.table import head, line
from fedbolic import kernels
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import MLR
from fedbolic.nn.functional.convolution import im2col_convolution, kernel_convolution
from tests.kernels.errors import Kind, derivatives, of_model, table

NUM_POINTS, DIM, CLASSES = 12, 4, 12


CLIENTS, IMAGES = 2, 4

LAYERS = {
    "16 to 32, 5 x 5, 14 x 14 pixels": (16, 32, 5, 1, 14),
    "16 to 24, 3 x 3, stride 2, 15 x 15 pixels": (16, 24, 3, 2, 15),
}
"""Channels in and out, kernel size, stride, pixels."""

ALGORITHMS = {"conv2d": conv2d, "im2col": im2col_convolution, "kernel": kernel_convolution}


class LogitErrors(NamedTuple):
    """Largest errors of logits and of the gradients of their sum.

    That of a logit is in units of its row's norm, or of its difference as the point moves by its
    own size, if that is larger: near a hyperplane, far points have ill-conditioned logits. That
    of a gradient in units of the largest sum of the absolute derivatives of logits, and by the
    curvature in units of the sum of the absolute logits over the curvature.
    """

    logit: float
    points: float
    weight: float
    bias: float
    curvature: float


def true_logit(kind: Kind, x: list, z: list, a: truth.Number, c: truth.Number) -> truth.Number:
    """The logit of Bdeir et al. (hyperboloid) or of Shimizu et al. (ball)."""
    root, size = mp.sqrt(c), truth.length(z)
    cosh, sinh = mp.cosh(root * a), mp.sinh(root * a)
    if kind is Lorentz:
        return size / root * mp.asinh(root * (cosh * truth.dot(x[1:], z) / size - sinh * x[0]))
    factor = 2 / (1 - c * truth.dot(x, x))
    across = factor * root * truth.dot(x, z) / size * cosh
    return 2 * size / root * mp.asinh(across - (factor - 1) * sinh)


def head_and_points(kind: Kind, radius: float, dtype: torch.dtype) -> tuple[Any, Tensor]:
    """A head with random hyperplanes, and points at a radius."""
    generator, double = torch.Generator().manual_seed(0), torch.float64
    u = torch.randn(NUM_POINTS, DIM, generator=generator, dtype=double)
    x = kind(1.0).expmap0(of_model(kind, u / u.norm(dim=-1, keepdim=True) * radius))
    made = MLR(kind(1.0), DIM, CLASSES, dtype=dtype)
    with torch.no_grad():
        for value in made.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=double))
    return made, x.to(dtype).requires_grad_()


def logit_errors(kind: Kind, radius: float, dtype: torch.dtype, *, kernel: bool) -> LogitErrors:
    """Errors of the logits of all points and hyperplanes, of the kernel or of the operators."""
    layer, x = head_and_points(kind, radius, dtype)
    c = torch.tensor(1.0, dtype=dtype, requires_grad=True)
    on = mock.patch.object(kernels, "run_on", return_value=kernel)
    with on, mock.patch.object(type(layer), "c", c), workdps(60):
        logits = layer(x)
        found = torch.autograd.grad(logits.sum(), (x, layer.weight, layer.bias, c))
        points, rows = ([truth.exact(row) for row in t.tolist()] for t in (x, layer.weight))
        offsets = truth.exact(layer.bias.tolist())
        worst, total, slopes = [], mpf(0), {}
        for i, p in enumerate(points):
            for k, z in enumerate(rows):
                value = true_logit(kind, p, z, offsets[k], mpf(1))
                total += abs(value)
                slopes[i, k] = derivatives(
                    lambda x, z, a, c: true_logit(kind, x, z, a[0], c[0]),
                    *(p, z, [offsets[k]], [mpf(1)]),
                )
                error = abs(mpf(logits[i, k].item()) - value)
                reach = sum(abs(a * b) for a, b in zip(p, slopes[i, k][0], strict=True))
                worst.append(error / max(reach, truth.length(z)))
        gradients = _gradient_errors([t.tolist() for t in found], slopes, total)
    return LogitErrors(float(max(worst)), *gradients)


def _gradient_errors(found: list, slopes: dict, total: truth.Number) -> list[float]:
    """Errors of the gradients with respect to points, weights, offsets and the curvature."""
    rows = [lambda i, k: i, lambda i, k: k, lambda i, k: k, lambda i, k: 0]
    found = [found[0], found[1], [[b] for b in found[2]], [[found[3]]]]
    errors = []
    for which, row_of in enumerate(rows):
        true, unit = {}, {}
        for pair, made in slopes.items():
            for column, slope in enumerate(made[which]):
                place = row_of(*pair), column
                true[place] = true.get(place, mpf(0)) + slope
                unit[place] = unit.get(place, mpf(0)) + abs(slope)
        worst = max(abs(mpf(found[which][r][k]) - value) for (r, k), value in true.items())
        errors.append(float(worst / (total if which == 3 else max(unit.values()))))
    return errors


def logits() -> Iterator[str]:
    """The table of logits, a line at a time."""

    def both(kind: Kind, radius: float, dtype: torch.dtype) -> list[LogitErrors]:
        return [logit_errors(kind, radius, dtype, kernel=kernel) for kernel in (False, True)]

    rows = [(f"MLR, {kind.__name__}", (kind,)) for kind in (Lorentz, Poincare)]
    return table("logits", LogitErrors._fields, "operators, kernel", rows, both)


def convolution_errors(layer: tuple[int, ...], function: Callable[..., Tensor]) -> list[float]:
    """Largest errors of the result and its gradients in float32, over the largest true numbers."""
    inputs, outputs, size, stride, pixels = layer
    generator = torch.Generator().manual_seed(0)
    shapes = (IMAGES, inputs, pixels, pixels), (outputs, inputs, size, size), (outputs,)
    given = [torch.randn(CLIENTS, *shape, generator=generator) for shape in shapes]
    found = _results(function, given, stride)
    true = _results(conv2d, [x.double() for x in given], stride)
    gaps = [(a - b).abs().max() / b.abs().max() for a, b in zip(found, true, strict=True)]
    return [gap.item() for gap in gaps]


def _results(
    function: Callable[..., Tensor], given: list[Tensor], stride: int
) -> tuple[Tensor, ...]:
    leaves = [x.detach().requires_grad_() for x in given]
    alone = partial(function, stride=stride, padding=given[1].shape[-1] // 2)
    y = vmap(alone)(*leaves)
    towards = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return y, *torch.autograd.grad(y, leaves, towards)


def convolutions() -> Iterator[str]:
    """The table of convolutions with an axis of clients, a line at a time."""
    columns = (f"result: {', '.join(ALGORITHMS)}", "by images", "by kernels", "by bias")
    yield head("convolution, float32", *columns)
    with mock.patch.object(kernels, "run_on", return_value=True):
        for name, layer in LAYERS.items():
            every = [convolution_errors(layer, function) for function in ALGORITHMS.values()]
            yield line(
                name, *(", ".join(f"{e:.1e}" for e in of) for of in zip(*every, strict=True))
            )
