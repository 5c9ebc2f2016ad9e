"""FedALA: every client learns how much of the global head it takes."""

from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.methods.personal.stages import StagedSteps

HEAD, SHARE = "head.", "share."
"""Prefixes of the mixed parameters, and of the learned shares of the global ones in them."""


@dataclass(frozen=True)
class FedALA(StagedSteps, ClassifierMethod):
    r"""Federated averaging whose clients begin with a learned mixture of two heads.

    .. math::
        \hat h_k = h_k + (h - h_k) \odot W_k, \qquad
        W_k \leftarrow \operatorname{clip}_{[0, 1]}
        \bigl( W_k - \eta_W \nabla_{W_k} f_k(\phi, \hat h_k) \bigr)

    with the received body phi and head h, and the client's own head :math:`h_k` of its last turn.
    The first steps of a round learn the shares :math:`W_k`, one for each number of the head; the
    other steps train body and head from there. Shares start at 1, the global head, and are kept.

    This is adaptive local aggregation of the last layer alone, the authors' p = 1. They learn the
    shares on a random part of the examples, until convergence in a client's second turn and for
    one pass later; here every turn gives them the same part of its steps. In the first turn, where
    both heads are equal, these steps change no parameter. Clients are scored with the mixture at
    which they would begin, by the shares of their last turn, and the server's test set with the
    global model.

    Args:
        local: Local epochs and batch size, of the shares and the model together.
        lr: Local step size, above 0; local steps are plain gradient descent.
        share_lr: Step size of the shares, above 0.
        share_steps: Part of the local steps that learn the shares, in (0, 1).

    Raises:
        ValueError: If a value is outside its range.

    References:
        Zhang et al. (2023), Eqs. (3) to (6) and Algorithm 1, arXiv:2212.01197.

    Example:
        >>> FedALA(share_steps=0.5).local.epochs
        5
    """

    share_lr: float = 1.0
    share_steps: float = 0.2

    models = "both"
    stage = SHARE, "share_steps"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(share_lr=self.share_lr)

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        received = message["parameters"]
        head = tree.part(received, HEAD)
        own = client_state.get("head", head)
        shares = client_state.get("shares", {n: torch.ones_like(x) for n, x in head.items()})
        trained = {  # of the head the difference from the mixture, which begins at 0
            n: torch.zeros_like(x) if n.startswith(HEAD) else x for n, x in received.items()
        }
        trained |= {SHARE + name: share for name, share in shares.items()}
        context = shared_context(received)
        return self.local_state(trained, message["buffers"]), {**context, "own": {"head": own}}

    @override
    def network_parameters(self, parameters: Params, context: Tree) -> Params:
        """The body, and the mixture of both heads with what was trained on top of it."""
        received, own = context["shared"]["global_parameters"], context["own"]["head"]
        mixed = {name: value for name, value in parameters.items() if not name.startswith(SHARE)}
        for name, share in tree.part(parameters, SHARE).items():
            ours, whole = own[name], HEAD + name
            mixed[whole] = ours + (received[whole] - ours) * share + parameters[whole]
        return mixed

    @override
    def step(self, local: Tree, gradients: Params, context: Tree) -> Tree:
        ratio = self.share_lr / self.lr  # the step of the base multiplies by lr
        scaled = {n: g * ratio if n.startswith(SHARE) else g for n, g in gradients.items()}
        local = super().step(local, scaled, context)
        clipped = {
            n: x.clamp(0, 1) if n.startswith(SHARE) else x for n, x in local["parameters"].items()
        }
        return {**local, "parameters": clipped}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        trained = self.network_parameters(local["parameters"], context)
        payload, _ = super().outcome({**local, "parameters": tree.clone(trained)}, context)
        shares = tree.part(local["parameters"], SHARE)
        return payload, {"head": tree.part(trained, HEAD), "shares": shares}
