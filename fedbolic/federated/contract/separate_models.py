"""Base of methods whose clients have separate models."""

import dataclasses
from dataclasses import dataclass

from typing_extensions import override

from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.classifier_method import ClassifierMethod
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.sharing import Assembly, assemble
from fedbolic.federated.contract.traits import Traits


@dataclass(frozen=True)
class SeparateModels(ClassifierMethod):
    """Base of methods whose clients keep models of their own, without a global model.

    All models start from the same values, which follow from the ``seed`` in the message. Clients
    are scored with their own models, and the server's test set has no scores.
    """

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, global_model=False)

    def kept(self, message: Tree, client: Client, client_state: Tree) -> Assembly:
        """The ``parameters`` and ``buffers`` of a client's state, or the initial values."""
        received = {"parameters": {}, "buffers": {}, "seed": message["seed"]}
        return assemble(self.model(client.meta), {"*": "personal"}, received, client_state, client)

    @override
    def weight(self, client: Client) -> float:
        return 1.0

    @override
    def fine_tuning(self, epochs: int, lr: float | None) -> GradientMethod | None:
        return None  # every client is scored with a model of its own already
