"""Scores by a replayed graph equal those of one client after another, whatever has changed."""

import dataclasses
import logging

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Examples
from fedbolic.federated import Graphed, LocalTraining, Sequential
from fedbolic.federated.batched import replay
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.scores.metrics import measuring
from fedbolic.methods import Ditto, FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.rehearsal import CUDA, rehearsal

META = Meta(3, (5,), 4)
SETTINGS = {"rounds": 9, "local": LocalTraining(1, 2)}
METHODS = {"one model": FedAvg(MLP((4,)), **SETTINGS), "own models": Ditto(MLP((4,)), **SETTINGS)}
SIZES = ((0, 2), (3, 1), (2, 0), (1, 4))
"""Validation and test examples of every client."""


def clients(seed):
    generator = torch.Generator().manual_seed(seed)

    def examples(n):
        x = torch.randn(n, 5, generator=generator, dtype=torch.float64)
        return Examples({"x": x, "y": torch.randint(3, (n,), generator=generator)})

    return [Client(i, examples(2), *map(examples, of), META) for i, of in enumerate(SIZES)]


def exchange(method, some, seed):
    """Clients with messages of a model, and states with other ones, of a seed."""
    state = tree.to(method.init(META, Rng(seed)), "cpu", torch.float64)
    shared = method.broadcast(state, 0)
    messages = {each.id: shared for each in some}
    states = {}
    for each in some:
        _, states[each.id] = method.local_update(shared, each, {}, Rng(seed).at(each.id))
    return Exchange(method, messages, some, states, Rng(0))


def moved(given):
    to = {"messages": given.messages, "client_states": given.client_states}
    shared = tree.to(next(iter(given.messages.values())), CUDA)
    to["messages"] = dict.fromkeys(given.messages, shared)
    to["client_states"] = {i: tree.to(own, CUDA) for i, own in given.client_states.items()}
    return dataclasses.replace(given, **to)


def compared(engine, given, there):
    """Scores of an engine, which are those of one client after another."""
    found = engine.scores(moved(dataclasses.replace(given, clients=there)))
    expected = Sequential().scores(given)
    assert found.keys() == expected.keys()
    for i, named in expected.items():
        assert found[i] == pytest.approx(named, rel=1e-12), i


@pytest.mark.parametrize("name", METHODS)
def test_a_graph_scores_the_models_of_each_round(name):
    method, some, engine = METHODS[name], clients(0), Graphed()
    with rehearsal() as device:
        there, launches = [each.to(CUDA) for each in some], []
        for seed in range(5):
            device.work.clear()
            compared(engine, exchange(method, some, seed), there)
            launches.append(device.work.total()["launches"])
        assert engine.num_graphs == 1
        assert device.replayed == 3
        assert launches[-1] < launches[0] / 2
        assert device.work.total()["waits"] == device.work.waits["copy"] == 1


def test_other_clients_data_and_forms_have_graphs_of_their_own(caplog):
    caplog.set_level(logging.INFO, "fedbolic")
    method, engine, some, other = METHODS["own models"], Graphed(), clients(0), clients(1)
    groups = [some, some[1:], other, some[::-1]]
    with rehearsal():
        there = {id(each): each.to(CUDA) for each in (*some, *other)}
        for seed in range(4):
            for here in groups:
                compared(engine, exchange(method, here, seed), [there[id(x)] for x in here])
            fresh = dataclasses.replace(exchange(method, some, seed), client_states={})
            compared(engine, fresh, [there[id(x)] for x in some])
            with torch.autocast("cpu", torch.bfloat16):  # also of casts that a graph would not make
                compared(engine, fresh, [there[id(x)] for x in some])
        assert engine.num_graphs == 6
    assert "not captured" not in caplog.text


def test_scores_that_take_other_work_are_not_captured(caplog, monkeypatch):
    method, some, engine = METHODS["one model"], clients(0), Graphed()
    caplog.set_level(logging.INFO, "fedbolic")
    with rehearsal() as device:
        there = [each.to(CUDA) for each in some]
        given = dataclasses.replace(moved(exchange(method, some, 0)), clients=there)
        with measuring(("macro_f1",)):  # its values are beyond a simulated device
            for _ in range(4):
                engine.scores(given)
        assert not device.graphs
        assert "not captured" not in caplog.text
        waits, known, pools = FedAvg.predict, len(replay._POOLS), []

        def predict(self, *given):
            pools.append(len(replay._POOLS) - known)
            logits = waits(self, *given)
            return logits.cpu().to(logits.device)  # as a method may that was written for a CPU

        monkeypatch.setattr(FedAvg, "predict", predict)
        for seed in range(4):
            compared(engine, exchange(method, some, seed), there)
        assert not engine.num_graphs
        assert max(pools) == 1
        assert pools[-1] == 0  # nothing of the graph is left when scores are computed without it
        assert "scores of FedAvg are not captured" in caplog.text
