"""Structure embeddings and refusals of FedStar."""

import pytest
import torch

from fedbolic.data import Graph
from fedbolic.data.graphs.graph import simple_edges
from flatland import GCN, FedStar, StructureGIN
from flatland.rivals.fedstar import with_structure


def test_a_walk_on_a_triangle_is_back_as_often_as_counting_says():
    """Of the 2 ** k walks of k steps, 0, 2, 2 and 6 end where they began; the leaf has none."""
    edges = simple_edges(torch.tensor([[0, 1], [1, 2], [2, 0]]).T, 4)
    graph = Graph(torch.ones(4, 1), edges, torch.zeros(4, dtype=torch.int64))
    found = with_structure(graph, walks=4, degrees=2).features
    assert torch.equal(found[0], torch.tensor([1, 0, 2 / 4, 2 / 8, 6 / 16, 0, 1]))
    assert torch.equal(found[3], torch.tensor([1.0, 0, 0, 0, 0, 1, 0]))


def test_sparse_features_get_the_same_columns():
    edges = simple_edges(torch.tensor([[0, 1], [1, 2]]).T, 3)
    graph = Graph(torch.eye(3), edges, torch.zeros(3, dtype=torch.int64))
    thin = Graph(torch.eye(3).to_sparse().coalesce(), edges, graph.labels)
    whole = with_structure(graph, 3, 2).features
    assert torch.equal(with_structure(thin, 3, 2).features.to_dense(), whole)


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: FedStar(GCN()), "StructureGIN"),
        (lambda: StructureGIN(walks=0), "walks"),
        (lambda: StructureGIN(degrees=0), "degrees"),
    ],
)
def test_other_networks_and_empty_embeddings_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()
