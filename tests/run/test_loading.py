"""The result of every method is loaded and exported, or one true sentence names the way out."""

import inspect
import json
import re
import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import fedbolic
from fedbolic.core.rng import Rng
from fedbolic.data import (
    IID,
    GraphFiles,
    HierarchyFile,
    Partitioned,
    PartitionedHierarchy,
    RandomPairs,
)
from fedbolic.federated import DistributedNoise, Method, SumPrivacy
from fedbolic.federated.contract.gradient_method import GradientMethod
from fedbolic.federated.contract.wrapping_method import WrappingMethod
from fedbolic.federated.secure import SecureSum
from fedbolic.hierarchies import Embedding, HierarchyEmbedding, Popularity
from fedbolic.knowledge import KnowledgeGraph
from fedbolic.methods import FedAvg, PrivateSteps
from fedbolic.run import experiment
from fedbolic.run.configuration import SetupError
from fedbolic.run.exports import WRITERS, export
from fedbolic.run.record import RunFolder
from fedhull import Central
from tests.command_line import refused
from tests.subjects import QUICK, settings, short

DIGITS = Partitioned(partition=IID(3), num_train=60, num_test=40, pool=2)
TREE = PartitionedHierarchy()
TABLE = HierarchyEmbedding(dim=2, rounds=1, steps=2, sends="table")
ADDED = {
    "a secure sum": (SecureSum(FedAvg(rounds=1)), DIGITS),
    "a secure sum of rows": (SecureSum(replace(TABLE, sends="rows")), TREE),
    "noise in a secure sum": (
        SecureSum(DistributedNoise(TABLE, SumPrivacy(7, 1e-3, 1.0)), threshold=7), TREE
    ),
    "private steps": (PrivateSteps(FedAvg(rounds=1), steps=1), DIGITS),
    "popularity": (Popularity(), TREE),
    "personal tables": (replace(TABLE, sends="rows", personal=True), TREE),
    "flat tables with biases": (replace(TABLE, c=0.0, bias="ancestor"), TREE),
    "pooled points": (Central(), settings("fedhull")["data"]),
    "graphs in files": (short(settings("flatland")["method"]), None),
}  # fmt: skip
"""Methods and sources that no ``quick.yaml`` has."""

OFTEN = {
    *("majority", "fedgnn", "hierarchies", "knowledge", "personal tables", "popularity"),
    *("flat tables with biases", "graphs in files"),
}
"""Cases in which nothing is alike and no graph of a network is traced, which takes seconds."""


def given(name, folder):
    """Settings of a short run."""
    if name not in ADDED:
        found = {n: x for n, x in settings(name).items() if n not in ("name", "overwrite")}
        return found | {"method": short(found["method"]), "runs": folder / "runs"}
    method, data = ADDED[name]
    if data is None:
        arrays = {"x": np.eye(9), "edges": np.arange(8).reshape(4, 2), "y": np.arange(9) % 2}
        for city in ("bath", "york"):
            np.savez(folder / f"{city}.npz", **arrays)
        data = GraphFiles([folder])
    return {"method": method, "data": data, "runs": folder / "runs"}


def attempt(action, *words, **options):
    """Result of an action, or the sentence that refuses it."""
    try:
        return action(*words, **options)
    except SetupError as error:
        return str(error)


def check_sentence(text, folder, client, exported):
    """Follow the way out that a sentence names, such as another format of the exported files."""
    assert "\n" not in text
    assert len(text.split()) <= 40
    assert not re.search(r"source|Error\(", text)  # the run had its source
    if match := re.search(r"give client=0 for a personal one$", text):
        assert client is None
        assert not isinstance(attempt(fedbolic.load, folder, client=0), str)
    elif match := re.search(r"(fedbolic\.run\.RunFolder\.open\(.*\)\.read_checkpoint\(\))", text):
        found = eval(match[1], {"fedbolic": fedbolic})
        assert found["server_state"] or found["client_states"]
        if "has no network" in text:
            assert not isinstance(settings_of(folder)["method"], GradientMethod)
    elif match := re.search(r"needs (\S+): pip install 'fedbolic\[\w+\]'", text):
        assert find_spec(match[1]) is None
    else:
        instead = re.findall(r"\.\w+", re.search(r"use (.*)$", text)[1])
        assert instead
        for done in (exported[suffix] for suffix in instead):
            assert not isinstance(done, str) or "pip install" in done


def settings_of(folder):
    return fedbolic.run.configuration.build(
        experiment.run, ["--config", str(folder / "config.yaml")]
    )


@pytest.mark.parametrize(
    "name",
    [n if n in OFTEN else pytest.param(n, marks=pytest.mark.slow) for n in (*QUICK, *ADDED)],
)
def test_a_result_is_loaded_and_exported_or_a_true_sentence_names_the_way_out(name, tmp_path):
    if "secure" in name:
        pytest.importorskip("cryptography")
    folder = experiment.run(**given(name, tmp_path))
    for client in (None, 0):
        found, exported = attempt(fedbolic.load, folder, client=client), {}
        for suffix in WRITERS:
            to = tmp_path / f"{client}-{suffix[1:]}{suffix}"
            exported[suffix] = done = attempt(export, folder, to, client=client)
            assert isinstance(done, str) or all(file.stat().st_size for file in done)
            assert to.exists() != isinstance(done, str)
        if not isinstance(found, str):
            assert_usable(found)
        else:
            assert {*exported.values()} == {found}
        for text in {text for text in (found, *exported.values()) if isinstance(text, str)}:
            check_sentence(text, folder, client, exported)


def assert_usable(found):
    if isinstance(found, KnowledgeGraph):
        assert len(found.tails(found.entities[0], found.relations[0], 3)) == 3
        return
    if isinstance(found, Embedding):
        assert len(found.nearest(found.names[-1], 3)) == 3
        held = found.names[int(found.parents[-1, 0])]
        assert found.ancestors(held)[-1] == "0"  # the root
        return
    with torch.no_grad():
        assert found(found.example).isfinite().all()


def test_an_embedding_has_the_distances_of_the_trained_table(tmp_path):
    folder = experiment.run(replace(TABLE, c=0.5), TREE, runs=tmp_path)
    table = RunFolder(folder).read_checkpoint()["server_state"]["parameters"]["weight"]
    found, (v, w) = fedbolic.load(folder), table[[7, 300]].double() * 0.5**0.5
    r, s = v.norm(), w.norm()
    cosine = (v @ w) / (r * s)
    expected = torch.acosh(r.cosh() * s.cosh() - r.sinh() * s.sinh() * cosine) / 0.5**0.5
    assert abs(found.distance("7", "300") - float(expected)) < 1e-7


def test_a_personal_embedding_holds_the_nodes_of_its_client_alone(tmp_path):
    folder = experiment.run(replace(TABLE, sends="rows", personal=True), TREE, runs=tmp_path)
    clients = TREE.load(Rng(0).at("data")).clients
    for client in (0, 3):
        found = fedbolic.load(folder, client=client)
        pairs = clients[client].train.hierarchy.pairs.tolist()
        assert {int(name) for name in found.names} == {node for pair in pairs for node in pair}
        above = {(u, v) for u in found.names for v in found.ancestors(u)}
        assert above == {(str(u), str(v)) for u, v in pairs}


def test_places_are_not_given_the_names_of_other_nodes(tmp_path):
    file = tmp_path / "tree.csv"
    file.write_text("lion,cat\ntiger,cat")
    source = PartitionedHierarchy(HierarchyFile(file), RandomPairs(2))
    folder = experiment.run(TABLE, source, runs=tmp_path)
    assert fedbolic.load(folder).ancestors("lion") == ["cat"]
    file.write_text("lion,cat\nzebra,cat")  # as many nodes
    for client in (None, 0):
        with pytest.raises(SetupError, match="other nodes than when it was trained"):
            fedbolic.load(folder, client=client)


def test_the_command_saves_an_embedding_and_its_card(tmp_path, fedbolic):
    folder, to = experiment.run(TABLE, TREE, runs=tmp_path), tmp_path / "out" / "tree.npz"
    code, out, _ = fedbolic("export", folder, "--to", to)
    assert (code, out) == (0, f"{to}\n{to.with_suffix('.json')}\n")
    card = json.loads(to.with_suffix(".json").read_text())
    assert (card["num_nodes"], card["dim"], card["rounds"]) == (511, 2, 1)
    assert json.loads(str(np.load(to)["fedbolic"]))["card"] == card
    assert Embedding.load(to).nearest("0") == sys.modules["fedbolic"].load(folder).nearest("0")
    refused(fedbolic("export", folder, "--to", tmp_path / "m.onnx"), names=[".npz", ".csv"])


def test_every_public_method_is_in_the_contract():
    def parts(method):
        yield type(method)
        if isinstance(method, WrappingMethod):
            yield from parts(method.method)

    methods = [settings(name)["method"] for name in QUICK] + [m for m, _ in ADDED.values()]
    seen = {kind for method in methods for kind in parts(method)}
    packages = "fedbolic.methods", "fedbolic.hierarchies", "fedbolic.federated.secure"
    packages = *packages, "fedbolic.federated", "flatland", "hyperfed", "fedhull", "flynn"
    public = {
        x
        for package in packages
        for x in vars(__import__(package, fromlist=["x"])).values()
        if inspect.isclass(x) and issubclass(x, Method) and x.__module__ and not abstract(x)
    }
    assert public - seen == set()


def abstract(kind):
    return inspect.isabstract(kind) or kind.__name__ == "ClassifierMethod"
