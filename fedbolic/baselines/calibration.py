"""The least-squares head of frozen features, from one exchange of exact sums."""

from dataclasses import dataclass

import torch
from torch.nn.functional import normalize, one_hot
from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.aggregate import Aggregator, Sum
from fedbolic.federated.method import Cohort, Method, Total, Update
from fedbolic.federated.score import CHUNK
from fedbolic.federated.stepped import Stepped
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree


@dataclass(frozen=True)
class Calibration(Method):
    r"""One exchange over all clients that solves for the head of a trained classifier.

    .. math:: W = \Bigl(\sum_k Z_k^T Z_k + \varepsilon I\Bigr)^{-1} \sum_k Z_k^T Y_k

    with the unit-length features Z_k and one-hot labels Y_k of client k. The sums are those of all
    data in one place, so the head is too. A client with fewer examples than features reveals the
    span of its features to whoever reads its summand.

    Args:
        inner: The method whose model is calibrated; its body gives the features.
        head: The name of the head's weights, one row per class.
        ridge: Epsilon, as a share of the mean of the diagonal of Z'Z; above 0.
    """

    inner: Stepped
    head: str
    ridge: float

    @property
    def rounds(self) -> int:  # type: ignore[override]  # a field of the others
        """The inner method's."""
        return self.inner.rounds

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @property
    @override
    def cohort(self) -> Cohort:
        return "all"

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return self.inner.init(meta, rng)

    @override
    def broadcast(self, state: Tree, client_id: int) -> Tree:
        return self.inner.broadcast(state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        body = self.inner.model(client.meta).part("body")
        parameters, buffers = (
            {n.removeprefix("body."): v for n, v in message[kind].items() if n.startswith("body.")}
            for kind in ("parameters", "buffers")
        )
        width = message["parameters"][self.head].shape[1]
        num_classes = client.meta.num_classes
        zeros = client.no_inputs.new_zeros
        gram = zeros(width, width, dtype=torch.float64)
        cross = zeros(width, num_classes, dtype=torch.float64)
        with torch.no_grad():
            for index in torch.arange(client.size).split(CHUNK):
                batch = client.train.at(index)
                features = normalize(body(parameters, buffers, batch["x"])[0].double())
                gram += features.T @ features
                cross += features.T @ one_hot(batch["y"], num_classes).double()
        return Update({"gram": gram, "cross": cross}, weight=float(client.size)), memory

    @override
    def template(self, message: Tree) -> Tree:
        num_classes, width = message["parameters"][self.head].shape
        zeros = torch.zeros(width, width + num_classes, dtype=torch.float64)
        return {"gram": zeros[:, :width], "cross": zeros[:, width:]}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        gram, cross = total.payload["gram"], total.payload["cross"]
        ridge = self.ridge * gram.diagonal().mean() * torch.eye(len(gram)).to(gram)
        weight = torch.linalg.solve(gram + ridge, cross).T
        old = state["parameters"][self.head]
        parameters = {**state["parameters"], self.head: weight.to(old.dtype)}
        return {**state, "parameters": parameters}

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        return self.inner.evaluate(message, client, memory, rng)
