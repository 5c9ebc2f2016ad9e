"""Retrieval with hyperbolic heads and flat twins: the option ``--retrieval`` of ``class_trees``.

*Images*: encoders of CIFAR-100's images, 16 x 16, and of the names of its classes and superclasses
are trained on pairs of an image and its class, a class and its superclass, an image and its
superclass, one of every class or superclass in a batch. Names are sought for test images.
*Categories*: the encoder of words is trained on pairs of a category of Google's by its own words
and its parent by the words of its path. Parents are sought for leaves that were held out.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor, nn

from benchmarks.class_trees.rows import SUPERCLASSES, distances, tree_distances
from benchmarks.results import Figures, Results
from benchmarks.table import difference, head, line, spread
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, GoogleProducts, Hierarchy
from fedbolic.manifolds import Curvature, Euclidean, Lorentz, Manifold
from fedbolic.nn import CosineContrast, DistanceContrast, EntailmentContrast
from fedbolic.nn.network.retrieval import NGramEncoder, RetrievalHead
from fedbolic.search import HyperbolicIndex

DIM, WIDTH = 16, 64
STEPS = {"images": 200, "categories": 150}
BATCH = 256
GRID = (0.003, 0.01)
SEEDS = range(3)
NUM_VALIDATION, NUM_TEST = 500, 1_000
KS = (1, 5, 10)

ROWS = ("cosine", "Euclidean distance", "hyperbolic distance", "hyperbolic distance, entailment")


class Towers(nn.Module):
    """Encoders with a head each, the loss of pairs, and the search.

    Args:
        row: Name of a row.
        encoders: Encoders to :data:`WIDTH` features.
    """

    def __init__(self, row: str, *encoders: nn.Module) -> None:
        super().__init__()
        self.row, c = row, Curvature(bounds=(0.1, 10.0))
        hyperbolic = row.startswith("hyperbolic")
        self.towers = nn.ModuleList(
            nn.Sequential(
                encoder,
                RetrievalHead(Lorentz(c=c), WIDTH, DIM)
                if hyperbolic
                else nn.Linear(WIDTH, DIM, bias=False),
            )
            for encoder in encoders
        )
        self.contrast = {
            "cosine": CosineContrast,
            "hyperbolic distance, entailment": EntailmentContrast,
        }.get(row, DistanceContrast)()

    @property
    def space(self) -> Manifold:
        """The space of the points."""
        spaces = [of.manifold for of in self.modules() if isinstance(of, RetrievalHead)]
        return spaces[0] if spaces else Euclidean()

    def loss(self, specific: Tensor, general: Tensor) -> Tensor:
        """Mean loss of pairs of points."""
        space = () if isinstance(self.contrast, CosineContrast) else (self.space,)
        return self.contrast(*space, specific, general).mean()

    def nearest(self, queries: Tensor, table: Tensor, k: int) -> Tensor:
        """Rows of the nearest points."""
        if self.row == "cosine":
            cosines = nn.functional.normalize(queries) @ nn.functional.normalize(table).T
            return cosines.topk(k).indices
        if isinstance(self.space, Euclidean):
            return torch.cdist(queries, table).topk(k, largest=False).indices
        return HyperbolicIndex.of(self.space, table).search(queries, k)[1]


def fit(
    towers: Towers, loss: Callable[[torch.Generator], Tensor], steps: int, lr: float, rng: Rng
) -> None:
    """Adam, whose step size falls to 0."""
    adam = torch.optim.Adam(towers.parameters(), lr)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(adam, steps)
    generator = rng.at("pairs").generator()
    for _ in range(steps):
        adam.zero_grad()
        loss(generator).backward()
        adam.step()
        falling.step()
    towers.requires_grad_(False)


def scores(towers: Towers, found: Tensor, right: Tensor, apart: Tensor) -> Figures:
    """Recall of the right row, and the tree distance of the first one from it."""
    hits = found == right[:, None]
    recall = {f"recall at {k}": 100 * float(hits[:, :k].any(1).double().mean()) for k in KS}
    return {**recall, "tree distance": float(apart[found[:, 0], right].mean())}


def outward(towers: Towers, points: Tensor, depths: Tensor) -> float:
    """Rank correlation of distance from the origin and depth."""
    ranks = rankdata(towers.space.dist0(points)), rankdata(depths)
    return float(np.corrcoef(*ranks)[0, 1])


@dataclass(frozen=True)
class NamesOfImages:
    """CIFAR-100's images and the names of its classes.

    Args:
        data: Images of one client, and the server's test set.
        num_validation: Test images at its beginning that are validation.
    """

    data: FederatedData
    num_validation: int

    def measure(self, row: str, lr: float, seed: int) -> Figures:
        """Scores of one pair of encoders."""
        (client,), held = self.data.clients, self.data.holdout
        assert held is not None
        train, test = (part.at(torch.arange(len(part))) for part in (client.train, held.test))
        tree = SUPERCLASSES.read(None, download=False)
        above, names = tree.primary_parents[:100], [n.replace("_", " ") for n in tree.names]
        of_class = [(train["y"] == label).nonzero()[:, 0] for label in range(100)]
        of_above = [(above == label).nonzero()[:, 0] for label in range(100, 120)]
        rng = Rng(seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.at("init").number())
            pixels = nn.Sequential(
                nn.Flatten(), nn.Linear(768, 256), nn.ReLU(), nn.Linear(256, WIDTH)
            )
            towers = Towers(row, pixels, NGramEncoder(WIDTH))
        images, texts = towers.towers

        def loss(generator: torch.Generator) -> Tensor:
            def one(of: Tensor) -> Tensor:
                return of[torch.randint(len(of), (1,), generator=generator)]

            points = images(train["x"][torch.cat([one(of) for of in of_class])])
            words = texts(names)
            picked = torch.cat([one(of) for of in of_above])
            pairs = (
                (points, words[:100]),
                (words[picked], words[100:]),
                (points[picked], words[100:]),
            )
            return torch.stack([towers.loss(*pair) for pair in pairs]).sum()

        fit(towers, loss, STEPS["images"], lr, rng)
        points, words, y = images(test["x"]), texts(names), test["y"]
        found = towers.nearest(points, words[:100], max(KS))
        parts = {"validation": slice(self.num_validation), "test": slice(self.num_validation, None)}
        figures = Figures(outward=outward(towers, words, tree.depths))
        for part, rows in parts.items():
            own = scores(towers, found[rows], y[rows], distances(SUPERCLASSES))
            figures |= {f"{part} {name}": value for name, value in own.items()}
        return figures


@dataclass(frozen=True)
class ParentsOfCategories:
    """Google's product categories by their words.

    Args:
        tree: Closure of the categories, whose names are paths.
    """

    tree: Hierarchy

    def measure(self, row: str, lr: float, seed: int) -> Figures:
        """Scores of one encoder."""
        tree, rng = self.tree, Rng(seed)
        above = tree.primary_parents
        inner = above[above >= 0].unique()
        place = torch.full((len(tree),), -1)
        place[inner] = torch.arange(len(inner))
        is_leaf = (place < 0) & (above >= 0)
        leaves = is_leaf.nonzero()[:, 0]
        leaves = leaves[torch.randperm(len(leaves), generator=Rng(0).at("held out").generator())]
        validation, test, _ = leaves.split(
            (NUM_VALIDATION, NUM_TEST, len(leaves) - NUM_VALIDATION - NUM_TEST)
        )
        known = above >= 0
        known[torch.cat((validation, test))] = False
        children = [(known & (above == node)).nonzero()[:, 0] for node in inner]
        parents = torch.tensor([i for i, of in enumerate(children) if len(of)])
        own = [name.rpartition(" > ")[2] for name in tree.names]
        paths = [tree.names[node].replace(" > ", " ") for node in inner.tolist()]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(rng.at("init").number())
            towers = Towers(row, NGramEncoder(WIDTH))
        (words,) = towers.towers

        def loss(generator: torch.Generator) -> Tensor:
            picked = parents[torch.randperm(len(parents), generator=generator)[:BATCH]].tolist()
            drawn = torch.rand(BATCH, generator=generator).tolist()
            child = [
                int(children[i][int(u * len(children[i]))])
                for i, u in zip(picked, drawn, strict=False)
            ]
            return towers.loss(words([own[i] for i in child]), words([paths[i] for i in picked]))

        fit(towers, loss, STEPS["categories"], lr, rng)
        table, apart = words(paths), tree_distances(tree, inner)
        figures = Figures(outward=outward(towers, table, tree.depths[inner]))
        for part, nodes in {"validation": validation, "test": test}.items():
            found = towers.nearest(words([own[i] for i in nodes.tolist()]), table, max(KS))
            of_part = scores(towers, found, place[above[nodes]], apart)
            figures |= {f"{part} {name}": value for name, value in of_part.items()}
        return figures


def retrieve(root: Path | None, images: NamesOfImages, results: Results) -> None:
    """Choose step sizes by recall at 1 on validation, run all seeds and print both tables."""
    google = GoogleProducts().read(root, download=False)
    tasks = {"images": images.measure, "categories": ParentsOfCategories(google).measure}
    for task, measure in tasks.items():

        def of(row: str, lr: float, seed: int, task: str = task, measure=measure) -> Figures:
            return results.add((task, row, str(lr), str(seed)), measure, row, lr, seed)

        names = (*(f"recall at {k}" for k in KS), "tree distance")
        print(f"\n**retrieval, {task}**\n")
        print(head("row", *names, "less cosine, recall at 1", "radius and depth", "step"))
        first: list[float] = []
        for row in ROWS:
            step = max(GRID, key=lambda lr, row=row: of(row, lr, 0)["validation recall at 1"])
            runs = [of(row, step, seed) for seed in SEEDS]
            cells = {name: [run[f"test {name}"] for run in runs] for name in names}
            first = first or cells["recall at 1"]
            gap = "" if row == ROWS[0] else difference(cells["recall at 1"], first)
            radius = spread(run["outward"] for run in runs)
            print(line(row, *map(spread, cells.values()), gap, radius, step), flush=True)
