"""FedAvg: the simplest method, and the template for new ones.

One round of the paper's Algorithm 1: the server sends its parameters to a cohort, every client
trains them on its own data, and the server averages the results.
"""

import dataclasses
from dataclasses import dataclass, field
from typing import Literal

from torch import nn
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.types import Params, Tree
from fedbolic.federated.aggregators.aggregator import Aggregator, Mean
from fedbolic.federated.contract.classifier_method import ClassifierMethod, with_proximal_term
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.server_optimizer import ServerOptimizer, ServerSGD
from fedbolic.federated.contract.sharing import Sharing, check_sharing
from fedbolic.nn.network.classifier import SimplexHead
from fedbolic.optim import SGD, Optimizer

_HEADS = {"linear": nn.Linear, "simplex": SimplexHead}


@dataclass(frozen=True)
class FedAvg(ClassifierMethod):
    r"""Federated averaging with optional proximal term, server optimiser and personal parameters.

    .. math::
        \theta \leftarrow \theta + v, \quad v \leftarrow \beta v + \sum_k \frac{N_k}{N}
        (\theta_k - \theta), \quad \theta_k = \text{local steps on }
        f_k(\theta_k) + \tfrac{\mu}{2} \|\theta_k - \theta\|^2

    The ``sharing`` table gives other methods: ``{"*": personal}`` is local training,
    ``{"head.*": personal, "*": shared}`` FedPer, ``{"head.*": fixed, "*": shared}`` FedBABU, and a
    table that keeps batch norms personal FedBN.

    Args:
        optimizer: Local optimiser, reset every round.
        sharing: Kind of every parameter and buffer, ``shared``, ``personal`` or ``fixed``, by
            pattern of its name. The first match wins, and unused patterns are refused.
        proximal: Weight of FedProx's proximal term, mu, at least 0; 0 is FedAvg.
        server_optimizer: The server's step. ``ServerSGD(momentum=0.9)`` gives FedAvgM,
            ``ServerAdam()`` FedAdam, and so on.
        weights: Weight of a client in the mean: its number of training examples (``size``) or 1
            (``uniform``).
        head: Initial weights of the head: those of ``nn.Linear``, or a regular simplex of rows of
            the same mean length (:class:`~fedbolic.nn.network.classifier.SimplexHead`).
        aggregator: Rule that combines the clients' updates; by default the weighted mean of the
            formula.
        fine_tune_fixed: Whether fine-tuning at the clients trains the ``fixed`` parameters, too, as
            in FedBABU; otherwise they stay fixed.

    Raises:
        ValueError: If a value is outside its range, or ``fine_tune_fixed`` has no effect because
            no row of ``sharing`` is ``fixed``.

    References:
        McMahan et al. (2017), Algorithm 1, arXiv:1602.05629; Li et al. (2020), Eq. (2),
        arXiv:1812.06127; Hsu et al. (2019), Sec. 4.3, arXiv:1909.06335; Oh et al. (2022),
        Sec. 4, arXiv:2106.06042; Li et al. (2021), Sec. 3, arXiv:2102.07623.

    Example:
        >>> FedAvg(lr=0.05, proximal=0.01).rounds
        20
    """

    optimizer: Optimizer = SGD()  # type: ignore[override]  # a constant of the base
    sharing: Sharing = field(default_factory=lambda: {"*": "shared"})  # type: ignore[misc]
    proximal: float = 0.0
    server_optimizer: ServerOptimizer = ServerSGD()  # type: ignore[override]  # likewise
    weights: Literal["size", "uniform"] = "size"  # type: ignore[misc]  # a constant of the base
    head: Literal["linear", "simplex"] = "linear"
    aggregator: Aggregator = Mean()
    fine_tune_fixed: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(proximal=self.proximal)
        check_sharing(self.sharing)
        if self.fine_tune_fixed and "fixed" not in self.sharing.values():
            raise ValueError(
                f"fine_tune_fixed has no effect, as no row of sharing {self.sharing} is fixed: "
                "leave it out"
            )

    @property
    @override
    def head_type(self) -> type[nn.Module]:  # type: ignore[override]  # by a setting
        return _HEADS[self.head]

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        goals = context["shared"]["global_parameters"]
        pulled = with_proximal_term(gradients, local["parameters"], goals, self.proximal)
        return super().step(local, pulled, context)

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod | None:
        if "shared" not in self.sharing.values():
            return None  # purely local training gains nothing from fine-tuning
        if not self.fine_tune_fixed:
            return super().fine_tuning(epochs, lr)
        trained = {p: "personal" if kind == "fixed" else kind for p, kind in self.sharing.items()}
        method = dataclasses.replace(self, sharing=trained, fine_tune_fixed=False)
        return method.fine_tuning(epochs, lr)
