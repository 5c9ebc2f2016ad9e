"""Hierarchies of WordNet's size: ``benchmarks.hierarchies --nouns``.

The 82,192 nouns in five dimensions: a round of a federation, scores of a layout, and an epoch of
sparse pairs. The seconds of an epoch are those of a step times its number of steps; a step draws 20
negatives a pair and moves the rows of its batch. *By hand* is Nickel and Kiela's step in torch's
operators: distances by arcosh, gradients of the looked up rows alone, a Riemannian step, rows
pulled back into the ball. With ``pip install PyQt6-WebEngine`` also the milliseconds of a frame of
the page of ``fedbolic view`` about nodes all over the tree, drawn in Chromium without a GPU.
"""

import json
import statistics
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Tensor, nn

from benchmarks.results import Figures, Key, Results
from benchmarks.script import FOLDER
from benchmarks.table import Goal, goal_table, head, line
from benchmarks.timing import held_mebibytes, interleaved
from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy, Nouns, PartitionedHierarchy, Subtrees
from fedbolic.federated import LocalTraining, Trainer
from fedbolic.hierarchies import Embedding, HierarchyEmbedding, TreeLayout
from fedbolic.hierarchies.scores import ranking_scores
from fedbolic.hierarchies.view import write_view
from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import HyperbolicEmbedding, NegativeSampler, RankingLoss
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD

FIGURES = FOLDER / "measured" / "nouns.csv"
"""The file of the figures on the page."""

DIM, NEGATIVES, SAMPLE, LR = 5, 20, 1000, 0.1

GOALS = {10: 90.0, 512: 10.0}
"""Goals in CPU seconds of an epoch by batch size."""

FRAMES = """(() => Array.from({length: 60}, (_, k) => {
  const start = performance.now(), i = Math.floor((k * 0.618034 % 1) * names.length);
  here = arrival(here, hi[i], lo[i], radius[i]).place;
  draw();
  pen.getImageData(0, 0, 1, 1);  // waits for the picture
  return performance.now() - start;
}))()"""
"""Milliseconds from one node to the next, of 60 nodes all over the tree."""

BY_HAND, JUDGED = "by hand, SGD", "points of the ball, RiemannianSGD"


class ByHand:
    """Nickel and Kiela's step in torch's operators."""

    def __init__(self, num_rows: int) -> None:
        self.points = torch.empty(num_rows, DIM).uniform_(-1e-3, 1e-3)

    def step(self, nodes: Tensor, mask: Tensor) -> None:
        """Move the rows of pairs, a descendant and candidates in every row."""
        x = self.points[nodes].requires_grad_()
        squares = x.square().sum(-1)
        gaps = (x[:, 1:] - x[:, :1]).square().sum(-1)
        sides = (1 - squares[:, :1]) * (1 - squares[:, 1:])
        distances = (1 + 2 * gaps / sides).clamp(min=1 + 1e-7).acosh()
        logits = -distances.masked_fill(~mask, torch.inf)
        (gradient,) = torch.autograd.grad((logits.logsumexp(1) - logits[:, 0]).mean(), x)
        with torch.no_grad():
            scale = (1 - squares).square().unsqueeze(-1) / 4
            rows = nodes.flatten()
            self.points.index_add_(0, rows, (gradient * scale).view(-1, DIM), alpha=-LR)
            moved = self.points[rows]
            self.points[rows] = moved * ((1 - 1e-5) / moved.norm(dim=1, keepdim=True)).clamp(max=1)


class Sparse:
    """A table of the library and an optimiser that moves single rows."""

    def __init__(
        self,
        table: nn.Module,
        space: Lorentz | Poincare,
        make: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    ) -> None:
        self.table, self.space, self.loss = table, space, RankingLoss()
        self.optimizer = make(list(table.parameters()))

    def step(self, nodes: Tensor, mask: Tensor) -> None:
        """Move the rows of pairs, a descendant and candidates in every row."""
        points = self.table(nodes)
        distances = self.space.dist(points[:, :1], points[:, 1:])
        self.optimizer.zero_grad()
        self.loss(distances[:, 0], distances[:, 1:], mask=mask[:, 1:]).mean().backward()
        self.optimizer.step()


def rows(num_rows: int) -> dict[str, ByHand | Sparse]:
    """All rows of the table of epochs."""
    ball, hyperboloid = Poincare(1.0), Lorentz(1.0)
    points = nn.Embedding(num_rows, DIM, sparse=True)
    nn.init.uniform_(points.weight, -1e-3, 1e-3)
    tangents = {
        space: HyperbolicEmbedding(space, num_rows, DIM, sparse=True)
        for space in (ball, hyperboloid)
    }
    return {
        BY_HAND: ByHand(num_rows),
        JUDGED: Sparse(points, ball, lambda p: RiemannianSGD(p, LR, space=ball)),
        "tangents, ball, RiemannianAdam": Sparse(
            tangents[ball], ball, lambda p: RiemannianAdam(p, LR)
        ),
        "tangents, hyperboloid, RiemannianAdam": Sparse(
            tangents[hyperboloid], hyperboloid, lambda p: RiemannianAdam(p, LR)
        ),
    }


def epochs(
    tree: Hierarchy, batch_size: int, *, rounds: int = 11, least: float = 0.1
) -> dict[str, Figures]:
    """Milliseconds of a step and seconds of an epoch, by row, with all rows interleaved."""
    generator, sampler = torch.Generator().manual_seed(0), NegativeSampler(NEGATIVES)
    num_nodes = len(tree)

    def step(row: ByHand | Sparse) -> None:
        chosen = torch.randint(tree.num_pairs, (batch_size,), generator=generator)
        pairs = tree.pairs[chosen]
        negatives, mask = sampler(pairs[:, 0], tree.keys, num_nodes=num_nodes, generator=generator)
        mask = torch.cat((torch.ones(batch_size, 1, dtype=torch.bool), mask), 1)
        row.step(torch.cat((pairs, negatives), 1), mask)

    cases = {name: lambda row=row: step(row) for name, row in rows(num_nodes).items()}
    for case in cases.values():
        case()
    steps = -(-tree.num_pairs // batch_size)
    taken = interleaved(cases, "cpu", rounds=rounds, least=least)
    medians = {name: statistics.median(seconds) for name, seconds in taken.items()}
    return {name: {"ms": 1e3 * s, "epoch": s * steps} for name, s in medians.items()}


def federation(root: Path | None) -> Figures:
    """CPU seconds and memory of a process that trains ten clients for a round of one epoch."""
    data = PartitionedHierarchy(Nouns(), Subtrees(10), root=root).load(Rng(0))
    local = LocalTraining(epochs=1, batch_size=512)
    method = HierarchyEmbedding(dim=DIM, rounds=1, local=local, sample=SAMPLE // 2)
    before = held_mebibytes()
    for _ in Trainer().run(method, data, Rng(0)):
        pass
    return {"MiB before": before, "MiB": held_mebibytes()}


def scores(tree: Hierarchy, sample: int | None) -> Figures:
    """Scores of a layout in float32, or estimates of them."""
    layout = TreeLayout(way="boxes", objective="closure", dim=DIM)
    points, space = layout.place(tree).to_lorentz(torch.float32), Lorentz(1.0)
    found = ranking_scores(
        lambda nodes: space.cdist(points[nodes], points),
        tree.pairs,
        len(tree),
        rng=Rng(0),
        sample=sample,
    )
    return {name.removeprefix("sampled/"): value for name, value in found.items()}


def frames(tree: Hierarchy) -> Figures:
    """Milliseconds of the frames of a page, and its megabytes."""
    embedding = Embedding.of(tree, TreeLayout(way="sectors").place(tree))
    with TemporaryDirectory() as folder:
        page, script = Path(folder, "page.html"), Path(folder, "frames.js")
        write_view(embedding, page)
        script.write_text(FRAMES, encoding="utf-8")
        browser = FOLDER.parent / "tests" / "browser.py"
        command = [sys.executable, str(browser), str(page), "--script", str(script)]
        seen = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        size = page.stat().st_size / 1e6
    first, *taken = json.loads(seen)["answer"]
    of_all = {"median": statistics.median(taken), "worst": max(taken)}
    return {"MB": size, "first": first, **of_all}


def report_nouns(root: Path | None, file: Path = FIGURES) -> None:
    """Measure what the file lacks; print the tables and the goals."""
    results = Results(file)
    results.add(("federation", ""), federation, root)
    tree = Nouns().read(root, download=True)
    for batch_size in GOALS:
        if ("epoch", f"{BY_HAND}, {batch_size}") not in results.known:
            for name, figures in epochs(tree, batch_size).items():
                results.add(("epoch", f"{name}, {batch_size}"), lambda found: found, figures)
    results.add(("scores", "sample"), scores, tree, SAMPLE)
    results.add(("scores", "exact"), scores, tree, None)
    if find_spec("PyQt6"):
        results.add(("page", ""), frames, tree)
    print(f"\n{nouns_table(results.known)}")


def nouns_table(known: dict[Key, Figures]) -> str:
    """The tables of all figures, and the goals.

    Args:
        known: Figures by part and row.
    """
    epoch = {key[1]: found["epoch"] for key, found in known.items() if key[0] == "epoch"}
    lines = [head("row, batch size", "ms a step", "CPU s an epoch")]
    lines += [line(row, f"{known['epoch', row]['ms']:.2f}", f"{s:.1f}") for row, s in epoch.items()]
    lines += ["", head("scores of a layout", "MAP %", "mean rank", "CPU s")]
    for name in ("sample", "exact"):
        found = known["scores", name]
        cells = (
            f"{scale * found[of]:.2f}"
            + (f" ± {scale * error:.2f}" if (error := found.get(f"{of}_error")) else "")
            for of, scale in (("map", 100), ("mean_rank", 1))
        )
        lines.append(line(name, *cells, f"{found['seconds']:.1f}"))
    held = known["federation", ""]
    goals = [
        Goal("epoch", f"{JUDGED}, {size}: CPU s", "<=", most, epoch[f"{JUDGED}, {size}"])
        for size, most in GOALS.items()
    ]
    goals.append(Goal("scores", "sample: CPU s", "<=", 5.0, known["scores", "sample"]["seconds"]))
    goals.append(Goal("memory", "ten clients: MiB", "<=", 1000.0, held["MiB"]))
    page = ""
    if found := known.get(("page", "")):
        parts = (f"{name} {found[name]:.0f}" for name in ("first", "median", "worst"))
        page = f"\n\nA page of {found['MB']:.1f} MB: ms a frame, {', '.join(parts)}."
    seconds = f"Ten clients, one round, batches of 512: {held['seconds']:.0f} CPU s with reading"
    return (
        "\n".join((*lines, "", goal_table(goals), "", f"{seconds}, {held['MiB']:.0f} MiB.")) + page
    )
