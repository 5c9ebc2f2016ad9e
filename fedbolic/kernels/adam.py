# pyright: reportMissingImports=false, reportIndexIssue=false
"""Kernel of a step of Adam in flat space: one pass over a parameter of all clients."""

import math

import numpy
import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.launch import WARPS, launch

ADAM_NUMBERS = 1024
"""Numbers of a parameter that a program steps; all are one client's."""


@triton.jit
def adam_kernel(
    x, g, mean, square, step, new_x, new_mean, new_square, n, rate: numpy.float64,
    BETA1: tl.constexpr, BETA2: tl.constexpr, LOG1: tl.constexpr, LOG2: tl.constexpr,
    EPS: tl.constexpr, DECAY: tl.constexpr, NUMBERS: tl.constexpr,
):  # fmt: skip
    """New numbers and moments of a part of one client's parameter."""
    blocks = tl.cdiv(n, NUMBERS)
    client, block = (tl.program_id(0) // blocks).to(tl.int64), tl.program_id(0) % blocks
    i = block * NUMBERS + tl.arange(0, NUMBERS)
    place, mask = client * n + i, i < n
    point = tl.load(x + place, mask=mask, other=0.0)
    kind: tl.constexpr = point.dtype
    steps = tl.load(step + client).to(tl.float64)
    # other numbers than constants of the type are rounded to float32
    one = tl.full([], 1.0, tl.float64)
    first = one - tl.exp(steps * tl.full([], LOG1, tl.float64))
    second = one - tl.exp(steps * tl.full([], LOG2, tl.float64))
    size, root = (tl.full([], rate, tl.float64) / first).to(kind), tl.sqrt(second).to(kind)
    given = tl.load(g + place, mask=mask, other=0.0)
    if DECAY > 0:
        given += tl.full([], DECAY, kind) * point
    moment = tl.load(mean + place, mask=mask, other=0.0)
    moment += tl.full([], 1.0 - BETA1, kind) * (given - moment)
    variance = tl.full([], BETA2, kind) * tl.load(square + place, mask=mask, other=0.0)
    variance += tl.full([], 1.0 - BETA2, kind) * given * given
    length = tl.sqrt(variance) / root + tl.full([], EPS, kind)
    tl.store(new_x + place, point - size * (moment / length), mask=mask)
    tl.store(new_mean + place, moment, mask=mask)
    tl.store(new_square + place, variance, mask=mask)


def adam_update(
    x: Tensor,
    grad: Tensor,
    mean: Tensor,
    square: Tensor,
    step: Tensor,
    *,
    lr: float,
    beta1: float,
    beta2: float,
    eps: float,
    weight_decay: float,
    donate: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """A parameter and its moments after a step of Adam.

    Args:
        x: The parameter, in float32 or float64; the leading axes are those of ``step``.
        grad: Its gradient.
        mean: Mean gradient.
        square: Mean squared gradient.
        step: Numbers of steps, this one included, 64-bit integers.
        lr: Step size, 0 or more.
        beta1: Decay rate of the mean gradient, in [0, 1).
        beta2: Decay rate of the mean squared gradient, in [0, 1).
        eps: Number added to the root in the denominator, above 0.
        weight_decay: Weight decay, 0 or more.
        donate: If true, the results are written over ``x``, ``mean`` and ``square``, where these
            are contiguous.
    """
    x, grad, mean, square = (t.contiguous() for t in (x, grad, mean, square))
    new_x, new_mean, new_square = (t if donate else torch.empty_like(t) for t in (x, mean, square))
    n = x.numel() // max(1, step.numel())
    launch(
        adam_kernel, triton.cdiv(n, ADAM_NUMBERS) * step.numel(), x,
        x, grad, mean, square, step.contiguous(), new_x, new_mean, new_square,
        n, lr, BETA1=beta1, BETA2=beta2, LOG1=_log(beta1), LOG2=_log(beta2),
        EPS=eps, DECAY=weight_decay, NUMBERS=ADAM_NUMBERS, num_warps=WARPS,
    )  # fmt: skip
    return new_x, new_mean, new_square


def _log(beta: float) -> float:
    return math.log(beta) if beta else -math.inf
