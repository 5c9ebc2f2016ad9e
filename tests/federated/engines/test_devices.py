"""Several devices: the results of one client after another, on two shadow devices or CPU twice."""

import dataclasses
import logging
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn
from typing_extensions import override

from fedbolic.federated import (
    Batched,
    Cohort,
    Devices,
    Engine,
    Graphed,
    LocalTraining,
    Sequential,
    Workers,
)
from fedbolic.federated.contract.engine import Exchange
from fedbolic.methods import Ditto, FedAvg
from fedbolic.nn.network.backbone import MLP, Backbone
from tests import shadow
from tests.federated.simple_method import RNG, SMALL, Averaged, assert_same, federation, train

DATA = federation((7, 4, 12, 1, 30, 5))
TWO = ("meta:0", "meta:1")


@dataclass(frozen=True)
class OnShadow(Engine):
    """An engine in whose thread the shadow devices exist, and that records its devices."""

    inner: Engine = Sequential()
    seen: ClassVar[set] = set()

    @override
    def run(self, exchange):
        with shadow.Dispatch():
            self.seen.update((c.no_inputs.device_label, c.id) for c in exchange.clients)
            return iter(list(self.inner.run(exchange)))

    @override
    def scores(self, exchange):
        with shadow.Dispatch():
            return self.inner.scores(exchange)


@dataclass(frozen=True)
class Noisy(Backbone):
    """A network that draws from the random stream of the CPU."""

    @property
    @override
    def num_features(self):
        return 5

    @override
    def build(self, meta):
        return NoisyLayer()


class NoisyLayer(nn.Module):
    def forward(self, x):
        return x * torch.rand(1, device=x.device)


METHODS = {
    "fedavg": (SMALL, {}),
    "one fails": (Averaged(faults={2: "raises"}), {}),
    "ditto": (Ditto(MLP((4,)), rounds=3, local=LocalTraining(1, 4)), {"cohort": Cohort(0.5)}),
}


def last(method, data, **settings):
    """The last state of a run as a checkpoint holds it, and all rows."""
    positions, rows = train(method, data, **settings)
    return positions[-1].checkpoint(), [tuple(row) for row in rows]


def assert_equal_runs(found, wanted):
    assert found[1] == wanted[1]
    assert_same(found[0]["server_state"], wanted[0]["server_state"])
    states = [{str(i): s for i, s in run[0]["client_states"].items()} for run in (found, wanted)]
    assert_same(*states)


@pytest.mark.parametrize("name", METHODS)
def test_two_devices_give_what_one_client_after_another_gives(name):
    method, settings = METHODS[name]
    plain = last(method, DATA, **settings)
    engine = Devices(Sequential(), devices=("cpu", "cpu"))
    assert_equal_runs(last(method, DATA, engine=engine, **settings), plain)


@pytest.mark.parametrize("name", ["fedavg", "ditto"])
@pytest.mark.parametrize("inner", [Sequential(), Batched(), Graphed()], ids=["one", "many", "step"])
def test_two_shadow_devices_share_the_clients(name, inner, monkeypatch, caplog):
    method, settings = METHODS[name]
    plain = last(method, DATA, **settings)
    engine = Devices(OnShadow(inner), devices=TWO)
    engine.inner.seen.clear()
    with caplog.at_level(logging.INFO), shadow.device(monkeypatch):
        found = last(method, DATA.to("meta:0"), engine=engine, **settings)
        found = [torch.utils._pytree.tree_map(on_cpu, found[0]), found[1]]
    assert not caplog.records  # no draw from the CPU's stream, no method that is not vectorised
    homes = {i: {place for place, j in engine.inner.seen if j == i} for _, i in engine.inner.seen}
    assert set().union(*homes.values()) == set(TWO)
    tolerance = 0 if isinstance(inner, Sequential) else 1e-12
    assert [row[:3] for row in found[1]] == [row[:3] for row in plain[1]]
    assert [r[3] for r in found[1]] == pytest.approx([r[3] for r in plain[1]], abs=tolerance)
    for a, b in zip(
        *(torch.utils._pytree.tree_leaves(run[0]) for run in (found, plain)), strict=True
    ):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


def on_cpu(x):
    return x.cpu() if isinstance(x, torch.Tensor) else x


def test_a_network_that_draws_from_the_stream_of_the_cpu_is_found_out(monkeypatch, caplog):
    method = FedAvg(Noisy(), rounds=2, local=LocalTraining(1, 4))
    plain = last(method, DATA)
    engine = Devices(OnShadow(), devices=TWO)
    with caplog.at_level(logging.INFO), shadow.device(monkeypatch):
        found = last(method, DATA.to("meta:0"), engine=engine)
        found = [torch.utils._pytree.tree_map(on_cpu, found[0]), found[1]]
    assert [r.getMessage() for r in caplog.records] == [
        "FedAvg draws from the CPU's stream: one device follows another"
    ]
    assert_equal_runs(found, plain)


def test_results_name_the_clients_given_and_a_client_that_is_not_held_is_copied():
    engine, method = Devices(Sequential(), devices=("cpu", "cpu")), Averaged()
    server_state = method.init(DATA.meta, RNG)
    messages = {c.id: method.broadcast(server_state, c.id) for c in DATA.clients}
    with engine.open(DATA.clients[:3]) as opened:
        new = dataclasses.replace(DATA.clients[1])
        some = [DATA.clients[0], new, DATA.clients[2], DATA.clients[5]]
        results = opened.run(Exchange(method, messages, some, {}, RNG))
        found = [client for client, *_ in results]
    assert [id(client) for client in found] == [id(client) for client in some]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"devices": ("nowhere",)}, "names like cuda:0, got 'nowhere'"),
        ({"inner": Workers()}, "an engine for one device, got Workers"),
        ({"inner": Devices()}, "an engine for one device, got Devices"),
    ],
)
def test_settings_are_checked(settings, message):
    with pytest.raises(ValueError, match=message):
        Devices(**settings)


@pytest.mark.skipif(torch.cuda.is_available(), reason="looks for devices that are not there")
@pytest.mark.parametrize("devices", [(), ("cpu", "cuda:7")])
def test_absent_devices_are_named(devices):
    with pytest.raises(ValueError, match="CUDA device"):
        train(SMALL, DATA, engine=Devices(devices=devices))
