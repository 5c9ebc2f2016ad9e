"""Accuracies of hyperbolic networks and their Euclidean twins, in few dimensions, on real data.

    FEDBOLIC_DATA=FOLDER python -m benchmarks.twins [--only cora] [--dims 2 4] [--results twins.csv]

With ``--only foreign``, the networks that learnt Fashion-MNIST tell images of MNIST from its test
set. Each score is the area under the ROC curve in percent: 50 is chance, and below it a foreign
image seems the more familiar one. With ``--only images``, residual networks learn a part of
CIFAR-10; with ``--only characters vit``, transformers a text and the same images.
Files that the folder lacks are downloaded. Each trained network adds a row to the file of results,
and an interrupted run continues from it.

Takes 4 hours; 20 minutes for Cora. Residual networks take 7 hours, 80 minutes with ``--epochs 2``;
transformers take 5 minutes.
"""

import math
import os
import shutil
import statistics
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, cross_entropy, elu, normalize
from torch_geometric.datasets import Planetoid
from torch_geometric.nn import GCNConv
from torch_geometric.nn.conv.gcn_conv import gcn_norm
from torch_geometric.utils import scatter
from typing_extensions import override

from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import difference, head, line, spread
from benchmarks.twins import images as image_twins
from benchmarks.twins import transformers as transformer_twins
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import MNIST, FashionMNIST
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import (
    MLR,
    BusemannHead,
    PrototypeHead,
    SpaceActivation,
    ToManifold,
)
from fedbolic.nn.functional.coordinates import to_tangent
from fedbolic.nn.graph.convolution import CentroidConv
from fedbolic.nn.network.backbone import ConvNet

DIMS = (2, 4, 8, 16, 32)
SEEDS = range(10)
CHOOSING = 2
"""Number of seeds that choose the step size."""

CLASSES = 10
"""Number of classes of Fashion-MNIST."""

SCORES = ("confidence", "length", "distance of the point")
FOREIGN_ROWS = (
    "Linear",
    "MLR, hyperboloid, not clipped",
    "MLR, hyperboloid",
    "MLR, ball",
    "PrototypeHead",
)
"""Scores of familiarity, and the networks that are asked."""


class Tangents(nn.Module):
    """Tangents at the origin of the points that an entry gives: its clip without its geometry."""

    def __init__(self, entry: ToManifold) -> None:
        super().__init__()
        self.entry = entry

    @override
    def forward(self, v: Tensor) -> Tensor:
        return to_tangent(self.entry.manifold, self.entry(v))


HEADS: dict[str, Callable[[int], Sequence[nn.Module]]] = {
    "Linear": lambda n: [nn.Linear(n, CLASSES)],
    "Linear, clipped": lambda n: [Tangents(ToManifold(Lorentz())), nn.Linear(n, CLASSES)],
    "MLR, hyperboloid, not clipped": lambda n: [
        ToManifold(Lorentz(), radius=math.inf),
        MLR(Lorentz(), n, CLASSES),
    ],
    "MLR, hyperboloid": lambda n: [ToManifold(Lorentz()), MLR(Lorentz(), n, CLASSES)],
    "MLR, ball": lambda n: [ToManifold(Poincare()), MLR(Poincare(), n, CLASSES)],
    "the MLRs' flat limit, clipped": lambda n: [
        Tangents(ToManifold(Lorentz())),
        ToManifold(Poincare(c=0.0)),
        MLR(Poincare(c=0.0), n, CLASSES),
    ],
    "BusemannHead": lambda n: [ToManifold(Lorentz()), BusemannHead(Lorentz(), n, CLASSES)],
    "PrototypeHead": lambda n: [
        ToManifold(Lorentz(), mode="space"),
        PrototypeHead(Lorentz(), n, CLASSES),
    ],
    "PrototypeHead's flat limit": lambda n: [
        Tangents(ToManifold(Lorentz(), mode="space")),
        ToManifold(Poincare(c=0.0)),
        PrototypeHead(Poincare(c=0.0), n, CLASSES),
    ],
}
"""Entries and heads on the same backbone, by name of the row; the first is the reference."""


class Problem(ABC):
    """Data, and networks that differ in their geometry only.

    The step size of Adam is chosen for each network and dimension from ``grid``, by the mean
    validation accuracy of the first two seeds; then all seeds train with it. The networks of one
    seed see the same batches and start from equal weights where they have the same weights.
    """

    name: str
    title: str
    grid: tuple[float, ...]
    weight_decay: float
    networks: tuple[str, ...]
    """Names of the networks, the Euclidean reference first."""
    constant: float
    """Test accuracy of the best constant prediction."""

    @abstractmethod
    def build(self, network: str, dim: int) -> nn.Module:
        """A newly initialised network."""

    @abstractmethod
    def losses(self, generator: torch.Generator) -> Iterator[Callable[[nn.Module], Tensor]]:
        """The loss of every training step."""

    @abstractmethod
    def accuracy(self, model: nn.Module, part: str) -> float:
        """Accuracy in percent on ``validation`` or ``test``."""


class Fashion(Problem):
    """A convolutional network with ``dim`` features and one of the heads.

    Images are averaged to 14 x 14. The first 10,000 training images train for 5 epochs of batches
    of 100, the last 5,000 are validation, and the test set is the official one.
    """

    name = "fashion"
    num_train, num_validation, epochs = 10_000, 5_000, 5
    title = f"Fashion-MNIST, 14x14, {num_train:,} training images, {epochs} epochs"
    grid = (3e-3, 1e-2, 3e-2)
    weight_decay = 0.0
    networks = tuple(HEADS)

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
    def build(self, network: str, dim: int) -> nn.Module:
        body = ConvNet(dim).build(Meta(CLASSES, (1, 14, 14), num_clients=1))
        return nn.Sequential(body, *HEADS[network](dim))

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
    and 1,000 test nodes, without dropout. The flat mean has the weights of the centroid of
    ``CentroidConv``: those of a GCN, divided by their sum at each node.
    """

    name = "cora"
    steps = 200
    title = f"Cora, public split, {steps} steps"
    grid = (3e-3, 1e-2, 3e-2, 1e-1, 3e-1)
    weight_decay = 5e-4
    networks = ("GCN", "GCN, flat mean", "Lorentz GCN")

    def __init__(self) -> None:
        raw = Path(os.environ.get("FEDBOLIC_DATA", "")) / "planetoid" / "Cora" / "raw"
        with tempfile.TemporaryDirectory() as folder:  # PyG writes next to the files that it reads
            if raw.is_dir():
                shutil.copytree(raw, Path(folder) / "Cora" / "raw")
            data: Any = Planetoid(folder, "Cora")[0]
        self.x, self.edges, self.labels = normalize(data.x), data.edge_index, data.y
        self.points = ToManifold(Lorentz())(self.x)
        self.masks = {"train": data.train_mask, "validation": data.val_mask, "test": data.test_mask}
        counts = data.y[data.test_mask].bincount()
        self.constant = 100 * counts.max().item() / int(counts.sum())

    @override
    def build(self, network: str, dim: int) -> nn.Module:
        inputs, classes = self.x.shape[1], int(self.labels.max()) + 1
        if network == "Lorentz GCN":
            layers = (
                CentroidConv(Lorentz(), inputs, dim),
                CentroidConv(Lorentz(), dim, dim),
                MLR(Lorentz(), dim, classes),
            )
            return Convolutions(*layers, SpaceActivation(Lorentz(), elu), self.points, self.edges)
        flat = network == "GCN, flat mean"
        layers = (
            GCNConv(inputs, dim, normalize=not flat),
            GCNConv(dim, dim, normalize=not flat),
            nn.Linear(dim, classes),
        )
        graph = row_normalised(self.edges, len(self.x)) if flat else (self.edges,)
        return Convolutions(*layers, elu, self.x, *graph)

    @override
    def losses(self, generator: torch.Generator) -> Iterator[Callable[[nn.Module], Tensor]]:
        mask = self.masks["train"]
        for _ in range(self.steps):
            yield lambda model: cross_entropy(model()[mask], self.labels[mask])

    @override
    def accuracy(self, model: nn.Module, part: str) -> float:
        mask = self.masks[part]
        return 100 * (model().argmax(1) == self.labels)[mask].float().mean().item()


def row_normalised(edges: Tensor, num_nodes: int) -> tuple[Tensor, Tensor]:
    """Edges with self loops, and the weights of a GCN divided by their sum at each target."""
    normed: Any = gcn_norm(edges, None, num_nodes)
    edges, weight = normed
    return edges, weight / scatter(weight, edges[1], dim_size=num_nodes)[edges[1]]


class Convolutions(nn.Module):
    """Two graph convolutions and a head on one graph: the logits of all nodes."""

    def __init__(
        self,
        first: nn.Module,
        second: nn.Module,
        head: nn.Module,
        activation: Callable[[Tensor], Tensor],
        x: Tensor,
        *graph: Tensor,
    ) -> None:
        super().__init__()
        self.first, self.second, self.head = first, second, head
        self.activation, self.x, self.graph = activation, x, graph

    @override
    def forward(self) -> Tensor:
        hidden = self.activation(self.first(self.x, *self.graph))
        return self.head(self.second(hidden, *self.graph))


def train(problem: Problem, network: str, dim: int, lr: float, seed: int) -> nn.Module:
    """The network after the last step."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Rng(seed).at("init").number())
        model = problem.build(network, dim)
    optimiser = torch.optim.Adam(model.parameters(), lr, weight_decay=problem.weight_decay)
    for loss in problem.losses(Rng(seed).at("order").generator()):
        optimiser.zero_grad()
        loss(model).backward()
        optimiser.step()
    return model.eval().requires_grad_(False)


def figures(problem: Problem, network: str, dim: int, lr: float, seed: int) -> Figures:
    """Validation and test accuracy of a network."""
    model = train(problem, network, dim, lr, seed)
    return {part: problem.accuracy(model, part) for part in ("validation", "test")}


def tuned(problem: Problem, network: str, dim: int, results: Results) -> tuple[float, list[float]]:
    """The chosen step size, and the test accuracies of all seeds with it."""

    def of(lr: float, seed: int) -> Figures:
        key = problem.name, network, str(dim), str(lr), str(seed)
        return results.add(key, figures, problem, network, dim, lr, seed)

    def validated(lr: float) -> float:
        return statistics.mean(of(lr, seed)["validation"] for seed in SEEDS[:CHOOSING])

    lr = max(problem.grid, key=validated)
    return lr, [of(lr, seed)["test"] for seed in SEEDS]


def report(problem: Problem, results: Results, dims: Iterable[int] = DIMS) -> None:
    """Print one table, each row as soon as it is computed."""
    reference = problem.networks[0]
    print(f"\n{problem.title}; the best constant answer has {problem.constant:.2f} %.\n")
    columns = "accuracy %", f"minus {reference}", "step size"
    print(head("dimensions", "network", *columns), flush=True)
    for dim in dims:
        baseline: list[float] = []
        for network in problem.networks:
            lr, test = tuned(problem, network, dim, results)
            baseline = baseline or test
            gap = "" if network == reference else difference(test, baseline)
            print(line(dim, network, spread(test), gap, lr), flush=True)


def scores(model: nn.Module, images: Tensor) -> Iterator[tuple[str, Tensor]]:
    """Familiarity of images by name of the score: the larger, the less foreign.

    Short features are foreign ones: a network answers an unknown input with weak features, whose
    point lies near the origin.
    """
    body, *rest = model.children()
    features = torch.cat([body(part) for part in images.split(500)])
    yield "confidence", nn.Sequential(*rest)(features).softmax(-1).amax(-1)
    yield "length", features.norm(dim=-1)
    for entry in rest:
        if isinstance(entry, ToManifold):
            yield "distance of the point", entry.manifold.dist0(entry(features))


def areas(model: nn.Module, familiar: Tensor, foreign: Tensor) -> dict[str, float]:
    """Area under the ROC curve in percent, by name of the score."""
    truth = np.repeat([1, 0], [len(familiar), len(foreign)])
    both = torch.cat([familiar, foreign])
    return {name: 100 * float(roc_auc_score(truth, s)) for name, s in scores(model, both)}


def report_foreign(problem: Fashion, results: Results, dims: Iterable[int]) -> None:
    """Print the areas of the scores, each row as soon as it is computed."""
    foreign = avg_pool2d(MNIST().read(None, download=True).x_test.float() / 255, 2)
    familiar, _ = problem.parts["test"]
    print(f"\n{problem.title}; {len(familiar):,} images of it, {len(foreign):,} of MNIST.\n")
    print(head("dimensions", "network", "accuracy %", *SCORES), flush=True)
    for dim in dims:
        for network in FOREIGN_ROWS:
            lr, accuracies = tuned(problem, network, dim, results)
            models = (train(problem, network, dim, lr, seed) for seed in SEEDS)
            found = [areas(model, familiar, foreign) for model in models]
            cells = (spread([area[s] for area in found if s in area]) for s in SCORES)
            print(line(dim, network, spread(accuracies), *cells), flush=True)


def main() -> None:
    """Train all networks and print the tables."""
    problems = {kind.name: kind for kind in (Fashion, Cora)}
    args = parser(__doc__, "twins.csv")
    args.add_argument(
        "--only",
        choices=(*problems, "foreign", "images", *transformer_twins.TASKS),
        nargs="+",
        default=[*problems],
    )
    args.add_argument("--dims", type=int, nargs="+", default=DIMS)
    args.add_argument("--epochs", type=int, default=image_twins.EPOCHS, help="of residual networks")
    args.add_argument("--project", action="store_true", help="time some of their steps instead")
    given = args.parse_args()
    results = Results(given.results, quiet=True)
    for name in given.only:
        if name == "images" and given.project:
            image_twins.project(image_twins.load())
        elif name == "images":
            image_twins.compare(image_twins.load(), results, epochs=given.epochs)
        elif name in transformer_twins.TASKS:
            transformer_twins.compare(transformer_twins.TASKS[name](), results)
        elif name == "foreign":
            report_foreign(Fashion(), results, given.dims)
        else:
            report(problems[name](), results, given.dims)


if __name__ == "__main__":
    main()
