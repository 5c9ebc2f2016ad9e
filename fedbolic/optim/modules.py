"""Riemannian SGD and Adam as ``torch.optim`` optimisers, with steps on single rows."""

import functools
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import ParamsT
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Params, Tree
from fedbolic.manifolds import Euclidean, Manifold
from fedbolic.optim.functional import SGD, Adam

_KEYS = {"momentum": "momentum_buffer", "mean": "exp_avg", "square": "exp_avg_sq"}
"""Names that torch gives to the moments of ``fedbolic.optim``."""


class _RiemannianOptimizer(torch.optim.Optimizer, ABC):
    """Steps of a pure function of ``fedbolic.optim`` on parameters in place.

    The state of a parameter holds its moments and, for Adam, ``step``: the number of its steps, or
    one number per row from its first sparse gradient on.
    """

    @abstractmethod
    def _method(self, group: Mapping[str, Any]) -> SGD | Adam:
        """The pure function with the options of a parameter group."""

    @override
    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Move every parameter that has a gradient.

        Args:
            closure: Function that recomputes the gradients and returns the loss.

        Returns:
            The value of the closure, or ``None``.

        Raises:
            ValueError: If a sparse gradient does not consist of rows, or its space has several
                curvatures.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            self._advance(group)
        return loss

    def _advance(self, group: dict[str, Any]) -> None:
        method = self._method(group)
        kinds = _kinds(method)
        moments = {kind: _KEYS[kind] for kind in kinds if kind != "step"}
        step = partial(method.step, lr=float(group["lr"]), donate=True)
        given = moments, group["space"], step
        together: dict[tuple[Any, ...], list[Tensor]] = defaultdict(list)
        for p in group["params"]:
            if p.grad is None:
                continue
            state = self._started(p, moments, counted="step" in kinds)
            if _is_sparse(p) or isinstance(state.get("step"), Tensor):
                self._move_rows(p, *given)
            else:
                together[p.device, p.dtype, state.get("step")].append(p)
        for parameters in together.values():
            self._move_whole(parameters, *given)

    def _started(self, p: Tensor, moments: dict[str, str], *, counted: bool) -> dict[str, Any]:
        """The state of a parameter, with zeros for what it lacks."""
        state = self.state[p]
        for key in moments.values():
            if state.get(key) is None:
                state[key] = torch.zeros_like(p)
        if counted:
            step = state.get("step", 0)
            if not isinstance(step, Tensor) or not step.ndim:  # optimisers of torch save a tensor
                sparse = _is_sparse(p)
                step = torch.full((len(p),), int(step), device=p.device) if sparse else int(step)
            state["step"] = step
        return state

    def _move_whole(
        self,
        parameters: list[Tensor],
        moments: dict[str, str],
        space: Manifold | None,
        step: Callable[..., tuple[Params, Tree]],
    ) -> None:
        """Move parameters with dense gradients and equal numbers of steps, all in one call."""
        named = {str(i): p for i, p in enumerate(parameters)}
        points = {name: p.detach() for name, p in named.items()}
        gradients = {name: p.grad for name, p in named.items()}
        states = {name: self.state[p] for name, p in named.items()}
        state: Tree = {
            kind: {name: own[key] for name, own in states.items()} for kind, key in moments.items()
        }
        count = states["0"].get("step")
        if count is not None:
            state["step"] = torch.full((), count, device=parameters[0].device)
        spaces = dict.fromkeys(named, space) if space else None
        moved, state = step(points, gradients, state, spaces=spaces)
        for name, own in states.items():
            _put(points[name], moved[name])
            for kind, key in moments.items():
                _put(own[key], state[kind][name])
            if count is not None:
                own["step"] = count + 1

    def _move_rows(
        self,
        p: Tensor,
        moments: dict[str, str],
        space: Manifold | None,
        step: Callable[..., tuple[Params, Tree]],
    ) -> None:
        """Move the rows of a parameter that have a gradient; the cost is that of these rows."""
        index, gradient = _rows_of(p, space)
        if not len(index):
            return
        own = self.state[p]
        tables = {"x": p.detach()} | {kind: own[key] for kind, key in moments.items()}
        rows = {kind: table.index_select(0, index) for kind, table in tables.items()}
        if space is None:  # a coordinate is a point of a line and has its own moments
            gradient = gradient.unsqueeze(-1)
            rows = {kind: values.unsqueeze(-1) for kind, values in rows.items()}
        point = {"x": rows.pop("x")}
        state: Tree = {kind: {"x": values} for kind, values in rows.items()}
        if "step" in own:
            # a state dict leaves the counts on the device that they come from
            own["step"] = own["step"].to(p.device)
            tables["step"], state["step"] = own["step"], own["step"].index_select(0, index)
        point, state = step(point, {"x": gradient}, state, spaces={"x": space or Euclidean()})
        moved = {kind: x if kind == "step" else x["x"] for kind, x in {"x": point, **state}.items()}
        for kind, table in tables.items():
            table.index_copy_(0, index, moved[kind].reshape(-1, *table.shape[1:]))

    @override
    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add parameters with separate options.

        Args:
            param_group: ``params`` and any options of the constructor.

        Raises:
            TypeError: If ``space`` is neither a manifold nor ``None``.
            ValueError: If an option is out of range or a parameter has no axis for points.
        """
        super().add_param_group(param_group)
        group = self.param_groups.pop()
        self._method(group)
        _check_lr(group["lr"])
        _check_space(group["space"], group["params"])
        self.param_groups.append(group)

    @override
    def state_dict(self) -> dict[str, Any]:
        """The state and the options, with a space as its name and curvature.

        It holds tensors, numbers and strings only, so ``torch.load`` reads it with
        ``weights_only=True``.
        """
        saved = super().state_dict()
        groups = [{**g, "space": _record(g["space"])} for g in saved["param_groups"]]
        return {**saved, "param_groups": groups}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state and the options; spaces are compared and not changed.

        Args:
            state_dict: Value of ``state_dict`` of an optimiser with the same groups.

        Raises:
            ValueError: If the groups or their spaces differ from those of this optimiser.
        """
        spaces = [group["space"] for group in self.param_groups]
        groups = state_dict["param_groups"]
        for i, (group, space) in enumerate(zip(groups, spaces, strict=False)):
            if group.get("space") != _record(space):
                raise ValueError(
                    f"the state dict has the space {group.get('space')} in group {i}, but this "
                    f"optimiser has {_record(space)}: its moments are tangents of that space, so "
                    "build the optimiser with the space of the state dict"
                )
        own = [{**g, "space": s} for g, s in zip(groups, spaces, strict=False)]
        own += groups[len(spaces) :]  # torch refuses another number of groups, and says so
        super().load_state_dict({**state_dict, "param_groups": own})


class RiemannianSGD(_RiemannianOptimizer):
    r"""SGD with momentum for PyTorch and Lightning, along geodesics on manifolds.

    The step is that of ``fedbolic.optim.SGD``; without a space it is that of ``torch.optim.SGD``.
    A group's ``space`` is the manifold of its parameters, whose points lie along the last axis.

    With a sparse gradient (``sparse=True`` of an embedding) only its rows move, at a cost that does
    not depend on the table's height. Momentum and weight decay are lazy: the momentum of a row
    waits unchanged for its next gradient, whereas that of ``torch.optim.SGD`` decays and moves
    every row in every step.

    Args:
        params: Parameters, or groups of them as dicts: ``{"params": [...], "space": Lorentz()}``.
        lr: Step size, 0 or more, a number or a tensor of one element.
        space: Manifold of the groups that give none; ``None`` for flat space.
        momentum: Momentum, in [0, 1).
        nesterov: Whether to use Nesterov momentum.
        weight_decay: Weight decay, 0 or more, applied to the Euclidean gradient.

    Raises:
        TypeError: If a space is neither a manifold nor ``None``.
        ValueError: If an option is out of range.

    References:
        Bonnabel (2013), Eq. (2), arXiv:1111.5280.

    Example:
        >>> from fedbolic.manifolds import Poincare
        >>> point = torch.nn.Parameter(torch.tensor([0.5, 0.0]))
        >>> optimizer = RiemannianSGD([{"params": [point], "space": Poincare(1.0)}], lr=0.1)
        >>> Poincare(1.0).dist0(point).backward()
        >>> optimizer.step()
        >>> Poincare(1.0).dist0(point)  # 2 atanh(0.5) = 1.0986, and 0.1 nearer
        tensor(0.9986, grad_fn=<SqueezeBackward1>)
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        space: Manifold | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"momentum": momentum, "nesterov": nesterov, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, "space": space, **options})

    @override
    def _method(self, group: Mapping[str, Any]) -> SGD:
        return SGD(
            momentum=float(group["momentum"]),  # torch's own default is the integer 0
            weight_decay=float(group["weight_decay"]),
            nesterov=group["nesterov"],
        )


class RiemannianAdam(_RiemannianOptimizer):
    r"""Adam for PyTorch and Lightning, with a single second moment per point on manifolds.

    The step is that of ``fedbolic.optim.Adam``; without a space it is that of ``torch.optim.Adam``.
    A group's ``space`` is the manifold of its parameters, whose points lie along the last axis.
    The space ``Euclidean()`` is flat like ``None``, but has the single second moment per point.

    With a sparse gradient (``sparse=True`` of an embedding) only its rows move, at a cost that does
    not depend on the table's height. The moments are lazy as in ``torch.optim.SparseAdam``: a row
    moves as if it were a parameter alone that has no gradient in all other steps. The bias is
    therefore corrected by the number of steps of the row, not, as in ``SparseAdam``, of the table,
    so the first step of a row has the length ``lr`` at any time. Weight decay is lazy, too.

    Args:
        params: Parameters, or groups of them as dicts: ``{"params": [...], "space": Lorentz()}``.
        lr: Step size, 0 or more, a number or a tensor of one element.
        space: Manifold of the groups that give none; ``None`` for flat space.
        betas: Decay rates of the mean gradient and of its mean square, each in [0, 1).
        eps: Number added to the root in the denominator, above 0.
        weight_decay: Weight decay, 0 or more, applied to the Euclidean gradient.

    Raises:
        TypeError: If a space is neither a manifold nor ``None``.
        ValueError: If an option is out of range.

    References:
        Kingma and Ba (2015), Alg. 1, arXiv:1412.6980; Becigneul and Ganea (2019), Alg. 1,
        arXiv:1810.00760, here with the second moment of Adam instead of the maximum of AMSGrad.

    Example:
        >>> from fedbolic.manifolds import Poincare
        >>> table = torch.nn.Embedding(1000, 2, sparse=True)
        >>> _ = torch.nn.init.uniform_(table.weight, -1e-3, 1e-3)
        >>> before = table.weight.detach().clone()
        >>> optimizer = RiemannianAdam(table.parameters(), lr=0.1, space=Poincare(1.0))
        >>> u, v = table(torch.tensor([3, 5]))
        >>> Poincare(1.0).dist(u, v).backward()
        >>> optimizer.step()
        >>> (table.weight != before).any(-1).nonzero().flatten()
        tensor([3, 5])
    """

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1e-3,
        *,
        space: Manifold | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ) -> None:
        options = {"betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(params, {"lr": lr, "space": space, **options})

    @override
    def _method(self, group: Mapping[str, Any]) -> Adam:
        beta1, beta2 = map(float, group["betas"])
        eps, weight_decay = float(group["eps"]), float(group["weight_decay"])
        return Adam(beta1, beta2, eps=eps, weight_decay=weight_decay)


@functools.lru_cache
def _kinds(method: SGD | Adam) -> tuple[str, ...]:
    """Names of what a method keeps."""
    return tuple(method.init({}))


def _is_sparse(p: Tensor) -> bool:
    return p.grad is not None and p.grad.layout is not torch.strided


def _rows_of(p: Tensor, space: Manifold | None) -> tuple[Tensor, Tensor]:
    """Indices of the rows that have a gradient, each once, and the gradients."""
    gradient = p.grad
    assert gradient is not None
    if space is not None and isinstance(space.c, Tensor) and space.c.numel() > 1:
        raise ValueError(
            f"rows cannot move on a space with {space.c.numel()} curvatures: give the group a "
            "space with one, or use dense gradients"
        )
    if gradient.layout is torch.strided:
        return torch.arange(len(p), device=p.device), gradient
    if gradient.layout is not torch.sparse_coo or gradient.sparse_dim() != 1:
        raise ValueError(
            f"a sparse gradient must consist of rows, got the layout {gradient.layout}: use the "
            "gradient of an embedding with sparse=True, or gradient.to_dense()"
        )
    gradient = gradient.coalesce()
    return gradient.indices()[0], gradient.values()


def _put(old: Tensor, new: Tensor) -> None:
    """Copy ``new`` into ``old``, unless a donated step did."""
    if new.data_ptr() != old.data_ptr():
        old.copy_(new)


def _check_lr(lr: float | Tensor) -> None:
    if isinstance(lr, Tensor) and lr.numel() != 1:
        raise ValueError(f"lr must have one element, got the shape {tuple(lr.shape)}")
    check.not_negative(lr=float(lr))


def _check_space(space: Any, parameters: list[Tensor]) -> None:
    if space is None:
        return
    if not isinstance(space, Manifold):
        raise TypeError(
            f"space must be a manifold such as Poincare(1.0), or None for flat space, got {space!r}"
        )
    if isinstance(space.c, Tensor) and space.c.requires_grad:
        raise ValueError(
            "the curvature of space must not require a gradient, as the moments are tangents of a "
            "fixed space: use space.c.detach() or a number"
        )
    for p in parameters:
        if not p.ndim:
            raise ValueError(
                f"a parameter on {space} must have points along its last axis, got a number: put "
                "it in a group without a space"
            )


def _record(space: Manifold | None) -> list[Any] | None:
    """The kind and the curvature of a space, as values that every tool can save."""
    if space is None:
        return None
    return [type(space).__name__, space.c.tolist() if isinstance(space.c, Tensor) else space.c]
