"""The three exchanges that every FedHull round has: sizes, hulls, names."""

from abc import abstractmethod
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import HOLDOUT, Client, Split
from fedbolic.federated.aggregators.aggregator import Aggregator, Sum
from fedbolic.federated.aggregators.modular import SumModulo, from_limbs, num_limbs, to_limbs
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.method import Phase
from fedbolic.federated.contract.traits import Traits
from fedhull.boundary import Boundary
from fedhull.core import Core
from fedhull.geometry.hull import BallPoints, PointLabels
from fedhull.grouping import Grouping, hull_distances, match_labels
from fedhull.labels import DecodingError, LabelCode, sorted_labels
from fedhull.leakage import leakage, quantised_hulls
from fedhull.quantise import PolarGrid
from fedhull.transmit import decode_hulls, encode_hulls, num_symbols

PUBLIC = ("exchange", "num_classes", "num_labels", "modulus", "capacity", "model", "core_share")
"""Entries of the server state that every client may know."""


class HullExchange(Phase):
    """Base class of the exchanges of a round."""

    aggregator = Sum()

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return message_to(server_state, client_id)

    @override
    @abstractmethod
    def template(self, message: Tree) -> Tree: ...


def message_to(server_state: Tree, client_id: int) -> Tree:
    """Public entries of the server state, and the client's place in the order of labels.

    Args:
        server_state: State of the server.
        client_id: Client that receives the message.
    """
    message = {name: server_state[name] for name in PUBLIC if name in server_state}
    if client_id == HOLDOUT:
        return message | ({"names": server_state["names"]} if "names" in server_state else {})
    return message | (
        {"place": int(server_state["order"][client_id])} if "order" in server_state else {}
    )


def arrays(split: Split) -> tuple[BallPoints, PointLabels]:
    """Points, in double precision, and labels of a split.

    Args:
        split: One split of a client.
    """
    examples = split.all()
    return points_of(examples), examples["y"].cpu().numpy()


def points_of(examples: Params) -> BallPoints:
    """Points of examples in double precision."""
    return examples["x"].double().cpu().numpy()


@dataclass(frozen=True)
class Sizes(HullExchange):
    """First exchange: the sum of the clients' bin counts; metrics report what the bins would leak.

    Args:
        grid: Polar grid of bins.
        min_count: Points that a bin must hold to be revealed, at least 1.
        core: Rule by which the outer points of a class are cut off; ``None`` for all points.
        boundary: Classifier that the server will train on the hulls.
    """

    grid: PolarGrid
    min_count: int
    core: Core | None
    boundary: Boundary

    traits = Traits(cohort="same", evaluates=False)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        points, labels = arrays(client.train)
        core = None
        if self.core is not None:
            core = self.core.kept(points, labels, c=self.grid.c, boundary=self.boundary)
        revealed = quantised_hulls(points, labels, self.grid, min_count=self.min_count, core=core)
        bins = np.concatenate([np.empty(0, dtype=np.int64), *revealed.values()])
        classes = np.repeat(list(revealed), [len(own) for own in revealed.values()])
        report = leakage(points, labels, self.grid, revealed=revealed)
        metrics = {
            "leakage/share": report.share,
            "leakage/single": report.single,
            "leakage/crowd": report.crowd,
            "leakage/bins": float(report.num_bins),
            "leakage/neighbour": report.neighbour,
            "leakage/outlying": report.outlying,
            "leakage/most_of_class": report.most_of_class,
        }
        client_state = {
            "own_bins": torch.from_numpy(bins),
            "own_classes": torch.from_numpy(classes.astype(np.int64)),
        }
        size = torch.tensor(len(np.unique(bins)))
        return Update({"size": size}, float(client.size), metrics), client_state

    @override
    def template(self, message: Tree) -> Tree:
        return {"size": torch.zeros((), dtype=torch.int64)}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_outside(payload, "size", 0, self.grid.num_bins)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        capacity = min(int(total.payload["size"]), self.grid.num_bins)
        if not capacity:
            raise RunStoppedError("no client reveals a bin: decrease min_count or increase epsilon")
        return server_state | {"exchange": "hulls", "capacity": capacity}


@dataclass(frozen=True)
class Hulls(HullExchange):
    """Second exchange: power sums of labelled bins, decoded to hulls; the server trains on them.

    Args:
        grid: Polar grid of bins.
        code: Code of the labels.
        grouping: Rule that groups hulls by class.
        boundary: Classifier to train on the groups.
        modulus: Prime order of the field.
    """

    grid: PolarGrid
    code: LabelCode
    grouping: Grouping
    boundary: Boundary
    modulus: int

    @property
    @override
    def aggregator(self) -> Aggregator:
        return SumModulo(self.modulus)

    traits = Traits(cohort="same", evaluates=False)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        integers = self.code.values(message["num_labels"])
        first = message["place"] * message["num_classes"]
        values: dict[int, int] = {}
        pairs = zip(
            client_state["own_bins"].tolist(), client_state["own_classes"].tolist(), strict=True
        )
        for place, k in pairs:
            values[place] = values.get(place, 0) + integers[first + k]
        sums = encode_hulls(values, capacity=message["capacity"], modulus=self.modulus)
        return Update({"sums": to_limbs(sums, self.modulus)}, float(client.size)), client_state

    @override
    def template(self, message: Tree) -> Tree:
        shape = (num_symbols(message["capacity"]), num_limbs(self.modulus))
        return {"sums": torch.zeros(shape, dtype=torch.int64)}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        try:  # each client's sums hold bins of its own labels alone
            _, labels = self.read(payload["sums"], message["num_labels"])
        except DecodingError as error:
            return str(error)
        place = message["place"]
        if (labels // message["num_classes"] != place).any():
            return f"its bins have labels of other clients than the one in place {place}"
        return None

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        try:
            bins, labels = self.read(total.payload["sums"], server_state["num_labels"])
            if "order" not in server_state:
                bins, labels = sorted_labels(bins, labels, num_classes=server_state["num_classes"])
            groups = self._grouped(bins, labels, server_state)
            points, groups_of_points = self.grid.decode(bins), groups[labels]
            model = self.boundary.fit(points, groups_of_points, c=self.grid.c)
        except ValueError as error:  # the sums cannot be decoded, or a class is absent
            raise RunStoppedError(str(error)) from error
        hulls = {"bins": bins, "labels": labels, "groups": groups_of_points}
        return server_state | {
            "exchange": "names",
            "model": model,
            "hulls": {name: torch.from_numpy(array) for name, array in hulls.items()},
        }

    def read(
        self, sums: Int[Tensor, "n limbs"], num_labels: int
    ) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
        """Bins of all hulls, each with its label.

        Args:
            sums: Sum of all clients' power sums, as limbs.
            num_labels: Number of labels.

        Raises:
            DecodingError: If honest clients could not have sent summands with this sum.
        """
        found = decode_hulls(from_limbs(sums), num_bins=self.grid.num_bins, modulus=self.modulus)
        pairs = [
            (place, label)
            for place, total in found.items()
            for label in self.code.decode(total, num_labels)
        ]
        bins, labels = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
        return bins, labels

    def _grouped(self, bins: np.ndarray, labels: np.ndarray, server_state: Tree) -> np.ndarray:
        """Group of each label; -1 for labels that no client used."""
        used, num_classes = np.unique(labels), server_state["num_classes"]
        hulls = [self.grid.decode(bins[labels == label]) for label in used]
        found = self.grouping.groups(
            hull_distances(hulls, c=self.grid.c),
            used // num_classes,
            num_groups=num_classes,
            seed=server_state["seed"],
        )
        if len(np.unique(found)) < num_classes:
            raise ValueError(f"the hulls make fewer than {num_classes} groups: a class is absent")
        groups = np.full(server_state["num_labels"], -1)
        groups[used] = found
        return groups


@dataclass(frozen=True)
class Names(HullExchange):
    """Third exchange: each client names the groups for itself, and votes on names for the server.

    Args:
        boundary: The classifier that the server trained.
        c: Minus the curvature, above 0.
    """

    boundary: Boundary
    c: float

    traits = Traits(cohort="same")

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        points, labels = arrays(client.train)
        groups = self.boundary.log_odds(message["model"], points, c=self.c).argmax(axis=1)
        agreement = np.zeros((message["num_classes"],) * 2)
        np.add.at(agreement, (groups, labels), 1)
        names = match_labels(agreement)
        votes = np.zeros(agreement.shape, dtype=np.int64)
        known = agreement.sum(axis=0)[names] > 0  # a client votes only for classes that it has
        votes[np.flatnonzero(known), names[known]] = 1
        update = Update({"votes": torch.from_numpy(votes)}, float(client.size))
        return update, client_state | {"own_names": torch.from_numpy(names)}

    @override
    def template(self, message: Tree) -> Tree:
        return {"votes": torch.zeros((message["num_classes"],) * 2, dtype=torch.int64)}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        return find_outside(payload, "votes", 0, 1)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        votes = total.payload["votes"]
        absent = (votes.sum(dim=0) == 0).nonzero().flatten().tolist()
        if absent:
            raise RunStoppedError(
                f"no client has classes {absent}: they cannot be learned, so leave them out"
            )
        names = match_labels(votes.double().cpu().numpy())
        return server_state | {"exchange": "done", "names": torch.from_numpy(names)}
