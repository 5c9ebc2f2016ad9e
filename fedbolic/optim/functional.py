"""Riemannian SGD and Adam as pure functions of named tensors."""

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.manifolds.manifold import Manifold
from fedbolic.optim.foreach import each
from fedbolic.optim.fused_adam import can_fuse_adam, fused_adam

Spaces = Mapping[str, Manifold]
"""Manifolds of parameters by name; parameters without one are Euclidean."""


class Optimizer(ABC):
    """Interface of optimisers: the pure functions ``init`` and ``step``.

    Neither changes its arguments, unless they are donated. Leading axes are independent, so the
    parameters and states of many clients may be stacked and stepped together, by one call or under
    ``vmap``. Counters are tensors, so the clients may have made different numbers of steps.
    """

    @abstractmethod
    def init(self, parameters: Params) -> Tree:
        """The state before the first step: nested dicts of tensors.

        Args:
            parameters: Tensors by name; only their shapes, dtypes and devices are read.
        """

    @abstractmethod
    def step(
        self,
        parameters: Params,
        gradients: Params,
        state: Tree,
        *,
        lr: float,
        spaces: Spaces | None = None,
        donate: bool = False,
    ) -> tuple[Params, Tree]:
        """The parameters and the state after one step.

        Args:
            parameters: Tensors by name; on a manifold, points along the last axis.
            gradients: Euclidean gradients by name; a parameter without one is not changed.
            state: State returned by ``init`` or by the last step.
            lr: Step size, 0 or more.
            spaces: Manifolds of the parameters that have one.
            donate: If true, the results may reuse the storage of ``parameters`` and ``state``,
                which the caller must not use again. This saves memory for large models.

        Raises:
            ValueError: If a gradient or a space has a name that is not a parameter's.
        """

    def change_curvature(self, state: Tree, old: Spaces, new: Spaces) -> Tree:
        r"""Rescale the moments in the state from the spaces ``old`` to the spaces ``new``.

        ``manifolds.change_curvature`` multiplies points by :math:`s = \sqrt{c / c'}`. A gradient is
        a derivative by length, so it is divided by :math:`s`; moments are means of gradients and,
        under ``square``, of their squares. Counts under ``step`` stay.

        Args:
            state: State whose moments are tangents of the spaces ``old``.
            old: Spaces before the change, by the name of the parameter.
            new: The same spaces with new curvatures.

        References:
            Bdeir et al. (2024), Sec. 3, arXiv:2405.13979, on stale moments of a learnt curvature.
        """

        def ratio(name: str, m: Tensor) -> Tensor:
            found = torch.as_tensor(new[name].c / old[name].c, dtype=m.dtype, device=m.device)
            return found.unsqueeze(-1)

        rescaled: Tree = dict(state)
        for kind in state.keys() - {"step"}:
            power = 1.0 if kind == "square" else 0.5
            rescaled[kind] = {
                name: m * ratio(name, m).pow(power) if name in old else m
                for name, m in state[kind].items()
            }
        return rescaled


@dataclass(frozen=True)
class SGD(Optimizer):
    r"""SGD with momentum, along geodesics for parameters on a manifold.

    .. math:: g = \mathrm{egrad2rgrad}_x(\nabla f(x) + \lambda x), \quad m' = \mu m + g, \quad
        x' = \exp_x(-\eta m'), \quad m'' = \mathrm{transp}_{x \to x'}(m')

    In Euclidean space the results equal those of ``torch.optim.SGD`` bit for bit.

    Args:
        momentum: Momentum :math:`\mu`, in [0, 1).
        weight_decay: Weight decay :math:`\lambda`, 0 or more, applied to the Euclidean gradient.
        nesterov: Whether to step along :math:`g + \mu m'` instead of :math:`m'`.

    References:
        Bonnabel (2013), Eq. (2), arXiv:1111.5280.

    Example:
        >>> x = {"x": torch.ones(2)}
        >>> SGD().step(x, {"x": torch.ones(2)}, SGD().init(x), lr=0.5)
        ({'x': tensor([0.5000, 0.5000])}, {})
    """

    momentum: float = 0.0
    weight_decay: float = 0.0
    nesterov: bool = False

    def __post_init__(self) -> None:
        check.rate(below_one=True, momentum=self.momentum)
        check.not_negative(weight_decay=self.weight_decay)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs momentum, got 0: set momentum or turn nesterov off")

    @override
    def init(self, parameters: Params) -> Tree:
        return {"momentum": tree.zeros_like(parameters)} if self.momentum else {}

    @override
    def step(
        self,
        parameters: Params,
        gradients: Params,
        state: Tree,
        *,
        lr: float,
        spaces: Spaces | None = None,
        donate: bool = False,
    ) -> tuple[Params, Tree]:
        names, spaces = _names(parameters, gradients, spaces)
        points = _of(parameters, names)
        g = m = _gradients(names, points, _of(gradients, names), spaces, self.weight_decay)[0]
        if self.momentum:
            old = _of(state["momentum"], names)
            m = each("add", each("mul", old, self.momentum, donate=donate), g, donate=True)
        descent = each("add", g, m, alpha=self.momentum) if self.nesterov else m
        carried = m if self.momentum else None
        moved, carried = _move(names, points, descent, carried, spaces, lr, donate=donate)
        if not self.momentum:
            return parameters | _named(names, moved), state
        momentum = state["momentum"] | _named(names, carried)
        return parameters | _named(names, moved), {"momentum": momentum}


@dataclass(frozen=True)
class Adam(Optimizer):
    r"""Adam, with a single second moment per point for parameters on a manifold.

    .. math:: m' = \beta_1 m + (1 - \beta_1) g, \quad
        v' = \beta_2 v + (1 - \beta_2) \langle g, g \rangle_x, \quad
        x' = \exp_x\Bigl(-\eta \frac{m' / (1 - \beta_1^t)}
        {\sqrt{v' / (1 - \beta_2^t)} + \epsilon}\Bigr)

    In Euclidean space the square is taken per coordinate, which gives ``torch.optim.Adam``. On a
    manifold, :math:`m'` is then transported to :math:`x'`.

    Args:
        beta1: Decay rate of the mean gradient, in [0, 1).
        beta2: Decay rate of the mean squared gradient, in [0, 1).
        eps: Number added to the root in the denominator, above 0.
        weight_decay: Weight decay, 0 or more, applied to the Euclidean gradient.

    References:
        Kingma and Ba (2015), Alg. 1, arXiv:1412.6980; Becigneul and Ganea (2019), Alg. 1,
        arXiv:1810.00760, here with the second moment of Adam instead of the maximum of AMSGrad.

    Example:
        >>> x = {"x": torch.ones(2)}
        >>> moved, _ = Adam().step(x, {"x": torch.tensor([3.0, -3.0])}, Adam().init(x), lr=0.5)
        >>> moved
        {'x': tensor([0.5000, 1.5000])}
    """

    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check.rate(below_one=True, beta1=self.beta1, beta2=self.beta2)
        check.positive(eps=self.eps)
        check.not_negative(weight_decay=self.weight_decay)

    @override
    def init(self, parameters: Params) -> Tree:
        devices = {x.device for x in parameters.values()}
        return {
            "step": torch.zeros((), dtype=torch.int64, device=min(devices, key=str, default=None)),
            "mean": tree.zeros_like(parameters),
            "square": tree.zeros_like(parameters),
        }

    @override
    def step(
        self,
        parameters: Params,
        gradients: Params,
        state: Tree,
        *,
        lr: float,
        spaces: Spaces | None = None,
        donate: bool = False,
    ) -> tuple[Params, Tree]:
        names, spaces = _names(parameters, gradients, spaces)
        points, g = _of(parameters, names), _of(gradients, names)
        mean, square = _of(state["mean"], names), _of(state["square"], names)
        step = state["step"] + 1

        def results(points: list[Tensor], *moments: list[Tensor]) -> tuple[Params, Tree]:
            found = zip(("mean", "square"), moments, strict=True)
            new: Tree = {kind: state[kind] | _named(names, x) for kind, x in found}
            return parameters | _named(names, points), {"step": step, **new}

        if not spaces and can_fuse_adam(given := (points, mean, square), g, lr):
            numbers = {"lr": lr, **dataclasses.asdict(self)}
            return results(*fused_adam(given, g, step, numbers, donate=donate))
        g, squares = _gradients(names, points, g, spaces, self.weight_decay, squared=True)
        mean = each("lerp", mean, g, 1 - self.beta1, donate=donate)
        square = each("mul", square, self.beta2, donate=donate)
        square = each("add", square, squares, alpha=1 - self.beta2, donate=True)
        root = each("sqrt", square)
        bias = [b.sqrt() for b in _biases(self.beta2, step, points)]
        root = each("add", each("div", root, bias, donate=True), self.eps, donate=True)
        descent = each("div", mean, _biases(self.beta1, step, points))
        descent = each("div", descent, root, donate=True)
        moved, mean = _move(names, points, descent, mean, spaces, lr, donate=donate)
        return results(moved, mean, square)


def _names(
    parameters: Params, gradients: Params, spaces: Spaces | None
) -> tuple[list[str], Spaces]:
    """Names of the parameters with a gradient, in the order of the parameters, and the spaces."""
    spaces = spaces or {}
    for kind, given in (("gradients", gradients), ("spaces", spaces)):
        if not given.keys() <= parameters.keys():
            unknown = sorted(given.keys() - parameters.keys())
            raise ValueError(
                f"{kind} name {unknown}, not parameters: use names among {sorted(parameters)}"
            )
    return [name for name in parameters if name in gradients], spaces


def _of(tensors: Params, names: list[str]) -> list[Tensor]:
    return [tensors[name] for name in names]


def _named(names: list[str], tensors: list[Tensor]) -> Params:
    return dict(zip(names, tensors, strict=True))


def _gradients(
    names: list[str],
    points: list[Tensor],
    g: list[Tensor],
    spaces: Spaces,
    decay: float,
    *,
    squared: bool = False,
) -> tuple[list[Tensor], list[Tensor]]:
    """Riemannian gradients, with weight decay, and their squares if asked for: one at a point."""
    if decay:
        g = each("add", g, points, alpha=decay)
    if not squared:
        rows = zip(names, points, g, strict=True)
        return [spaces[n].egrad2rgrad(x, u) if n in spaces else u for n, x, u in rows], []
    made = [
        spaces[name].squared_gradient(x, u) if name in spaces else (u, u * u)
        for name, x, u in zip(names, points, g, strict=True)
    ]
    wide = [q if q.shape == u.shape else q.unsqueeze(-1).expand_as(u) for u, q in made]
    return [u for u, _ in made], wide


def _move(
    names: list[str],
    points: list[Tensor],
    descent: list[Tensor],
    carried: list[Tensor] | None,
    spaces: Spaces,
    lr: float,
    *,
    donate: bool,
) -> tuple[list[Tensor], list[Tensor]]:
    """Points after a step of size ``lr`` against ``descent``, and tangents moved with them."""
    # the flat ones apart, as they may be written over, and a point is still needed at its end
    straight = [i for i, name in enumerate(names) if name not in spaces]
    flat, downhill = ([tensors[i] for i in straight] for tensors in (points, descent))
    moved, carried = each("add", flat, downhill, alpha=-lr, donate=donate), list(carried or [])
    for i, name in enumerate(names):
        if name in spaces:
            row = points[i], -lr * descent[i]
            if carried:
                end, carried[i] = spaces[name].expmap_transp(*row, carried[i])
            else:
                end = spaces[name].expmap(*row)
            moved.insert(i, end)
    return moved, carried


def _biases(beta: float, step: Tensor, points: list[Tensor]) -> list[Tensor]:
    """``1 - beta**step``, shaped to broadcast with points along the leading axes of ``step``."""
    made: dict[tuple[torch.dtype, int], Tensor] = {}
    for x in points:
        if (x.dtype, x.ndim) not in made:
            decades = step.to(x.dtype) * (math.log(beta) if beta else -math.inf)
            shape = step.shape + (1,) * (x.ndim - step.ndim)
            made[x.dtype, x.ndim] = -torch.expm1(decades).reshape(shape)
    return [made[x.dtype, x.ndim] for x in points]
