"""Layout of a hierarchy in the plane by clients that agree on its upper part, without training."""

import dataclasses
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data import HOLDOUT, HierarchySplit
from fedbolic.data.contract.client import Client
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.accounting.costs import PureCost
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.capabilities import NodePlaces
from fedbolic.federated.contract.method import Method, Phase
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.noise.draws import KeyedNoise, SystemKeys, check_mechanism
from fedbolic.hierarchies.common_slots import ClientNodes, SlotWeights, find_no_common
from fedbolic.hierarchies.scores import check_sample, score_distances
from fedbolic.hierarchies.slots import BOTH, CLOSURE
from fedbolic.manifolds import PolarPlaces
from fedbolic.nn.loss.ranking import RowDistances

PlacesMode = Literal["kept_at_home", "published"]
SlotShares = Literal["equal", "counted"]

MOST_LEAVES = 2**31
"""Largest absolute value of a noisy count."""


@dataclass(frozen=True)
class SlotLayout(KeyedNoise, Method):
    """Places of all nodes in the hyperbolic plane, by slots that every client finds alone.

    All clients know the upper nodes of the hierarchy, and their own number. Every common node keeps
    one slot a client, and a client lays out its subtrees in its own slots
    (:mod:`~fedbolic.hierarchies.slots`). So nodes of different clients have places in one plane
    without a round of training: seen from any node, its ancestors are the nearest nodes.

    * ``kept_at_home``: **shows nothing of a client's subtrees**, and between machines their number
      of pairs, which every node tells in its handshake. A client sends an empty payload and no
      scores, and keeps its places, which :func:`fedbolic.load` reads. With ``counted`` slots it
      also shows a noisy number of leaves in each of its cells.
    * ``published``: **shows everybody the tree of every client**, as places from which it can be
      read. The server has one table for all.

    Args:
        mode: Messages of the clients: none, or their places.
        slots: Shares of the clients in the sector of a common node: ``equal``, or in proportion to
            noisy numbers of leaves, which makes radii smaller. Counts of *all* cells are sent,
            since those of occupied cells alone would say which are occupied.
        epsilon: Privacy budget for one leaf of a client that is there or not, above 0; for
            ``counted`` slots. Where places are published, it protects nothing.
        same_names: Places of a category that several clients have below one common node: one for
            each client (``two_places``: the distance to the category is that to its nearest place),
            or ``one_place``, by slots for the numbers of nodes. What lies below is in slots of the
            clients. One place takes equal slots.
        objective: Order of the nodes nearest to a node: its ancestors (``closure``), or its
            ancestors from the parent upwards (``both``), which takes larger radii and about half as
            many levels at most.
        noise: Source of the keys of the noise.
        sample: Nodes whose ancestors are ranked, at least 2, drawn at every evaluation; ``None``
            for all.

    Raises:
        ValueError: If a value is out of range, or one place is to have counted slots.

    References:
        ``README.md`` in this folder; Ghosh, Roughgarden and Sundararajan (2009), Sec. 2,
        arXiv:0811.2841, for the noise.

    Example:
        >>> from fedbolic.data import BalancedTree, CommonLevels, PartitionedHierarchy
        >>> from fedbolic.federated import Trainer
        >>> data = PartitionedHierarchy(BalancedTree(3, 4), CommonLevels(4)).load(Rng(0))
        >>> *_, (state, rows) = Trainer().run(SlotLayout("published"), data, Rng(0))
        >>> next(row.value for row in rows if row.name == "holdout/map")
        1.0
    """

    mode: PlacesMode = "kept_at_home"
    slots: SlotShares = "equal"
    epsilon: float = 0.1
    same_names: Literal["two_places", "one_place"] = "two_places"
    objective: Literal["closure", "both"] = "closure"
    noise: SystemKeys = SystemKeys()
    sample: int | None = None

    def __post_init__(self) -> None:
        check_sample(self.sample)
        check.one_of(get_args(PlacesMode), mode=self.mode)
        check.one_of(get_args(SlotShares), slots=self.slots)
        check.one_of(("two_places", "one_place"), same_names=self.same_names)
        check.one_of(("closure", "both"), objective=self.objective)
        check.positive(epsilon=self.epsilon)
        if self.same_names == "one_place" and self.slots == "counted":
            raise ValueError("clients that share places have equal slots: set slots to equal")

    @property
    @override
    def traits(self) -> Traits:  # type: ignore[override]  # by a setting
        is_private = self.slots == "counted" and self.mode == "kept_at_home"
        return Traits(
            learns_from=HierarchySplit,
            find_unfit=find_no_common,
            cohort="all",
            global_model=self.mode == "published",
            privacy_unit="leaf" if is_private else None,
        )

    aggregator = Gather()
    unsent = "counts", "table", "mechanism"

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        found = {}
        if self.traits.privacy_unit is not None and "counts" in server_state:
            found["privacy/epsilon"] = self.epsilon
        if "table" in server_state:
            found["places/radius"] = float(server_state["table"]["radii"].max())
        return found

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state: Tree = {"num_nodes": meta.num_classes, "num_clients": meta.num_clients}
        if self.traits.privacy_unit is not None:
            logger.info("privacy of every client's counts: %s", ledger_of_counts(self.epsilon))
            server_state["mechanism"] = self._mechanism
        return server_state

    @property
    def _mechanism(self) -> str:
        unit = self.traits.privacy_unit
        return "no privacy" if unit is None else ledger_of_counts(self.epsilon).mechanism()

    @override
    def phase(self, server_state: Tree) -> Method:
        check_mechanism(server_state, self._mechanism)
        missing = self.slots == "counted" and not {"counts", "shares"} & server_state.keys()
        return _CountLeaves(self) if missing else self

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = super().broadcast(server_state, client_id)
        if "table" in server_state:
            message["table"] = dict(server_state["table"])
        if "counts" in server_state and client_id >= 0:
            message["shares"] = _shares(server_state["counts"], client_id)
        return message

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        split = client.split_of(HierarchySplit)
        shape = BOTH if self.objective == "both" else CLOSURE
        nodes, num_clients = ClientNodes.of(split, shape), client.meta.num_clients
        if self.same_names == "one_place":
            placed = nodes.place_by_number(client.meta.num_classes, client.id, num_clients)
        elif self.slots == "counted":
            placed = nodes.place(SlotWeights(**message["shares"]))
        else:
            placed = nodes.place(SlotWeights.equal(len(nodes.cells), client.id, num_clients))
        rows, turns, radii = (x.to(split.hierarchy.pairs.device) for x in placed)
        if self.mode == "published":
            return Update({"rows": rows, "turns": turns, "radii": radii}), {}
        return Update({}), {"kept_rows": rows, "kept_turns": turns, "kept_radii": radii}

    @override
    def node_places(self, message: Tree, client: Client, client_state: Tree) -> NodePlaces | None:
        if "kept_rows" in client_state:
            kept = PolarPlaces(client_state["kept_turns"], client_state["kept_radii"])
            return client_state["kept_rows"], kept
        if "table" not in message:
            return None
        rows, places = message["table"]["rows"], _table(message)
        nodes, first = _first(rows)
        return nodes, places[first]

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if self.mode == "kept_at_home":
            return None if not payload else f"it sends {sorted(payload)[:4]}, and keeps its places"
        dtypes = {"rows": torch.int64, "turns": torch.int64, "radii": torch.float64}
        if payload.keys() != dtypes.keys():
            return f"its payload must hold {sorted(dtypes)}, got {sorted(payload)[:4]}"
        sizes = {len(x) if isinstance(x, Tensor) and x.ndim == 1 else -1 for x in payload.values()}
        if len(sizes) != 1 or -1 in sizes:
            return "its rows, turns and radii must be vectors of one length"
        if wrong := [name for name, dtype in dtypes.items() if payload[name].dtype != dtype]:
            return f"its {wrong[0]} have the dtype {payload[wrong[0]].dtype}"
        rows, radii = payload["rows"], payload["radii"]
        if bool(((rows < 0) | (rows >= message["num_nodes"])).any()) or bool((radii < 0).any()):
            return "a row lies outside the table, or a radius is negative"
        return None

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        if self.mode == "kept_at_home":
            return server_state
        sent = [total.payload[str(i)] for i in total.clients]
        rows, turns, radii = (torch.cat([x[n] for x in sent]) for n in ("rows", "turns", "radii"))
        # common nodes have one place, which all clients send
        _, kept = _first(torch.stack((rows, turns), dim=1))
        table = {"rows": rows[kept], "turns": turns[kept], "radii": radii[kept]}
        return {**server_state, "table": table}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        if "table" not in message:
            return {}
        rows, places = message["table"]["rows"], _table(message)
        if client.id != HOLDOUT:  # is scored among its own nodes
            known = (client.split_of(HierarchySplit).node_counts[rows] > 0).nonzero().flatten()
            rows, places = rows[known], places[known]
        num_nodes = client.meta.num_classes

        def among(nodes: Tensor) -> RowDistances:
            return lambda at: _between(places, rows, nodes[at], num_nodes)[:, nodes]

        return score_distances(among, client, rng=rng, sample=self.sample)


@dataclass(frozen=True)
class _CountLeaves(Phase):
    """The exchange before the layout: noisy numbers of leaves in all cells of every client."""

    method: SlotLayout

    @property
    @override
    def traits(self) -> Traits:  # type: ignore[override]  # by a setting
        return dataclasses.replace(self.method.traits, evaluates=False)

    aggregator = Gather()

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        if self.method.traits.privacy_unit is not None:
            charge_releases(ledger_of_counts(self.method.epsilon))
        counts = ClientNodes.of(client.split_of(HierarchySplit)).count_leaves()
        draws = self.method.noise.stream(rng.at("cells")).integers()
        noise = torch.from_numpy(draws.laplace(1 / self.method.epsilon, len(counts)))
        return Update({"cells": counts + noise}), {}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        cells = payload.get("cells")
        if payload.keys() != {"cells"} or not isinstance(cells, Tensor) or cells.ndim != 1:
            return "its payload must hold one count for each cell"
        if cells.dtype != torch.int64 or not 1 < len(cells) <= message["num_nodes"] + 1:
            return f"its counts are {cells.dtype} of {len(cells)} cells"
        return "a count is too large" if bool((cells.abs() > MOST_LEAVES).any()) else None

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        found = {i: total.payload[str(i)]["cells"] for i in total.clients}
        lengths = [len(cells) for cells in found.values()]
        usual = max(set(lengths), key=lengths.count)
        none = torch.zeros(usual, dtype=torch.int64)  # of a client that failed
        clients = range(server_state["num_clients"])
        counts = [found[i] if i in found and len(found[i]) == usual else none for i in clients]
        return {**server_state, "counts": torch.stack(counts).clamp(min=1)}


def ledger_of_counts(epsilon: float) -> PrivacyLedger:
    """Ledger of the only release of a client's counts, at a cost of epsilon for a leaf."""
    cost = PureCost(epsilon)
    return PrivacyLedger("everyone", "add/remove", 1.0, 1 / epsilon, 0.0, 1, "leaf", cost)


def _shares(counts: Int64[Tensor, "clients cells"], client_id: int) -> dict[str, Tensor]:
    """Sums of counts, and the client's own ones: without them it cannot find its slots."""
    return {
        "total": counts.sum(dim=0),
        "before": counts[:client_id].sum(dim=0),
        "own": counts[client_id].clone(),
    }


def _table(message: Tree) -> PolarPlaces:
    return PolarPlaces(message["table"]["turns"], message["table"]["radii"])


def _first(rows: Int64[Tensor, "..."]) -> tuple[Tensor, Int64[Tensor, " m"]]:
    """Different rows in ascending order, and the first position of each."""
    different, inverse = rows.unique(dim=0, return_inverse=True)
    first = torch.full((len(different),), len(rows), device=rows.device)
    at = torch.arange(len(rows), device=rows.device)
    return different, first.scatter_reduce(0, inverse, at, "amin")


def _between(places: PolarPlaces, rows: Tensor, nodes: Tensor, num_nodes: int) -> Tensor:
    """Distances of some nodes to all nodes, between nearest places; infinite without a place."""
    device = rows.device
    position = torch.full((num_nodes,), -1, device=device)
    position[nodes] = torch.arange(len(nodes), device=device)
    own = (position[rows] >= 0).nonzero().flatten()
    apart = places[own].cdist(places)
    infinite = torch.full((len(nodes), len(rows)), torch.inf, dtype=apart.dtype, device=device)
    index = position[rows[own]].unsqueeze(1).expand_as(apart)
    nearest = infinite.scatter_reduce(0, index, apart, "amin")
    found = torch.full((len(nodes), num_nodes), torch.inf, dtype=apart.dtype, device=device)
    return found.scatter_reduce(1, rows.expand_as(nearest), nearest, "amin")
