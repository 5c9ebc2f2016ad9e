"""Stand-ins for the Triton kernels: their formulas, run as one launch on the shadow device."""

import functools
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from fedbolic import kernels
from fedbolic.formulas import registrar
from fedbolic.nn.layers.dropout import Dropout
from fedbolic.optim.fused_adam import _by_torch
from tests.shadow import _ACTIVE


def install(patch, *, on):
    """Let kernels run in place of the operators, or turn them off."""
    patch.setattr(kernels, "are_on", lambda: on)
    patch.setattr(registrar, "_launcher", _launcher)
    for module, (function, stand_in) in STAND_INS.items():
        name = f"fedbolic.kernels.{module}"
        made = ModuleType(name)
        setattr(made, function, functools.partial(_launched, function, stand_in))
        patch.setitem(sys.modules, name, made)


def _launched(name, kernel, *tensors, **options):
    return _ACTIVE[-1].launch(name, kernel, tensors, options)


def _launcher(name):
    kernel, of_gradients = name.removesuffix("_gradients"), name.endswith("_gradients")
    found = [constants for known, constants in registrar.FORMULAS if known == kernel]
    names = {constant for pairs in found for constant, _ in pairs}

    def launched(*tensors, kept=None, **settings):
        constants = frozenset((n, settings.pop(n)) for n in names & settings.keys())
        formula = registrar.FORMULAS[kernel, constants]
        if kernel == "pairs.pair_dist" and ("hyperboloid", True) in constants:
            formula = _with_times(formula)
        run = _gradients if of_gradients else _value
        return _launched(name, functools.partial(run, formula, kernel), *tensors, **settings)

    return launched


def _value(formula, kernel, *tensors, **settings):
    return _laid_out(kernel, formula(*tensors, **settings))


def _gradients(formula, kernel, grad, *tensors, needed, **settings):
    given = tensors[: len(needed)]
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in given]
        value = formula(*leaves, **settings)
        made = torch.autograd.grad(value, leaves, grad, materialize_grads=True)
    return tuple(_laid_out(kernel, g) if n else None for g, n in zip(made, needed, strict=True))


def _laid_out(kernel, x):
    """The order in which a kernel writes: that of the axes, or channels last for images."""
    if kernel != "convolution.client_convolution":
        return x.contiguous()
    flat = x.reshape(-1, *x.shape[-3:]).contiguous(memory_format=torch.channels_last)
    return flat.unflatten(0, x.shape[:-3])


def _with_times(formula):
    """The formula of distances with time coordinates that follow from the points."""

    def distances(x, a, y, b, c):
        def timed(x, a):
            exact = (c * (x * x).sum(-1, keepdim=True) + 1).sqrt()
            return a.detach() + exact - exact.detach()

        return formula(x, timed(x, a), y, timed(y, b), c)

    return distances


def _adam(x, grad, mean, square, step, *, donate, lr, **numbers):
    given = [[t if donate else t.clone()] for t in (x, mean, square)]
    found = _by_torch(tuple(given), [grad], step, {**numbers, "lr": lr}, donate=donate)
    return tuple(of[0] for of in found)


def _dropout(x, seeds, *, least, factor):
    layer: Any = SimpleNamespace(_next_seed=lambda: seeds, _least=least)
    return x * Dropout._kept(layer, x.shape, x.dtype, x.device) * factor


def _hash(columns, rows, block):
    sums = columns.long()[rows.long()].sum(1)
    padding = -len(sums) % block
    low = sums.new_full((padding, sums.shape[1]), torch.iinfo(torch.int32).min)
    return torch.cat((sums, low)).unflatten(0, (-1, block)).amax(1).T.int().contiguous()


STAND_INS = {
    "adam": ("adam_update", _adam),
    "dropout": ("masked", _dropout),
    "hash": ("block_maximum", _hash),
}
"""Kernels that are no formula's, by module: the name of the function, and what it gives."""
