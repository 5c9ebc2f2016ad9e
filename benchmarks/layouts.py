"""Layouts of known trees without training: ancestors and direct parents, seconds and bits a node.

    python -m benchmarks.layouts --root DATA [--results benchmarks/measured/layouts.csv]

Google's product categories and WordNet's nouns by every way and objective of ``TreeLayout``; *ball*
is the Poincaré ball in float32. MAP is that of the ancestors of a node (closure) and of its direct
parents alone among all nodes, ties counted against a layout, over nodes drawn at random with seed 0
and the 95 % interval over ten equal parts of them. *Room* keeps a tenth for later nodes and adds a
tenth of the leaves afterwards, without moving a node. *Copies* has a place for every path to a
root. A last line lays out a random tree of a million nodes.

Takes 3 minutes.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.results import Figures, Key, Results
from benchmarks.script import FOLDER, parser
from benchmarks.table import head, interval, line
from fedbolic.core.rng import Rng
from fedbolic.data import GoogleProducts, Hierarchy, Nouns, random_tree
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.hierarchies import TreeLayout
from fedbolic.manifolds import ManifoldPlaces, Places, Poincare
from fedbolic.nn.loss.ranking import RowDistances, rank_and_map

FIGURES = FOLDER / "measured" / "layouts.csv"
"""The file of the figures on the page."""

TREES = {"Google": GoogleProducts(), "nouns": Nouns()}
SAMPLE, PARTS = 1000, 10
"""Nodes whose ancestors are ranked, and the parts of them that give the interval."""

LATER = 0.1
"""Share of the leaves that come later."""

MILLION = ("random tree of a million nodes", "gaps, both")


@dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
        layout: The layout.
        ball: Whether the places are kept as float32 points of the Poincaré ball.
        copies: Whether there is a place for every path to a root.
    """

    layout: TreeLayout
    ball: bool = False
    copies: bool = False

    def place(self, tree: Hierarchy) -> tuple[Places, Tensor]:
        """The places, and the node of each.

        Args:
            tree: The hierarchy.
        """
        if self.copies:
            return self.layout.place_copies(tree)
        batches = later_leaves(tree) if self.layout.room else None
        return self.layout.place(tree, batches), torch.arange(len(tree))


ROWS = {
    "gaps, closure": Row(TreeLayout(objective="closure")),
    "gaps, both": Row(TreeLayout()),
    "gaps, parents": Row(TreeLayout(objective="parents")),
    "gaps, closure, copies": Row(TreeLayout(objective="closure"), copies=True),
    "gaps, both, copies": Row(TreeLayout(), copies=True),
    "gaps, both, 32 bits": Row(TreeLayout(bits=32)),
    "gaps, both, room": Row(TreeLayout(room=0.1)),
    "sectors, closure": Row(TreeLayout("sectors", "closure")),
    "sectors, parents": Row(TreeLayout("sectors", "parents")),
    "boxes in 3-D, closure, ball": Row(TreeLayout("boxes", "closure", dim=3), ball=True),
    "boxes in 5-D, closure, ball": Row(TreeLayout("boxes", "closure", dim=5), ball=True),
    "boxes in 5-D, parents, ball": Row(TreeLayout("boxes", "parents", dim=5), ball=True),
}


def rows() -> list[tuple[str, str]]:
    """All trees and their rows; Google's categories have one parent each, so no copies."""
    return [(n, r) for n in TREES for r, row in ROWS.items() if n == "nouns" or not row.copies]


def later_leaves(tree: Hierarchy) -> Tensor:
    """Batch 1 for a tenth of the leaves, drawn with seed 0, and batch 0 for all other nodes.

    Args:
        tree: The hierarchy.
    """
    leaf = torch.ones(len(tree), dtype=torch.bool)
    leaf[tree.pairs[:, 1]] = False
    drawn = torch.rand(len(tree), generator=Rng(0).at("later").generator()) < LATER
    return (leaf & drawn).long()


def measure(row: Row, tree: Hierarchy) -> Figures:
    """MAP in % by part of the nodes, seconds of the layout, bits a node and the largest radius.

    Args:
        row: Row of the table.
        tree: The hierarchy.
    """
    start = time.process_time()
    try:
        places, nodes = row.place(tree)
        seconds = time.process_time() - start
        if row.ball:
            places = ManifoldPlaces(Poincare(1.0), places.to_poincare(torch.float32))
    except ValueError as error:
        print(f"refused: {error}", flush=True)
        return {}
    bits = sum(x[0].numel() * x.element_size() * 8 for x in places.tensors().values())
    distances = nearest_places(places, nodes, len(tree))
    parents = Hierarchy(tree.names, direct_pairs(tree))
    found = {"layout seconds": seconds, "bits": bits * len(nodes) / len(tree)}
    for name, of in (("closure", tree), ("direct", parents)):
        for part, nodes_of in enumerate(sampled(tree).chunk(PARTS)):
            pairs = of.pairs[torch.isin(of.pairs[:, 0], nodes_of)]
            scores = rank_and_map(distances, pairs, num_nodes=len(tree))
            found[f"{name} {part}"] = 100 * scores.mean_average_precision
    return found


def sampled(tree: Hierarchy) -> Tensor:
    """Nodes with a parent, at most ``SAMPLE`` of them, drawn with seed 0.

    Args:
        tree: The hierarchy.
    """
    below = tree.pairs[:, 0].unique()
    return below[torch.randperm(len(below), generator=Rng(0).at("nodes").generator())[:SAMPLE]]


def nearest_places(places: Places, nodes: Tensor, num_nodes: int) -> RowDistances:
    """Distances between nodes, the smallest between their places.

    Args:
        places: Places of the nodes.
        nodes: Node of each place.
        num_nodes: Number of nodes.
    """
    if torch.equal(nodes, torch.arange(num_nodes)):
        return lambda rows: places[rows].cdist(places)

    def distances(rows: Tensor) -> Tensor:
        found = []
        for node in rows:
            own = places[(nodes == node).nonzero().flatten()].cdist(places).amin(dim=0)
            none = own.new_full((num_nodes,), torch.inf)
            found.append(none.scatter_reduce(0, nodes, own, "amin"))
        return torch.stack(found)

    return distances


def seconds_of(layout: TreeLayout, make: Callable[[], Hierarchy]) -> Figures:
    """CPU seconds of a layout alone.

    Args:
        layout: The layout.
        make: Makes the tree.
    """
    tree = make()
    start = time.process_time()
    layout.place(tree)
    return {"layout seconds": time.process_time() - start}


def table(known: dict[Key, Figures]) -> str:
    """The table of all figures.

    Args:
        known: Figures by tree and row.
    """
    lines = [head("", "layout", "closure, MAP %", "direct, MAP %", "bits a node", "CPU s")]
    for key, found in known.items():
        parts = [
            [value for name, value in found.items() if name.startswith(of)]
            for of in ("closure", "direct")
        ]
        scores = [interval(part) if part else "" for part in parts]
        bits = f"{found['bits']:.0f}" if "bits" in found else ""
        seconds = f"{found['layout seconds']:.3f}" if "layout seconds" in found else "refused"
        lines.append(line(*key, *scores, bits, seconds))
    return "\n".join(lines)


def main() -> None:
    """Measure what the file of figures lacks and print the table."""
    args = parser(__doc__, str(FIGURES))
    args.add_argument("--root", type=Path, help="data folder; downloaded without")
    given = args.parse_args()
    results = Results(given.results)
    for name, source in TREES.items():
        missing = [row for n, row in rows() if n == name and (n, row) not in results.known]
        if missing:
            tree = source.read(given.root, download=True)
            for row in missing:
                results.add((name, row), measure, ROWS[row], tree)
    results.add(MILLION, seconds_of, TreeLayout(), lambda: random_tree(10**6, Rng(0)))
    print(f"\n{table(results.known)}")


if __name__ == "__main__":
    main()
