"""Graphs with hidden nodes, and graphs mended with generated neighbours."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.nn import functional

from fedbolic.core.types import Tree
from fedbolic.data import Graph
from fedbolic.data.graphs.graph import simple_edges


@dataclass(frozen=True, eq=False)
class ImpairedGraph:
    """A client's graph without some hidden nodes, whose neighbours know what they miss.

    Args:
        graph: Subgraph of the visible nodes.
        train: Training nodes among the visible ones, numbered as in ``graph``.
        missing: Number of hidden neighbours of each visible node.
        place: Visible end of every edge to a hidden node.
        hidden: Features of the hidden end of the same edges.
    """

    graph: Graph
    train: Int64[Tensor, " some"]
    missing: Int64[Tensor, " n"]
    place: Int64[Tensor, " cut"]
    hidden: Float[Tensor, "cut features"]


def impair(
    graph: Graph, train: Int64[Tensor, " some"], share: float, generator: torch.Generator
) -> ImpairedGraph:
    """Hide a random share of the nodes; at least one stays visible.

    Args:
        graph: Graph of a client.
        train: Numbers of its training nodes.
        share: Share of the nodes to hide, in [0, 1).
        generator: Random stream on the CPU.
    """
    n, device = len(graph), graph.edges.device
    order = torch.randperm(n, generator=generator).to(device)
    visible = order[min(round(share * n), n - 1) :].sort().values
    place = torch.full((n,), -1, device=device)
    place[visible] = torch.arange(len(visible), device=device)
    ends = place[graph.edges]
    cut = (ends[0] >= 0) & (ends[1] < 0)
    own = place[train]
    return ImpairedGraph(
        graph.induced(visible),
        own[own >= 0],
        torch.bincount(ends[0, cut], minlength=len(visible)),
        ends[0, cut],
        _dense(graph.features.index_select(0, graph.edges[1, cut])),
    )


def feature_loss(
    generated: Float[Tensor, "n most features"], impaired: ImpairedGraph
) -> Float[Tensor, ""]:
    r"""Mean over visible nodes of squared distances from generated to hidden neighbours.

    .. math:: \frac{1}{n} \sum_v \sum_{p \le \min(n_v, P)} \min_{u \in N(v) \cap \text{hidden}}
        \| \tilde x_v^p - x_u \|^2

    Departs from the paper: as many vectors of v count as v has hidden neighbours, instead of as
    many as the generator counts, so that features are learnt while counts are still wrong.

    Args:
        generated: Features of the generated neighbours of visible nodes.
        impaired: Graph with its hidden neighbours.

    References:
        Zhang et al. (2021), arXiv:2106.13430.
    """
    n, most, _ = generated.shape
    with torch.no_grad():  # the loss of the nearest ones has the gradient of the minimum
        nearest = _nearest_hidden(generated, impaired)
    slots = torch.arange(most, device=generated.device)
    node, slot = (slots < impaired.missing.unsqueeze(-1)).nonzero(as_tuple=True)
    found = impaired.hidden[nearest[node, slot]]
    return (generated[node, slot] - found).square().sum() / n


def _nearest_hidden(
    generated: Float[Tensor, "n most features"], impaired: ImpairedGraph
) -> Int64[Tensor, "n most"]:
    """Row of ``hidden`` nearest to each generated vector, the first of equals.

    Nodes without hidden neighbours have the number of rows in its place.
    """
    shape, place = generated.shape[:2], impaired.place
    away = torch.stack(
        [  # one vector of every node at a time: all of them at once need as many times the memory
            torch.linalg.vector_norm(generated[place, p] - impaired.hidden, dim=-1)
            for p in range(shape[1])
        ],
        -1,
    )
    index = place.unsqueeze(-1).expand_as(away)
    least = away.new_full(shape, torch.inf).scatter_reduce(0, index, away, "amin")
    rows = torch.arange(len(place), device=place.device).unsqueeze(-1)
    rows = torch.where(away == least[place], rows, len(place))
    return rows.new_full(shape, len(place)).scatter_reduce(0, index, rows, "amin")


def count_loss(counts: Float[Tensor, " n"], missing: Int64[Tensor, " n"]) -> Float[Tensor, ""]:
    """Mean smooth L1 distance between predicted and true numbers of hidden neighbours.

    Args:
        counts: Predicted numbers.
        missing: True numbers.
    """
    return functional.smooth_l1_loss(counts, missing.to(counts.dtype))


def nearest_loss(generated: Float[Tensor, "n most features"], graph: Graph) -> Float[Tensor, ""]:
    r"""Mean over codes of squared distances from generated vectors to the nearest nodes of a graph.

    .. math:: \frac{1}{n} \sum_v \sum_{p \le P} \min_{u \in V} \| \tilde x_v^p - x_u \|^2

    Args:
        generated: Features that another client's generator gives.
        graph: Graph of this client.

    References:
        Zhang et al. (2021), Sec. 4.3, arXiv:2106.13430.
    """
    vectors, features = generated.flatten(0, 1), _dense(graph.features)
    with torch.no_grad():
        nearest = torch.cdist(vectors, features).argmin(1)
    return (vectors - features[nearest]).square().sum() / len(generated)


def neighbours_of(
    counts: Float[Tensor, " n"], generated: Float[Tensor, "n most features"]
) -> tuple[Float[Tensor, "new features"], Int64[Tensor, " new"]]:
    """Features of the generated neighbours, and the node to which each is joined.

    Args:
        counts: Numbers of neighbours, rounded and clamped to the number of generated vectors.
        generated: Vectors of every node, of which the first ones are taken.
    """
    most = generated.shape[1]
    taken = torch.arange(most, device=counts.device) < counts.detach().round().unsqueeze(-1)
    return generated[taken], taken.nonzero()[:, 0]


def mend(graph: Graph, features: Float[Tensor, "new width"], owner: Int64[Tensor, " new"]) -> Graph:
    """The graph with new nodes, each joined to one node; features become dense.

    Args:
        graph: Graph of a client.
        features: Features of the new nodes, which are numbered after the others.
        owner: Neighbour of each new node.

    Example:
        >>> single = Graph(torch.zeros(1, 2), torch.zeros(2, 0).long(), torch.zeros(1).long())
        >>> mend(single, torch.ones(2, 2), torch.zeros(2).long()).degrees.tolist()
        [2, 1, 1]
    """
    n = len(graph)
    new = torch.stack((owner, n + torch.arange(len(owner), device=owner.device)))
    edges = simple_edges(torch.cat((graph.edges, new), 1), n + len(owner))
    labels = torch.cat((graph.labels, graph.labels.new_zeros(len(owner))))
    return Graph(torch.cat((_dense(graph.features), features)), edges, labels)


_MENDED: WeakKeyDictionary[Graph, tuple[Tensor, Tensor, Graph]] = WeakKeyDictionary()
"""Mended graphs by the client's graph, kept as long as the client holds it."""


def mended(graph: Graph, neighbours: Tree) -> Graph:
    """The graph mended with a client's ``features`` and ``owner``; built once.

    Args:
        graph: Graph of a client.
        neighbours: Generated neighbours, as a client keeps them.
    """
    features, owner = neighbours["features"], neighbours["owner"]
    known = _MENDED.get(graph)
    if known is None or not (_equal(known[0], features) and _equal(known[1], owner)):
        known = features, owner, mend(graph, features, owner)
        _MENDED[graph] = known
    return known[2]


def _equal(x: Tensor, y: Tensor) -> bool:
    if x is y or x.shape != y.shape or not x.numel():
        return x.shape == y.shape
    return torch.equal(x, y)  # here the host waits for an accelerator


def _dense(features: Tensor) -> Tensor:
    return features.to_dense() if features.is_sparse else features
