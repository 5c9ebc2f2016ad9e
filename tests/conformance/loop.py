"""One form for the algorithms of the papers, written out in plain PyTorch.

A loop gets a method, its data and the cohorts of a run, and returns what it must leave behind: the
values of the server and of the clients, and the network with which each of them is scored.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Any, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from fedbolic.core.rows import Row
from fedbolic.core.types import Params
from fedbolic.data import FederatedData, GraphSplit, Split
from fedbolic.federated import Cohort, Method, TrainerState
from fedbolic.testing import flat
from tests.federated.simple_method import RNG, federation, plain_network, train

SIZES = (7, 4, 12, 5)
Cohorts = list[list[int]]
BOUND = 1e-10
"""Far above float64's rounding on any processor, far below any other algorithm's difference."""


@dataclass(frozen=True)
class End:
    """States and networks after the last round.

    Args:
        server: Part of the server's state.
        clients: Part of the client states, by id.
        models: Logits of inputs, or of the nodes of a graph, by client; of the server's own test
            set under ``None``.
    """

    server: dict[str, Any]
    clients: dict[int, dict[str, Any]] = field(default_factory=dict)
    models: dict[int | None, Callable[..., Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Loop:
    """An algorithm of a paper.

    Args:
        method: Settings of the method that it defines.
        source: The paper, and the place in it.
        run: The algorithm.
        data: Its federation.
        inert: Settings, by their path, on which nothing depends here.
    """

    method: Method
    source: str
    run: Callable[[Any, FederatedData, Cohorts], End]
    data: Callable[[], FederatedData] = lambda: federation(SIZES)
    inert: tuple[str, ...] = ()

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
        return gaps_to(self.run(self.method, data, cohorts), states[-1], rows, data)

    def without_effect(self) -> list[str]:
        """Paths of the settings whose changes leave two rounds of the method at the loop's end."""
        data, short = self.data(), replace(self.method, rounds=2)
        end = self.run(short, data, [[client.id for client in data.clients]] * 2)

        def agrees(other: Method) -> bool:
            states, rows = train(other, data, RNG)
            return max(gaps_to(end, states[-1], rows, data).values()) <= BOUND

        return [path for path, others in other_settings(short) if all(map(agrees, others))]


def gaps_to(
    end: End, found: TrainerState, rows: list[Row], data: FederatedData
) -> dict[str, float]:
    """Largest differences of a run's last state and its scores from the end of a loop."""
    last = {(r.client, r.name): r.value for r in rows if r.round == found.round}
    clients = [gap(found.client_states[i], one) for i, one in end.clients.items()]
    return {
        "server": gap(found.server_state, end.server),
        "clients": largest(clients),
        "scores": score_gap(last, data, end.models),
    }


def other_settings(record: Any) -> Iterator[tuple[str, list[Any]]]:
    """Records with one number, switch or choice changed, by its path; zeros are switched off."""
    kinds = get_type_hints(type(record))
    for name in [each.name for each in fields(record)]:
        value = getattr(record, name)
        if is_dataclass(value):
            for path, others in other_settings(value):
                changed = [replace(record, **{name: other}) for other in others]
                yield f"{name}.{path}", changed
        elif get_origin(kinds[name]) is Literal:
            yield name, [*accepted(record, name, {*get_args(kinds[name])} - {value})]
        elif isinstance(value, int | float) and value and name != "rounds":
            others: tuple[Any, ...] = (value + 1,)
            if isinstance(value, bool | float):
                others = (False,) if value is True else (value / 10, value * 10)
            yield name, [*accepted(record, name, others)]


def accepted(record: Any, name: str, values: Iterable[Any]) -> Iterator[Any]:
    """Records with other values of a setting, without those that they refuse."""
    for value in values:
        with suppress(ValueError):
            yield replace(record, **{name: value})


def largest(gaps: Iterable[float]) -> float:
    """The largest of some differences, which is NaN if one of them is."""
    return float(torch.tensor([0.0, *gaps], dtype=torch.float64).max())


def gap(found: Any, expected: Any) -> float:
    """Largest difference of a number of ``expected`` from that of the same name in ``found``.

    Tensors that are missing or have another shape differ infinitely.
    """
    ours, theirs = flat(found), flat(expected)
    if any(n not in ours or torch.as_tensor(ours[n]).shape != x.shape for n, x in theirs.items()):
        return math.inf
    return largest(float((ours[n] - x).abs().max()) for n, x in theirs.items() if x.numel())


def score_gap(scores: dict[Any, float], data: FederatedData, models: dict[Any, Any]) -> float:
    """Largest difference of an accuracy or a loss, relative to it."""
    gaps = []
    for i, model in models.items():
        client, kind = (data.holdout, "holdout") if i is None else (data.clients[i], "test")
        if not len(client.test):
            continue
        with torch.no_grad():
            logits, y = tested(model, client.test)
        accuracy = float((logits.argmax(1) == y).double().mean())
        gaps.append(abs(scores[i, f"{kind}/accuracy"] - accuracy))
        loss = float(cross_entropy(logits, y))
        gaps.append(abs(scores.get((i, f"{kind}/loss"), loss) - loss) / loss)
    return largest(gaps)


def tested(model: Callable[..., Tensor], split: Split) -> tuple[Tensor, Tensor]:
    """Logits and labels of examples, which may be nodes of a graph."""
    if isinstance(split, GraphSplit):
        return model(split.graph)[split.nodes], split.labels
    return model(split.tensors["x"]), split.tensors["y"]


def initial(method: Any, data: FederatedData) -> Params:
    """Parameters of the network that a run begins with, in float64."""
    parameters, _ = method.model(data.meta).init(RNG.at("init").at("model").number())
    return {name: value.double() for name, value in parameters.items()}


def everywhere(data: FederatedData, parameters: Params) -> dict[Any, Any]:
    """The same network for every client and for the server's test set."""
    network = plain_network(parameters)
    return dict.fromkeys([None, *(client.id for client in data.clients)], network)
