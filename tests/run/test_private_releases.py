"""Files, columns, metrics and messages of a private run are declared, with costs."""

import csv
import dataclasses
import logging
import re
from pathlib import Path

import pytest

from fedbolic.federated import ClientPrivacy, Trainer
from fedbolic.federated.contract.engine import torch_stream
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from tests.subjects import subject

ROOT = Path(__file__).parents[2]
DECLARED = ROOT / "docs/privacy/releases.csv"
COHORTS = {
    "samples": [],
    "all": ["--cohort.rate", "1.0", "--cohort.sampling", "fixed"],
    "once": ["--cohort.sampling", "once", "--privacy.adaptive", "null"],
    "banded": [
        *("--cohort.sampling", "cyclic", "--privacy.adaptive", "null"),
        *("--privacy.correlation", "banded"),
    ],
}


def declared():
    """Declared patterns by kind; each row has a cost."""
    found = {}
    with DECLARED.open() as rows:
        for kind, names, cost in csv.reader(rows):
            assert cost
            found.setdefault(kind, []).extend(re.findall(r"`([^`]+)`", names))
    return found


def undeclared(kind, names):
    patterns = [re.escape(p).replace(r"\.\.\.", ".*") for p in declared()[kind]]
    return {name for name in names if not any(re.fullmatch(p, name, re.DOTALL) for p in patterns)}


def private_run(folder, words, caplog):
    words = ["--config", "private/digits", "--data.partition.num_clients", "20", *words]
    words += ["--privacy.noise_multiplier", "1.0", "--privacy.epsilon", "null"]
    settings = build(run, [*words, "--method.rounds", "2", "--name", "r", "--runs", str(folder)])
    with caplog.at_level(logging.DEBUG, logger="fedbolic"):
        return run(**settings)


def released(path, caplog):
    """Names of all that a run has released, by kind."""
    tables = {}
    for file in path.glob("*.csv"):
        with file.open() as lines:
            tables[file.name] = list(csv.DictReader(lines))
    metrics = tables["metrics.csv"]
    return {
        "file": {str(file.relative_to(path)) for file in path.rglob("*") if file.is_file()},
        "column": {f"{name}: {c}" for name, rows in tables.items() for c in rows[0]},
        "metric": {f"{row['client']}:{row['name']}" if row["client"] else row["name"]
                   for row in metrics},
        "message": {record.getMessage() for record in caplog.records},
    }  # fmt: skip


@pytest.mark.parametrize("words", COHORTS.values(), ids=COHORTS)
def test_a_private_run_releases_nothing_that_is_not_declared(words, tmp_path, caplog):
    found = released(private_run(tmp_path, words, caplog), caplog)
    assert {kind: undeclared(kind, names) for kind, names in found.items()} == {
        "file": set(), "column": set(), "metric": set(), "message": set()
    }  # fmt: skip


def test_a_client_that_fails_adds_a_warning_for_the_operator_alone(tmp_path, caplog, monkeypatch):
    """The message is declared as one that is not covered; no file, column or metric is new."""
    calls = []

    def failing(client, rng):
        calls.append(client.id)
        if len(calls) == 1:
            raise RuntimeError("a secret of the client")
        return torch_stream(client, rng)

    monkeypatch.setattr("fedbolic.federated.engines.sequential.torch_stream", failing)
    words = [*COHORTS["all"], "--engine", "fedbolic.federated.Sequential"]
    path = private_run(tmp_path, words, caplog)
    assert any("a secret of the client" in text for text in caplog.messages)
    found = released(path, caplog)
    assert {kind: undeclared(kind, names) for kind, names in found.items() if names} == {
        "file": set(), "column": set(), "metric": set(), "message": set()
    }  # fmt: skip
    text = "".join(p.read_text() for p in (path / "metrics.csv", path / "environment.json"))
    assert "secret" not in text


def test_a_warning_about_a_clients_graph_is_declared_for_the_operator_alone(caplog, monkeypatch):
    monkeypatch.setattr("flatland.start_warnings._GIVEN", set())
    method, data = subject("flatland")
    client = data.clients[0]
    graph = dataclasses.replace(client.train.graph, features=100 * client.train.graph.features)
    client = dataclasses.replace(client, train=dataclasses.replace(client.train, graph=graph))
    data = dataclasses.replace(data, clients=(client, *data.clients[1:]))
    privacy = ClientPrivacy(dp_delta=1e-3, noise_multiplier=1.0)
    with caplog.at_level(logging.DEBUG, logger="fedbolic"):
        next(Trainer(privacy=privacy).run(method, data, 0))
    assert any("curvature radii" in text for text in caplog.messages)
    assert undeclared("message", set(caplog.messages)) == set()


@pytest.mark.parametrize(
    ("kind", "name"),
    [("file", "clients.csv"), ("column", "metrics.csv: size"), ("metric", "clients/failed"),
     ("metric", "3:privacy/epsilon"), ("message", "client 3 has 12 examples")],
)  # fmt: skip
def test_anything_else_is_found(kind, name):
    assert undeclared(kind, {name}) == {name}
