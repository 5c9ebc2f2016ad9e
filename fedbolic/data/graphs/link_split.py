"""Link prediction: held-out edges of a graph, and pairs of nodes without an edge as negatives."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data.graphs.graph import Graph, pair_ranks, simple_edges


@dataclass(frozen=True, eq=False)
class LabelledPairs:
    """Pairs of nodes as examples of link prediction: held-out edges, then as many non-edges.

    Args:
        pairs: Two nodes of every pair.
        labels: 1 for an edge, 0 for a non-edge.
    """

    pairs: Int64[Tensor, "2 n"]
    labels: Float[Tensor, " n"]

    def __len__(self) -> int:
        """The number of pairs."""
        return len(self.labels)


@dataclass(frozen=True, eq=False)
class LinkSplit:
    """A graph for link prediction, with its edges divided into training, validation and test.

    Args:
        graph: All nodes and the training edges. Encoders pass messages along these edges only.
        train: The training edges, each in one direction.
        validation: Examples that choose a model.
        test: Examples that measure it.

    Raises:
        ValueError: If a held-out edge is an edge of the graph, or the training edges are not.
    """

    graph: Graph
    train: Int64[Tensor, "2 n"]
    validation: LabelledPairs
    test: LabelledPairs

    def __post_init__(self) -> None:
        num_nodes = len(self.graph)
        if not torch.equal(simple_edges(self.train, num_nodes), self.graph.edges):
            raise ValueError("the edges of graph must be those of train: leave out all others")
        known = pair_ranks(self.train)
        for name, examples in (("validation", self.validation), ("test", self.test)):
            held_out = pair_ranks(examples.pairs[:, examples.labels == 1])
            if torch.isin(held_out, known).any():
                raise ValueError(f"an edge of {name} is a training edge: each edge has one part")

    def negatives(self, num: int, *, generator: torch.Generator) -> Int64[Tensor, "2 num"]:
        """Draw negatives for a training step: uniform, independent, each as ``i < j``.

        They exclude training edges only. Excluding the held-out edges, too, would tell the model
        which pairs it must find, so that a negative is a held-out edge with a small probability.

        Args:
            num: Number of pairs, 0 or more.
            generator: Source of the draws; on the CPU it gives the same draws for every device.

        Raises:
            ValueError: If every pair of nodes is a training edge.
        """
        check.at_least(0, num=num)
        population = num_non_edges(self.graph)
        if not population:
            raise ValueError(
                "there is no negative to draw: every pair of nodes is a training edge, of "
                f"{len(self.graph)} nodes"
            )
        place = torch.randint(population, (num,), generator=generator, device=generator.device)
        return non_edges(self.graph, place.to(self.graph.edges.device))


def split_links(
    graph: Graph, rng: Rng, *, validation: float = 0.05, test: float = 0.1
) -> LinkSplit:
    """Hold out random edges, and as many random non-edges without repetition.

    Sizes are rounded down, as PyG's ``RandomLinkSplit`` does. That transform draws from the global
    random streams of torch and Python, and its negatives have a direction, so that validation and
    test may contain the same pair of nodes; here no two examples are the same pair.

    Args:
        graph: The whole graph.
        rng: Random stream.
        validation: Share of the edges that are validation examples, in (0, 1).
        test: Share of the edges that are test examples, in (0, 1).

    Raises:
        ValueError: If a share is out of range, a part has no edge, or the graph has fewer non-edges
            than negatives.

    References:
        Chami et al. (2019), Sec. 5, arXiv:1910.12933, for the shares.

    Example:
        >>> ring = torch.stack((torch.arange(20), torch.arange(1, 21) % 20))
        >>> graph = Graph(torch.eye(20), simple_edges(ring, 20), torch.zeros(20).long())
        >>> split = split_links(graph, Rng(0))
        >>> split.graph.num_edges, len(split.validation), len(split.test)
        (17, 2, 4)
    """
    check.rate(validation=validation, test=test)
    edges = graph.edges[:, graph.edges[0] < graph.edges[1]]
    num = edges.shape[1]
    sizes = int(validation * num), int(test * num)
    held_out = sum(sizes)
    if min(sizes) < 1 or held_out >= num:
        raise ValueError(
            f"every part needs an edge, got {num - held_out} for training, {sizes[0]} for "
            f"validation and {sizes[1]} for test out of {num}: set other shares"
        )
    population = num_non_edges(graph)
    if population < held_out:
        raise ValueError(
            f"{held_out} negatives need as many pairs without an edge, and the graph has "
            f"{population}: hold out fewer edges"
        )
    order = torch.randperm(num, generator=rng.at("edges").generator()).to(edges.device)
    chosen = rng.at("non-edges").numpy().choice(population, held_out, replace=False)
    negatives = non_edges(graph, torch.from_numpy(chosen).to(edges.device))
    return assemble_links(graph, edges[:, order], negatives, sizes=sizes)


def assemble_links(
    graph: Graph,
    edges: Int64[Tensor, "2 n"],
    negatives: Int64[Tensor, "2 m"],
    *,
    sizes: tuple[int, int],
) -> LinkSplit:
    """The split whose first edges are validation, the next ones test, and the others training.

    Args:
        graph: The whole graph.
        edges: Every edge in one direction, in the order of the split.
        negatives: Non-edges in the same order, at least as many as both parts have edges.
        sizes: Number of edges of validation and of test; each part has as many negatives.
    """
    parts = (*sizes, edges.shape[1] - sum(sizes))
    validation, test, train = edges.split(parts, dim=1)
    refused = negatives[:, : sum(sizes)].split(sizes, dim=1)
    known = Graph(graph.features, simple_edges(train, len(graph)), graph.labels)
    examples = [_labelled(*both) for both in zip((validation, test), refused, strict=True)]
    return LinkSplit(known, train, *examples)


def ranked_pairs(ranks: Int64[Tensor, "..."]) -> Int64[Tensor, "2 ..."]:
    """The inverse of ``pair_ranks``: pairs ``i < j`` from their numbers, each below ``2**60``.

    Example:
        >>> ranked_pairs(torch.tensor([0, 1, 2, 3])).tolist()
        [[0, 0, 1, 0], [1, 2, 2, 3]]
    """
    high = ((8 * ranks + 1).double().sqrt() / 2 + 0.5).long()
    # the rounded root of a large number is off by 1 at most
    high = high - (high * (high - 1) // 2 > ranks).long()
    high = high + (high * (high + 1) // 2 <= ranks).long()
    return torch.stack((ranks - high * (high - 1) // 2, high))


def _labelled(edges: Tensor, non_edges: Tensor) -> LabelledPairs:
    ones = torch.ones(edges.shape[1], device=edges.device)
    labels = torch.cat((ones, ones.new_zeros(non_edges.shape[1])))
    return LabelledPairs(torch.cat((edges, non_edges), 1), labels)


def num_non_edges(graph: Graph) -> int:
    """Number of unordered pairs of different nodes without an edge."""
    return len(graph) * (len(graph) - 1) // 2 - graph.num_edges


def non_edges(graph: Graph, place: Tensor) -> Tensor:
    """The non-edges at the given places of their list in ascending order of ``pair_ranks``."""
    rank = place + torch.searchsorted(graph.non_edges_before, place, right=True)
    return ranked_pairs(rank)
