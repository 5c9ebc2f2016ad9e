"""Federations of one graph: splits, partitions, unusual clients."""

import pytest
import torch
from torch_geometric.data import Data

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    BlockModel,
    Dirichlet,
    GivenGraph,
    Graph,
    GraphPartition,
    Graphs,
    Metis,
)
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.data.graphs.graphs import largest_component, scaled

PARTITIONS = [pytest.param(Metis(3), id="metis"), IID(3), Dirichlet(3, min_size=20)]


def given(x, pairs, y):
    return GivenGraph(Data(x=x, edge_index=torch.tensor(pairs).T, y=y))


@pytest.mark.parametrize("partition", PARTITIONS)
def test_clients_share_the_nodes_and_see_only_edges_between_their_own(partition):
    if isinstance(partition, Metis):
        pytest.importorskip("pymetis")
    data = Graphs(BlockModel(), partition).load(Rng(1))
    whole = data.holdout.test.graph
    graphs = [client.train.graph for client in data.clients]
    assert sum(map(len, graphs)) == len(whole)
    assert sum(graph.num_edges for graph in graphs) <= whole.num_edges
    for client in data.clients:
        splits = (client.train, client.validation, client.test)
        assert all(split.graph is client.train.graph for split in splits)
        nodes = torch.cat([split.nodes for split in splits]).sort().values
        assert torch.equal(nodes, torch.arange(len(client.train.graph)))
    again = Graphs(BlockModel(), partition).load(Rng(1))
    for one, other in zip(data.clients, again.clients, strict=True):
        assert torch.equal(one.train.nodes, other.train.nodes)
        assert torch.equal(one.train.graph.edges, other.train.graph.edges)


def test_nodes_are_split_20_40_40_before_the_partition():
    pytest.importorskip("pymetis")
    by_metis = Graphs(BlockModel(), Metis(3)).load(Rng(0))
    by_chance = Graphs(BlockModel(), IID(3)).load(Rng(0))
    n = len(by_metis.holdout.test.graph)
    for data in (by_metis, by_chance):
        assert sum(data.sizes) == round(0.2 * n)
        assert sum(len(client.test) for client in data.clients) == round(0.4 * n)
    assert torch.equal(by_metis.holdout.test.nodes, by_chance.holdout.test.nodes)


def test_metis_cuts_fewer_edges_than_chance():
    pytest.importorskip("pymetis")
    kept = [
        sum(c.train.graph.num_edges for c in Graphs(BlockModel(), p).load(Rng(0)).clients)
        for p in (Metis(4), IID(4))
    ]
    assert kept[0] > 1.5 * kept[1]


def test_metis_finds_two_triangles_that_one_edge_joins():
    pytest.importorskip("pymetis")
    edges = simple_edges(torch.tensor([[0, 1, 2, 3, 4, 5, 2], [1, 2, 0, 4, 5, 3, 3]]), 6)
    graph = Graph(torch.eye(6), edges, torch.zeros(6, dtype=torch.int64))
    assert sorted(part.tolist() for part in Metis(2).parts(graph, Rng(0))) == [[0, 1, 2], [3, 4, 5]]
    with pytest.raises(ValueError, match="7 clients cannot share 6 nodes"):
        Metis(7).parts(graph, Rng(0))


def test_parts_by_a_seed_of_their_own_are_the_same_in_every_run():
    pytest.importorskip("pymetis")
    graph = BlockModel().read(Rng(0), None, download=False)

    def parts(partition, seed):
        return [part.tolist() for part in partition.parts(graph, Rng(seed))]

    assert parts(Metis(4, seed=-1), 0) == parts(Metis(4, seed=-1), 1)
    assert parts(Metis(4, seed=3), 0) == parts(Metis(4, seed=3), 1)
    assert parts(Metis(4), 0) != parts(Metis(4), 1)
    with pytest.raises(ValueError, match="seed must be at least -1, got -2"):
        Metis(4, seed=-2)


def test_the_largest_component_is_kept_and_self_loops_are_dropped():
    pairs = [[0, 1], [2, 3], [3, 4], [4, 2], [4, 4]]
    graph = given(torch.eye(6), pairs, torch.arange(6) % 2)
    whole = Graphs(graph, IID(1), train_rate=0.5).load(Rng(0)).holdout.test.graph
    assert (len(whole), whole.num_edges) == (3, 3)
    everything = Graphs(graph, IID(1), largest_component=False).load(Rng(0)).holdout.test.graph
    assert (len(everything), everything.num_edges) == (6, 4)
    assert everything.degrees.tolist() == [1, 1, 2, 2, 2, 0]


def test_of_two_components_of_one_size_the_first_is_taken():
    edges = simple_edges(torch.tensor([[0, 2], [1, 3]]), 4)
    assert largest_component(Graph(torch.eye(4), edges, torch.zeros(4).long())).tolist() == [0, 1]


@pytest.mark.parametrize(("scale", "power"), [("l1", 1), ("l2", 2)])
def test_rows_are_scaled_alike_whether_dense_or_sparse(scale, power):
    x = torch.tensor([[3.0, -4.0, 0.0], [0.0, 0.0, 0.0], [0.0, 2.0, 0.0]])
    dense = scaled(x, scale)
    norms = torch.linalg.vector_norm(dense, ord=power, dim=1)
    torch.testing.assert_close(norms, torch.tensor([1.0, 0.0, 1.0]))
    sparse = scaled(x.to_sparse().coalesce(), scale)
    assert sparse.is_sparse
    torch.testing.assert_close(sparse.to_dense(), dense)


class Parts(GraphPartition):
    def __init__(self, *parts):
        self.num_clients, self.given = len(parts), [torch.tensor([*part]) for part in parts]

    def parts(self, graph, rng):
        return self.given


def learning(nodes_to_train, n=6):
    """A path graph, a training rate and a seed for which exactly the given nodes are trained on."""
    graph = given(torch.eye(n), [[i, i + 1] for i in range(n - 1)], torch.arange(n) % 2)
    rate = len(nodes_to_train) / n
    for seed in range(1000):
        data = Graphs(graph, IID(1), train_rate=rate).load(Rng(seed))
        if sorted(data.clients[0].train.nodes.tolist()) == sorted(nodes_to_train):
            return graph, rate, Rng(seed)
    raise AssertionError


def test_a_client_of_one_node_is_trained_and_not_scored():
    graph, rate, rng = learning([0, 3])
    data = Graphs(graph, Parts([0], [1, 2, 3, 4, 5]), train_rate=rate).load(rng)
    alone = data.clients[0]
    assert (len(alone.train.graph), alone.train.graph.num_edges) == (1, 0)
    assert (len(alone.train), len(alone.validation), len(alone.test)) == (1, 0, 0)


def test_a_client_with_nothing_to_learn_from_is_refused():
    graph, rate, rng = learning([0, 3])
    with pytest.raises(ValueError, match="client 1 has 2 nodes but no training node: use fewer"):
        Graphs(graph, Parts([0, 1, 2, 3], [4, 5]), train_rate=rate).load(rng)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (Data(edge_index=torch.zeros(2, 0).long(), y=torch.zeros(2).long()), "needs features"),
        (Data(x=torch.eye(2), y=torch.zeros(2).long()), "needs edge_index"),
        (Data(x=torch.eye(2), edge_index=torch.zeros(2, 0).long()), "needs labels"),
        (
            Data(x=torch.eye(2), edge_index=torch.zeros(2, 0).long(), y=torch.zeros(2)),
            "one integer per node",
        ),
        (
            Data(x=torch.eye(2), edge_index=torch.zeros(2, 0).long(), y=torch.tensor([0, -1])),
            "labels count from 0, got -1",
        ),
        (
            Data(
                x=torch.eye(2) * torch.nan, edge_index=torch.zeros(2, 0).long(), y=torch.arange(2)
            ),
            "finite",
        ),
    ],
)
def test_data_that_are_no_labelled_graph_are_refused(data, words):
    with pytest.raises(ValueError, match=words):
        Graphs(GivenGraph(data), IID(1)).load(Rng(0))


def test_rates_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"at most 1 with test_rate, got 0\.7 and 0\.4"):
        Graphs(train_rate=0.7)


def masked(n=9):
    """A cycle with masks, of which node 0 is in none, and an edge apart from it."""
    pairs = [[i, (i + 1) % n] for i in range(n)] + [[n, n + 1]]
    data = given(torch.eye(n + 2), pairs, torch.arange(n + 2) % 2).data
    every_third = torch.arange(n + 2) % 3 == torch.arange(3)[:, None]
    every_third[:, 0] = False
    data.train_mask, data.val_mask, data.test_mask = every_third
    return GivenGraph(data)


@pytest.mark.parametrize("largest", [True, False])
def test_masks_of_the_graph_give_its_training_and_test_nodes(largest):
    split = {"split": "masks", "scale": "none", "largest_component": largest}
    parts = Parts(range(5), range(5, 9 if largest else 11))
    data = Graphs(masked(), parts, **split).load(Rng(0))
    of_number = {"train": [3, 6, 9], "validation": [1, 4, 7, 10], "test": [2, 5, 8]}
    for name, expected in of_number.items():
        rows = torch.cat([getattr(client, name).all()["x"] for client in data.clients])
        kept = [i for i in expected if i < 9 or not largest]  # features are one-hot numbers
        assert sorted(rows.argmax(1).tolist()) == kept
    assert data.holdout.test.nodes.tolist() == of_number["test"]


def test_masks_are_refused_by_the_name_of_a_graph_without_them():
    with pytest.raises(ValueError, match=r"BlockModel\(num_nodes=240.* has no train_mask.*random"):
        Graphs(BlockModel(), IID(2), split="masks").load(Rng(0))


def test_standardised_features_are_those_of_scikit_learn():
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = torch.randn(20, 5, generator=Rng(0).generator()).double() * 3 + 1
    x[:, 2] = 0.1  # its mean is not 0.1 in floating point
    expected = torch.from_numpy(preprocessing.StandardScaler().fit_transform(x.numpy()))
    found = scaled(x, "standardised")
    torch.testing.assert_close(found, expected)
    assert (found[:, 2] == 0).all()
    sparse = scaled(x.to_sparse().coalesce(), "standardised")
    assert torch.equal(sparse, found)
