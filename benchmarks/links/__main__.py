"""AUC of link prediction with flat and hyperbolic encoders and decoders, and published numbers.

    python -m benchmarks.links --root DATA [--graph disease] [--split published 0 1]

Each figure is the mean and the standard deviation over seeds. The epoch is chosen by the AUC on
validation pairs, and so is the scale of the features, on a seed that is not reported; all rows have
the same tries. Every trained model adds lines to the file of results, from which an interrupted run
continues.

Takes 15 minutes.
"""

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from sklearn.metrics import average_precision_score, roc_auc_score
from torch import Tensor
from torch.nn.functional import binary_cross_entropy_with_logits, normalize

from benchmarks.links.encoders import ROWS, Row
from benchmarks.results import Figures, Results
from benchmarks.script import parser
from benchmarks.table import Goal, goal_table, head, line, spread
from fedbolic.core.rng import Rng
from fedbolic.data import Disease, Graph, LabelledPairs, LinkSplit, Planetoid, split_links
from fedbolic.data.graphs.link_split import assemble_links

CHOOSING = 100
"""The seed that chooses the scale of the features."""

SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    "as published": lambda x: x,
    "unit length": normalize,
}
PUBLISHED_SPLIT, PUBLISHED_SEED = "published", 1234

PUBLISHED = (
    ("yes", "GCN", "64.7", "Chami et al. (2019), Table 1"),
    ("yes", "HGCN", "90.8", "Chami et al. (2019), Table 1"),
    ("yes", "HGCN", "87.14", "README of the authors' repository"),
    ("no", "MLP", "72.6", "Chami et al. (2019), Table 1"),
)
"""AUC in percent on Disease: use of the graph, model, figure and source."""

GOALS = {"CentroidConv / hyperboloid distance": 92.5, "TangentLinear / hyperboloid distance": 97.0}
"""Goals of the mean AUC of two rows on the published split of Disease."""


@dataclass(frozen=True)
class LinkTraining:
    """Settings of the training."""

    lr: float = 0.01
    patience: int = 100
    epochs: int = 5000


def published_split(graph: Graph, seed: int = PUBLISHED_SEED) -> LinkSplit:
    """The split of the authors' code: NumPy's legacy stream shuffles edges, then non-edges.

    Non-edges are listed with pairs of a node with itself, as published.

    References:
        Chami et al. (2019), arXiv:1910.12933; ``mask_edges`` of the authors' code.
    """
    adjacency = np.zeros((len(graph), len(graph)), dtype=bool)
    adjacency[tuple(graph.edges.numpy())] = True
    stream = np.random.RandomState(seed)

    def shuffled(matrix: np.ndarray) -> Tensor:
        pairs = np.stack(np.triu(matrix).nonzero())
        return torch.from_numpy(pairs[:, stream.permutation(pairs.shape[1])])

    edges = shuffled(adjacency)
    num = edges.shape[1]
    sizes = int(0.05 * num), int(0.1 * num)
    return assemble_links(graph, edges, shuffled(~adjacency), sizes=sizes)


def scores(logits: Tensor, examples: LabelledPairs) -> tuple[float, float]:
    """AUC and average precision in percent."""
    labels = examples.labels.numpy()
    auc, precision = (
        measure(labels, logits.numpy()) for measure in (roc_auc_score, average_precision_score)
    )
    return 100 * float(auc), 100 * float(precision)


def train(
    row: Row, split: LinkSplit, x: Tensor, *, seed: int, training: LinkTraining
) -> dict[str, float]:
    """Scores at the epoch with the best AUC on validation, and the number of that epoch."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(Rng(seed).at("init").number())
        model = row.model(x.shape[1])
    optimiser = torch.optim.Adam(model.parameters(), training.lr)
    generator = Rng(seed).at("negatives").generator()
    edges, positives = split.graph.edges, split.train
    num, best = positives.shape[1], {"validation": -1.0}
    labels = torch.cat((torch.ones(num), torch.zeros(num)))
    held_out = torch.cat((split.validation.pairs, split.test.pairs), 1)
    for epoch in range(training.epochs):
        pairs = torch.cat((positives, split.negatives(num, generator=generator)), 1)
        optimiser.zero_grad()
        binary_cross_entropy_with_logits(model(x, edges, pairs), labels).backward()
        optimiser.step()
        with torch.no_grad():
            logits = model(x, edges, held_out)
        chosen, reported = logits.split((len(split.validation), len(split.test)))
        validation, _ = scores(chosen, split.validation)
        if validation > best["validation"]:
            auc, precision = scores(reported, split.test)
            best = {"validation": validation, "AUC": auc, "AP": precision, "epoch": epoch}
        elif epoch - best["epoch"] >= training.patience:
            break
    return best


class Problem:
    """A graph with one split, and the models trained on it."""

    def __init__(
        self, name: tuple[str, str], split: LinkSplit, results: Results, training: LinkTraining
    ) -> None:
        self.name, self.split, self.results, self.training = name, split, results, training
        features = split.graph.features
        features = features.to_dense() if features.is_sparse else features
        self.features = {scale: scaled(features) for scale, scaled in SCALES.items()}

    def figures(self, row: Row, scale: str, seed: int) -> Figures:
        """Figures of a model, which is trained if the file of results lacks it."""
        key = *self.name, str(self.training.patience), row.name, scale, str(seed)
        x = self.features[scale]
        return self.results.add(key, train, row, self.split, x, seed=seed, training=self.training)

    def chosen(self, row: Row) -> str:
        """The scale of features with the best validation AUC of the seed ``CHOOSING``."""
        return max(SCALES, key=lambda scale: self.figures(row, scale, CHOOSING)["validation"])

    def baselines(self) -> dict[str, tuple[float, float]]:
        """Test AUC and AP of scores that need no training, from degrees or features.

        A held-out edge takes a neighbour from its ends, so a node without one is a hint.
        """
        pairs = self.split.test.pairs
        degrees = self.split.graph.degrees[pairs]
        found = {
            "product of degrees": degrees.prod(0).float(),
            "an end without a training edge": (degrees == 0).any(0).float(),
        }
        for scale, x in self.features.items():
            distance = torch.linalg.vector_norm(x[pairs[0]] - x[pairs[1]], dim=-1)
            found[f"distance of features, {scale}"] = -distance
        return {name: scores(of, self.split.test) for name, of in found.items()}


def report(problem: Problem, rows: list[Row], seeds: int) -> dict[str, float]:
    """Train all rows and print the table; return the mean AUC of every row."""
    lines, means = [], {}
    for name, (auc, precision) in problem.baselines().items():
        lines.append(line("", name, "", "", f"{auc:.1f}", f"{precision:.1f}", "", ""))
    for row in rows:
        scale = problem.chosen(row)
        found = [problem.figures(row, scale, seed) for seed in range(seeds)]
        of = {name: [figures[name] for figures in found] for name in found[0]}
        scored = [spread(of[name], 1) for name in ("AUC", "AP")]
        times = [f"{statistics.mean(of[name]):.0f}" for name in ("epoch", "seconds")]
        lines.append(line(row.graph, row.encoder, row.decoder, scale, *scored, *times))
        means[row.name] = statistics.mean(of["AUC"])
    (graph, split), patience = problem.name, problem.training.patience
    print(f"\n{graph}, split {split}, {seeds} seeds, patience {patience}\n")
    columns = "graph", "encoder", "decoder", "features", "AUC %", "AP %", "epoch", "CPU s"
    print(head(*columns), *lines, sep="\n", flush=True)
    return means


def conclude(means: dict[str, float]) -> None:
    """Print the published numbers and the goals of the rows that were trained."""
    for graph, model, auc, source in PUBLISHED:
        print(line(graph, f"{model}, published: {source}", "", "", auc, "", "", ""))
    rows = [Goal("E4", f"AUC of {n}", ">=", goal, means.get(n)) for n, goal in GOALS.items()]
    print(f"\n{goal_table(rows)}")


def main() -> None:
    """Train all rows and print the tables, the published numbers, and the goals."""
    graphs = {"disease": Disease(), "cora": Planetoid("Cora")}
    args = parser(__doc__, "links.csv")
    args.add_argument("--root", type=Path, help="data folder; downloaded without")
    args.add_argument("--graph", choices=graphs, nargs="+", default=["disease"])
    args.add_argument("--split", nargs="+", default=[PUBLISHED_SPLIT], help="published or seeds")
    args.add_argument("--rows", nargs="+", default=[""], help="parts of names of rows")
    args.add_argument("--patience", type=int, default=100, help="epochs without a better AUC")
    args.add_argument("--seeds", type=int, default=5, help="seeds of every row, from 0")
    given = args.parse_args()
    results, training = Results(given.results), LinkTraining(patience=given.patience)
    rows = [row for row in ROWS if any(part in row.name for part in given.rows)]
    for name in given.graph:
        graph = graphs[name].read(Rng(0), given.root, download=True)
        for of in given.split:
            is_published = of == PUBLISHED_SPLIT
            split = published_split(graph) if is_published else split_links(graph, Rng(int(of)))
            problem = Problem((name, of), split, results, training)
            means = report(problem, rows, given.seeds)
            if name == "disease" and is_published:
                conclude(means)


if __name__ == "__main__":
    main()
