"""Aggregation of a round by the method's own rule, and the interface of other aggregations."""

import itertools
from collections.abc import Iterator

from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import FederatedData
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.engine import Exchange, RunStoppedError
from fedbolic.federated.contract.method import Method
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.rounds.update_filter import UpdateFilter


class PlainAggregation:
    """Aggregation by the method's own rule, with all that a trainer asks of an aggregation."""

    keeps_secrets: bool = False
    """True if the state of the aggregation holds keys, which are deleted after the last round."""

    def check_covers(self, phase: Method, server_state: Tree) -> None:
        """Refuse an exchange that this aggregation does not cover; by default it covers all.

        Args:
            phase: Method of the exchange.
            server_state: Server state before it.

        Raises:
            ValueError: If clients send what is not covered.
        """
        del phase, server_state

    def begin(self, rng: Rng, num_clients: int) -> Tree:
        """Initial state of the aggregation, which a checkpoint holds; by default empty.

        Args:
            rng: Random stream of the run.
            num_clients: Number of clients of the federation.
        """
        del rng, num_clients
        return {}

    def check_budget(self, round: int) -> None:
        """Refuse a round that would exceed a budget; by default there is none.

        Args:
            round: Number of the round, from 1.

        Raises:
            RunStoppedError: If the budget would be exceeded.
        """
        del round

    def order(self, state: Tree, rng: Rng, round: int, exchange: int) -> Rng | SecretStream:
        """Random stream that draws the cohort of an exchange.

        Args:
            state: State of the aggregation.
            rng: Random stream of the run.
            round: Number of the round, from 1, or of the first round of its epoch.
            exchange: Number of the exchange in the round.

        Raises:
            RunStoppedError: If the run was begun by another aggregation.
        """
        if state:
            raise RunStoppedError("this run was begun with privacy, and would go on without it")
        return rng.at("round", round, "exchange", exchange)

    def aggregate(
        self,
        exchange: Exchange,
        updates: Iterator[tuple[int, Update]],
        before: Tree,
        state: Tree,
        *,
        round: int,
    ) -> tuple[AggregatedUpdate, Tree]:
        """Aggregate of the updates, and the next state of the aggregation.

        Args:
            exchange: Exchange of the clients that were asked.
            updates: Usable updates by client id.
            before: Server state before the exchange.
            state: State of the aggregation.
            round: Number of the round, from 1.

        Raises:
            ValueError: If no update is usable.
        """
        del before, round
        first = next(updates, None)
        if first is None:
            raise ValueError("no client delivered a usable update; the warnings above say why")
        return exchange.method.aggregator.aggregate(itertools.chain([first], updates)), state

    def may_repeat(self, phase: Method) -> bool:
        """True if the clients of an exchange may be asked again."""
        return phase.traits.repeatable

    def recorded(
        self, phase: Method, server_state: Tree, update_filter: UpdateFilter, payload: Tree
    ) -> tuple[dict[int, dict[str, float]], dict[str, float]]:
        """Metrics of clients by id, and counts of an exchange such as bytes.

        Args:
            phase: Method of the exchange.
            server_state: Server state before the exchange.
            update_filter: Filter through which all updates have gone.
            payload: The aggregate.
        """
        del phase, server_state, payload
        return update_filter.metrics, update_filter.counts()

    def scored(self, data: FederatedData) -> FederatedData:
        """The part of the data on which a round is scored; by default all."""
        return data
