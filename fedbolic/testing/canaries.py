"""Clients that are planted to audit a private run, and runs of them by the real trainer."""

import io
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray
from typing_extensions import override

from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.core.types import Meta, Tree
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import (
    AggregatedUpdate,
    Engine,
    Method,
    Sequential,
    Trainer,
    TrainerState,
    Update,
)
from fedbolic.federated.accounting.ledger import PrivacyLedger

CANARY_NORM = 1e3
"""Norm of a canary's delta, far above every clipping bound."""


@dataclass(frozen=True)
class Canaries(Method):
    """A method whose clients send a long delta, each along another axis, or zeros.

    Args:
        rounds: Number of rounds.
        dim: Number of coordinates, at least the number of clients.
        extra: Further part of a payload, which no private run may take; empty for none.
    """

    rounds: int = 1
    dim: int = 1
    extra: str = ""

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        return {"x": torch.zeros(self.dim), "released": torch.zeros(self.dim)}

    @override
    def template(self, message: Tree) -> Tree:
        delta = {"delta": {"x": message["x"]}}
        return delta | ({self.extra: {"x": message["x"]}} if self.extra else {})

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        delta = torch.zeros_like(message["x"])
        examples = client.train.all()["x"]
        if client.size:
            delta[client.id] = CANARY_NORM * examples[0, 0]
        payload = {"delta": {"x": delta}} | ({self.extra: {"x": delta}} if self.extra else {})
        return Update(payload, weight=1.0 + client.id), {}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        released = total.payload["delta"]["x"]
        return {"x": server_state["x"] + released, "released": released}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}


class CanaryEngine(Sequential, ABC):
    """Engine that places canaries behind the transport of a run."""

    @abstractmethod
    def placed(
        self, method: Method, data: FederatedData, ledger: PrivacyLedger | None
    ) -> tuple[Engine, Method, FederatedData]:
        """Engine of some canaries, their method and the federation as the server sees it.

        Args:
            method: Method of the canaries.
            data: The canaries.
            ledger: Ledger of the noise that the clients add; ``None`` if the server does.
        """

    @abstractmethod
    def charged(self, ledger: PrivacyLedger) -> float:
        """Smallest epsilon that was charged to an account of the latest canaries.

        Args:
            ledger: As for :meth:`placed`, as for :meth:`faults`.
        """

    @abstractmethod
    def faults(self, ledger: PrivacyLedger | None) -> list[str]:
        """Faults in how the latest canaries reply, one sentence each."""


def placed(
    trainer: Trainer, method: Method, data: FederatedData, ledger: PrivacyLedger | None = None
) -> tuple[Trainer, Method, FederatedData]:
    """Trainer, method and data of canaries where the trainer's engine places them.

    Args:
        trainer: Trainer of a private run.
        method: Method of the canaries.
        data: The canaries.
        ledger: Ledger of the noise that the clients add; ``None`` if the server does.
    """
    if not isinstance(trainer.engine, CanaryEngine):
        return trainer, method, data
    engine, method, data = trainer.engine.placed(method, data, ledger)
    return replace(trainer, engine=engine), method, data


@dataclass(frozen=True)
class Released:
    """Releases of a private run of canaries.

    Args:
        deltas: Released mean of every round, a row each.
        bounds: Clipping bound of every round.
        rows: All metrics.
        states: State before the first round and after every round.
    """

    deltas: Float64[ndarray, "rounds dim"]
    bounds: Float64[ndarray, " rounds"]
    rows: list[Row]
    states: list[TrainerState] = field(default_factory=list)


def canary_data(
    present: Bool[ndarray, " n"], *, faults: Sequence[int] = (), fault: float = float("nan")
) -> FederatedData:
    """Federation of canaries, each with one example or none.

    Args:
        present: Whether each canary is in the run.
        faults: Numbers of canaries whose delta is not finite.
        fault: Their delta.
    """
    meta = Meta(2, (1,), len(present))

    def examples(values: Sequence[float]) -> Examples:
        x = torch.tensor(values, dtype=torch.float64).reshape(-1, 1)
        return Examples({"x": x, "y": torch.zeros(len(x), dtype=torch.int64)})

    values = [fault if i in faults else 1.0 for i in range(len(present))]
    held = [[v] if p or v != 1.0 else [] for v, p in zip(values, present, strict=True)]
    clients = tuple(
        Client(i, examples(x), examples([]), examples([]), meta) for i, x in enumerate(held)
    )
    return FederatedData(clients, meta, None)


def released_by(
    trainer: Trainer, method: Canaries, data: FederatedData, seed: int, *, resumed: bool = False
) -> Released:
    """Releases of a run of canaries.

    Args:
        trainer: Trainer of a private run.
        method: The method.
        data: The canaries.
        seed: Seed of the run.
        resumed: Whether the run is stopped in its middle and goes on from a stored checkpoint.
    """
    rng = Rng(seed)
    trainer, _, data = placed(trainer, method, data)
    state = trainer.begin(method, data, rng)
    states, rows = states_of(trainer, method, data, rng, state, resumed=resumed)
    deltas = np.stack([s.server_state["released"].double().numpy() for s in states[1:]])
    bounds = np.array([s.privacy["clip_norm"] for s in states[:-1]], dtype=np.float64)
    return Released(deltas, bounds, rows, states)


def states_of(
    trainer: Trainer,
    method: Method,
    data: FederatedData,
    rng: Rng,
    state: TrainerState,
    *,
    resumed: bool,
) -> tuple[list[TrainerState], list[Row]]:
    """States before and after all exchanges of a run, and its metrics.

    Args:
        trainer: Trainer of the run.
        method: Method to train.
        data: The canaries.
        rng: Random stream of the run.
        state: State before the first round.
        resumed: Whether the run is stopped in its middle and goes on from a stored checkpoint.
    """
    states, rows, middle = [state], list[Row](), (method.rounds + 1) // 2
    for stop in (middle, method.rounds) if resumed else (method.rounds,):
        for now, new in trainer.run(method, data, rng, states[-1]):
            states.append(now)
            rows += new
            if now.round == stop < method.rounds:
                states[-1] = _reloaded(now)
                break
    return states, rows


def _reloaded(state: TrainerState) -> TrainerState:
    """The state after it was written to a file and read again."""
    file = io.BytesIO()
    torch.save(state.checkpoint(), file)
    file.seek(0)
    return TrainerState.restore(torch.load(file, weights_only=True))


def quiet(trainer: Trainer) -> Trainer:
    """The trainer with almost no noise and a constant bound of 1."""
    if trainer.privacy is None:
        raise ValueError("only a run with privacy is audited")
    settings = {"noise_multiplier": 1e-9, "epsilon": None, "adaptive": None, "clip_norm": 1.0}
    privacy = replace(trainer.privacy, correlation="none", **settings)
    return replace(trainer, privacy=privacy)
