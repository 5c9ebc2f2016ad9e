"""One form for the algorithms of the papers, written out in plain PyTorch.

A loop gets a method, its data and the cohorts of a run, and returns what it must leave behind: the
values of the server and of the clients, and the network with which each of them is scored.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbolic.data import FederatedData
from fedbolic.federated import Cohort, Method
from fedbolic.testing import flat
from fedbolic.types import Params
from tests.federated.simple_method import RNG, federation, plain_network, train

SIZES = (7, 4, 12, 5)
Cohorts = list[list[int]]


@dataclass(frozen=True)
class End:
    """States and networks after the last round.

    Args:
        server: Part of the server's state.
        clients: Part of the client states, by id.
        models: Logits of inputs, by client; of the server's own test set under ``None``.
    """

    server: dict[str, Any]
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)
    models: dict[int | None, Callable[[Tensor], Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Loop:
    """An algorithm of a paper.

    Args:
        method: Settings of the method that it defines.
        source: The paper, and the place in it.
        run: The algorithm.
        data: Its federation.
    """

    method: Method
    source: str
    run: Callable[[Any, FederatedData, Cohorts], End]
    data: Callable[[], FederatedData] = lambda: federation(SIZES)

    def gaps(self, rate: float) -> dict[str, float]:
        """Largest differences between a run of the method and the loop, by kind of value.

        Args:
            rate: Share of the clients in a cohort.
        """
        data = self.data()
        states, rows = train(self.method, data, RNG, cohort=Cohort(rate))
        trained = [row for row in rows if row.name == "train/loss" and row.client is not None]
        rounds = range(1, self.method.rounds + 1)
        cohorts = [[row.client for row in trained if row.round == r] for r in rounds]
        end, found = self.run(self.method, data, cohorts), states[-1]
        last = {(r.client, r.name): r.value for r in rows if r.round == self.method.rounds}
        return {
            "server": gap(found.server_state, end.server),
            "clients": max(
                (gap(found.client_states[i], one) for i, one in end.clients.items()), default=0.0
            ),
            "scores": score_gap(last, data, end.models),
        }


def gap(found: Any, expected: Any) -> float:
    """Largest difference of a number of ``expected`` from that of the same name in ``found``."""
    ours, theirs = flat(found), flat(expected)
    shapes = {name: (torch.as_tensor(ours[name]).shape, x.shape) for name, x in theirs.items()}
    assert all(a == b for a, b in shapes.values()), shapes
    return max(
        (float((ours[n] - x).abs().max()) for n, x in theirs.items() if x.numel()), default=0.0
    )


def score_gap(scores: dict[Any, float], data: FederatedData, models: dict[Any, Any]) -> float:
    """Largest difference of an accuracy or a loss, relative to it."""
    gaps = [0.0]
    for i, model in models.items():
        client, kind = (data.holdout, "holdout") if i is None else (data.clients[i], "test")
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        with torch.no_grad():
            logits = model(x)
        accuracy = float((logits.argmax(1) == y).double().mean())
        gaps.append(abs(scores[i, f"{kind}/accuracy"] - accuracy))
        loss = float(cross_entropy(logits, y))
        gaps.append(abs(scores.get((i, f"{kind}/loss"), loss) - loss) / loss)
    return max(gaps)


def initial(method: Any, data: FederatedData) -> Params:
    """Parameters of the network that a run begins with, in float64."""
    parameters, _ = method.model(data.meta).init(RNG.at("init").at("model").number())
    return {name: value.double() for name, value in parameters.items()}


def everywhere(data: FederatedData, parameters: Params) -> dict[Any, Any]:
    """The same network for every client and for the server's test set."""
    network = plain_network(parameters)
    return dict.fromkeys([None, *(client.id for client in data.clients)], network)
