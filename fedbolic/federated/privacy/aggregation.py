"""Private aggregation of a run: clipped updates, noise, and what both have cost."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float64, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import FederatedData
from fedbolic.federated.accounting.banded_noise import (
    DIGITS,
    add_round,
    banded_coefficients,
)
from fedbolic.federated.accounting.ledger import PrivacyLedger, log_ledger
from fedbolic.federated.accounting.tree_noise import add_leaf
from fedbolic.federated.aggregators.aggregator import as_double, cast_like
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.engine import Exchange, RunStoppedError
from fedbolic.federated.contract.method import Method
from fedbolic.federated.noise.draws import (
    DRAWS_VERSION,
    SecretStream,
    check_draws,
    check_mechanism,
    warn_of_keys,
)
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.rounded_gaussian import LARGEST_SCALE, rounded_gaussian
from fedbolic.federated.privacy.client_privacy import ClientPrivacy
from fedbolic.federated.privacy.coverage import covered_form
from fedbolic.federated.rounds.cohort import Cohort
from fedbolic.federated.rounds.plain_aggregation import PlainAggregation
from fedbolic.federated.rounds.update_filter import UpdateFilter


@dataclass(frozen=True)
class PrivateAggregation(PlainAggregation):
    """Private aggregation of the updates of one run.

    The state of a run's privacy holds the ``key`` of cohorts and noise, the version of their
    ``draws``, the ``mechanism`` that the ledger counts, the clipping bound ``clip_norm`` and, under
    correlated noise, that of the ``nodes``, parts of a tree or earlier rounds, which is still
    needed.

    Args:
        privacy: Settings.
        ledger: Ledger of the run.
        size: Expected number of clients in a round, the denominator of every mean.
        seen: Ledger for whoever sees who takes part, which is reported as well; ``None`` if nobody
            does.
    """

    privacy: ClientPrivacy
    ledger: PrivacyLedger
    size: float
    seen: PrivacyLedger | None = None

    keeps_secrets = True

    @classmethod
    def of_run(
        cls,
        privacy: ClientPrivacy,
        method: Method,
        cohort: Cohort,
        num_clients: int,
        *,
        seen: bool = False,
    ) -> "PrivateAggregation":
        """Private aggregation of a run of a method.

        Args:
            privacy: Settings.
            method: Method to train.
            cohort: Sampling of the clients.
            num_clients: Number of clients of the federation.
            seen: Whether others see who takes part, as where requests cross a network.
        """
        ledger = privacy.ledger(cohort, num_clients, method.rounds, kind=method.traits.cohort)
        everyone = method.traits.cohort == "all"
        size = float(num_clients) if everyone else cohort.expected_size(num_clients)
        return cls(privacy, ledger, size, ledger.without_sampling() if seen else None)

    @property
    def bands(self) -> tuple[float, ...]:
        """Coefficients of banded noise; empty for other noise."""
        if self.privacy.correlation != "banded":
            return ()
        rounds = self.ledger.rounds
        return banded_coefficients(rounds, min(self.ledger.period, rounds))

    @override
    def check_covers(self, phase: Method, server_state: Tree) -> None:
        covered_form(phase, server_state)

    @override
    def begin(self, rng: Rng, num_clients: int) -> Tree:
        """Initial state with a new key, which ``rng`` names; the ledger is logged."""
        log_ledger(self.ledger, num_clients, of="clients")
        if self.seen not in (None, self.ledger):
            logger.info("privacy: against whoever sees who takes part, %s", self.seen)
        warn_of_keys(self.privacy.noise)
        stream = self.privacy.noise.stream(rng.at("privacy"))
        key = torch.frombuffer(bytearray(stream.key), dtype=torch.uint8)
        versions = {"draws": DRAWS_VERSION, "mechanism": self.ledger.mechanism()}
        return {"key": key, "clip_norm": self.privacy.clip_norm, **versions}

    def stream(self, state: Tree, round: int) -> SecretStream:
        """Secret random stream of a round.

        Args:
            state: State of the run's privacy.
            round: Number of the round, from 1.

        Raises:
            RunStoppedError: If an earlier version started the run, or other noise or cohorts, whose
                cost this ledger does not count.
        """
        check_draws(state)
        check_mechanism(state, self.ledger.mechanism())
        return SecretStream(bytes(state["key"].tolist())).at("round", round)

    @override
    def order(self, state: Tree, rng: Rng, round: int, exchange: int) -> SecretStream:
        return self.stream(state, round)

    @override
    def check_budget(self, round: int) -> None:
        budget = self.privacy.epsilon
        if budget is not None and (cost := self.ledger.epsilon(round)) > budget:
            raise RunStoppedError(
                f"the privacy budget of epsilon {budget:g} is spent: round {round} would cost "
                f"{cost:.4g} in all; use fewer rounds or a larger noise_multiplier"
            )

    @override
    def aggregate(
        self,
        exchange: Exchange,
        updates: Iterator[tuple[int, Update]],
        before: Tree,
        state: Tree,
        *,
        round: int,
    ) -> tuple[AggregatedUpdate, Tree]:
        form, members = covered_form(exchange.method, before), exchange.messages
        return self.mean(updates, form, members=members, state=state, round=round)

    def mean(
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
        stream, adaptive, count_noise = self.stream(state, round), self.privacy.adaptive, 0.0
        if adaptive is not None:
            noise, count_noise = adaptive.split(noise, self.size)
        size = sum(leaf.numel() for leaf in tree.tensors(form["delta"]).values())
        digits, norm = (DIGITS, math.hypot(*self.bands)) if self.bands else (0, 1.0)
        grid = GaussianGrid(size, bound, noise * bound * norm, digits)
        total, within = _rounded_sum(updates, form["delta"], grid)
        if adaptive is not None:
            count = _noisy_count(within, count_noise, stream.at("count"))
            following = adaptive.next_bound(bound, count / self.size + 0.5)
            state = {**state, "clip_norm": following}
        drawn, state = self._noise(grid, state, round, members=members)
        flat = grid.scaled(total + drawn.to(total.device)) / self.size
        mean = _shaped(flat, form["delta"])
        metrics = {"privacy/epsilon": self.ledger.epsilon(round), "privacy/clip_norm": bound}
        if self.seen not in (None, self.ledger):
            metrics["privacy/epsilon_without_sampling"] = self.seen.epsilon(round)
        ids = tuple(range(max(1, int(self.size + 0.5))))
        return AggregatedUpdate({**form, "delta": mean}, self.size, ids, metrics), state

    def _noise(
        self, grid: GaussianGrid, state: Tree, round: int, *, members: Iterable[int]
    ) -> tuple[Int64[Tensor, " size"], Tree]:
        """Noise of a round, and the next state of the run's privacy."""
        stream = self.stream(state, round)
        if self.privacy.placement == "clients":
            drawn = [grid.noise(stream.at("client", i)) for i in members]
            return sum(drawn, torch.zeros(grid.size, dtype=torch.int64)), state
        if self.privacy.correlation == "none":
            return grid.noise(stream.at("noise")), state
        if self.bands:
            own = grid.noise(stream.at("noise"))
            nodes, drawn = add_round(state.get("nodes", {}), own, self.bands)
            return drawn, {**state, "nodes": nodes}
        place = (round - 1) % self.ledger.period
        epoch = self.stream(state, round - place).at("tree")
        nodes, growth = add_leaf(
            state["nodes"] if place else {},
            place,
            lambda level, index: grid.noise(epoch.at(level, index)),
        )
        return growth, {**state, "nodes": nodes}

    @override
    def may_repeat(self, phase: Method) -> bool:
        return False

    @override
    def recorded(
        self, phase: Method, server_state: Tree, update_filter: UpdateFilter, payload: Tree
    ) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        """No client's metrics, and expected costs, which do not depend on who takes part."""
        return {}, {
            "bytes/down": self.size * tree.num_bytes(phase.broadcast(server_state, 0)),
            "bytes/up": self.size * tree.num_bytes(payload),
            "clients/asked": self.size,
        }

    @override
    def scored(self, data: FederatedData) -> FederatedData:
        return data.without_clients()


def _rounded_sum(
    updates: Iterable[tuple[int, Update]], form: Tree, grid: GaussianGrid
) -> tuple[Int64[Tensor, " size"], int]:
    """Sum of the clipped deltas on a grid; and in half units the count of those within the bound.

    A client within the bound counts as 1/2, another one as -1/2. An absent client counts as 0, so
    its absence changes the count by 1/2 only.
    """
    names = tree.tensors(form)
    device = next(iter(names.values())).device
    total, within = torch.zeros(grid.size, dtype=torch.int64, device=device), 0
    for _, update in updates:
        leaves = tree.tensors(update.payload["delta"])
        delta = torch.cat([as_double(leaves[name]).flatten() for name in names])
        within += 1 if float(delta.norm()) <= grid.bound else -1
        total += grid.rounded_sum(delta[None])
    return total, within


def _noisy_count(half_units: int, std: float, stream: SecretStream) -> float:
    """A count in half units with Gaussian noise, on a fine grid.

    Args:
        half_units: Twice the count.
        std: Standard deviation of the noise of the count.
        stream: Secret random stream that serves nothing else.
    """
    parts = 2 ** math.floor(math.log2(LARGEST_SCALE / max(1.0, 2 * std)))
    drawn = rounded_gaussian(stream, 1, scale=2 * std * parts)
    return (half_units * parts + int(drawn[0])) / (2 * parts)


def _shaped(flat: Float64[Tensor, " size"], form: Tree) -> Tree:
    """A vector as a tree of the given form."""
    parts = iter(flat.split([leaf.numel() for leaf in tree.tensors(form).values()]))
    return tree.map(lambda like: cast_like(next(parts).view(like.shape), like), form)
