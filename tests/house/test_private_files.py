"""No file or message of a private run depends on clients' data but through what clients sent."""

import csv
import dataclasses
import logging
import shutil

import numpy as np
import pytest
import torch

from fedbolic.core import tree
from fedbolic.data import Examples, HierarchySplit, Partitioned, TripleSplit
from fedbolic.federated import (
    ClientPrivacy,
    DistributedNoise,
    RunStoppedError,
    Sequential,
    SumPrivacy,
    Trainer,
)
from fedbolic.federated.noise.draws import SystemKeys
from fedbolic.hierarchies import Popularity
from fedbolic.methods import PrivateSteps
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.experiment import dry_run, run
from fedbolic.run.exports import export
from fedbolic.run.public_classes import METHODS, heirs
from fedbolic.run.record import RunFolder
from fedhull import Central
from flatland import FormanInverse, PrivateForman
from flynn import Histogram
from tests.seeded import SeededKeys
from tests.subjects import subject

PRIVACY = ClientPrivacy(dp_delta=1e-3, noise_multiplier=1.0)
SOURCE = Partitioned()
PAIRS = HierarchySplit | TripleSplit
CHANGES = {"rounds": 1, "sends": "table", "backbone": MLP((2,)), "dim": 2}
COVERED = {
    "AdaFgl": "adafgl", "Apfl": "apfl", "Ditto": "ditto", "FedALA": "fedala", "FedAvg": "fedavg",
    "FedCP": "fedcp", "FedDyn": "feddyn", "FedRep": "fedrep", "FedRoD": "fedrod",
    "FedStar": "fedstar", "Fgssl": "fgssl", "FlatLand": "flatland", "GPFL": "gpfl",
    "HierarchyEmbedding": "hierarchies", "HyperFed": "hyperfed/h_ce",
    "KnowledgeEmbedding": "knowledge", "Moon": "moon",
    "PFedMe": "pfedme", "PerFedAvg": "perfedavg",
}  # fmt: skip
REFUSED = {
    "Apple": "apple", "ClosedFormHead": "closed_form_head/end", "FedAMP": "fedamp",
    "FedDBE": "feddbe", "FedGnn": "fedgnn", "FedGta": "fedgta", "FedHull": "fedhull",
    "FedMRUR": "fedmrur", "FedMTL": "fedmtl", "FedNova": "fednova", "FedPAC": "fedpac",
    "FedProto": "fedproto", "FedPub": "fedpub", "FedSagePlus": "fedsage_plus",
    "FedTad": "fedtad", "Gcfl": "gcfl",
    "Majority": "majority", "Scaffold": "scaffold", "SphereFed": "spherefed",
}  # fmt: skip
UNCONFIGURED = {"Central": (Central(), "majority"), "Popularity": (Popularity(), "hierarchies")}
NOISY = {
    "DistributedNoise": "hierarchies", "PrivateSteps": "fedavg", "FlyNN": "flynn",
    "FlatLand": "flatland", "SlotLayout": "hierarchies/kept_at_home",
}  # fmt: skip


def changed(method, **changes):
    """The method, small, and with those of the changes that it has fields for."""
    fields = {field.name for field in dataclasses.fields(method)}
    return dataclasses.replace(
        method, **{n: x for n, x in {**CHANGES, **changes}.items() if n in fields}
    )


def noisy(kind, method):
    if kind == "DistributedNoise":
        privacy = SumPrivacy(survivors=2, dp_delta=1e-3, noise_multiplier=1.0)
        return DistributedNoise(changed(method), privacy)
    if kind == "PrivateSteps":
        return PrivateSteps(changed(method), steps=2)
    if kind == "FlyNN":
        return changed(method, privacy=Histogram(1.0), dim=50, fan_in=3, active=5)
    return changed(method, curvature=PrivateForman(), slots="counted")


def other_graph(graph):
    """A graph with other features, labels, and one edge less."""
    first = (graph.edges == graph.edges[:, :1]) | (graph.edges == graph.edges[:, :1].flip(0))
    edges, labels = graph.edges[:, ~first.all(0)], graph.labels.flip(0)
    return dataclasses.replace(
        graph, features=-graph.features, edges=edges, labels=labels, masks={}
    )


def other(split):
    """As many examples of the same form and names, with other contents."""
    if isinstance(split, HierarchySplit):
        pairs = split.hierarchy.pairs.flip(1)
        return dataclasses.replace(
            split, hierarchy=dataclasses.replace(split.hierarchy, pairs=pairs)
        )
    if isinstance(split, TripleSplit):
        triples, known = (x[:, [2, 1, 0]] for x in (split.triples, split.known))
        return dataclasses.replace(split, triples=triples, known=known)
    if isinstance(split, Examples):
        held = split.all()
        return Examples({**held, "x": -held["x"], "y": held["y"].flip(0)})
    return dataclasses.replace(split, graph=other_graph(split.graph))


def other_data(data):
    """Data of other clients. The test set of the server stays, unless it consists of theirs."""

    def of(client):
        parts = {n: other(getattr(client, n)) for n in ("train", "validation", "test")}
        return dataclasses.replace(client, **parts)

    holdout = data.holdout
    if isinstance(data.clients[0].train, PAIRS):
        holdout = of(holdout)
    return dataclasses.replace(data, clients=tuple(map(of, data.clients)), holdout=holdout)


def contents(path):
    """Contents of all files but for seconds and checksums; metrics by client and name."""
    found = {}
    for file in path.rglob("*"):
        name = str(file.relative_to(path))
        if file.name == "metrics.csv":
            rows = csv.DictReader(file.read_text().splitlines())
            found |= {("metric", r["round"], r["client"], r["name"]): r["value"] for r in rows}
        elif file.name == "state.pt":
            stored = RunFolder(path).read_checkpoint()
            states = {str(i): own for i, own in stored["client_states"].items()}
            leaves = tree.leaves({**stored, "client_states": states})
            read = {n: x.numpy().tobytes() if isinstance(x, torch.Tensor) else x for n, x in leaves}
            found |= {
                n: x for n, x in read.items() if n.split("/")[0] not in ("sizes", "checksums")
            }
        elif file.suffix == ".npz":
            with np.load(file) as arrays:
                found |= {f"{name}/{n}": x.tobytes() for n, x in arrays.items()}
        elif file.is_file() and file.name not in ("times.csv", "complete.json", ".lock"):
            found[name] = file.read_bytes()
    return found


@pytest.fixture
def differences(tmp_path, monkeypatch, caplog):
    """Names of what differs between two runs whose clients have other data, but send the same.

    The second run repeats what the clients of the first one sent and kept, with the same noise. An
    exported result is among the files of a run.
    """
    monkeypatch.setattr(SystemKeys, "stream", lambda _, rng: SeededKeys().stream(rng))
    train, sent = Sequential.run, []

    def recorded(engine, exchange):
        sent.append([(client.id, *rest) for client, *rest in train(engine, exchange)])
        yield from repeated(exchange, sent[-1])

    def repeated(exchange, results):
        clients = {client.id: client for client in exchange.clients}
        return ((clients[i], *rest) for i, *rest in results)

    def find(method, data, **settings):
        found = []
        for given in (data, other_data(data)):
            again = iter(sent)
            engine = (
                recorded if given is data else lambda _, e, again=again: repeated(e, next(again))
            )
            monkeypatch.setattr(Sequential, "run", engine)
            for module in ("experiment", "loading"):
                monkeypatch.setattr(f"fedbolic.run.{module}.load_data", lambda *_, d=given: d)
            assert dry_run(method=method, data=SOURCE, runs=tmp_path, **settings) is None
            caplog.clear()
            with caplog.at_level(logging.DEBUG, logger="fedbolic"):
                path = run(method, SOURCE, engine=Sequential(), runs=tmp_path, **settings)
            if isinstance(data.clients[0].train, PAIRS) and method.traits.global_model:
                export(path, path / "exported.npz")
            found.append({**contents(path), "messages": tuple(caplog.messages)})
            shutil.rmtree(path)
        first, second = found
        assert len(first) > 10
        return {n for n in first.keys() | second.keys() if first.get(n) != second.get(n)}

    return find


def scores(names, sets):
    """Names of metrics that are scores of one of the sets."""
    return {n for n in names if n[0] == "metric" and n[3].split("/")[0] in sets}


def test_every_method_is_covered_or_refused():
    wrapper = "DistributedNoise"
    assert {*COVERED, *REFUSED, *UNCONFIGURED, *NOISY} == {wrapper, *heirs("Method", *METHODS)}


@pytest.mark.parametrize("kind", [*REFUSED, *UNCONFIGURED])
def test_what_privacy_does_not_cover_is_refused_before_a_round(kind):
    method, configured = UNCONFIGURED.get(kind, (None, REFUSED.get(kind)))
    found, data = subject(configured)
    with pytest.raises(ValueError, match=r"privacy (covers|does not cover|makes)"):
        Trainer(privacy=PRIVACY).begin(method or found, data, 0)


@pytest.mark.parametrize("kind", COVERED)
def test_a_run_with_privacy_shows_no_clients_data(kind, differences):
    """In one process, the server's test set of pairs is the clients': its scores are declared."""
    method, data = subject(COVERED[kind])
    found = differences(changed(method), data, privacy=PRIVACY)
    declared = ["holdout"] if isinstance(data.clients[0].train, PAIRS) else []
    assert found == scores(found, declared)
    assert bool(found) == bool(declared)


@pytest.mark.parametrize("kind", NOISY)
def test_a_run_with_noise_at_the_clients_shows_their_scores_alone(kind, differences):
    method, data = subject(NOISY[kind])
    found = differences(noisy(kind, method), data)
    assert found == scores(found, ["test", "validation", "holdout"])


@pytest.mark.parametrize("kind", NOISY)
def test_a_run_goes_on_with_the_noise_of_the_clients_that_it_began_with(kind):
    """Other settings would report their own cost for earlier noise, which may be smaller."""
    found, data = subject(NOISY[kind])
    method = noisy(kind, found)
    changes = {
        "DistributedNoise": [
            {"privacy": SumPrivacy(survivors=2, dp_delta=1e-3, noise_multiplier=2.0)}
        ],
        "PrivateSteps": [{"noise_multiplier": 2.0}, {"steps": 1}, {"rate": 0.05}],
        "FlyNN": [{"privacy": Histogram(0.5)}, {"privacy": None}],
        "FlatLand": [{"curvature": PrivateForman(0.5)}, {"curvature": FormanInverse()}],
        "SlotLayout": [{"epsilon": 0.5}, {"mode": "published"}],
    }
    state = Trainer().begin(method, data, 0)
    assert method.phase(state.server_state)
    for fields in changes[kind]:
        with pytest.raises(RunStoppedError, match=r"was begun with .* does not count its"):
            next(Trainer().run(dataclasses.replace(method, **fields), data, 0, state))
