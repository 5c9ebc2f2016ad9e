"""The trainer: runs the rounds of a federated method and scores them."""

import contextlib
import dataclasses
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass

import torch

from fedbolic.core import tree
from fedbolic.core.checksums import DamagedError
from fedbolic.core.imports import MissingExtraError
from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client, ClientSlices, FederatedData
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.channel import Channel
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.engine import (
    Engine,
    Exchange,
    Remote,
    Result,
    RunStoppedError,
    messages_to,
)
from fedbolic.federated.contract.method import Method, refuse_other_data
from fedbolic.federated.engines.auto import Auto
from fedbolic.federated.engines.sequential import Sequential
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.privacy.aggregation import PrivateAggregation
from fedbolic.federated.privacy.client_privacy import ClientPrivacy
from fedbolic.federated.rounds.cohort import Cohort
from fedbolic.federated.rounds.evaluation import Evaluation, training_metrics
from fedbolic.federated.rounds.plain_aggregation import PlainAggregation
from fedbolic.federated.rounds.speculation import Speculation
from fedbolic.federated.rounds.trainer_state import TrainerState
from fedbolic.federated.rounds.update_filter import UpdateFilter
from fedbolic.federated.scores.metrics import measuring

OLDEST_TORCH = "2.11"
"""Oldest release of torch that trains; layers alone work with older ones."""


@dataclass(frozen=True)
class Trainer:
    """Runs the exchanges of a method, and yields states and metrics; it writes no files.

    Args:
        engine: Executes the clients of an exchange.
        cohort: Samples the clients of an exchange that asks for a sample.
        channels: Transformations of updates on the wire, in the order of sending.
        evaluation: Times and kinds of scores.
        privacy: Differential privacy of the clients; ``None`` for none.

    Raises:
        MissingExtraError: If the installed torch is older than :data:`OLDEST_TORCH`.

    Example:
        >>> from fedbolic.federated import Trainer
        >>> from fedbolic.methods import FedAvg
        >>> from fedbolic.data import Digits, Partitioned, IID
        >>> method, data = FedAvg(rounds=2), Partitioned(Digits(), IID(5)).load(Rng(0))
        >>> *_, (state, rows) = Trainer().run(method, data, Rng(0))
        >>> state.round
        2
    """

    engine: Engine = Sequential()
    cohort: Cohort = Cohort()
    channels: tuple[Channel, ...] = ()
    evaluation: Evaluation = Evaluation()
    privacy: ClientPrivacy | None = None

    def __post_init__(self) -> None:
        if torch.__version__ < OLDEST_TORCH:  # compared as versions, not as text
            raise MissingExtraError(
                f"training needs torch {OLDEST_TORCH} or newer, and {torch.__version__} is "
                f"installed: pip install 'torch>={OLDEST_TORCH}'"
            )

    def begin(self, method: Method, data: FederatedData, rng: Rng | int) -> TrainerState:
        """Initial state of a run.

        Args:
            method: Method to train.
            data: Federated data, on the device and in the dtype to work in.
            rng: Random stream of the run, or its seed.

        Raises:
            ValueError: If a channel does not fit the first aggregator, the method does not fit the
                data or a deployment, the engine or the evaluation does not fit the clients, or more
                would leave the clients than ``privacy`` covers.
        """
        rng = _stream(rng)
        self.engine.check(data.clients)
        self.evaluation.check(method, data.meta)
        if isinstance(self.engine, Remote):
            method.check_deployed()
        else:
            one = isinstance(data.clients, ClientSlices)  # whose clients are alike
            for client in data.clients[:1] if one else data.clients:
                refuse_other_data(method, client)
        inputs = data.clients[0].no_inputs
        sizes = data.sizes if self.privacy is None else [1] * len(data.clients)
        server_state = method.admit(method.init(data.meta, rng.at("init")), sizes)
        server_state = tree.to(server_state, inputs.device, inputs.dtype)
        phase = method.phase(server_state)
        self._check(phase)
        aggregation = self._aggregation(method, data)
        aggregation.check_covers(phase, server_state)
        return TrainerState(server_state, privacy=aggregation.begin(rng, len(data.clients)))

    def settle(
        self, method: Method, data: FederatedData, rng: Rng, state: TrainerState
    ) -> tuple["Trainer", dict[str, float]]:
        """Trainer with the engine that ``Auto`` chooses, and seconds by engine if it measured them.

        Args:
            method: Method to train.
            data: Federated data, as in :meth:`begin`.
            rng: Random stream of the run.
            state: State from which the run starts or continues.
        """
        if not isinstance(self.engine, Auto):
            return self, {}
        phase = method.phase(state.server_state)
        stream = rng.at("settle")
        members = self._members(phase, data, state, stream) or (0,)  # a Poisson sample may be empty
        cohort = [data.clients[i] for i in members]
        messages = messages_to(phase, state.server_state, cohort)
        first = Exchange(phase, messages, cohort, {}, stream)
        engine, seconds = self.engine.settle(first, method.rounds - state.round)
        return dataclasses.replace(self, engine=engine), seconds

    def run(
        self,
        method: Method,
        data: FederatedData,
        rng: Rng | int,
        state: TrainerState | None = None,
    ) -> Generator[tuple[TrainerState, list[Row]], None, None]:
        """Yield the state after each remaining exchange, with the metrics of that exchange.

        An exchange whose updates would make the server's state infinite is attempted once more
        without the outliers; the state in between is yielded, too, without metrics.

        Args:
            method: Method to train.
            data: Federated data, on the device and in the dtype to work in.
            rng: Random stream of the run, or its seed; every exchange, client and purpose has its
                own substream.
            state: State to continue from; ``None`` to start a new run.

        Raises:
            RunStoppedError: If no client of an exchange delivers a usable update, a channel does
                not fit an update, the next server state would not be finite, the engine cannot
                work, or the budget of privacy is spent.
            ValueError: If a channel does not fit the aggregator of an exchange, or the engine does
                not fit the clients.
        """
        rng = _stream(rng)
        if state is None:
            state = self.begin(method, data, rng)
        if state.round >= method.rounds:
            return
        settled, _ = self.settle(method, data, rng, state)
        with settled.engine.open(data.clients) as engine:
            trainer = dataclasses.replace(self, engine=engine)
            while state.round < method.rounds:
                try:
                    with measuring(self.evaluation.metrics):  # methods may score local training
                        state, rows = trainer._exchange(method, data, rng, state)
                except DamagedError as error:
                    raise RunStoppedError(f"client state cannot be read: {error}") from error
                yield state, rows

    def _check(self, phase: Method) -> None:
        for channel in self.channels:
            if channel.needs_additive and not isinstance(phase.aggregator, Additive):
                raise ValueError(
                    f"{type(channel).__name__} needs an aggregator that sums, and "
                    f"{type(phase).__name__} uses {type(phase.aggregator).__name__}"
                )
        if self.privacy is None:
            if self.cohort.sampling == "poisson":
                raise ValueError(
                    "a Poisson cohort may be empty, which only a run with privacy allows: set "
                    "cohort.sampling to fixed, or privacy"
                )
        elif self.evaluation.fine_tuning or self.evaluation.ridge_head:
            raise ValueError(
                "privacy does not cover fine_tuning and ridge_head, for which clients send more: "
                "set both to null"
            )
        elif isinstance(self.engine, Remote):
            self.privacy.check_deployed()

    def _aggregation(self, method: Method, data: FederatedData) -> PlainAggregation:
        if self.privacy is None:
            return PlainAggregation()
        given = self.privacy, method, self.cohort, len(data.clients)
        return PrivateAggregation.of_run(*given, seen=isinstance(self.engine, Remote))

    def _exchange(
        self, method: Method, data: FederatedData, rng: Rng, state: TrainerState
    ) -> tuple[TrainerState, list[Row]]:
        """One exchange: broadcast, local work, aggregation, server update; then the scores."""
        phase = method.phase(state.server_state)
        self._check(phase)
        current, aggregation = state.round + 1, self._aggregation(method, data)
        aggregation.check_budget(current)
        cohort = self._cohort(phase, data, rng, state, aggregation)
        messages = messages_to(phase, state.server_state, cohort)
        states = state.client_states  # each state is read once
        own = {client.id: states[client.id] for client in cohort if client.id in states}
        stream = rng.at(*state.path())
        exchange = Exchange(phase, messages, cohort, own, stream)
        results = self.engine.run(exchange) if cohort else iter(())
        channels = () if isinstance(self.engine, Remote) else self.channels
        update_filter = UpdateFilter(phase, messages, channels, stream)
        guess, results = self._speculated(method, data, rng, state, exchange, results)
        updates = update_filter.usable(results)
        if guess is not None:
            usable = [*updates]
            guess, updates = guess.confirmed(usable), iter(usable)
        if guess is not None:
            total, server_state, privacy = guess.total, guess.server_state, state.privacy
        else:
            total, server_state, privacy = self._aggregated(aggregation, exchange, updates, state)
            if not tree.is_finite(server_state):
                repeatable = aggregation.may_repeat(phase)
                return state.without_outliers(update_filter, repeatable=repeatable), []
        metrics, counts = aggregation.recorded(
            phase, state.server_state, update_filter, total.payload
        )
        done = TrainerState(
            server_state,
            state.client_states | update_filter.client_states,
            state.round,
            state.exchange + 1,
            total.clients,
            state.counted(counts),
            privacy,
            quarantined=state.quarantined,
        )
        rows = self._client_rows(method, phase, done, metrics, total)
        if not phase.traits.evaluates:
            return done, rows
        done, ended = self._end_round(method, data, rng, done, guess and guess.scores)
        return done, rows + ended

    def _speculated(
        self,
        method: Method,
        data: FederatedData,
        rng: Rng,
        state: TrainerState,
        exchange: Exchange,
        results: Iterator[Result],
    ) -> tuple[Speculation | None, Iterator[Result]]:
        """Outcome if all results are usable, and an iterator over these."""
        on_cpu = data.clients[0].no_inputs.device.type == "cpu"  # where no number is waited for
        if on_cpu or self.privacy is not None or self.channels:
            return None, results

        def scored(server_state: Tree, client_states: dict[int, Tree]) -> list[Row]:
            if not exchange.method.traits.evaluates:
                return []
            states = state.client_states | client_states
            done = TrainerState(server_state, states, state.round + 1)
            return self._scores(method, data, rng, done)

        with _stopping(state.round + 1):
            return Speculation.of(exchange, state.server_state, results, scored)

    def _aggregated(
        self,
        aggregation: PlainAggregation,
        exchange: Exchange,
        updates: Iterator[tuple[int, Update]],
        state: TrainerState,
    ) -> tuple[AggregatedUpdate, Tree, Tree]:
        """The aggregated update, and the next states of the server and of privacy."""
        current = state.round + 1
        given = exchange, updates, state.server_state, state.privacy
        with _stopping(current):
            total, privacy = aggregation.aggregate(*given, round=current)
        for channel in reversed(self.channels):
            total = channel.receive(total)
        return total, exchange.method.server_update(state.server_state, total), privacy

    def _client_rows(
        self,
        method: Method,
        phase: Method,
        done: TrainerState,
        metrics: Mapping[int, Mapping[str, float]],
        total: AggregatedUpdate,
    ) -> list[Row]:
        """Rows of the clients' training metrics, and of the aggregation's own numbers."""
        costs: dict[str, float] = {}
        if phase.traits.evaluates and isinstance(method, Reporting):
            costs = method.costs(done.server_state)
        found = training_metrics(metrics, {*done.counters, *costs})
        rows = self.evaluation.client_rows(done.round + 1, found, reserved=total.metrics)
        own = total.metrics.items()
        return rows + [Row(done.round + 1, None, name, value) for name, value in own]

    def _end_round(
        self,
        method: Method,
        data: FederatedData,
        rng: Rng,
        done: TrainerState,
        scores: list[Row] | None,
    ) -> tuple[TrainerState, list[Row]]:
        """State after the last exchange of a round, and the round's costs and scores."""
        current, aggregation = done.round + 1, self._aggregation(method, data)
        costs = method.costs(done.server_state) if isinstance(method, Reporting) else {}
        counters = done.counters | costs
        rows = [Row(current, None, name, value) for name, value in counters.items()]
        done = dataclasses.replace(done, round=current, exchange=0, answered=(), counters={})
        rows += self._scores(method, data, rng, done) if scores is None else scores
        secret = aggregation.keeps_secrets or method.traits.keeps_secrets
        return done.without_secrets() if secret and current == method.rounds else done, rows

    def _scores(
        self, method: Method, data: FederatedData, rng: Rng, done: TrainerState
    ) -> list[Row]:
        """Scores after a round."""
        scored, states = self._aggregation(method, data).scored(data), done.client_states
        given = {"round": done.round, "engine": self.engine, "rng": rng}
        return self.evaluation.rows(method, scored, done.server_state, states, **given)

    def _cohort(
        self,
        phase: Method,
        data: FederatedData,
        rng: Rng,
        state: TrainerState,
        aggregation: PlainAggregation,
    ) -> list[Client]:
        """Clients of an exchange, whose sample of an epoch is drawn by its first round's stream."""
        first, place = self.cohort.place(state.round, len(data.clients))
        order = aggregation.order(state.privacy, rng, first, state.exchange)
        return [data.clients[i] for i in self._members(phase, data, state, order, place=place)]

    def _members(
        self,
        phase: Method,
        data: FederatedData,
        state: TrainerState,
        stream: Rng | SecretStream,
        *,
        place: int = 0,
    ) -> tuple[int, ...]:
        ids = range(data.meta.num_clients)
        if phase.traits.cohort == "same" and state.exchange > 0:
            members = state.answered
        elif phase.traits.cohort == "all":
            members = tuple(ids)
        else:
            members = self.cohort.sample(ids, stream.at("cohort"), place=place)
        return tuple(i for i in members if i not in state.quarantined)


@contextlib.contextmanager
def _stopping(current: int) -> Iterator[None]:
    """Stop the run where no update is usable, or an engine or a channel cannot take a payload."""
    try:
        yield
    except ValueError as error:
        raise RunStoppedError(f"round {current}: {error}") from error


def _stream(rng: Rng | int) -> Rng:
    return Rng(rng) if isinstance(rng, int) else rng
