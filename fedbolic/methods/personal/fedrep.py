"""FedRep: a common body and personal heads, trained one after the other."""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod, shared_context
from fedbolic.federated.contract.sharing import Sharing, assemble, select_kind
from fedbolic.nn.network.model import Model

_SHARING: Sharing = {"head.*": "personal", "*": "shared"}


@dataclass(frozen=True)
class FedRep(ClassifierMethod):
    r"""Federated averaging of a body, which each client trains after its personal head.

    .. math::
        h_k \leftarrow h_k - \eta \nabla_h f_k(\phi, h_k) \text{ for the first steps}, \quad
        \phi_k \leftarrow \phi_k - \eta \nabla_\phi f_k(\phi_k, h_k) \text{ for the others}, \quad
        \phi \leftarrow \tfrac{1}{|C|} \textstyle\sum_{k \in C} \phi_k

    with the body phi and the heads :math:`h_k` of the clients of a cohort C. FedPer trains both at
    once. A client's head stays at the client, so there is no global model to score.

    Args:
        backbone: Network from inputs to features, the body; a linear head follows.
        local: Local epochs and batch size, of the head and the body together.
        lr: Local step size, above 0; local steps are plain gradient descent.
        head_share: Share of the local steps that train the head, in (0, 1). With 5 epochs, 0.8 are
            4 epochs of the head and 1 of the body.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Collins et al. (2021), Algorithm 1, arXiv:2102.07078.

    Example:
        >>> FedRep(head_share=0.5).local.epochs
        5
    """

    head_share: float = 0.8

    weights = "uniform"
    models = "personal"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.head_share < 1:
            raise ValueError(f"head_share must lie in (0, 1), got {self.head_share}")

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        seed = rng.at("model").number()
        shared = (select_kind(x, _SHARING, "shared") for x in self.model(meta).init(seed))
        return {**self.server_state(*shared), "seed": seed}

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        values = assemble(self.model(client.meta), _SHARING, message, client_state, client)
        local = self.local_state(values.trained, values.buffers)
        return local, shared_context(message["parameters"])

    @override
    def draw(self, num_steps: int, batch_size: int, generator: torch.Generator) -> Params:
        """No random numbers, but for every step whether it trains the head."""
        return {"trains_head": torch.arange(num_steps) < round(self.head_share * num_steps)}

    @override
    def loss(
        self, model: Model, parameters: Params, buffers: Params, batch: Params, context: Tree
    ) -> tuple[Tensor, Params]:
        trains_head = batch["trains_head"]
        in_training = {
            name: torch.where(trains_head == name.startswith("head."), value, value.detach())
            for name, value in parameters.items()
        }
        return super().loss(model, in_training, buffers, batch, context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        head = select_kind(local["parameters"], _SHARING, "personal")
        payload, _ = super().outcome(local, context)
        return payload, {"parameters": head}
