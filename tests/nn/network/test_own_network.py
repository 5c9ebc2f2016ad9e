"""Networks of the user as backbones."""

import sys
import types
from dataclasses import replace

import pytest
import torch
from torch import nn

from fedbolic.core.types import Meta
from fedbolic.data import IID, Partitioned
from fedbolic.methods import FedAvg, FedProto
from fedbolic.nn.network.own_network import OwnNetwork, Timm
from fedbolic.run import experiment
from fedbolic.run.configuration import SetupError, build, describe
from fedbolic.run.record import RunFolder

IMAGES = Meta(num_classes=10, input_shape=(1, 8, 8), num_clients=3)
PATH = f"{__name__}.Small"


class Small(nn.Module):
    """A convolution and a pooling layer."""

    def __init__(self, width: int = 6, *, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale
        self.layers = nn.Sequential(nn.Conv2d(1, width, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())

    def forward(self, x):
        return self.scale * self.layers(x)


class Branching(Small):
    """A network that needs numbers to choose a branch."""

    def forward(self, x):
        return super().forward(x) if float(x.sum()) < 1 else super().forward(-x)


class Pixels(nn.Module):
    """A network that gives no rows."""

    def forward(self, x):
        return x


def planted(monkeypatch, **kinds):
    """A module with classes, as if it were a file of the user."""
    module = types.ModuleType("my_nets")
    vars(module).update(kinds)
    monkeypatch.setitem(sys.modules, "my_nets", module)


@pytest.mark.parametrize("kind", [Small, Branching])
def test_the_width_is_that_of_the_features(kind):
    for width in (3, 5):
        network = OwnNetwork(kind, {"width": width})
        (features,) = {m(torch.zeros(2, 1, 8, 8)).shape for m in [network.build(IMAGES)]}
        assert network.width_for(IMAGES) == features[1] == width


def test_a_class_and_its_path_are_one_network():
    assert (
        OwnNetwork("torch.nn.modules.flatten.Flatten")
        == OwnNetwork(nn.Flatten)
        != OwnNetwork(nn.Identity)
    )
    assert hash(OwnNetwork(Small, {"width": 3})) == hash(replace(OwnNetwork(Small, {"width": 3})))


def test_a_class_without_a_path_is_used_itself():
    class Local(Small):
        """A class that no other process can import."""

    network = OwnNetwork(Local, {"width": 3})
    assert network.module is Local
    assert type(network.build(IMAGES)) is Local


def test_the_width_draws_no_random_number():
    before = torch.get_rng_state()
    OwnNetwork(Small, {"width": 9}).width_for(IMAGES)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_run_names_the_class_and_is_read_back(tmp_path, monkeypatch):
    planted(monkeypatch, Small=Small)
    text = """
    method:
      class_path: fedbolic.methods.FedAvg
      init_args:
        rounds: 1
        local: {epochs: 1, batch_size: 16}
        backbone:
          class_path: fedbolic.nn.network.own_network.OwnNetwork
          init_args: {module: my_nets.Small, arguments: {width: 4, scale: 2.0}}
    data: {class_path: fedbolic.data.Partitioned, init_args: {num_train: 60, num_test: 20,
           partition: {class_path: fedbolic.data.IID, init_args: {num_clients: 3}}}}
    """
    file = tmp_path / "run.yaml"
    file.write_text(text)
    given = build(experiment.run, ["--config", str(file), f"--runs={tmp_path}"])
    assert given["method"].backbone == OwnNetwork("my_nets.Small", {"width": 4, "scale": 2.0})
    path = experiment.run(**given)
    again = build(experiment.run, ["--config", str(path / "config.yaml")])
    assert again["method"] == given["method"]
    parameters = RunFolder(path).load()["server_state"]["parameters"]
    assert parameters["body.layers.0.weight"].shape == (4, 1, 3, 3)
    assert parameters["head.weight"].shape == (10, 4)


def test_methods_that_need_the_width_at_the_start_find_it():
    method = FedProto(OwnNetwork(Small, {"width": 5}))
    assert method.init(IMAGES, experiment.Rng(0))["prototypes"].shape == (10, 5)


@pytest.mark.parametrize(
    ("module", "arguments", "message"),
    [
        ("os.system", {}, "os is a module of Python itself"),
        ("torch.load", {}, "not a subclass of torch.nn.modules.module.Module"),
        ("torch.optim.SGD", {}, "not a subclass"),
        ("torch.nn.Nothing", {}, "Nothing"),
        ("no_such_package.Net", {}, "no_such_package"),
        ("fedbolic.__main__.main", {}, "run a program"),
        ("torch.nn.Linear", {"in_features": 3}, "out_features"),
        ("torch.nn.Linear", {"in_features": 3, "out_features": object()}, "let the class build it"),
    ],
)
def test_what_is_no_network_is_refused_before_it_is_called(module, arguments, message):
    with pytest.raises(ValueError, match=message):
        OwnNetwork(module, arguments)


def test_no_code_of_a_refused_class_runs(monkeypatch):
    class Trap:
        def __init__(self) -> None:
            raise AssertionError

    planted(monkeypatch, Trap=Trap, call=lambda: Trap())
    for name in ("Trap", "call"):
        with pytest.raises(ValueError, match="not a subclass"):
            OwnNetwork(f"my_nets.{name}")


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (OwnNetwork(nn.Linear, {"in_features": 3, "out_features": 2}), r"shape \(1, 8, 8\)"),
        (OwnNetwork(Pixels), r"got \(2, 1, 8, 8\): end it with nn.Flatten"),
        (OwnNetwork(nn.LSTM, {"input_size": 8, "hidden_size": 2}), "does not take|got tuple"),
    ],
)
def test_a_network_that_does_not_fit_the_data_is_refused_at_the_start(network, message, tmp_path):
    data = Partitioned(partition=IID(3), num_train=60)
    with pytest.raises(SetupError, match=message):
        experiment.run(FedAvg(network, rounds=1), data, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def timm_of(calls):
    """A stand-in for timm that records calls."""
    fake = types.ModuleType("timm")

    def create_model(name, **arguments):
        calls.append((name, arguments))
        return Small(width=arguments["in_chans"] + 3)

    fake.create_model = create_model
    return fake


def test_a_network_of_timm_has_no_head_and_the_channels_of_the_data(monkeypatch):
    calls = []
    monkeypatch.setitem(sys.modules, "timm", timm_of(calls))
    assert Timm("resnet18", {"drop_rate": 0.1}).width_for(IMAGES) == 4
    expected = {"pretrained": False, "num_classes": 0, "in_chans": 1, "drop_rate": 0.1}
    assert calls[0] == ("resnet18", expected)


def test_timm_is_named_where_it_is_missing_and_addresses_are_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(ImportError, match=r"fedbolic\[timm\]"):
        Timm("resnet34").width_for(IMAGES)
    with pytest.raises(ValueError, match="hf-hub"):
        Timm("hf-hub:somebody/network")
    with pytest.raises(ValueError, match="pretrained"):
        Timm("resnet18", {"pretrained": True})


def test_a_network_is_written_by_its_path():
    def call(backbone: OwnNetwork): ...

    text = describe(call, {"backbone": OwnNetwork(nn.LazyLinear, {"out_features": 3})})
    assert "module: torch.nn.modules.linear.LazyLinear" in text
