"""Loops of papers as a reader would write them, next to engines on the same work."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from typing_extensions import override

from benchmarks.engines import plain_loop
from benchmarks.engines.candidates import (
    ENGINES,
    PLAIN,
    RNG,
    Body,
    Candidate,
    Trained,
    method,
    seeds,
)
from benchmarks.engines.plain_loop import Workload
from benchmarks.engines.rounds import WARM_UP, Found, turn
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.federated import ClassifierMethod, Mean
from fedbolic.methods import Ditto, Scaffold
from hyperfed import HyperFed
from hyperfed.loss import CrossEntropy

WORK = Workload("papers", 100, 80, 8, input_shape=(20,), num_classes=7, widths=(16, 16))
LOCAL = method(WORK).local
PROXIMAL = 0.5


def mean(trees: Sequence[Params]) -> Params:
    """Means of values by name; all clients have the same number of examples."""
    return {name: torch.stack([x[name] for x in trees]).mean(0) for name in trees[0]}


class PaperLoop(Candidate):
    """Rounds of a method by hand.

    Args:
        data: Inputs and labels of every client.
        state: The server's state before the first round.
    """

    def __init__(self, data: Sequence[tuple[Tensor, Tensor]], state: Tree) -> None:
        self.data, self.state, self.now = data, state, state["parameters"]
        self.network = self.build()

    def build(self) -> nn.Module:
        """The network that is trained."""
        return plain_loop.network(WORK)

    @override
    def values(self) -> Params:
        return self.now

    def train(
        self,
        start: Params,
        client: int,
        seed: int,
        correction: Callable[[str, Tensor], Tensor] | None = None,
    ) -> Params:
        """Values after the steps of a client, each gradient plus the ``correction``, if any."""
        self.network.load_state_dict(start)
        parameters, (x, y) = dict(self.network.named_parameters()), self.data[client]
        for index in plain_loop.batches(WORK, seed):
            self.network.zero_grad()
            self.loss(x[index], y[index]).backward()
            with torch.no_grad():
                for name, p in parameters.items():
                    assert p.grad is not None
                    p -= WORK.lr * (p.grad + correction(name, p) if correction else p.grad)
        return {name: p.detach().clone() for name, p in parameters.items()}

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean loss of a batch."""
        return cross_entropy(self.network(x), y)


class ScaffoldLoop(PaperLoop):
    """Karimireddy et al. (2020), Algorithm 1, option II."""

    def __init__(self, data: Sequence[tuple[Tensor, Tensor]], state: Tree) -> None:
        super().__init__(data, state)
        self.c = {name: torch.zeros_like(x) for name, x in self.now.items()}
        self.own = [self.c] * len(data)

    @override
    def round(self, orders: list[int]) -> None:
        x, c, ends, before = self.now, self.c, [], list(self.own)
        for i, own in enumerate(before):
            shift = {n: c[n] - own[n] for n in c}
            y = self.train(x, i, orders[i], lambda n, p, shift=shift: shift[n])
            whole = WORK.lr * -(-WORK.size // WORK.batch_size)
            self.own[i] = {n: own[n] - c[n] + (x[n] - y[n]) / whole for n in x}
            ends.append(y)
        changes = [{n: a[n] - b[n] for n in a} for a, b in zip(self.own, before, strict=True)]
        self.now, moved = mean(ends), mean(changes)
        self.c = {n: c[n] + moved[n] for n in c}


class DittoLoop(PaperLoop):
    """Li et al. (2021), Algorithm 1: FedAvg, and a model of every client near the global one."""

    def __init__(self, data: Sequence[tuple[Tensor, Tensor]], state: Tree) -> None:
        super().__init__(data, state)
        self.own = [self.now] * len(data)

    @override
    def round(self, orders: list[int]) -> None:
        w, ends = self.now, []
        for i, seed in enumerate(orders):
            ends.append(self.train(w, i, seed))
            self.own[i] = self.train(self.own[i], i, seed, lambda n, p: PROXIMAL * (p - w[n]))
        self.now = mean(ends)


class HyperFedLoop(PaperLoop):
    """Liao et al. (2023) with H-CE and the mean of the clients' models."""

    @override
    def build(self) -> nn.Module:
        return nn.Sequential(OrderedDict(body=plain_loop.body(WORK)))

    @override
    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        (w,) = self.state["prototypes"].values()
        z = self.network(x)
        z = z * (3.1 / z.norm(dim=1, keepdim=True).clamp(min=3.1))
        length = z.norm(dim=1, keepdim=True)
        u = length.tanh() / length * z
        room = (1 - u.square().sum(1, keepdim=True)) * (1 - w.square().sum(1))
        distances = torch.acosh(1 + 2 * (u.unsqueeze(1) - w).square().sum(2) / room)
        return cross_entropy(-2 * distances, y)

    @override
    def round(self, orders: list[int]) -> None:
        ends = [self.train(self.now, i, s) for i, s in enumerate(orders)]
        self.now = mean(ends)


@dataclass(frozen=True)
class Paper:
    """A method of this library, and its loop by hand."""

    method: ClassifierMethod
    loop: type[PaperLoop]


GIVEN = {"backbone": Body(WORK), "rounds": 10**6, "local": LOCAL, "lr": WORK.lr}
PAPERS = {
    "SCAFFOLD": Paper(Scaffold(**GIVEN), ScaffoldLoop),
    "Ditto": Paper(Ditto(**GIVEN, personal_proximal=PROXIMAL), DittoLoop),
    "HyperFed": Paper(HyperFed(**GIVEN, objective=CrossEntropy(), aggregator=Mean()), HyperFedLoop),
}


def measure(name: str, rounds: int) -> Found:
    """Measure the rounds of a loop and of two engines, interleaved."""
    paper, found, data = PAPERS[name], Found(), plain_loop.examples(WORK)
    meta = Meta(WORK.num_classes, WORK.input_shape, WORK.num_clients)
    candidates: dict[str, Candidate] = {
        PLAIN: paper.loop(data, paper.method.init(meta, RNG.at("init"))),
        **{n: Trained(WORK, data, ENGINES[n], paper.method) for n in ("Sequential", "Batched")},
    }
    for index in range(1, WARM_UP + rounds + 1):
        turn(candidates, seeds(WORK, index), found, counts=index > WARM_UP)
    return found
