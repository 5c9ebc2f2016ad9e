"""Captured steps on a CUDA device: every capture succeeds, and replays are the steps themselves."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from fedbolic.core import tree
from fedbolic.core.imports import MissingExtraError
from fedbolic.federated import GradientMethod, Graphed, LocalTraining, Sequential
from fedbolic.federated.batched.replay import GraphPool, Replay
from fedbolic.federated.contract.engine import Exchange
from tests.subjects import QUICK, exchanges

pytestmark = pytest.mark.gpu

CUDA = torch.device("cuda")


def results(engine, exchange, method):
    clients = [client.to(CUDA, torch.float64) for client in exchange.clients]
    messages = {i: tree.to(m, CUDA, torch.float64) for i, m in exchange.messages.items()}
    states = {i: tree.to(s, CUDA, torch.float64) for i, s in exchange.client_states.items()}
    return list(engine.run(Exchange(method, messages, clients, states, exchange.rng)))


def with_epochs(method, epochs):
    if "local" not in {field.name for field in dataclasses.fields(method)}:  # around another
        return dataclasses.replace(method, method=with_epochs(method.method, epochs))
    local = LocalTraining(epochs, method.local.batch_size, method.local.repeats)
    return dataclasses.replace(method, local=local)


@pytest.mark.parametrize("together", [None, 1])
@pytest.mark.parametrize("name", QUICK)
def test_every_step_is_captured_and_equals_the_reference(name, together):
    try:
        exchange = exchanges(name)[0]
    except MissingExtraError as error:
        pytest.skip(str(error))
    if not isinstance(exchange.phase, GradientMethod):
        pytest.skip("takes no gradient steps")
    method = with_epochs(exchange.phase, 3)
    engine = Graphed(together=together)
    found, again = (results(engine, exchange, method) for _ in range(2))
    assert not engine._refused
    assert not engine._uncaptured
    assert engine.num_graphs
    for got in (found, again):
        pairs = zip(got, results(Sequential(), exchange, method), strict=True)
        for (_, update, kept), (_, expected, old) in pairs:
            both = {"payload": update.payload, "kept": kept}
            reference = tree.tensors({"payload": expected.payload, "kept": old})
            assert tree.tensors(both).keys() == reference.keys()
            for path, value in tree.tensors(both).items():
                torch.testing.assert_close(value, reference[path], rtol=0, atol=1e-9, msg=path)


def test_a_replay_is_one_graph_from_the_second_call_on():
    x, calls = torch.zeros(3, device=CUDA), []

    def function():
        calls.append(1)
        x.add_(1)

    replay = Replay(function, x, GraphPool(CUDA))
    for _ in range(5):
        replay()
    assert x.tolist() == [5.0] * 3
    assert len(calls) == 2  # the first directly, the second for the capture


def test_a_function_that_waits_cannot_be_captured():
    # torch 2.11 leaves a process whose capture fails in an unusable state
    code = f"from {__name__} import refuse_a_wait; refuse_a_wait()"
    subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parents[3], check=True)


def refuse_a_wait():
    x = torch.zeros(3, device=CUDA)
    replay = Replay(lambda: x.sum().item(), x, GraphPool(CUDA))
    replay()
    with pytest.raises(RuntimeError):
        replay()
