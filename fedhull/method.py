"""FedHull: clients send quantised hulls of their classes, the server trains an SVM on them.

One round has three exchanges. *Sizes*: the sum of all clients' numbers of bins. *Hulls*: power sums
of labelled bins, added modulo a prime; the server decodes the hulls but not their owners, groups
them and trains. *Names*: the sum of the clients' votes on class names of the groups, which only the
server's own test set needs. With a core that is voted about, a sum of votes comes before these.
"""

from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.figure import Figure
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, FederatedData, LabelledSplit
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.capabilities import Ordered, Reporting
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.scores.score import score_labels
from fedhull.boundary import Boundary, HyperbolicBoundary
from fedhull.core import Core
from fedhull.exchanges import HullExchange, Hulls, Names, Sizes, message_to, points_of
from fedhull.figure import hull_figure
from fedhull.grouping import Assignment, Grouping
from fedhull.labels import Binary, LabelCode
from fedhull.quantise import PolarGrid
from fedhull.transmit import prime_above
from fedhull.vote import CoreVotes, VotedCore


@dataclass(frozen=True)
class FedHull(Ordered, Reporting):
    r"""Federated SVM in the Poincare ball, trained on quantised convex hulls of clients' classes.

    This is FLP of the paper; with a Euclidean ``boundary``, FLE.

    Departs from the paper: a sum of sizes comes first, so that messages are no longer than needed
    and no client's size is revealed; labels may be powers of two, which can be decoded after any
    collision; groups are found by assignment; and clients name the groups themselves.

    This class alone adds messages in the clear
    (:class:`~fedbolic.federated.aggregators.modular.SumModulo`), and the server draws the order of
    labels. :class:`~fedbolic.federated.secure.SecureSum` adds keys, masks, and an order that the
    server does not know (App. B).

    Args:
        grid: Polar grid of bins, with a public radius and the dimension of the points.
        code: Code of the labels.
        grouping: Rule that groups hulls by class.
        boundary: Classifier to train on the groups.
        min_count: Points that a bin must hold to be revealed, at least 1.
        bits: Least size of the field in bits, at least 2; ``None`` for the smallest valid field.
        core: Rule by which clients cut off the outer points of a class before they take its hull,
            for classes that overlap; ``None`` for the hull of all points, as in the paper.

    Raises:
        ValueError: If a value is outside its range.

    References:
        Prakash et al. (2024), Sec. 4 and 5, arXiv:2308.06895.

    Example:
        >>> from fedbolic.data import HalfPlanes
        >>> from fedbolic.federated import Trainer
        >>> data = HalfPlanes(num_points=2000).load(Rng(0))
        >>> method = FedHull(boundary=HyperbolicBoundary(C=100.0, pairs=1))
        >>> *_, (state, rows) = Trainer().run(method, data, Rng(0))
        >>> next(row.value for row in rows if row.name == "holdout/accuracy") > 0.9
        True
    """

    grid: PolarGrid = PolarGrid()
    code: LabelCode = Binary()
    grouping: Grouping = Assignment()
    boundary: Boundary = HyperbolicBoundary()
    min_count: int = 1
    bits: int | None = None
    core: Core | None = None

    def __post_init__(self) -> None:
        check.at_least(1, min_count=self.min_count)
        if self.bits is not None:
            check.at_least(2, bits=self.bits)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        dim = self.grid.dim
        if meta.num_classes < 2 or meta.input_shape != (dim,):
            space = "of the plane" if dim == 2 else f"with {dim} coordinates"
            raise ValueError(
                f"FedHull with this grid separates two or more classes of points {space}, got "
                f"{meta.num_classes} classes of inputs of shape {meta.input_shape}: the grid's "
                "dim must be the number of coordinates"
            )
        if self.core is not None:
            self.core.require_dim(dim)
        num_labels = meta.num_classes * meta.num_clients
        least = 0 if self.bits is None else 2 ** (self.bits - 1)
        bound = max(self.grid.num_bins, self.code.largest_sum(num_labels), least)
        return {
            "exchange": "votes" if isinstance(self.core, VotedCore) else "sizes",
            "num_classes": meta.num_classes,
            "num_labels": num_labels,
            "modulus": prime_above(bound),
            "order": torch.randperm(meta.num_clients, generator=rng.at("order").generator()),
            "seed": rng.at("grouping").number() % 2**32,
        }

    @property
    @override
    def order(self) -> str:
        return "order"

    @override
    def phase(self, server_state: Tree) -> HullExchange:
        if server_state["exchange"] == "votes" and isinstance(self.core, VotedCore):
            return CoreVotes(self.core, self.grid.c, self.boundary)
        if server_state["exchange"] == "sizes":
            core = self.core
            if isinstance(core, VotedCore):
                core = core.agreed(server_state["core_share"])
            return Sizes(self.grid, self.min_count, core, self.boundary)
        if server_state["exchange"] == "hulls":
            return Hulls(
                self.grid, self.code, self.grouping, self.boundary, server_state["modulus"]
            )
        return Names(self.boundary, self.grid.c)

    traits = Traits(learns_from=LabelledSplit)

    aggregator = Sum()  # of the first exchange

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return message_to(server_state, client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        return self.phase(message).local_update(message, client, client_state, rng)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return self.phase(server_state).server_update(server_state, total)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        """Accuracy of the group names: the client's own, or the voted ones on the holdout."""
        names = message.get("names") if client.id == HOLDOUT else client_state.get("own_names")
        if "model" not in message or names is None:
            return {}

        def labels(examples: Params) -> Tensor:
            points = points_of(examples)
            odds = self.boundary.log_odds(message["model"], points, c=self.grid.c)
            found = torch.from_numpy(odds.argmax(axis=1)).to(names.device)
            return names[found].to(examples["y"].device)

        return score_labels(labels, client)

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        """In the plane: the received hulls, the test points, and the groups' boundaries."""
        if "names" not in server_state or data.holdout is None or self.grid.dim != 2:
            return {}
        return {"hulls": hull_figure(self.grid, self.boundary, server_state, data.holdout)}
