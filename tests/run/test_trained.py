"""Trained models as PyTorch modules, and their export."""

import copy
import json
import subprocess
import sys
import types

import numpy as np
import pytest
import torch
from torch import nn

import fedbolic
from fedbolic.core.rng import Rng
from fedbolic.data import IID, Arrays, Digits, Partitioned
from fedbolic.federated import LocalTraining
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import Ditto, FedAvg, Majority
from fedbolic.nn.network.backbone import MLP
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.run import experiment
from fedbolic.run.configuration import SetupError
from fedbolic.run.record import RunFolder
from hyperfed import HyperFed
from tests.command_line import refused

SETTINGS = {"backbone": MLP((4,)), "rounds": 1, "local": LocalTraining(1, 16)}
DATA = Partitioned(partition=IID(3), num_train=60, num_test=40, pool=2)


def official_test():
    """The inputs as the data set holds them, and labels, that the server is scored on."""
    parts = Digits().read(None, download=False)
    return parts.x_test[:40], parts.y_test[:40]


def recorded(folder, name, client=None):
    (value,) = [r.value for r in RunFolder(folder).rows() if r[1:3] == (client, name)]
    return value


def accuracy(model, x, y):
    return float((model(x).argmax(1) == y).double().mean())


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return experiment.run(FedAvg(**SETTINGS), DATA, runs=tmp_path_factory.mktemp("runs"))


def test_a_loaded_model_scores_what_the_run_recorded(folder):
    before = {file: file.read_bytes() for file in folder.rglob("*.*")}
    model = fedbolic.load(str(folder))
    assert isinstance(model, nn.Module)
    assert not model.training
    assert accuracy(model, *official_test()) == recorded(folder, "holdout/accuracy")
    assert {file: file.read_bytes() for file in folder.rglob("*.*")} == before


@pytest.mark.parametrize("precision", ["32-true", "64-true"])
def test_a_personal_model_scores_what_the_client_recorded(precision, tmp_path):
    runs = experiment.run(Ditto(**SETTINGS), DATA, precision=precision, runs=tmp_path)
    clients = DATA.load(Rng(0).at("data")).clients
    for client in clients:
        batch = clients[client.id].test.all()
        x = nn.functional.interpolate((batch["x"] + 1) / 2, scale_factor=2)  # before pooling
        model = fedbolic.load(runs, client=client.id)
        assert accuracy(model, x, batch["y"]) == recorded(runs, "test/accuracy", client.id)
    states = [fedbolic.load(runs, client=i).state_dict() for i in (0, 1)]
    assert any(not torch.equal(states[0][name], states[1][name]) for name in states[0])


def test_a_model_behind_a_secure_sum_is_loaded(tmp_path):
    pytest.importorskip("cryptography")
    path = experiment.run(SecureSum(FedAvg(**SETTINGS)), DATA, runs=tmp_path)
    assert accuracy(fedbolic.load(path), *official_test()) == recorded(path, "holdout/accuracy")


def test_bytes_and_floats_are_preprocessed_alike(folder):
    model, x = fedbolic.load(folder), torch.arange(192, dtype=torch.uint8).reshape(3, 1, 8, 8)
    torch.testing.assert_close(model(x), model(x / 255))


def test_a_model_is_copied_moved_and_trained_on_as_any_module(folder):
    model, (x, y) = fedbolic.load(folder), official_test()
    torch.testing.assert_close(copy.deepcopy(model).double()(x), model(x).double())
    nn.functional.cross_entropy(model(x), y).backward()
    assert all(p.grad is not None for p in model.parameters())


def test_the_global_model_needs_no_data(tmp_path):
    file, parts = tmp_path / "digits.npz", Digits().read(None, download=False)
    names = ("x_train", "y_train", "x_test", "y_test")
    np.savez(file, **{name: getattr(parts, name).numpy() for name in names})
    source = Partitioned(Arrays(file), IID(3), num_train=60, num_test=40)
    path = experiment.run(FedAvg(**SETTINGS), source, runs=tmp_path)
    before = fedbolic.load(path, client=0)(official_test()[0])
    file.unlink()
    torch.testing.assert_close(fedbolic.load(path)(official_test()[0]), before)
    with pytest.raises(SetupError, match=r"digits\.npz is not in"):
        fedbolic.load(path, client=0)


def test_a_run_of_an_earlier_version_is_loaded_with_its_data(folder, tmp_path):
    copied = tmp_path / "seed0"
    copied.mkdir()
    for file in folder.glob("*.*"):
        (copied / file.name).write_bytes(file.read_bytes())
    made = json.loads((copied / "environment.json").read_text())
    del made["data"]
    (copied / "environment.json").write_text(json.dumps(made))
    x, _ = official_test()
    assert torch.equal(fedbolic.load(copied)(x), fedbolic.load(folder)(x))


@pytest.mark.parametrize(
    ("method", "client", "message"),
    [
        (Majority(), None, "Majority has no network"),
        (FedAvg(**SETTINGS, sharing={"*": "personal"}), None, "give client=0"),
        (Majority(), 0, "Majority has no network"),
        (FedAvg(**SETTINGS), 3, r"no client 3: the ids are 0 \.\. 2"),
    ],
)
def test_a_model_that_is_not_there_is_refused(method, client, message, tmp_path):
    path = experiment.run(method, DATA, runs=tmp_path)
    with pytest.raises(SetupError, match=message):
        fedbolic.load(path, client=client)


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(SetupError, match="there is no run in"):
        fedbolic.load(tmp_path)


def test_the_package_itself_stays_light():
    code = "import fedbolic, sys; assert 'load' in dir(fedbolic); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
    with pytest.raises(AttributeError, match="lode"):
        fedbolic.lode  # noqa: B018


def test_a_graph_takes_batches_of_any_size(folder):
    model, (x, _) = fedbolic.load(folder), official_test()
    batch = torch.export.Dim("batch")
    graph = torch.export.export(model, (x[:2],), dynamic_shapes=({0: batch},)).module()
    for size in (1, 5, 40):
        torch.testing.assert_close(graph(x[:size]), model(x[:size]))


def test_the_command_saves_a_graph_and_its_card(folder, tmp_path, fedbolic):
    to, (x, _) = tmp_path / "out" / "model.pt2", official_test()
    code, out, _ = fedbolic("export", folder, "--to", to)
    assert (code, out) == (0, f"{to}\n{to.with_suffix('.json')}\n")
    model = sys.modules["fedbolic"].load(folder)
    torch.testing.assert_close(torch.export.load(to).module()(x), model(x))
    card = json.loads(to.with_suffix(".json").read_text())
    assert card["method"] == "fedbolic.methods.fedavg.FedAvg"
    assert (card["num_classes"], card["input_shape"], card["rounds"]) == (10, [1, 8, 8], 1)
    assert card["commit"] == RunFolder(folder).environment["commit"]
    refused(fedbolic("export", folder, "--to", to), names=["exists", "another name"])


def test_the_command_names_what_it_cannot_write(folder, tmp_path, fedbolic, monkeypatch):
    refused(fedbolic("export", folder, "--to", tmp_path / "m.pkl"), names=[".safetensors", ".pt2"])
    monkeypatch.setitem(sys.modules, "safetensors", None)
    monkeypatch.setitem(sys.modules, "onnxscript", None)
    for name in ("m.safetensors", "m.onnx"):
        answer = fedbolic("export", folder, "--to", tmp_path / name)
        refused(answer, names=["fedbolic[export]"])
        assert not (tmp_path / "m.json").exists()


def exported(fedbolic, folder, to, *words):
    """A session of ONNX Runtime with the exported model of a run, and the model itself."""
    runtime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    code, out, err = fedbolic("export", folder, "--to", to, *words)
    assert (code, out, err) == (0, f"{to}\n{to.with_suffix('.json')}\n", "")
    session = runtime.InferenceSession(str(to), providers=["CPUExecutionProvider"])
    client = int(words[1]) if words else None
    return session, sys.modules["fedbolic"].load(folder, client=client)


RESNET = HyperbolicResNet(dim=6, blocks=(1,), width=4)
EXPORTED = {
    "a network": (FedAvg(**SETTINGS), ()),
    "a personal network": (Ditto(**SETTINGS), ("--client", "1")),
    "prototypes on the ball": (HyperFed(**SETTINGS), ()),
    "a network on the hyperboloid": (FedAvg(**{**SETTINGS, "backbone": RESNET}), ()),
}


@pytest.mark.parametrize(
    "name",
    # every export takes seconds; a network alone is part of a personal one
    [
        pytest.param(n, marks=pytest.mark.slow if n.startswith("a network") else ())
        for n in EXPORTED
    ],
)
def test_onnx_runtime_gives_the_logits_of_batches_of_any_size(name, tmp_path, fedbolic):
    method, words = EXPORTED[name]
    folder = experiment.run(method, DATA, runs=tmp_path)
    session, model = exported(fedbolic, folder, tmp_path / "model.onnx", *words)
    (given,), (found,) = session.get_inputs(), session.get_outputs()
    assert (given.shape, given.type) == (["batch", 1, 8, 8], "tensor(float)")
    assert (found.name, found.shape) == ("logits", ["batch", 10])
    x, _ = official_test()
    for size in (1, 5, 40):
        (logits,) = session.run(["logits"], {given.name: x[:size].numpy()})
        expected = model(x[:size]).detach().numpy()
        np.testing.assert_allclose(logits, expected, rtol=1e-4, atol=1e-5)


def test_safetensors_hold_the_network_under_its_names(folder, tmp_path, fedbolic, monkeypatch):
    to, (x, _) = tmp_path / "model.safetensors", official_test()
    try:
        from safetensors.torch import load_file
    except ImportError:  # a stand-in that keeps what it is given
        kept = {}
        fake = types.ModuleType("safetensors.torch")
        fake.save_file = lambda values, file, metadata: kept.update(values) or file.touch()
        monkeypatch.setitem(sys.modules, "safetensors", types.ModuleType("safetensors"))
        monkeypatch.setitem(sys.modules, "safetensors.torch", fake)

        def load_file(file):
            return kept

    assert fedbolic("export", folder, "--to", to)[0] == 0
    body = nn.Sequential(nn.Flatten(), nn.Linear(16, 4), nn.ReLU())
    network = nn.Sequential()
    network.add_module("body", body)
    network.add_module("head", nn.Linear(4, 10))
    network.load_state_dict(load_file(to))
    expected = sys.modules["fedbolic"].load(folder)(x)
    pooled = nn.functional.avg_pool2d(2 * x - 1, 2)
    torch.testing.assert_close(network(pooled), expected)
