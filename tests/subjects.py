"""Every method that has a ``configs/**/quick.yaml``, and the exchanges of a short run of it."""

import dataclasses
import functools
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from benchmarks.methods import quick
from fedbolic.core.rng import Rng
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import LocalTraining
from fedbolic.testing import MethodRun
from tests.federated.simple_method import NormNet

ROOT = Path(__file__).parents[1] / "configs"
QUICK = [str(path.relative_to(ROOT).parent) for path in sorted(ROOT.glob("**/quick.yaml"))]
RNG = Rng(11)

NORM = " with batch norm"
TEXTS = {name: (ROOT / name / "quick.yaml").read_text() for name in QUICK}
# a ResNet has batch norms already, and FedBN's sharing table names them
NORMED = [n + NORM for n, text in TEXTS.items() if "backbone:" in text and "ResNet" not in text]

every_configuration = pytest.mark.parametrize("name", QUICK)
every_method = pytest.mark.parametrize("name", QUICK + NORMED)


@functools.cache
def settings(name):
    """Arguments of a run; on a machine without jsonargparse the method and the data alone."""
    if find_spec("jsonargparse") is None:
        return dict(zip(("method", "data"), quick.settings(name), strict=True))
    from fedbolic.run import experiment
    from fedbolic.run.configuration import build

    return build(experiment.run, ["--config", str(ROOT / name / "quick.yaml")])


def short(method):
    """The method limited to two rounds of one epoch over small batches, as far as it has these."""
    fields = {field.name for field in dataclasses.fields(method) if field.init}
    changes = {"rounds": min(method.rounds, 2)} if "rounds" in fields else {}
    if "local" in fields:
        changes["local"] = LocalTraining(1, 8, method.local.repeats)
    if "generator" in fields:
        changes["generator"] = dataclasses.replace(method.generator, rounds=1, epochs=2)
    if "method" in fields:  # it wraps another method
        changes["method"] = short(method.method)
    return dataclasses.replace(method, **changes)


def small(data, *, num_clients=4, num_examples=20):
    """The first few clients and examples; splits that are not ``Examples`` are left unchanged."""

    def cut(split):
        if not isinstance(split, Examples):
            return split
        return Examples(split.at(torch.arange(min(len(split), num_examples))))

    def cut_client(client, meta):
        return Client(client.id, cut(client.train), cut(client.validation), cut(client.test), meta)

    clients = data.clients[:num_clients]
    meta = dataclasses.replace(data.meta, num_clients=len(clients))
    holdout = data.holdout and cut_client(data.holdout, meta)
    return FederatedData(tuple(cut_client(c, meta) for c in clients), meta, holdout)


@functools.cache
def subject(name, num_clients=4):
    given = settings(name.removesuffix(NORM))
    method = short(given["method"])
    if name.endswith(NORM):
        method = dataclasses.replace(method, backbone=NormNet())
    return method, small(given["data"].load(Rng(0)), num_clients=num_clients)


@functools.cache
def recorded(name):
    """The run of a method that its laws are tested on."""
    return MethodRun(*subject(name), seed=RNG.seed)


def exchanges(name):
    """Exchanges of a short run, from a loop written without the trainer."""
    return recorded(name).exchanges
