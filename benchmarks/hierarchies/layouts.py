"""Layouts of known trees without training: ancestors and direct parents, seconds and bits a node.

Google's product categories and WordNet's nouns by every way and objective of ``TreeLayout``; *ball*
is the Poincaré ball in float32. MAP is that of the ancestors of a node (closure) and of its direct
parents alone among all nodes, ties counted against a layout, over nodes drawn at random with seed 0
and the 95 % interval over ten equal parts of them. *Room* keeps a tenth for later nodes and adds a
tenth of the leaves afterwards, without moving a node. *Copies* has a place for every path to a
root. A last line lays out a random tree of a million nodes.

A second table is about queries that are no node: the same tenth of the leaves is left out, and each
is a query at ``Embedding.place_under`` of its parent, next to the place of the parent itself and to
the place that the leaf gets where room was kept. MAP of its ancestors, of its parent alone and of
its siblings without the ancestors, among the nodes that are left; also of a table that is trained.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from benchmarks.hierarchies.trees import Given
from benchmarks.results import Figures, Key, Results
from benchmarks.script import FOLDER
from benchmarks.table import head, interval, line
from benchmarks.timing import Clock
from fedbolic.core.rng import Rng
from fedbolic.data import (
    GoogleProducts,
    Hierarchy,
    Nouns,
    PartitionedHierarchy,
    Subtrees,
    random_tree,
)
from fedbolic.data.hierarchies.direct_pairs import direct_pairs
from fedbolic.federated import Evaluation, LocalTraining, Trainer
from fedbolic.hierarchies import Embedding, HierarchyEmbedding, TreeLayout
from fedbolic.hierarchies.node_table import TABLE
from fedbolic.hierarchies.scored_places import places_of
from fedbolic.manifolds import ManifoldPlaces, Places, Poincare
from fedbolic.nn.loss.ranking import RowDistances, rank_and_map

LAYOUT_FIGURES = FOLDER / "measured" / "layouts.csv"
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


def keys() -> list[Key]:
    """Keys of all trees and their rows.

    Google's categories have one parent each, so no copies, and nouns are not trained here.
    """
    rows = [(n, r) for n in TREES for r, row in ROWS.items() if n == "nouns" or not row.copies]
    new = [(n, r, "new") for n in TREES for r, row in NEW.items() if n != "nouns" or row]
    return [*rows, *new]


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
    clock = Clock()
    try:
        places, nodes = row.place(tree)
        seconds = clock.lap()
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


NEW: dict[str, TreeLayout | None] = {
    "gaps, both": TreeLayout(),
    "sectors, closure": TreeLayout("sectors", "closure"),
    "boxes in 5-D, closure": TreeLayout("boxes", "closure", dim=5),
    "trained in 5-D": None,
}
"""Embeddings into which new leaves come; ``None`` for a table that is trained."""

NEIGHBOURS = ("ancestors", "parent", "siblings")


@dataclass(frozen=True, eq=False)
class NewLeaves:
    """A tree without some of its leaves, each of which becomes a query.

    Args:
        tree: The closure, with all nodes.
        later: 1 for the leaves that are left out, 0 for all others.
    """

    tree: Hierarchy
    later: Tensor

    @property
    def kept(self) -> Tensor:
        """Numbers of the nodes that are left."""
        return (self.later == 0).nonzero().flatten()

    def scores(self, rule: str, place: Callable[[int], Places], known: Places) -> Figures:
        """MAP in % of ancestors, parents and siblings of at most ``SAMPLE`` leaves.

        Args:
            rule: Name of the rule that places a leaf.
            place: Place of a leaf.
            known: Places of the nodes that are left.
        """
        tree, kept, parents = self.tree, self.kept, self.tree.primary_parents
        leaves = ((self.later > 0) & (parents >= 0)).nonzero().flatten()
        drawn = torch.randperm(len(leaves), generator=Rng(0).at("new").generator())
        leaves = leaves[drawn[:SAMPLE].sort().values]

        def distances(rows: Tensor) -> Tensor:
            found = torch.full((len(rows), len(tree)), torch.inf, dtype=torch.float64)
            found[:, kept] = torch.cat([place(leaf).cdist(known) for leaf in rows.tolist()])
            return found

        above = tree.pairs[torch.isin(tree.pairs[:, 0], leaves)]
        number, sibling = (parents[leaves, None] == parents[kept]).nonzero().T
        pairs = {
            "ancestors": (above, None),
            "parent": (torch.stack((leaves, parents[leaves]), dim=1), None),
            "siblings": (torch.stack((leaves[number], kept[sibling]), dim=1), above),
        }
        found = {}
        for name, (of, others) in pairs.items():
            ranked = rank_and_map(distances, of, num_nodes=len(tree), known=others)
            found[f"{rule}: {name}"] = 100 * ranked.mean_average_precision
        return found


def measure_new(layout: TreeLayout | None, tree: Hierarchy) -> Figures:
    """Scores of new leaves by the rule that places them.

    Args:
        layout: The layout; ``None`` for a table that is trained.
        tree: The hierarchy.
    """
    new = NewLeaves(tree, later_leaves(tree))
    rest, parents = part_of(tree, new.kept), tree.primary_parents
    known = trained_places(rest) if layout is None else layout.place(rest)
    embedding = Embedding.of(rest, known)

    def parent(leaf: int) -> str:
        return tree.names[int(parents[leaf])]

    found = new.scores("place_under", lambda leaf: embedding.place_under(parent(leaf)), known)
    found |= new.scores("place of the parent", lambda leaf: embedding.place(parent(leaf)), known)
    if layout is not None:
        places = replace(layout, room=LATER).place(tree, new.later)
        own = places[new.kept]
        found |= new.scores("kept room", lambda leaf: places[torch.tensor([leaf])], own)
    return found


def part_of(tree: Hierarchy, nodes: Tensor) -> Hierarchy:
    """The hierarchy of some nodes of a closure, in their order.

    Args:
        tree: The closure.
        nodes: The nodes.
    """
    number = torch.full((len(tree),), -1)
    number[nodes] = torch.arange(len(nodes))
    pairs = number[tree.pairs]
    names = tuple(tree.names[node] for node in nodes.tolist())
    return Hierarchy(names, pairs[(pairs >= 0).all(dim=1)])


def trained_places(tree: Hierarchy) -> Places:
    """Places of a table in 5 dimensions, trained from all pairs of a hierarchy.

    Args:
        tree: The closure.
    """
    method = HierarchyEmbedding(steps=40, local=LocalTraining(batch_size=256))
    data = PartitionedHierarchy(Given(tree), Subtrees(1)).load(Rng(0))
    *_, (state, _) = Trainer(evaluation=Evaluation(per_client=False)).run(
        method, replace(data, holdout=None), Rng(0)
    )
    return places_of(method.table, state.server_state["parameters"][TABLE].double())


def seconds_of(layout: TreeLayout, make: Callable[[], Hierarchy]) -> Figures:
    """CPU seconds of a layout alone.

    Args:
        layout: The layout.
        make: Makes the tree.
    """
    tree = make()
    clock = Clock()
    layout.place(tree)
    return {"layout seconds": clock.lap()}


def layouts_table(known: dict[Key, Figures]) -> str:
    """The table of all figures.

    Args:
        known: Figures by tree and row.
    """
    lines = [head("", "layout", "closure, MAP %", "direct, MAP %", "bits a node", "CPU s")]
    for key, found in known.items():
        if len(key) > 2:  # is about new leaves
            continue
        parts = [
            [value for name, value in found.items() if name.startswith(of)]
            for of in ("closure", "direct")
        ]
        scores = [interval(part) if part else "" for part in parts]
        bits = f"{found['bits']:.0f}" if "bits" in found else ""
        seconds = f"{found['layout seconds']:.3f}" if "layout seconds" in found else "refused"
        lines.append(line(*key, *scores, bits, seconds))
    return "\n".join(lines)


def new_leaves_table(known: dict[Key, Figures]) -> str:
    """The table of new leaves.

    Args:
        known: Figures by key.
    """
    lines = [head("", "embedding", "place of a new leaf", *(f"{of}, MAP %" for of in NEIGHBOURS))]
    for (tree, row, *_), found in ((key, of) for key, of in known.items() if len(key) > 2):
        for rule in dict.fromkeys(name.partition(":")[0] for name in found if ":" in name):
            cells = [f"{found[f'{rule}: {of}']:.1f}" for of in NEIGHBOURS]
            lines.append(line(tree, row, rule, *cells))
    return "\n".join(lines)


def measure_layouts(results: Results, root: Path | None) -> None:
    """Measure what the file of figures lacks.

    Args:
        results: The file.
        root: Data folder; ``None`` to download.
    """
    for name, source in TREES.items():
        missing = [key for key in keys() if key[0] == name and key not in results.known]
        if missing:
            tree = source.read(root, download=True)
            for key in missing:
                _, row, *new = key
                if new:
                    results.add(key, measure_new, NEW[row], tree)
                else:
                    results.add(key, measure, ROWS[row], tree)
    results.add(MILLION, seconds_of, TreeLayout(), lambda: random_tree(10**6, Rng(0)))
