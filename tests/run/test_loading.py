"""The result of every method is loaded and exported, or one true sentence names the way out."""

import inspect
import re
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

import fedbolic
from fedbolic.data import IID, GraphFiles, Partitioned, PartitionedHierarchy
from fedbolic.federated import DistributedNoise, Method, SumPrivacy
from fedbolic.federated.contract.wrapping_method import WrappingMethod
from fedbolic.federated.secure import SecureSum
from fedbolic.hierarchies import HierarchyEmbedding, Popularity
from fedbolic.methods import FedAvg, PrivateSteps
from fedbolic.run import experiment
from fedbolic.run.configuration import SetupError
from fedbolic.run.exports import WRITERS, export
from fedhull import Central
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
    "flat tables": (replace(TABLE, c=0.0), TREE),
    "pooled points": (Central(), settings("fedhull")["data"]),
    "graphs in files": (short(settings("flatland")["method"]), None),
}  # fmt: skip
"""Methods and sources that no ``quick.yaml`` has."""

OFTEN = {
    *("fedavg", "fedrep", "majority", "fedgnn", "flatland/links", "hierarchies", "fedhull"),
    *(ADDED.keys() - {"noise in a secure sum", "a secure sum", "pooled points"}),
}
"""Cases in which nothing is alike; the others take a minute together."""


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


def check_sentence(text, folder, client, to=None):
    """Follow the way out that a sentence names."""
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
            assert type(settings_of(folder)["method"]).predictor is Method.predictor
    elif match := re.search(r"needs (\S+): pip install 'fedbolic\[\w+\]'", text):
        assert find_spec(match[1]) is None
    else:
        match = re.search(r"use (.*)$", text)
        assert match, text
        for suffix in re.findall(r"\.\w+", match[1]):
            assert suffix != to.suffix
            other = to.with_name(f"other{suffix}")
            done = attempt(export, folder, other, client=client)
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
        found = attempt(fedbolic.load, folder, client=client)
        if isinstance(found, str):
            check_sentence(found, folder, client)
        else:
            assert_usable(found)
        for suffix in WRITERS:
            to = tmp_path / f"{client}{suffix}"
            done = attempt(export, folder, to, client=client)
            if isinstance(done, str):
                assert not to.exists()
                assert done == found or not isinstance(found, str)
                check_sentence(done, folder, client, to)
            else:
                assert all(file.stat().st_size for file in done)


def assert_usable(found):
    with torch.no_grad():
        assert found(found.example).isfinite().all()


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
