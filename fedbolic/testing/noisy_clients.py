"""Runs of planted clients or examples by methods whose clients add the noise."""

import itertools
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float64
from numpy import ndarray
from torch import nn
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.core.types import Meta, Tree
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import DistributedNoise, Engine, Method, Trainer, TrainerState
from fedbolic.federated.accounting.ledger import PrivacyLedger
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, PrivateSteps
from fedbolic.nn.network.backbone import Backbone
from fedbolic.testing.canaries import Canaries, canary_data, placed, states_of

LENGTH = 100.0
"""Norm of a canary example over the clipping bound, by which its gradient lies on one axis."""

SMALL_STEP = 2.0**-30
"""Step size by which a model does not move, a power of two so that dividing by it is exact."""

LEAST_SILENT = 1e-6
"""Noise multiplier of a run that is almost silent."""


@dataclass(frozen=True)
class Inputs(Backbone):
    """Configuration of a network whose features are its inputs."""

    @override
    def width_for(self, meta: Meta) -> int:
        return meta.input_shape[0]

    @override
    def build(self, meta: Meta) -> nn.Module:
        return nn.Flatten()


@dataclass(frozen=True)
class Seen:
    """Sums that an attacker reads off a run of canaries.

    Args:
        sums: Noisy sum on the axis of every canary, over the bound, a row for each round.
        idle: Noisy sums of axes that belong to nobody, a row for each round.
        states: State before the first round and after every round.
        rows: All metrics.
    """

    sums: Float64[ndarray, "rounds n"]
    idle: Float64[ndarray, "rounds dim"]
    states: list[TrainerState]
    rows: list[Row]


class Subject(ABC):
    """Method of a run, with canaries in the place of its model and data."""

    method: Method
    ledger: PrivacyLedger
    rounds: int
    num: int
    trials: int

    @property
    def std(self) -> float:
        """Deviation of the noise of what is seen of a round, over the bound."""
        return self.ledger.noise_multiplier * self.trials**0.5

    @abstractmethod
    def wider(self, idle: int) -> "Subject":
        """The same with more axes that belong to nobody."""

    @abstractmethod
    def silent(self) -> "Subject":
        """The same with almost no noise."""

    @abstractmethod
    def data(self, present: Bool[ndarray, " n"]) -> FederatedData:
        """The canaries, of which some are absent."""

    @abstractmethod
    def begin(
        self, trainer: Trainer, method: Method, data: FederatedData, rng: Rng
    ) -> TrainerState:
        """State before the first round."""

    @abstractmethod
    def read(self, before: Tree, after: Tree) -> Float64[ndarray, " axes"]:
        """Noisy sums of a round, over the bound: first those of the canaries."""

    def run(
        self, engine: Engine, present: Bool[ndarray, " n"], seed: int, *, resumed: bool = False
    ) -> Seen:
        """Sums that are seen of a run.

        Args:
            engine: Engine of the clients.
            present: Whether each canary is in the run.
            seed: Seed of the run, from which no key follows.
            resumed: Whether the run goes on from a stored checkpoint in its middle.
        """
        given, rng = (Trainer(engine), self.method, self.data(present)), Rng(seed)
        trainer, method, data = placed(*given, self.ledger)
        state = self.begin(trainer, method, data, rng)
        states, rows = states_of(trainer, method, data, rng, state, resumed=resumed)
        ends = [state for state in states if not state.exchange]
        servers = [state.server_state for state in ends]
        read = [self.read(a, b) for a, b in itertools.pairwise(servers)]
        axes = np.stack([r for r in read if len(r)])
        return Seen(axes[:, : self.num], axes[:, self.num :], states, rows)


class StepsSubject(Subject):
    """DP-SGD of one client, whose canary examples have gradients along separate axes.

    Args:
        method: Method of the run.
        num: Number of canaries.
        idle: Number of further axes.
    """

    def __init__(self, method: PrivateSteps, num: int, idle: int = 1) -> None:
        inner = FedAvg(rounds=method.rounds, lr=SMALL_STEP, backbone=Inputs())
        self.method = self.steps = replace(method, method=inner)
        self.ledger, self.rounds, self.num = method.ledger, method.rounds, num
        self.trials, self._width = method.steps, num + idle

    @override
    def wider(self, idle: int) -> "StepsSubject":
        return StepsSubject(self.steps, self.num, idle)

    @override
    def silent(self) -> "StepsSubject":
        return StepsSubject(replace(self.steps, noise_multiplier=LEAST_SILENT), self.num)

    @override
    def data(self, present: Bool[ndarray, " n"]) -> FederatedData:
        length = LENGTH * max(1.0, self.steps.clip_norm)
        x = torch.from_numpy(np.diag(present * length))
        x = torch.cat([x, torch.zeros(self.num, self._width - self.num)], dim=1).double()
        meta = Meta(2, (self._width,), 1)
        held = Examples({"x": x, "y": torch.zeros(self.num, dtype=torch.int64)})
        none = Examples(held.no_examples)
        return FederatedData((Client(0, held, none, none, meta),), meta, None)

    @override
    def begin(
        self, trainer: Trainer, method: Method, data: FederatedData, rng: Rng
    ) -> TrainerState:
        state = trainer.begin(method, data, rng)
        server = state.server_state
        blank = tree.zeros_like(server["method"]["parameters"])
        inner = {**server["method"], "parameters": blank}
        return replace(state, server_state={**server, "method": inner})

    @override
    def read(self, before: Tree, after: Tree) -> Float64[ndarray, " axes"]:
        first, second = (x["method"]["parameters"] for x in (before, after))
        (name,) = [n for n, x in first.items() if x.shape == (2, self._width)]
        delta = (first[name] - second[name]).double().numpy() / SMALL_STEP
        total = delta * self.steps.rate * self.num / self.steps.clip_norm
        return (total[1] - total[0]) / 2**0.5


class SumSubject(Subject):
    """Sums of noisy clients, of which all but those whose noise counts collude with the server.

    A colluder's summand is known, so it is left out.

    Args:
        method: Method of the run, which may be in a secure sum.
        num_clients: Number of clients of the run.
        idle: Number of further axes.
    """

    def __init__(
        self, method: DistributedNoise | SecureSum, num_clients: int, idle: int = 1
    ) -> None:
        noisy = method.method if isinstance(method, SecureSum) else method
        if not isinstance(noisy, DistributedNoise):
            raise ValueError("a secure sum without noise has no epsilon to audit")
        self.secure = method if isinstance(method, SecureSum) else None
        self.num, self.num_clients = noisy.privacy.survivors, num_clients
        self.rounds, self.trials = noisy.rounds, 1
        size = self.num + idle
        self.noisy = replace(noisy, method=Canaries(self.rounds, size))
        self.method = self._secured(self.noisy)
        plan = noisy.privacy.plan(num_clients=num_clients, size=size, rounds=self.rounds)
        self.ledger = plan[1]
        self._noise = plan[0].num_noisy ** 0.5 * plan[0].variance ** 0.5 * plan[0].granularity

    def _secured(self, noisy: DistributedNoise) -> DistributedNoise | SecureSum:
        if self.secure is None:
            return noisy
        return replace(self.secure, method=noisy, threshold=self.num, keys=None)

    @property
    @override
    def std(self) -> float:
        return self._noise / self.noisy.privacy.clip_norm

    @override
    def wider(self, idle: int) -> "SumSubject":
        return SumSubject(self._secured(self.noisy), self.num_clients, idle)

    @override
    def silent(self) -> "SumSubject":
        quiet = {"epsilon": None, "noise_multiplier": 1e-3, "bits": 32, "adaptive": None}
        privacy = replace(self.noisy.privacy, **quiet)
        return SumSubject(self._secured(replace(self.noisy, privacy=privacy)), self.num_clients)

    @override
    def data(self, present: Bool[ndarray, " n"]) -> FederatedData:
        return canary_data(np.pad(present, (0, self.num_clients - self.num)))

    @override
    def begin(
        self, trainer: Trainer, method: Method, data: FederatedData, rng: Rng
    ) -> TrainerState:
        state = trainer.begin(method, data, rng)
        colluders = tuple(range(self.num, self.num_clients))
        return replace(state, quarantined=colluders)

    @override
    def read(self, before: Tree, after: Tree) -> Float64[ndarray, " axes"]:
        server = after if self.secure is None else after["inner"]
        released = server["inner"]["released"].double().numpy()
        bound = server.get("last_clip_norm", self.noisy.privacy.clip_norm)
        return released * self.num / bound
