"""Private aggregation of a run: clipped updates, noise, and what both have cost."""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from fedbolic import tree
from fedbolic.federated.aggregators.summand import as_double, cast_like
from fedbolic.federated.cohort import Cohort
from fedbolic.federated.engines.engine import RunStoppedError
from fedbolic.federated.method import Method
from fedbolic.federated.privacy.client_privacy import AdaptiveClipping, ClientPrivacy
from fedbolic.federated.privacy.draws import SecretStream
from fedbolic.federated.privacy.ledger import PrivacyLedger
from fedbolic.federated.privacy.tree_noise import add_leaf
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.log import logger
from fedbolic.rng import Rng
from fedbolic.types import Tree


@dataclass(frozen=True)
class PrivateAggregation:
    """Private aggregation of the updates of one run.

    The state of a run's privacy holds the ``key`` of the noise, the clipping bound ``clip_norm``
    and, under correlated noise, the noise of the ``nodes`` of the tree that are still needed.

    Args:
        privacy: Settings.
        ledger: Ledger of the run.
        size: Expected number of clients in a round, the denominator of every mean.
    """

    privacy: ClientPrivacy
    ledger: PrivacyLedger
    size: float

    @classmethod
    def of_run(
        cls, privacy: ClientPrivacy, method: Method, cohort: Cohort, num_clients: int
    ) -> "PrivateAggregation":
        """Private aggregation of a run of a method.

        Args:
            privacy: Settings.
            method: Method to train.
            cohort: Sampling of the clients.
            num_clients: Number of clients of the federation.
        """
        ledger = privacy.ledger(cohort, num_clients, method.rounds, kind=method.cohort)
        everyone = method.cohort == "all"
        size = float(num_clients) if everyone else cohort.expected_size(num_clients)
        return cls(privacy, ledger, size)

    def begin(self, rng: Rng) -> Tree:
        """Initial state of a run's privacy; the ledger is logged.

        Args:
            rng: Random stream of the run, which gives the key of seeded noise.
        """
        logger.info("privacy: %s", self.ledger)
        if self.privacy.noise == "seeded":
            logger.warning("NOT PRIVATE: the noise follows from the seed of the run")
            stream = SecretStream.seeded(rng.at("privacy"))
        else:
            stream = SecretStream.fresh()
        key = torch.frombuffer(bytearray(stream.key), dtype=torch.uint8)
        return {"key": key, "clip_norm": self.privacy.clip_norm}

    def stream(self, state: Tree, round: int) -> SecretStream:
        """Secret random stream of a round.

        Args:
            state: State of the run's privacy.
            round: Number of the round, from 1.
        """
        return SecretStream(bytes(state["key"].tolist())).at("round", round)

    def check_budget(self, round: int) -> None:
        """Refuse a round that would exceed the budget.

        Args:
            round: Number of the round, from 1.

        Raises:
            RunStoppedError: If the cost after this round would be above ``epsilon``.
        """
        budget = self.privacy.epsilon
        if budget is not None and (cost := self.ledger.epsilon(round)) > budget:
            raise RunStoppedError(
                f"the privacy budget of epsilon {budget:g} is spent: round {round} would cost "
                f"{cost:.4g} in all; use fewer rounds or a larger noise_multiplier"
            )

    def aggregate(
        self,
        updates: Iterable[tuple[int, Update]],
        form: Tree,
        *,
        members: Iterable[int],
        state: Tree,
        round: int,
    ) -> tuple[AggregatedUpdate, Tree]:
        """Private mean of the updates, and the next state of the run's privacy.

        Neither the ids of the clients nor their number is in the result, but as many ids from 0 as
        are expected.

        Args:
            updates: Updates by client id; there may be none.
            form: Form of a payload.
            members: Ids of the clients that were asked.
            state: State of the run's privacy.
            round: Number of the round, from 1.

        Raises:
            ValueError: If the noise of adaptive clipping is too small.
        """
        bound, noise = state["clip_norm"], self.ledger.noise_multiplier
        total, within = _clipped_sum(updates, form["delta"], bound)
        stream = self.stream(state, round)
        if (adaptive := self.privacy.adaptive) is not None:
            count_noise = _count_noise(adaptive, noise, self.size)
            noise = (noise**-2 - (2 * count_noise) ** -2) ** -0.5
            within += count_noise * float(stream.at("count").normal(1))
            gap = within / self.size + 0.5 - adaptive.quantile
            state = {**state, "clip_norm": bound * math.exp(-adaptive.lr * gap)}
        state = self._add_noise_(total, state, round, members=members, std=noise * bound)
        mean = tree.map(lambda x, like: cast_like(x / self.size, like), total, form["delta"])
        metrics = {"privacy/epsilon": self.ledger.epsilon(round), "privacy/clip_norm": bound}
        ids = tuple(range(max(1, int(self.size + 0.5))))
        return AggregatedUpdate({**form, "delta": mean}, self.size, ids, metrics), state

    def _add_noise_(
        self, total: Tree, state: Tree, round: int, *, members: Iterable[int], std: float
    ) -> Tree:
        """Add the noise of a round, and return the next state of the run's privacy."""
        size = sum(leaf.numel() for leaf in tree.tensors(total).values())
        stream = self.stream(state, round)
        if self.privacy.placement == "clients":
            for i in members:
                _add_flat_(total, stream.at("client", i).normal(size), std)
            return state
        if self.privacy.correlation == "none":
            _add_flat_(total, stream.normal(size), std)
            return state
        place = (round - 1) % self.ledger.period
        epoch = self.stream(state, round - place).at("tree")
        nodes, growth = add_leaf(
            state["nodes"] if place else {},
            place,
            lambda level, index: epoch.at(level, index).normal(size),
        )
        _add_flat_(total, growth, std)
        return {**state, "nodes": nodes}

    def counts(self, message: Tree, form: Tree) -> dict[str, float]:
        """Expected costs of a round, which do not depend on who takes part.

        Args:
            message: Message to a client.
            form: Form of a payload.
        """
        return {
            "bytes/down": self.size * tree.num_bytes(message),
            "bytes/up": self.size * tree.num_bytes(form),
            "clients/asked": self.size,
        }


def _clipped_sum(
    updates: Iterable[tuple[int, Update]], form: Tree, bound: float
) -> tuple[Tree, float]:
    """Sum of the clipped deltas, and a count of 1/2 for each within the bound, else -1/2.

    An absent client counts as 0, so its absence changes the count by 1/2 only.
    """
    total = tree.map(lambda x: torch.zeros_like(x, dtype=torch.float64), form)
    within = 0.0
    for _, update in updates:
        delta = tree.map(as_double, update.payload["delta"])
        norm = float(tree.norm(delta))
        factor = 1.0 if norm <= bound else bound / norm
        total = tree.map(lambda x, y, f=factor: x.add_(y, alpha=f), total, delta)
        within += 0.5 if norm <= bound else -0.5
    return total, within


def _count_noise(adaptive: AdaptiveClipping, noise: float, size: float) -> float:
    found = adaptive.count_noise or max(size / 20, noise)
    if 2 * found <= noise:
        raise ValueError(
            f"count_noise must be above half the noise multiplier, {noise / 2:.4g}, got {found}"
        )
    return found


def _add_flat_(total: Tree, noise: Float64[Tensor, " size"], std: float) -> None:
    """Add the numbers of a vector, times a factor, to those of a tree."""
    leaves = list(tree.tensors(total).values())
    parts = noise.split([leaf.numel() for leaf in leaves])
    for leaf, part in zip(leaves, parts, strict=True):
        leaf.add_(part.to(leaf.device).view(leaf.shape), alpha=std)
