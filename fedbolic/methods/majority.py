"""The majority-class baseline."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import one_hot
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, LabelledSplit, Split
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import (
    MOST_WEIGHT,
    AggregatedUpdate,
    Update,
    find_outside,
)
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import score_labels


@dataclass(frozen=True)
class Majority(Method):
    """Majority-class baseline: constant prediction of the most frequent training label.

    Clients count their training labels, and the server sums the counts exactly in one round. The
    personalised score (``fine_tuned/accuracy``) is that of each client's own majority class.
    """

    traits = Traits(learns_from=LabelledSplit)

    aggregator = Sum()
    payload_like: ClassVar = {"counts": "counts"}

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {"counts": torch.zeros(meta.num_classes, dtype=torch.int64)}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        counts = one_hot(_labels(client.train), client.meta.num_classes).sum(dim=0)
        update = Update({"counts": counts}, weight=float(client.size))
        return update, {"own_counts": counts.clone()}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_outside(payload, "counts", 0, MOST_WEIGHT)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return {"counts": total.payload["counts"]}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        scores = _scores(message["counts"], client)
        if client.id != HOLDOUT and client_state and len(client.test):
            own = _scores(client_state["own_counts"], client)
            scores |= {
                f"fine_tuned/{name}": own[f"test/{name}"] for name in ("accuracy", "examples")
            }
        return scores


def _labels(split: Split) -> Tensor:
    return split.at(torch.arange(len(split)))["y"]


def _scores(counts: Tensor, client: Client) -> dict[str, float]:
    """Scores of predicting the class with the largest count, the first one in case of a tie."""
    return score_labels(lambda _: counts.argmax(), client)
