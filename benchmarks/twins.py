"""Hyperbolic networks compared with their Euclidean twins, in few dimensions, on real data.

FEDBOLIC_DATA=FOLDER python -m benchmarks.twins [--only cora] [--dims 2 4]

Files that the folder lacks are downloaded.
"""

import argparse
import os
import shutil
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, elu, normalize
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv
from typing_extensions import override

from fedbolic.data import FashionMNIST
from fedbolic.manifolds import Lorentz
from fedbolic.nn import LorentzMLR, SpaceActivation
from fedbolic.nn.backbone import ConvNet
from fedbolic.nn.graph import LorentzConv
from fedbolic.rng import Rng
from fedbolic.types import Meta

DIMS = (2, 4, 8, 16)
SEEDS = range(5)
CHOOSING = 2
"""Number of seeds that choose the step size."""

SHEET = Lorentz(1.0)


class Problem(ABC):
    """Data, and two networks that differ in their geometry only.

    The step size of Adam is chosen for each network and dimension from ``grid``, by the mean
    validation accuracy of the first two seeds; then all seeds train with it. The networks of one
    seed see the same batches and start from equal weights where they have the same weights.
    """

    title: str
    grid: tuple[float, ...]
    weight_decay: float
    twins: tuple[str, str]
    constant: float
    """Test accuracy of the best constant prediction."""

    @abstractmethod
    def build(self, twin: str, dim: int) -> nn.Module:
        """A newly initialised network."""

    @abstractmethod
    def losses(self, generator: torch.Generator) -> Iterator[Callable[[nn.Module], Tensor]]:
        """The loss of every training step."""

    @abstractmethod
    def accuracy(self, model: nn.Module, part: str) -> float:
        """Accuracy in percent on ``validation`` or ``test``."""


class Fashion(Problem):
    """A convolutional network with ``dim`` features and a linear or a hyperbolic head.

    Images are averaged to 14 x 14. The first 10,000 training images train for 5 epochs of batches
    of 100, the last 5,000 are validation, and the test set is the official one.
    """

    num_train, num_validation, epochs = 10_000, 5_000, 5
    title = f"Fashion-MNIST, 14x14, {num_train:,} training images, {epochs} epochs"
    grid = (1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
    weight_decay = 0.0
    twins = ("ConvNet, Linear", "ConvNet, LorentzMLR")

    def __init__(self) -> None:
        parts = FashionMNIST().read(None, download=True)
        small, y = avg_pool2d(parts.x_train.float() / 255, 2), parts.y_train
        self.train = small[: self.num_train], y[: self.num_train]
        self.parts = {
            "validation": (small[-self.num_validation :], y[-self.num_validation :]),
            "test": (avg_pool2d(parts.x_test.float() / 255, 2), parts.y_test),
        }
        self.constant = 100 * parts.y_test.bincount().max().item() / len(parts.y_test)

    @override
    def build(self, twin: str, dim: int) -> nn.Module:
        body = ConvNet(dim).build(Meta(10, (1, 14, 14), num_clients=1))
        if twin == self.twins[0]:
            return nn.Sequential(body, nn.Linear(dim, 10))
        return nn.Sequential(body, ToHyperboloid(), LorentzMLR(dim, 10))

    @override
    def losses(self, generator: torch.Generator) -> Iterator[Callable[[nn.Module], Tensor]]:
        x, y = self.train
        for _ in range(self.epochs):
            for batch in torch.randperm(len(x), generator=generator).split(100):
                yield lambda model, batch=batch: cross_entropy(model(x[batch]), y[batch])

    @override
    def accuracy(self, model: nn.Module, part: str) -> float:
        x, y = self.parts[part]
        right = [
            (model(a).argmax(1) == b).sum() for a, b in zip(x.split(500), y.split(500), strict=True)
        ]
        return 100 * float(sum(right)) / len(y)


class Cora(Problem):
    """Two graph convolutions of width ``dim``, ELU between them, and a head.

    Features are scaled to length 1; 200 steps on the public split of 140 training, 500 validation
    and 1,000 test nodes, without dropout.
    """

    steps = 200
    title = f"Cora, public split, {steps} steps"
    grid = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    weight_decay = 5e-4
    twins = ("GCN", "Lorentz GCN")

    def __init__(self) -> None:
        raw = Path(os.environ.get("FEDBOLIC_DATA", "")) / "planetoid" / "Cora" / "raw"
        with tempfile.TemporaryDirectory() as folder:  # PyG writes next to the files that it reads
            if raw.is_dir():
                shutil.copytree(raw, Path(folder) / "Cora" / "raw")
            data: Any = Planetoid(folder, "Cora")[0]
        x = normalize(data.x)
        self.nodes = dict(zip(self.twins, (x, SHEET.expmap0(SHEET.lift(x))), strict=True))
        self.edges, self.labels = data.edge_index, data.y
        self.masks = {"train": data.train_mask, "validation": data.val_mask, "test": data.test_mask}
        counts = data.y[data.test_mask].bincount()
        self.constant = 100 * counts.max().item() / int(counts.sum())

    @override
    def build(self, twin: str, dim: int) -> nn.Module:
        inputs, classes = self.nodes[self.twins[0]].shape[1], int(self.labels.max()) + 1
        if twin == self.twins[0]:
            layers = GCNConv(inputs, dim), GCNConv(dim, dim), nn.Linear(dim, classes)
            return Convolutions(*layers, elu, self.nodes[twin], self.edges)
        layers = LorentzConv(inputs, dim), LorentzConv(dim, dim), LorentzMLR(dim, classes)
        return Convolutions(*layers, SpaceActivation(Lorentz, elu), self.nodes[twin], self.edges)

    @override
    def losses(self, generator: torch.Generator) -> Iterator[Callable[[nn.Module], Tensor]]:
        mask = self.masks["train"]
        for _ in range(self.steps):
            yield lambda model: cross_entropy(model()[mask], self.labels[mask])

    @override
    def accuracy(self, model: nn.Module, part: str) -> float:
        mask = self.masks[part]
        return 100 * (model().argmax(1) == self.labels)[mask].float().mean().item()


class ToHyperboloid(nn.Module):
    """Maps vectors, as tangents at the origin, to points of the hyperboloid."""

    @override
    def forward(self, v: Tensor) -> Tensor:
        return SHEET.expmap0(SHEET.lift(v))


class Convolutions(nn.Module):
    """Two graph convolutions and a head on one graph: the logits of all nodes."""

    def __init__(
        self,
        first: nn.Module,
        second: nn.Module,
        head: nn.Module,
        activation: Callable[[Tensor], Tensor],
        x: Tensor,
        edges: Tensor,
    ) -> None:
        super().__init__()
        self.first, self.second, self.head = first, second, head
        self.activation, self.x, self.edges = activation, x, edges

    @override
    def forward(self) -> Tensor:
        return self.head(self.second(self.activation(self.first(self.x, self.edges)), self.edges))


def train(problem: Problem, twin: str, dim: int, lr: float, seed: int) -> nn.Module:
    """The network after the last step."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Rng(seed).at("init").number())
        model = problem.build(twin, dim)
    optimiser = torch.optim.Adam(model.parameters(), lr, weight_decay=problem.weight_decay)
    for loss in problem.losses(Rng(seed).at("order").generator()):
        optimiser.zero_grad()
        loss(model).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def tuned(problem: Problem, twin: str, dim: int) -> tuple[float, list[float]]:
    """The chosen step size, and the test accuracies of all seeds with it."""

    def trained(lr: float, seeds: Iterable[int]) -> list[nn.Module]:
        return [train(problem, twin, dim, lr, seed) for seed in seeds]

    def validated(lr: float) -> float:
        return statistics.mean(problem.accuracy(model, "validation") for model in first[lr])

    first = {lr: trained(lr, SEEDS[:CHOOSING]) for lr in problem.grid}
    lr = max(first, key=validated)
    models = first[lr] + trained(lr, SEEDS[CHOOSING:])
    return lr, [problem.accuracy(model, "test") for model in models]


def spread(values: list[float]) -> str:
    """Mean and standard deviation."""
    return f"{statistics.mean(values):.2f} ± {statistics.stdev(values):.2f}"


def report(problem: Problem, dims: Iterable[int] = DIMS) -> None:
    """Print one table, each row as soon as it is computed."""
    plain, curved = problem.twins
    print(f"\n{problem.title}; the best constant answer has {problem.constant:.2f} %.\n")
    print(f"| dimensions | {plain} % | {curved} % | difference | step sizes |")
    print("|---|---|---|---|---|", flush=True)
    for dim in dims:
        (lr, test), (curved_lr, curved_test) = (tuned(problem, twin, dim) for twin in problem.twins)
        gaps = [b - a for a, b in zip(test, curved_test, strict=True)]
        row = (str(dim), spread(test), spread(curved_test), spread(gaps), f"{lr}, {curved_lr}")
        print(f"| {' | '.join(row)} |", flush=True)


def main() -> None:
    """Train all networks and print the tables."""
    problems = {"fashion": Fashion, "cora": Cora}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=problems, nargs="+", default=[*problems])
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    given = parser.parse_args()
    torch.set_num_threads(1)
    for name in given.only:
        report(problems[name](), given.dims)


if __name__ == "__main__":
    main()
