"""Cells of the table of hierarchies: trees, clients and numbers a node, with flat controls.

Every trained row tries the same step sizes on a seed that is not reported.
"""

import functools
import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from typing_extensions import override

from benchmarks.hierarchies.exact import EXACT
from benchmarks.hierarchies.fitted import FITTED, fit
from benchmarks.hierarchies.tree_scores import (
    common_ancestor_score,
    distance_error,
    lowest_common_ancestors,
    tree_distances,
)
from benchmarks.hierarchies.trees import TREES, Given, HeldOut
from benchmarks.results import Figures, Results
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data import (
    Client,
    FederatedData,
    Hierarchy,
    HierarchySplit,
    PartitionedHierarchy,
    Subtrees,
    SubtreesAndAuthority,
)
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.federated import Batched, LocalTraining, Sequential, Trainer
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.hierarchies.node_table import TABLE
from fedbolic.nn.loss.ranking import RowDistances, rank_and_map

CHOOSING, SEEDS = 100, 5
"""The seed that chooses step sizes, and the number of those that are reported, from 0."""

LRS = 0.03, 0.1, 0.3, 1.0
MOST_NODES, MOST_PAIRS = 1000, 1000
"""Nodes whose ancestors are ranked, and pairs whose common ancestor is, drawn once."""

CURVED: dict[str, dict[str, Any]] = {"hyperbolic": {}, "hyperbolic + b_v": {"bias": "ancestor"}}
FLAT: dict[str, dict[str, Any]] = {
    "flat": {"c": 0.0},
    "flat + b_v": {"c": 0.0, "bias": "ancestor"},
    "dot + b_v": {"c": 0.0, "bias": "ancestor", "score": "dot"},
}
TRAINED = CURVED | FLAT
"""Settings of the method."""

Task = Literal["closure", "held out", "strict"]


@dataclass(frozen=True)
class Cell:
    """A tree, its clients, and the numbers that a node has.

    Args:
        tree: Name of the tree.
        clients: Number of clients with branches; 1 for pooled training. In a strict task an
            authority comes to them.
        numbers: Numbers a node.
        task: ``closure``: all pairs train; ``held out``: a tenth of the pairs does not; ``strict``:
            pairs across the heads of branches are nobody's.
    """

    tree: str
    clients: int = 10
    numbers: int = 5
    task: Task = "closure"

    @property
    def base(self) -> "Cell":
        """The cell in which step sizes are chosen."""
        return replace(self, clients=1 if self.clients == 1 else 10)

    @property
    def known(self) -> "Cell":
        """The cell with the figures of a known tree, which depend on no client and no number."""
        return replace(self, clients=10, numbers=5) if self.task == "closure" else self

    @property
    def fitted(self) -> "Cell":
        """The cell with the figures of fitted distances, which depend on no client."""
        return replace(self, clients=10)

    @property
    def trains(self) -> bool:
        """True if rows are trained; of the nouns the hundreds of epochs of each try are hours."""
        return self.tree != "nouns"

    @property
    def has_fits(self) -> bool:
        """True with rows fitted to distances; fits of two numbers depend on where they start."""
        return self.task == "closure" and self.numbers == 5 and self.trains

    @property
    def measure(self) -> str:
        """The figure by which they are chosen."""
        return "MAP" if self.task == "closure" else "inferred"

    @property
    def rows(self) -> tuple[str, ...]:
        """Its rows, in the order in which they are measured."""
        exact = ("popularity", "nested intervals", "flat, laid out", "plane, laid out")
        if not self.trains:
            return exact
        more = ("flat",) if self.task == "closure" else ("join", "hyperbolic + b_v")
        return *exact, "hyperbolic", "flat + b_v", "dot + b_v", *more

    @property
    def title(self) -> str:
        """The cell in words."""
        if not self.trains:
            return f"{self.tree}, known"
        held = "pooled" if self.clients == 1 else f"{self.clients} clients"
        task = "" if self.task == "closure" else f", {self.task}"
        return f"{self.tree}, {held}, {self.numbers} numbers{task}"

    def key(self, row: str, *rest: object) -> tuple[str, ...]:
        """Key of its figures.

        Args:
            row: The row.
            rest: Step size and seed.
        """
        of = self.task, self.tree, self.clients, self.numbers, row, *rest
        return tuple(map(str, of))


@dataclass(frozen=True)
class Unscored(HierarchyEmbedding):
    """The method without scores of its own."""

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return {}


@dataclass(frozen=True, eq=False)
class Sampled:
    """A tree, and the nodes and pairs on which rows are scored."""

    whole: Hierarchy

    @functools.cached_property
    def direct(self) -> Tensor:
        """Direct pairs."""
        return direct_pairs(self.whole)

    @functools.cached_property
    def nodes(self) -> Tensor:
        """Nodes whose ancestors are ranked."""
        below = self.whole.pairs[:, 0].unique()
        order = torch.randperm(len(below), generator=Rng(0).at("nodes").generator())
        return below[order[:MOST_NODES]].sort().values

    @functools.cached_property
    def all_steps(self) -> Tensor:
        """Distances in the tree between all nodes."""
        return tree_distances(self.whole, self.direct, torch.arange(len(self.whole))).float()

    def of_sample(self, pairs: Tensor) -> Tensor:
        """Some pairs without the ones that begin at other nodes than the sampled."""
        return pairs[torch.isin(pairs[:, 0], self.nodes)]

    @functools.cached_property
    def steps(self) -> Tensor:
        """Distances in the tree from the first 200 sampled nodes."""
        return tree_distances(self.whole, self.direct, self.nodes[:200])

    @functools.cached_property
    def cousins(self) -> tuple[Tensor, Tensor]:
        """Unrelated pairs with a common ancestor, and the lowest."""
        generator = Rng(0).at("cousins").generator()
        pairs = torch.randint(len(self.whole), (20 * MOST_PAIRS, 2), generator=generator)
        pairs = pairs[~self.whole.related(*pairs.T)]
        lowest = lowest_common_ancestors(self.whole, pairs)
        found = (lowest >= 0).nonzero().flatten()[:MOST_PAIRS]
        return pairs[found], lowest[found]

    def distance_error(self, gaps: RowDistances) -> float:
        """Error of the distances of the tree from the first 200 sampled nodes.

        Args:
            gaps: Distances, or minus the scores of a row.
        """
        return distance_error(gaps(self.nodes[:200]), self.steps)

    def scores(self, gaps: RowDistances, task: Task, held: Tensor) -> Figures:
        """All figures of a row.

        Args:
            gaps: Minus its scores.
            task: The task.
            held: True for the pairs that somebody holds.
        """
        pairs, num_nodes = self.whole.pairs, len(self.whole)
        if task != "closure":
            known, asked = (self.of_sample(pairs[part]) for part in (held, ~held))
            inferred = rank_and_map(gaps, asked, num_nodes=num_nodes, known=known)
            return {"inferred": inferred.mean_average_precision, "rank": inferred.mean_rank}
        ranked = rank_and_map(gaps, self.of_sample(pairs), num_nodes=num_nodes)
        direct = rank_and_map(gaps, self.of_sample(self.direct), num_nodes=num_nodes)
        return {
            "MAP": ranked.mean_average_precision,
            "rank": ranked.mean_rank,
            "direct": direct.mean_average_precision,
            "distance": self.distance_error(gaps),
            "common": common_ancestor_score(gaps, *self.cousins),
        }


@dataclass(frozen=True, eq=False)
class Controls:
    """Figures of all cells, which are measured unless the file has them."""

    results: Results
    root: Path | None = None

    @functools.cache  # noqa: B019  (one object a run)
    def tree(self, name: str) -> Sampled:
        """A tree, read once.

        Args:
            name: Its name.
        """
        return Sampled(TREES[name](self.root))

    def data(self, cell: Cell, seed: int) -> tuple[FederatedData, Tensor]:
        """The federation of a cell, and a mask of the pairs that somebody holds.

        Args:
            cell: The cell.
            seed: Seed of the pairs that are held out.
        """
        partition = {
            "closure": Subtrees(cell.clients),
            "held out": HeldOut(),
            "strict": SubtreesAndAuthority(cell.clients + 1),
        }[cell.task]
        given = Given(self.tree(cell.tree).whole)
        data = PartitionedHierarchy(given, partition).load(Rng(seed))
        assert data.holdout is not None
        held = data.holdout.split_of(HierarchySplit, "test").held
        assert held is not None
        return data, held

    def exact(self, cell: Cell, row: str, seed: int) -> Figures:
        """Figures of a row without training, from all pairs that somebody holds and what follows.

        Args:
            cell: The cell.
            row: The row.
            seed: The seed.
        """
        tree, (_, held) = self.tree(cell.tree), self.data(cell, seed)
        known = Hierarchy(tree.whole.names, tree.whole.pairs[held]).closure()
        return tree.scores(EXACT[row](known), cell.task, held)

    def trained(self, cell: Cell, row: str, lr: float, seed: int) -> Figures:
        """Figures of a trained row; NaN if training diverged.

        Args:
            cell: The cell.
            row: The row.
            lr: Step size.
            seed: The seed.
        """
        settings = TRAINED[row]
        pooled = cell.clients == 1
        method = Unscored(
            **settings,
            dim=cell.numbers - ("bias" in settings),
            lr=lr,
            steps=40 if pooled else 20,
            local=LocalTraining(batch_size=256 if pooled else 64),
        )
        data, held = self.data(cell, seed)
        engine = Sequential() if pooled else Batched()  # equal, the faster for its clients
        *_, (state, _) = Trainer(engine).run(method, data, Rng(seed))
        embedded = method.table.embed(state.server_state["parameters"][TABLE])
        if not bool(embedded.isfinite().all()):
            names = ("MAP", "rank", "direct", "distance", "common", "inferred")
            return dict.fromkeys(names, math.nan)
        gaps, tree = functools.partial(method.table.gaps, embedded), self.tree(cell.tree)
        found = tree.scores(gaps, cell.task, held)
        if row == "flat + b_v" and cell.task == "closure":
            both = replace(method.table, bias="both")
            found["distance, b_u + b_v"] = tree.distance_error(
                lambda nodes: both.gaps(embedded, nodes)
            )
        return found

    def fitted(self, cell: Cell, row: str, lr: float, seed: int) -> Figures:
        """Error of the distances of a row that is fitted to them, and its loss.

        Args:
            cell: The cell.
            row: The row.
            lr: Step size.
            seed: The seed.
        """
        tree = self.tree(cell.tree)
        gaps, loss = fit(FITTED[row](cell.numbers), tree.all_steps, lr, seed)
        return {"distance": tree.distance_error(gaps), "loss": loss}

    def fit(self, cell: Cell) -> None:
        """Measure the rows that are fitted to distances, with the step size of the lowest loss.

        Args:
            cell: The cell.
        """
        for row in FITTED:

            def loss(lr: float, seed: int = CHOOSING, *, row: str = row) -> float:
                key = cell.key(row, lr, seed)
                found = self.results.add(key, self.fitted, cell, row, lr, seed)["loss"]
                return math.inf if math.isnan(found) else found

            best = min(LRS, key=loss)
            for seed in range(SEEDS):
                loss(best, seed)

    def chosen(self, cell: Cell, row: str) -> float:
        """The step size with the best figure of the seed that is not reported.

        Args:
            cell: The cell.
            row: The row.
        """

        def tried(lr: float) -> float:
            key = cell.base.key(row, lr, CHOOSING)
            found = self.results.add(key, self.trained, cell.base, row, lr, CHOOSING)
            return -math.inf if math.isnan(found[cell.measure]) else found[cell.measure]

        return max(LRS, key=tried)

    def measure(self, cell: Cell, row: str, seed: int) -> Figures:
        """Figures of a row of any kind for a seed.

        Args:
            cell: The cell.
            row: The row.
            seed: The seed.
        """
        if row in EXACT:
            of = cell.known
            return self.results.add(of.key(row, "", seed), self.exact, of, row, seed)
        lr = self.chosen(cell, row)
        return self.results.add(cell.key(row, lr, seed), self.trained, cell, row, lr, seed)

    def run(self, cells: Iterable[Cell]) -> None:
        """Measure all rows of some cells, those without training first.

        Args:
            cells: The cells, in their order.
        """
        cells = [*cells]
        for known in (EXACT, TRAINED):
            for cell in cells:
                for row, seed in itertools.product(cell.rows, range(SEEDS)):
                    # a row without training has the chance of the pairs that are held out alone
                    if row in known and (known is TRAINED or cell.task == "held out" or not seed):
                        self.measure(cell, row, seed)
        for cell in dict.fromkeys(cell.fitted for cell in cells if cell.has_fits):
            self.fit(cell)


CELLS = (
    Cell("mammals"),
    Cell("ICD-10"),
    Cell("mammals", clients=1, task="held out"),
    Cell("Python"),
    Cell("Google"),
    Cell("mammals", task="strict"),
    Cell("mammals", numbers=2),
    Cell("mammals", clients=1),
    Cell("mammals", numbers=10),
    Cell("mammals", clients=20),
    Cell("mammals", clients=5),
    Cell("Google", clients=1),
    Cell("Google", numbers=2),
    Cell("Google", task="strict"),
    Cell("nouns"),
)
"""All cells, the most telling first."""
