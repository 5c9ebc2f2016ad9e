"""Flags that determine a GPU's results to the last bit: set, recorded and compared."""

import json
import os

import pytest
import torch

pytest.importorskip("jsonargparse")

from fedbolic.data import IID, Partitioned
from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP, ConvNet
from fedbolic.run.computing import arithmetic
from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder
from fedbolic.run.reproducible import arithmetic_of, environment, reproducible

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
METHOD = FedAvg(backbone=MLP((4,)), rounds=2, local=LocalTraining(epochs=1, batch_size=16))

IN_FORCE = {
    "deterministic_algorithms": True,
    "cudnn_deterministic": True,
    "cudnn_benchmark": False,
    "cudnn_tf32": False,
    "matmul_precision": "highest",
}


def flags():
    """The current flags of torch."""
    return {
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_deterministic": torch.backends.cudnn.deterministic,
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "cudnn_tf32": torch.backends.cudnn.allow_tf32,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


@pytest.fixture
def gpu(monkeypatch):
    """A device that reports the name of a GPU; nothing is computed on it."""
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: "Tested 9000")
    return torch.device("cuda")


def test_on_a_gpu_flags_are_those_of_a_second_run_and_afterwards_those_of_before(gpu, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    before = flags()
    with reproducible(gpu):
        assert flags() == IN_FORCE
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] in (":4096:8", ":16:8")  # NVIDIA's values
    assert flags() == before
    with pytest.raises(ZeroDivisionError), reproducible(gpu):
        raise ZeroDivisionError
    assert flags() == before


def test_with_tf32_only_products_are_less_exact_than_in_a_usual_run(gpu):
    before = flags()
    with reproducible(gpu), arithmetic("tf32", gpu):
        assert flags() == {**IN_FORCE, "cudnn_tf32": True, "matmul_precision": "high"}
        assert torch.get_default_dtype() == torch.float32
    assert flags() == before


def test_tf32_errs_by_no_more_than_is_stated():
    generator = torch.Generator().manual_seed(0)
    x, y = (torch.randn(64, 64, generator=generator) for _ in range(2))
    for cut in (False, True):
        a, b = (as_tf32(z, cut=cut).double() for z in (x, y))
        bound = 2**-9 * (x.double().abs() @ y.double().abs())
        error = (a @ b - x.double() @ y.double()).abs()
        assert (error <= bound).all()
        assert error.max() > 2**-15 * bound.max() / 2**-9


def as_tf32(x, *, cut):
    """Numbers with the 11 bits of TF32, rounded or cut off."""
    bits = x.view(torch.int32)
    bits = bits if cut else bits + 2**12
    return (bits & -(2**13)).view(torch.float32)


def test_tf32_is_refused_on_a_cpu(tmp_path):
    with pytest.raises(SetupError, match="CUDA device: use --precision=32-true"):
        run(METHOD, DATA, device="cpu", precision="tf32", runs=tmp_path)


def test_on_a_cpu_nothing_is_set(monkeypatch):
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG", raising=False)
    before = flags()
    with reproducible(torch.device("cpu")):
        assert flags() == before
        assert "CUBLAS_WORKSPACE_CONFIG" not in os.environ
    assert arithmetic_of(torch.device("cpu")) == {"device": "cpu"}


def test_a_gpu_is_written_down_by_its_name_with_the_flags_in_force(gpu):
    with reproducible(gpu):
        told = arithmetic_of(gpu)
        assert told["cuda_flags"].items() >= flags().items()
    assert (told["device"], told["gpu"]) == ("cuda", "Tested 9000")
    assert told["cuda_flags"]["cublas_workspace"] == os.environ["CUBLAS_WORKSPACE_CONFIG"]
    assert told["cuda_flags"]["cudnn"] == torch.backends.cudnn.version()
    assert json.loads(json.dumps(told)) == told


class CutError(RuntimeError):
    """Error that ends a run of these tests."""


class Cut:
    """A callback that ends a run after its first round."""

    def on_round_end(self, round, rounds, rows):
        raise CutError


@pytest.mark.parametrize("changed", [{"gpu": "Tested 9000"}, {"cuda_flags": IN_FORCE}])
def test_resume_refuses_another_gpu_and_other_flags(changed, tmp_path):
    with pytest.raises(CutError):
        run(METHOD, DATA, device="cpu", runs=tmp_path, callbacks=[Cut()])
    folder = tmp_path / "run" / "seed0"
    file = folder / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changed}))
    with pytest.raises(SetupError, match="another arithmetic") as caught:
        resume(folder)
    ((name, value),) = changed.items()
    assert f"{name!r}: ({value!r}, None)" in str(caught.value)


@pytest.mark.gpu
def test_two_runs_on_a_gpu_are_equal_byte_for_byte(tmp_path):
    method = FedAvg(backbone=ConvNet(), rounds=2, local=LocalTraining(epochs=2, batch_size=16))
    paths = [run(method, DATA, device="cuda", runs=tmp_path, name=name) for name in "ab"]
    assert len({(path / "metrics.csv").read_bytes() for path in paths}) == 1
    made = RunFolder(paths[0]).environment
    assert made["gpu"] == torch.cuda.get_device_name()
    assert made["cuda_flags"].items() >= IN_FORCE.items()
    assert not torch.are_deterministic_algorithms_enabled()
    with pytest.raises(CutError):
        run(method, DATA, device="cuda", runs=tmp_path, name="cut", callbacks=[Cut()])
    assert resume(tmp_path / "cut" / "seed0") is True
    cut = (tmp_path / "cut" / "seed0" / "metrics.csv").read_bytes()
    assert cut == (paths[0] / "metrics.csv").read_bytes()


def test_the_environment_names_versions_beside_what_is_asked():
    found = environment(threads=3, engine="Sequential")
    assert (found["threads"], found["engine"]) == (3, "Sequential")
    assert torch.__version__.startswith(found["packages"]["torch"])
    assert json.loads(json.dumps(found)) == found
