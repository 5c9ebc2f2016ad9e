"""Steps by a compiler's kernels give the results of the operators, and failing that, as before."""

import dataclasses
import logging

import pytest
import torch

from fedbolic.core import tree
from fedbolic.federated import Graphed, LocalTraining, Sequential
from fedbolic.federated.batched import compiled
from fedbolic.federated.batched.compiled import traced
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.optim import SGD, Adam
from tests.budgets import METHODS
from tests.federated.agreement import UNEQUAL, cut, exchange, with_
from tests.federated.simple_method import NormNet, federation, train
from tests.rehearsal import CUDA, rehearsal
from tests.subjects import subject

NEAR = 1e-12
LOCAL = LocalTraining(3, 4)
CASES = {
    "adam, dropout": (with_(backbone=MLP((4,), dropout=0.5), optimizer=Adam(), local=LOCAL), None),
    "unequal, batch norm": (with_(backbone=NormNet(), optimizer=SGD(0.9), local=LOCAL), UNEQUAL),
    "convolution": (FedAvg(ConvNet(), local=LOCAL), "fedavg"),
    "hyperfed": (dataclasses.replace(METHODS["hyperfed"][0], local=LOCAL), "fedavg"),
    "flatland": (
        dataclasses.replace(METHODS["flatland"][0], local=LocalTraining(3, None)),
        "flatland",
    ),
}


def data_of(given):
    if isinstance(given, str):
        data = subject(given)[1]
        return cut(data, (8, 8)) if given == "fedavg" else data.to("cpu", torch.float64)
    return federation(given or (8, 8))


def payloads(found):
    return [tree.tensors({"payload": u.payload, "kept": kept}) for _, u, kept in found]


def untranslated(function, tensors):
    """The trace itself in place of kernels."""
    graph = traced(function, tensors)
    return lambda: graph(*tensors)


@pytest.mark.parametrize("by", ["trace", pytest.param("Inductor", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", CASES)
def test_a_compiled_step_is_that_of_the_operators(name, by, monkeypatch):
    (method, given), made, function = CASES[name], [], compiled.compiled

    def noted(*arguments):
        made.append((untranslated if by == "trace" else function)(*arguments))
        return made[-1]

    monkeypatch.setattr(compiled, "compiled", noted)
    data, engine = data_of(given), Graphed(compiled=True)
    with engine.open(data.clients) as opened:
        for _ in range(2):
            found = payloads(exchange(opened, method, data))
    assert made
    assert not engine._uncompiled
    assert_near(found, payloads(exchange(Sequential(), method, data)))


def assert_near(found, expected):
    for some, others in zip(found, expected, strict=True):
        assert some.keys() == others.keys()
        for path, value in others.items():
            torch.testing.assert_close(some[path], value, rtol=NEAR, atol=NEAR, msg=path)


def test_without_a_compiler_steps_are_captured_as_they_are(monkeypatch, caplog):
    def absent(function, tensors):
        traced(function, tensors)
        raise RuntimeError("no C++ compiler was found")

    monkeypatch.setattr(compiled, "compiled", absent)
    engine, data = Graphed(compiled=True), federation((8, 8))
    with caplog.at_level(logging.INFO, "fedbolic"):
        found = [payloads(exchange(engine, with_(local=LOCAL), data)) for _ in range(2)]
    text = "the steps of FedAvg are not compiled: RuntimeError: no C++ compiler was found"
    assert [record.getMessage() for record in caplog.records] == [text]
    assert not engine._uncaptured
    assert engine._kept
    expected = payloads(exchange(Sequential(), with_(local=LOCAL), data))
    for some in found:
        assert_near(some, expected)


def test_a_device_that_cannot_be_traced_has_captured_steps(caplog):
    method, engine = with_(rounds=2, local=LOCAL), Graphed(compiled=True)
    with caplog.at_level(logging.INFO, "fedbolic"), rehearsal() as device:
        train(method, federation((8, 8)).to(CUDA), engine=engine)
    assert device.replayed
    assert ["not compiled" in record.getMessage() for record in caplog.records] == [True]


def test_a_trace_changes_nothing_and_has_no_scatter():
    points, places = torch.randn(3, 5), torch.tensor([[4], [0], [2]])
    x, sources = points.clone(), torch.randn(3, 1)

    def added(x, places, sources):
        x.copy_(x.scatter_add(1, places, sources))

    graph = traced(added, [x, places, sources])
    assert torch.equal(x, points)
    assert "scatter" not in graph.code
    graph(x, places, sources)
    assert torch.equal(x, points.scatter_add(1, places, sources))
