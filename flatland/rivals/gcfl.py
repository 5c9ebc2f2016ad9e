"""GCFL and GCFL+: federated averaging in clusters of clients that the server finds by itself."""

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import HOLDOUT, Client
from fedbolic.federated.aggregators.aggregator import Gather
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.engine import RunStoppedError
from flatland.graphs.graph_method import GraphMethod
from flatland.rivals.affinities import ClientAffinity, UpdateCosines, minimum_cut
from flatland.rivals.personal_means import weighted_means

NORM = "gradient_norm"
"""Entry of a payload: the norm of the client's last gradient."""

Units = Literal["first round", "absolute"]


@dataclass(frozen=True)
class Gcfl(GraphMethod):
    r"""Clustered federated averaging of graph networks: GCFL, and GCFL+ with ``GradientNorms``.

    All clients begin in one cluster. In every round, the server averages the updates within each
    cluster, and splits a cluster C of more than two clients where its mean update is small although
    some client's update is not:

    .. math::
        \Bigl\| \sum_{i \in C} \tfrac{n_i}{n_C} \Delta_i \Bigr\| < \epsilon_1, \qquad
        \max_{i \in C} \| \Delta_i \| > \epsilon_2

    The two parts are the minimum cut of the complete graph whose edges have the affinities of
    clients as weights: cosines of updates in GCFL, distances of sequences of gradient norms in
    GCFL+. Both begin from the parameters of the cluster, which are averaged separately from this
    round on.

    The server needs every client's update, so no secure sum can hide it. A cluster is split only in
    a round in which all of its clients answered and, in GCFL+, after each has sent the norms of a
    full window; norms of a cluster that was split are forgotten. A cluster of which nobody with
    training data answered keeps its parameters. There is no global model, so the server's own test
    set has no score.

    Departs from the authors' code, whose form has ``units="absolute"`` with the bounds 0.01 and
    0.1, :class:`~flatland.rivals.affinities.ShiftedCosines`, ``bounded_mean="uniform"``,
    ``normed="body.*"`` and ``forgets="all"``. By default, bounds are in units of the largest update
    of the first round, because the norm of an update grows with the step size and with the network;
    negative cosines count as 0 (:class:`~flatland.rivals.affinities.UpdateCosines`), with which
    groups are found that a cut of cosines plus 1 does not see; and the clusters' windows are
    independent. A gradient's norm is that of a client's last step in the round.

    Args:
        affinity: Affinity of the clients of a cluster.
        mean_bound: Bound :math:`\epsilon_1` on the norm of the mean update, above 0.
        largest_bound: Bound :math:`\epsilon_2` on the norm of the largest update, at least 0.
        units: Unit of both bounds: ``first round`` or ``absolute``.
        warmup: Number of rounds before the first split, at least 0.
        bounded_mean: Mean update that ``mean_bound`` bounds: ``weighted`` by the weights of the
            clients, or ``uniform``, in which all clients count alike.
        normed: Pattern of the names of those shared parameters whose gradient has its norm sent.
        forgets: Clients whose windows begin anew when a cluster is split: those of the cluster
            (``split``), or ``all``. With ``all``, a split also needs full windows of all clients.

    Raises:
        ValueError: If a value is outside its range, or ``normed`` matches no shared parameter.

    References:
        Xie et al. (2021), arXiv:2106.13423, and its authors' code.

    Example:
        >>> from flatland.rivals.affinities import GradientNorms
        >>> Gcfl(affinity=GradientNorms(window=5)).affinity.window
        5
    """

    affinity: ClientAffinity = field(default_factory=UpdateCosines)
    mean_bound: float = 0.5
    largest_bound: float = 0.1
    units: Units = "first round"
    warmup: int = 20
    bounded_mean: Literal["weighted", "uniform"] = "weighted"
    normed: str = "*"
    forgets: Literal["split", "all"] = "split"

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(mean_bound=self.mean_bound)
        check.not_negative(largest_bound=self.largest_bound)
        check.at_least(0, warmup=self.warmup)
        check.one_of(("first round", "absolute"), units=self.units)
        check.one_of(("weighted", "uniform"), bounded_mean=self.bounded_mean)
        check.one_of(("split", "all"), forgets=self.forgets)

    aggregator = Gather()

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        server_state = super().init(meta, rng)
        parameters = server_state.pop("parameters")
        if not parameters:
            raise ValueError(f"sharing leaves no parameter to be sent: {self.sharing}")
        if not fnmatch.filter(parameters, self.normed):
            raise ValueError(f"normed matches none of {[*parameters]}, got {self.normed!r}")
        everyone = torch.arange(meta.num_clients)
        return {
            **server_state,
            "clusters": {"0": {"members": everyone, "parameters": parameters}},
            "norms": {},
            "sizes": torch.ones(meta.num_clients, dtype=torch.int64),
            "unit": 0.0,
            "round": 0,
        }

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return {**server_state, "sizes": torch.tensor(sizes)}

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        clusters = server_state["clusters"]
        own = next((of for of in clusters.values() if client_id in of["members"]), clusters["0"])
        return {
            "parameters": own["parameters"],
            "buffers": server_state["buffers"],
            "seed": server_state["seed"],
        }

    @override
    def start(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().start(message, client, client_state)
        if self.affinity.window:
            local = {**local, NORM: client.no_inputs.new_zeros(())}
        return local, context

    @override
    def step(
        self, local: Tree, gradients: Params, context: Tree, *, num_batch_axes: int = 0
    ) -> Tree:
        """A step that notes the norm of the gradient, of one client or of several.

        Args:
            local: ``local`` before the step.
            gradients: Gradients of the loss.
            context: Context of :meth:`start`.
            num_batch_axes: Number of leading axes of clients.
        """
        if self.affinity.window:
            squares = [  # before the optimiser, which may reuse the gradients' storage
                gradients[name].square().sum(tuple(range(num_batch_axes, gradients[name].dim())))
                for name in fnmatch.filter(context["shared"]["global_parameters"], self.normed)
            ]
            local = {**local, NORM: torch.stack(squares).sum(0).sqrt()}
        return super().step(local, gradients, context)

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, client_state = super().outcome(local, context)
        norm = {NORM: local[NORM]} if self.affinity.window else {}
        return {**payload, **norm}, client_state

    @override
    def template(self, message: Tree) -> Tree:
        like = next(iter(message["parameters"].values()))
        norm = {NORM: like.new_zeros(())} if self.affinity.window else {}
        return {"delta": message["parameters"], **norm}

    @override
    def scored(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree] | None:
        return None if client.id == HOLDOUT else super().scored(message, client, client_state)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        refuse_no_data(total)
        updates = {int(i): flattened(of["delta"]) for i, of in total.payload.items()}
        norms = _windows(server_state["norms"], total, self.affinity.window)
        unit = server_state["unit"] or max(float(update.norm()) for update in updates.values())
        current = server_state["round"] + 1
        clusters: list[Tree] = []
        for cluster in server_state["clusters"].values():
            members = cluster["members"].tolist()
            parts = [members]
            if current > self.warmup and all(i in updates for i in members):
                own = torch.stack([updates[i] for i in members])
                parts = self._parts(members, own, norms, server_state, unit)
            if len(parts) > 1:
                logger.info("round %d: a cluster is split into %s and %s", current, *parts)
                others = norms.items() if self.forgets == "split" else ()
                norms = {i: values for i, values in others if int(i) not in members}
            for part in parts:
                moved = cluster["parameters"]
                if present := [i for i in part if i in updates]:
                    deltas = [total.payload[str(i)]["delta"] for i in present]
                    shares = shares_of(server_state["sizes"], present, self.weights)
                    moved = tree.add(moved, weighted_means(deltas, shares))
                clusters.append({"members": torch.tensor(part), "parameters": moved})
        named = {str(place): cluster for place, cluster in enumerate(clusters)}
        return {**server_state, "clusters": named, "norms": norms, "unit": unit, "round": current}

    def _parts(
        self,
        members: Sequence[int],
        updates: Tensor,
        norms: dict[str, Tensor],
        server_state: Tree,
        unit: float,
    ) -> list[list[int]]:
        """Both sides of the minimum cut of a cluster of which all answered, or all of it.

        It is cut if it has more than two clients, meets both bounds and has full windows.
        """
        shares = shares_of(server_state["sizes"], members, self.weights)
        if self.bounded_mean == "uniform":
            shares = torch.full_like(shares, 1 / len(shares))
        scale = unit if self.units == "first round" else 1.0
        mean, largest = (shares.to(updates) @ updates).norm(), updates.norm(dim=1).max()
        small = bool(mean < self.mean_bound * scale)
        divided = len(members) > 2 and small and bool(largest > self.largest_bound * scale)
        everyone = range(len(server_state["sizes"]))
        awaited = members if self.forgets == "split" else everyone
        full = all(len(norms.get(str(i), ())) >= self.affinity.window for i in awaited)
        if not (divided and full):
            return [list(members)]
        sequences = updates.new_zeros(len(members), 0)
        if self.affinity.window:
            sequences = torch.stack([norms[str(i)] for i in members])
        sides = minimum_cut(self.affinity.matrix(updates, sequences))
        return [[members[place] for place in side] for side in sides]


def _windows(known: dict[str, Tensor], total: AggregatedUpdate, window: int) -> dict[str, Tensor]:
    """Gradient norms that every client has sent, at most those of a window."""
    known = dict(known)
    for i, payload in total.payload.items() if window else ():
        newest = payload[NORM].double().reshape(1)
        earlier = [known[i]] if i in known else []
        known[i] = torch.cat([*earlier, newest])[-window:].clone()
    return known


def refuse_no_data(total: AggregatedUpdate) -> None:
    """Stop a run in a round in which no client has training data for a mean.

    Raises:
        RunStoppedError: If all weights are 0.
    """
    if not total.weight:
        raise RunStoppedError(f"no client of {list(total.clients)} has training data for a mean")


def shares_of(sizes: Tensor, clients: Sequence[int], weights: str) -> Tensor:
    """Weights of some clients in their mean, with the sum 1, or 0 if none has training data.

    Args:
        sizes: Sizes of all clients.
        clients: Those of the mean.
        weights: ``size`` or ``uniform``.
    """
    of_all = sizes.tolist()
    chosen = [of_all[i] if weights == "size" else 1 for i in clients]
    return torch.tensor(chosen, dtype=torch.float64) / max(sum(chosen), 1)


def flattened(delta: Params) -> Tensor:
    """All numbers of an update as one vector, in float64."""
    return torch.cat([value.double().flatten() for value in delta.values()])
