"""Per-FedAvg: a common initial model, from which one gradient step leads to every client's own."""

from dataclasses import dataclass, replace

import torch
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.gradient_method import GradientMethod


@dataclass(frozen=True)
class PerFedAvg(ClassifierMethod):
    r"""Federated averaging of the loss after one gradient step, in its first-order form.

    .. math::
        \min_w \frac1K \sum_k f_k(w - \alpha \nabla f_k(w)), \qquad
        \tilde w = w - \alpha \nabla f_k(w; B), \quad w \leftarrow w - \eta \nabla f_k(\tilde w; B')

    B and B' are consecutive batches; an odd last batch of a round changes nothing. The first-order
    form leaves out the Hessian of the exact gradient, :math:`I - \alpha \nabla^2 f_k(w)`. The
    server averages the models w equally.

    The personal models are those after fine-tuning: ``evaluation.fine_tuning`` trains them on the
    clients' training examples, with the step size alpha unless it has a separate one.

    Args:
        lr: Step size eta of the common model, above 0.
        personal_lr: Step size alpha towards the personal model, above 0.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Fallah et al. (2020), Algorithm 1 and Sec. 5 (FO), arXiv:2002.07948.

    Example:
        >>> PerFedAvg(personal_lr=0.05).fine_tuning(epochs=1, lr=None).lr
        0.05
    """

    personal_lr: float = 0.1

    weights = "uniform"
    counts_steps = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(personal_lr=self.personal_lr)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        return {**local, "common": message["parameters"]}, context

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        steps = local["num_steps"] + 1
        is_second = steps % 2 == 0
        common, parameters = {}, {}
        for name, w in local["common"].items():
            moved = w - self.lr * gradients[name]
            common[name] = torch.where(is_second, moved, w)
            personal = w - self.personal_lr * gradients[name]
            parameters[name] = torch.where(is_second, moved, personal)
        return {**local, "parameters": parameters, "common": common, "num_steps": steps}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        return super().outcome({**local, "parameters": local["common"]}, context)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod:
        local = replace(self.local, epochs=epochs)
        return ClassifierMethod(self.backbone, self.rounds, local, lr or self.personal_lr)
