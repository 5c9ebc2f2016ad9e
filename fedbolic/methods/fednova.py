"""FedNova: averages of local progress that count every local step once."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.update import LONGEST_PART, AggregatedUpdate, find_outside
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.optim import SGD, Optimizer


@dataclass(frozen=True)
class FedNova(ClassifierMethod):
    r"""Federated averaging of local deltas that are normalised by the number of local steps.

    .. math::
        d_k = \frac{\theta_k - \theta}{\|a_k\|_1}, \quad
        \theta \leftarrow \theta + \Bigl(\sum_k p_k \|a_k\|_1\Bigr) \sum_k p_k d_k, \quad
        \|a_k\|_1 = \frac{1}{1 - \rho} \Bigl(S_k - \frac{\rho (1 - \rho^{S_k})}{1 - \rho}\Bigr)

    with :math:`S_k` local steps, momentum :math:`\rho`, and weights :math:`p_k = N_k / N` over the
    cohort. The norm is the sum of the weights that the S local gradients have in the delta: S
    without momentum. With equal norms the method is FedAvg.

    The paper leaves the effective number of steps to the server; the sum above is the choice of its
    experiments and of the authors' code.

    Args:
        momentum: Momentum rho of the local steps, in [0, 1), reset every round.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Wang et al. (2020), Sec. 4 and Algorithm 1, arXiv:2007.07481.

    Example:
        >>> FedNova(momentum=0.5).norm(2)  # the first gradient counts 1.5 times, the second once
        2.5
    """

    momentum: float = 0.0

    counts_steps = True
    payload_like = ClassifierMethod.payload_like | {"norm": None}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.rate(below_one=True, momentum=self.momentum)

    @property
    @override
    def optimizer(self) -> Optimizer:  # type: ignore[override]  # by a setting
        return SGD(self.momentum)

    def norm(self, num_steps: int | Tensor) -> int | float | Tensor:
        """The 1-norm of the weights of the local gradients in a delta of ``num_steps`` steps."""
        rho = self.momentum
        if not rho:
            return num_steps
        return (num_steps - rho * (1 - rho**num_steps) / (1 - rho)) / (1 - rho)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, _ = super().outcome(local, context)
        norm = torch.as_tensor(self.norm(local["num_steps"]))
        # without a local step the norm and the delta are 0; with one the norm is at least 1
        delta = tree.scale_(payload["delta"], norm.clamp(min=0.5).reciprocal())
        return {**payload, "delta": delta, "norm": norm}, {}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if (fault := find_outside(payload, "norm", 0, math.inf)) is not None:
            return fault
        steps = max(1.0, float(payload["norm"]))
        if norm * steps <= LONGEST_PART:
            return None
        whole = {**payload, "delta": tree.scale(payload["delta"], steps)}
        return super().find_fault(message, whole, norm * steps)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        delta = tree.scale(total.payload["delta"], float(total.payload["norm"]))
        payload = {"delta": delta, "buffers": total.payload["buffers"]}
        aggregated = AggregatedUpdate(payload, total.weight, total.clients)
        return super().server_update(server_state, aggregated)
