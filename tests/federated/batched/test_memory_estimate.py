"""Memory of clients that advance together: estimated and measured."""

import dataclasses
import subprocess
import sys

import pytest
import torch

from fedbolic.core import tree
from fedbolic.federated import LocalTraining
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.memory_estimate import MemoryEstimate
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import Adam
from tests.federated.simple_method import RNG, SMALL, federation


def test_what_clients_take_grows_with_examples_model_and_batch():
    def megabytes(method, size=64):
        data = federation((size,))
        state = tree.to(method.init(data.meta, RNG), "cpu", torch.float64)
        message = method.broadcast(state, 0)
        task = ClientTask.begin(method, message, data.clients[0], {}, RNG)
        return MemoryEstimate(method).megabytes(task)

    least = megabytes(SMALL)
    assert megabytes(SMALL, 640) > least
    assert megabytes(dataclasses.replace(SMALL, backbone=MLP((64,)))) > least
    assert megabytes(dataclasses.replace(SMALL, local=LocalTraining(1, 64))) > least
    assert megabytes(dataclasses.replace(SMALL, optimizer=Adam())) > least


def test_a_client_is_measured_once_however_many_rounds(monkeypatch):
    seen = []
    measured = MemoryEstimate._per_example
    monkeypatch.setattr(
        MemoryEstimate, "_per_example", lambda self, task: seen.append(task) or measured(self, task)
    )
    data = federation((8, 8))
    state = tree.to(SMALL.init(data.meta, RNG), "cpu", torch.float64)
    found = []
    for client in (data.clients[0], data.clients[0], data.clients[1]):
        task = ClientTask.begin(SMALL, SMALL.broadcast(state, client.id), client, {}, RNG)
        found.append(MemoryEstimate(SMALL).megabytes(task))
    assert found[0] == found[1] == found[2]
    assert [task.client.id for task in seen] == [0, 1]
    other = dataclasses.replace(SMALL, backbone=MLP((64,)))
    state = tree.to(other.init(data.meta, RNG), "cpu", torch.float64)
    task = ClientTask.begin(other, other.broadcast(state, 0), data.clients[0], {}, RNG)
    assert MemoryEstimate(other).megabytes(task) > found[0]


def test_activations_inside_of_the_network_count():
    method = dataclasses.replace(SMALL, backbone=MLP((500, 500)))
    data = federation((8,))
    state = tree.to(method.init(data.meta, RNG), "cpu", torch.float64)
    task = ClientTask.begin(method, method.broadcast(state, 0), data.clients[0], {}, RNG)
    outputs = 1000 * 8  # of both hidden layers, in bytes of float64
    assert outputs <= MemoryEstimate(method)._per_example(task) <= 3 * outputs


THOUSAND = """
import sys
from pathlib import Path
import torch
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import Batched, LocalTraining, Sequential
from fedbolic.federated.contract.engine import Exchange
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import ConvNet
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta

torch.set_num_threads(1)
meta = Meta(10, (1, 28, 28), 1000)
examples = Examples({"x": torch.randn(32, 1, 28, 28), "y": torch.arange(32) % 10})
clients = [Client(i, examples, examples, examples, meta) for i in range(1000)]
method = FedAvg(ConvNet(), local=LocalTraining(1, 32))
messages = dict.fromkeys(range(1000), method.broadcast(method.init(meta, Rng(0)), 0))
first = Exchange(method, messages, clients[:1], {}, Rng(0))
list(Sequential().run(first))  # loads what torch loads late


def kilobytes(name):
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name))


Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
before = kilobytes("VmRSS")
engine = Batched()
assert sum(1 for _ in engine.run(Exchange(method, messages, clients, {}, Rng(0)))) == 1000
assert not engine._refused
print((kilobytes("VmHWM") - before) / 1024)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_a_thousand_clients_with_convolutions_take_less_than_a_gigabyte():
    script = [sys.executable, "-c", THOUSAND]
    done = subprocess.run(script, capture_output=True, text=True, check=True)
    assert 100 < float(done.stdout) < 1000
