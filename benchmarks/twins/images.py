"""ResNet-20 on the hyperboloid and in the ball, and flat twins, on a part of CIFAR-10.

A table of ``benchmarks.twins``. The data folder holds ``cifar10_subset.npz``: 10,000 training and
5,000 test images. The first 9,000 train, the last 1,000 are validation, where each network chooses
its step size from the same grid with seed 0; then three seeds run with it.
"""

import math
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks.results import Figures, Results
from benchmarks.table import difference, head, line, spread
from benchmarks.timing import seconds
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Arrays
from fedbolic.nn.network.backbone import Backbone
from fedbolic.nn.network.classifier import Classifier
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.nn.network.resnet import ResNet

FILE = Path("cifar10_subset.npz")
DIM, CLASSES = 64, 10
NUM_VALIDATION, EPOCHS, BATCH = 1_000, 10, 64
GRID = (0.03, 0.1, 0.3)
SEEDS = range(3)
FLAT_LIMIT = 0.01
TIMED = 7
MOMENTUM, WEIGHT_DECAY = 0.9, 5e-4

NETWORKS: dict[str, Backbone] = {
    "ResNet-20": ResNet(DIM, (3, 3, 3), 16, "cifar"),
    "hyperboloid, c = 1": HyperbolicResNet(DIM),
    "hyperboloid, c = 0.01": HyperbolicResNet(DIM, c=FLAT_LIMIT),
    "hyperboloid, learnt c": HyperbolicResNet(DIM, learnable=True),
    "ball, c = 1": HyperbolicResNet(DIM, model="poincare"),
}
"""Bodies under a linear head, the flat reference first.

The hyperboloid of little curvature is the flat limit of the same layers: what differs from it is
curvature, and what differs between it and the reference is the residual connection, a weighted mean
instead of a sum, and the start of the weights. With much less curvature the last layer, a
``Linear``, would need a step size of its own.
"""

Part: TypeAlias = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Data:
    """Standardised images and labels."""

    train: Part
    validation: Part
    test: Part


def load(root: Path | None = None) -> Data:
    """The images, with every channel standardised by the training images."""
    parts = Arrays(FILE).read(root, download=False)
    x, test = parts.x_train.float() / 255, parts.x_test.float() / 255
    kept = len(x) - NUM_VALIDATION
    mean, std = x[:kept].mean((0, 2, 3), keepdim=True), x[:kept].std((0, 2, 3), keepdim=True)
    x, test, y = (x - mean) / std, (test - mean) / std, parts.y_train
    return Data((x[:kept], y[:kept]), (x[kept:], y[kept:]), (test, parts.y_test))


def build(backbone: Backbone, rng: Rng) -> nn.Module:
    """The network and its linear head, newly initialised."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(rng.at("init").number())
        body = backbone.build(Meta(CLASSES, (3, 32, 32), num_clients=1))
        return Classifier(body, nn.Linear(DIM, CLASSES))


def batches(part: Part, generator: torch.Generator) -> Iterator[Part]:
    """Batches of one epoch in random order, half of the images mirrored."""
    x, y = part
    order = torch.randperm(len(x), generator=generator)
    mirrored = torch.rand(len(x), generator=generator) < 0.5
    for batch in order[: len(x) - len(x) % BATCH].split(BATCH):
        images = torch.where(mirrored[batch].view(-1, 1, 1, 1), x[batch].flip(-1), x[batch])
        yield images, y[batch]


def train(backbone: Backbone, data: Data, *, lr: float, seed: int, epochs: int) -> nn.Module:
    """The network after the last epoch: SGD with momentum, and a step size that falls to 0.

    Gradients are clipped to the norm 1 in every network: it is part of the recipe, not of one row.
    """
    rng = Rng(seed)
    network = build(backbone, rng)
    sgd = torch.optim.SGD(
        network.parameters(), lr, MOMENTUM, weight_decay=WEIGHT_DECAY, nesterov=True
    )
    steps = epochs * (len(data.train[0]) // BATCH)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(sgd, steps)
    generator = rng.at("order").generator()
    for _ in range(epochs):
        for x, y in batches(data.train, generator):
            sgd.zero_grad()
            cross_entropy(network(x), y).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            sgd.step()
            schedule.step()
    return network.eval().requires_grad_(False)


def accuracy(network: nn.Module, part: Part) -> float:
    """Share of the images that are classified right, in percent."""
    x, y = part
    pairs = zip(x.split(250), y.split(250), strict=True)
    return 100 * sum(float((network(a).argmax(1) == b).sum()) for a, b in pairs) / len(y)


def figures(name: str, data: Data, *, lr: float, seed: int, epochs: int) -> Figures:
    """Accuracies of one trained network."""
    network = train(NETWORKS[name], data, lr=lr, seed=seed, epochs=epochs)
    return {"validation": accuracy(network, data.validation), "test": accuracy(network, data.test)}


def compare(data: Data, results: Results, *, epochs: int) -> None:
    """Choose step sizes, run all seeds and print the table, each row as soon as it is computed."""
    print(f"\nCIFAR-10, {len(data.train[0]):,} training images, {epochs} epochs\n")
    print(head("network", "test accuracy %", "minus ResNet-20", "step size"), flush=True)
    reference: list[float] = []

    def of(name: str, lr: float, seed: int) -> Figures:
        key = name, str(epochs), str(lr), str(seed)
        return results.add(key, figures, name, data, lr=lr, seed=seed, epochs=epochs)

    for name in NETWORKS:
        chosen = best_of(lambda lr, name=name: of(name, lr, SEEDS[0])["validation"])
        test = [of(name, chosen, seed)["test"] for seed in SEEDS]
        reference = reference or test
        gap = "" if test is reference else difference(test, reference)
        print(line(name, spread(test), gap, chosen), flush=True)


def best_of(validated: Callable[[float], float]) -> float:
    """The step size of the grid with the best validation accuracy, the smallest of equals."""
    return max(GRID, key=validated)


def project(data: Data) -> None:
    """Time some steps of each network, and print the CPU time of an epoch and of a whole run."""
    runs, steps = len(GRID) + len(SEEDS) - 1, len(data.train[0]) // BATCH
    print(head("network", "CPU s an epoch", "over ResNet-20", "hours of the row"))
    taken: list[float] = []
    for name, backbone in NETWORKS.items():
        network = build(backbone, Rng(0))
        x, y = next(batches(data.train, Rng(0).generator()))
        step = partial(_backward, network, x, y)
        step()
        taken.append(steps * statistics.median(seconds(step, "cpu") for _ in range(TIMED)))
        share, hours = taken[-1] / taken[0], runs * EPOCHS * taken[-1] / 3600
        print(line(name, f"{taken[-1]:.1f}", f"{share:.1f}", f"{hours:.1f}"), flush=True)
    total = runs * EPOCHS * math.fsum(taken) / 3600
    print(f"\nAll rows, {runs} runs of {EPOCHS} epochs each: {total:.1f} hours on one core.")


def _backward(network: nn.Module, x: Tensor, y: Tensor) -> None:
    cross_entropy(network(x), y).backward()
