"""Nodes whose hierarchies are numbered by other names: rows of one table would be mixed."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    Hierarchy,
    HierarchySplit,
    HolderFiles,
    Partitioned,
    TableFile,
    agree_names,
)
from fedbolic.federated import LocalTraining, Trainer
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.methods import FedAvg
from fedbolic.remote.nodes import Nodes
from fedbolic.run.loaded_data import load_data
from tests.federated.simple_method import assert_near, train
from tests.remote.transports import Here, away

METHOD = HierarchyEmbedding(dim=2, rounds=2, local=LocalTraining(epochs=1, batch_size=4))
SHOPS = {
    "amber": [("MacBook", "laptops"), ("iPhone", "phones")],
    "birch": [("ThinkPad", "laptops"), ("Pixel", "phones"), ("Pixel 9", "Pixel")],
    "cedar": [("cable", "cables")],
    "delta": [("iPad", "tablets"), ("MacBook", "laptops")],
    "elder": [("Kindle", "tablets"), ("Fire", "tablets")],
}


@pytest.fixture
def shops(tmp_path):
    folder = tmp_path / "shops"
    folder.mkdir()
    for shop, pairs in SHOPS.items():
        (folder / f"{shop}.tsv").write_text("".join(f"{u}\t{v}\n" for u, v in pairs))
    (folder / "common.tsv").write_text(
        "".join(f"{x}\telectronics\n" for x in ("laptops", "phones", "tablets"))
    )
    (tmp_path / "key").write_text("a7" * 32)
    return folder


def simulated(shops):
    return HolderFiles(shops, common=shops / "common.tsv", key=shops.parent / "key")


def per_node(shops):
    """Every node's own source, after the vocabulary step."""
    folder, key = shops.parent, shops.parent / "key"
    for shop in SHOPS:
        files = [shops / f"{shop}.tsv", shops / "common.tsv"]
        agree_names(files, folder / f"{shop}.names", key=key)
    agree_names([folder / f"{shop}.names" for shop in SHOPS], folder / "all.names")
    settings = {"common": shops / "common.tsv", "names": folder / "all.names", "key": key}
    own = {shop: HolderFiles({shop: shops / f"{shop}.tsv"}, **settings) for shop in SHOPS}
    return own, HolderFiles({}, names=settings["names"])


def as_federation(own, server):
    """Clients as the nodes load them, and the server's own test set."""
    loaded = [source.load(Rng(0)).clients[0] for source in own.values()]
    meta = dataclasses.replace(loaded[0].meta, num_clients=len(loaded))
    clients = tuple(dataclasses.replace(c, id=i, meta=meta) for i, c in enumerate(loaded))
    holdout = dataclasses.replace(server.load(Rng(0)).holdout, meta=meta)
    return dataclasses.replace(server.load(Rng(0)), clients=clients, meta=meta, holdout=holdout)


def renamed(client):
    """The client with as many nodes, numbered by other names."""
    split = client.train.hierarchy
    names = tuple(f"other {name}" for name in split.names)
    return dataclasses.replace(client, train=HierarchySplit(Hierarchy(names, split.pairs)))


def test_nodes_with_files_of_their_own_do_what_the_simulation_does(shops, tmp_path):
    whole = simulated(shops).load(Rng(0)).to("cpu", torch.float64)
    plain, _ = train(METHOD, whole)
    nodes, seen = away(
        METHOD, as_federation(*per_node(shops)).to("cpu", torch.float64), tmp_path / "nodes"
    )
    far, _ = train(METHOD, seen, engine=nodes)
    assert_near(far[-1].server_state, plain[-1].server_state, 1e-12)


@pytest.mark.parametrize("num", [2, 3])
def test_nodes_of_two_numberings_are_never_mixed(num, shops, tmp_path, caplog):
    data = simulated(shops).load(Rng(0))
    clients = [*data.clients[: num - 1], renamed(data.clients[num - 1])]
    meta = dataclasses.replace(data.meta, num_clients=num)
    clients = tuple(dataclasses.replace(client, meta=meta) for client in clients)
    data = dataclasses.replace(data, clients=clients, meta=meta, holdout=None)
    nodes = Nodes(Here(METHOD, data, tmp_path), num, timeout=1e-3)
    if num == 2:
        with pytest.raises(
            ValueError, match="number nodes or classes by different names: give all"
        ):
            nodes.federation(None)
        return
    seen = nodes.federation(None)
    assert "node 998 is not accepted as a client: it numbers nodes or classes" in caplog.text
    *_, (state, _) = Trainer(engine=nodes).run(METHOD, seen, Rng(3))
    untouched = METHOD.init(meta, Rng(3).at("init"))["parameters"]["weight"]
    only_other = set(clients[2].train.node_counts.nonzero().flatten().tolist())
    for client in clients[:2]:
        only_other -= set(client.train.node_counts.nonzero().flatten().tolist())
    rows = sorted(only_other)
    assert rows
    assert torch.equal(state.server_state["parameters"]["weight"][rows], untouched[rows])


def test_a_server_with_the_agreed_names_decides(shops, tmp_path):
    """Two nodes, one of each numbering: the names of the server break the tie."""
    data = simulated(shops).load(Rng(0))
    meta = dataclasses.replace(data.meta, num_clients=2)
    two = (data.clients[0], renamed(data.clients[1]))
    clients = tuple(dataclasses.replace(client, meta=meta) for client in two)
    data = dataclasses.replace(data, clients=clients, meta=meta)
    for source in (simulated(shops), per_node(shops)[1]):  # the second has no common file
        holdout = dataclasses.replace(source.load(Rng(0)).holdout, meta=meta)
        nodes = Nodes(Here(METHOD, data, tmp_path), 2, timeout=1e-3)
        assert nodes.federation(holdout).sizes == (clients[0].size, 0)


def test_a_node_that_comes_back_with_other_names_is_refused(shops, tmp_path, caplog):
    data = simulated(shops).load(Rng(0))
    transport = Here(METHOD, data, tmp_path)
    nodes = Nodes(transport, 5)
    run = Trainer(engine=nodes).run(METHOD, nodes.federation(data.holdout), Rng(3))
    next(run)
    transport.gone.add(998)
    old = transport.nodes.pop(998)
    transport.nodes[990] = dataclasses.replace(old, client=renamed(old.client))
    next(run)
    assert "node 990 is not accepted as a client: it numbers nodes or classes" in caplog.text


def test_a_node_refuses_to_go_on_with_other_names(shops, tmp_path):
    data = simulated(shops).load(Rng(0))
    nodes, seen = away(METHOD, data, tmp_path)
    train(METHOD, seen, engine=nodes)
    asked = nodes.transport.requests
    _, number, request = next(x for x in asked if x[2].get("task") == "update")
    node = nodes.transport.nodes[number]
    assert "error" not in node.reply(request | {"seed": 5})
    other = dataclasses.replace(node, client=renamed(node.client))
    assert other.reply(request | {"seed": 6}) == {"error": "ValueError"}


@pytest.mark.parametrize("classes", [(), ("bee", "cat", "dog")])
def test_nodes_whose_files_lack_classes_are_refused_until_they_name_them(classes, tmp_path, caplog):
    """Without names, the cats of one file would have the label of the bees of another."""

    def source(name, kinds):
        rows = [f"{i},{kinds[i % len(kinds)]}" for i in range(20)]
        (tmp_path / name).write_text("\n".join(["weight,kind", *rows]))
        return Partitioned(TableFile(tmp_path / name, target="kind", classes=classes), IID(1))

    held = [["bee", "cat", "dog"], ["dog", "bee", "cat"], ["cat", "dog"]]
    loaded = [source(f"{i}.csv", kinds).load(Rng(0)) for i, kinds in enumerate(held)]
    meta = dataclasses.replace(loaded[0].meta, num_clients=3)
    clients = [
        dataclasses.replace(data.clients[0], id=i, meta=meta, class_names=data.class_names)
        for i, data in enumerate(loaded)
    ]
    data = dataclasses.replace(loaded[0], clients=clients, meta=meta)
    nodes = Nodes(Here(FedAvg(), data, tmp_path), 3, timeout=1e-3)
    server = source("server.csv", ["cat", "dog", "bee"])
    seen = load_data({"seed": 0, "data": server}, nodes)
    sizes = [client.size for client in clients]
    assert seen.sizes == (*sizes[:2], sizes[2] if classes else 0)
    refused = "node 998 is not accepted as a client: it numbers nodes or classes"
    assert (refused in caplog.text) is not bool(classes)
    if not classes:
        other = source("other.csv", ["ant", "bee", "cat"])
        with pytest.raises(ValueError, match="by other names than the server: give all"):
            load_data({"seed": 0, "data": other}, Nodes(nodes.transport, 3, timeout=1e-3))
        clients = [dataclasses.replace(client, class_names=()) for client in clients[:2]]
        data = dataclasses.replace(data, clients=clients)
        unnamed = Nodes(Here(FedAvg(), data, tmp_path), 2, timeout=1e-3)  # as of older nodes
        assert load_data({"seed": 0, "data": server}, unnamed).sizes == tuple(sizes[:2])
