"""Federations of several graphs in files, one client each."""

from pathlib import Path

import pytest
import torch
from torch_geometric.data import Batch, Data

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import IID, GivenGraph, Graph, GraphFiles, Graphs, save_graph
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.data.graphs.graph_sets import from_data
from fedbolic.data.graphs.whole_graphs import unite_graphs
from fedbolic.federated import Batched, Sequential, Trainer
from flatland import FedPub, FlatLand

SIZES = (12, 20, 15)


def ring(n, first_class=0, width=4):
    """A cycle of ``n`` nodes of two classes; every third node is for training."""
    nodes = torch.arange(n)
    masks = nodes % 3 == torch.arange(3)[:, None]
    return Data(
        x=torch.randn(n, width, generator=torch.Generator().manual_seed(n)),
        edge_index=torch.stack((nodes, (nodes + 1) % n)),
        y=nodes % 2 + first_class,
        train_mask=masks[0],
        val_mask=masks[1],
        test_mask=masks[2],
    )


@pytest.fixture
def folder(tmp_path):
    for i, n in enumerate(SIZES):
        save_graph(ring(n, first_class=i), tmp_path / f"{i}.npz")
    (tmp_path / "README.txt").write_text("not a graph")
    return tmp_path


@pytest.mark.parametrize("split", ["random", "masks"])
def test_every_client_holds_the_whole_graph_of_one_file(split, folder):
    data = GraphFiles([folder], split=split, scale="none").load(Rng(0))
    assert data.meta == Meta(num_classes=4, input_shape=(4,), num_clients=3)
    for i, client in enumerate(data.clients):
        expected = from_data(ring(SIZES[i], first_class=i))
        assert torch.equal(client.train.graph.edges, expected.edges)
        assert torch.equal(client.train.graph.features, expected.features)
        assert torch.equal(client.train.graph.labels, expected.labels)


def test_masks_give_the_splits_of_every_client(folder):
    data = GraphFiles([folder], split="masks").load(Rng(0))
    for client in data.clients:
        n = SIZES[client.id]
        for start, split in enumerate((client.train, client.validation, client.test)):
            assert split.nodes.tolist() == list(range(start, n, 3))


def test_a_random_split_takes_the_rates_of_every_graph(folder):
    data = GraphFiles([folder], train_rate=0.5, test_rate=0.25).load(Rng(0))
    for client, n in zip(data.clients, SIZES, strict=True):
        found = [len(split) for split in (client.train, client.validation, client.test)]
        assert found == [round(0.5 * n), n - round(0.5 * n) - round(0.25 * n), round(0.25 * n)]
        splits = (client.train, client.validation, client.test)
        nodes = torch.cat([split.nodes for split in splits]).sort().values
        assert torch.equal(nodes, torch.arange(n))
    again = GraphFiles([folder], train_rate=0.5, test_rate=0.25).load(Rng(0))
    for one, other in zip(data.clients, again.clients, strict=True):
        assert torch.equal(one.train.nodes, other.train.nodes)


def test_the_server_tests_on_the_test_nodes_of_all_graphs(folder):
    data = GraphFiles([folder], split="masks").load(Rng(0))
    test = data.holdout.test
    parts = [client.test.all() for client in data.clients]
    assert torch.equal(test.all()["x"], torch.cat([part["x"] for part in parts]))
    assert torch.equal(test.all()["y"], torch.cat([part["y"] for part in parts]))
    batch = Batch.from_data_list([ring(n, first_class=i) for i, n in enumerate(SIZES)])
    assert torch.equal(test.graph.edges, simple_edges(batch.edge_index, len(batch.x)))


@pytest.mark.parametrize("sparse", [(True, True), (True, False), (False, False)])
def test_a_union_keeps_all_features_whether_dense_or_sparse(sparse):
    edges, labels = torch.zeros(2, 0, dtype=torch.int64), torch.tensor([0, 1])
    rows = [torch.eye(2), 2 * torch.eye(2)]
    given = [x.to_sparse().coalesce() if s else x for x, s in zip(rows, sparse, strict=True)]
    whole = unite_graphs([Graph(x, edges, labels) for x in given])
    assert whole.features.is_sparse == all(sparse)
    assert torch.equal(whole.features.to_dense(), torch.cat(rows))


def test_files_are_clients_in_the_given_order(folder, monkeypatch):
    data = GraphFiles([folder / "2.npz", folder / "0.npz"]).load(Rng(0))
    assert [len(client.train.graph) for client in data.clients] == [15, 12]
    below = GraphFiles([Path("2.npz"), Path("0.npz")], root=folder).load(Rng(0))
    assert [len(client.train.graph) for client in below.clients] == [15, 12]
    monkeypatch.chdir(folder.parent)
    named = GraphFiles([Path(folder.name)]).load(Rng(0))
    assert [len(client.train.graph) for client in named.clients] == list(SIZES)


def test_without_test_nodes_the_server_has_no_test_set(folder):
    assert GraphFiles([folder], test_rate=0.0).load(Rng(0)).holdout is None


@pytest.mark.parametrize("method", [FlatLand(rounds=2), FedPub(rounds=2)])
def test_methods_on_graphs_train_on_files_and_engines_agree(method, folder):
    data = GraphFiles([folder], split="masks").load(Rng(0))
    runs = []
    for engine in (Sequential(), Batched()):
        *_, (_, rows) = Trainer(engine=engine).run(method, data, Rng(0))
        runs.append({(row.client, row.name): row.value for row in rows})
    assert runs[0].keys() == runs[1].keys()
    accuracies = [key for key in runs[0] if key[1] == "test/accuracy"]
    assert {key[0] for key in accuracies} == {None, 0, 1, 2}
    for key in accuracies:
        assert abs(runs[0][key] - runs[1][key]) < 1e-6


def test_graphs_of_other_features_are_refused_by_name(folder):
    save_graph(ring(9, width=5), folder / "3.npz")
    with pytest.raises(ValueError, match=r"3.npz has 5 features per node and .*0.npz has 4"):
        GraphFiles([folder]).load(Rng(0))


def test_a_graph_without_training_nodes_is_refused_by_name(folder):
    data = ring(9)
    data.train_mask[:] = False
    save_graph(data, folder / "3.npz")
    with pytest.raises(ValueError, match=r"3.npz has 9 nodes but no training node: leave it out"):
        GraphFiles([folder], split="masks").load(Rng(0))


def test_an_empty_folder_is_refused_by_name(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"holds no .npz file: place one graph"):
        GraphFiles([tmp_path]).load(Rng(0))
    with pytest.raises(FileNotFoundError, match=r"9.npz is not in"):
        GraphFiles([Path("9.npz")], root=tmp_path).load(Rng(0))
    with pytest.raises(ValueError, match="paths is empty"):
        GraphFiles([])
    with pytest.raises((TypeError, ValueError), match="hospitals"):  # typed calls have their own
        GraphFiles("hospitals")


def without(*names):
    data = ring(9)
    for name in names:
        del data[name]
    return data


def with_mask(name, mask):
    data = ring(9)
    data[name] = mask
    return data


MASKS = ("train_mask", "val_mask", "test_mask")
WRONG = {
    "no masks": (without(*MASKS), r"0.npz has no train_mask, and its other masks are \[\]"),
    "no training mask": (without("train_mask"), r"masks are \['test_mask', 'val_mask'\]: add"),
    "several splits": (
        with_mask("val_mask", torch.zeros(9, 10).bool()),
        r"val_mask of .*0.npz must be one boolean for each of the 9 nodes, got torch.bool of shape "
        r"\(9, 10\): convert it to bool, and keep one column",
    ),
    "positions": (with_mask("train_mask", torch.arange(3)), r"got torch.int64 of shape \(3,\)"),
    "an overlap": (
        with_mask("test_mask", torch.arange(9) == 4),
        "node 4 of .*0.npz is in test_mask and in another mask",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_masks_that_cannot_be_used_are_refused_by_name_and_else_ignored(case, tmp_path):
    data, words = WRONG[case]
    save_graph(data, tmp_path / "0.npz")
    with pytest.raises(ValueError, match=words):
        GraphFiles([tmp_path], split="masks").load(Rng(0))
    drawn, bare = (
        Graphs(GivenGraph(each), IID(1)).load(Rng(0)) for each in (data, without(*MASKS))
    )
    assert torch.equal(drawn.clients[0].train.nodes, bare.clients[0].train.nodes)
    assert GraphFiles([tmp_path]).load(Rng(0)).meta.num_clients == 1


def test_a_saved_object_in_a_folder_is_refused_until_it_is_converted(folder):
    """Otherwise its client would be missing without a word."""
    torch.save(ring(9), folder / "9.pt")
    with pytest.raises(ValueError, match=r"9\.pt is a pickle, .*convert it with .*save_graph"):
        GraphFiles([folder]).load(Rng(0))
    save_graph(torch.load(folder / "9.pt", weights_only=False), folder / "9.npz")
    assert GraphFiles([folder]).load(Rng(0)).meta.num_clients == 4
