"""A run from settings: precision, loggers, callbacks, and the cases that resume refuses."""

import csv
import functools
import json

import numpy as np
import pytest
import torch

pytest.importorskip("jsonargparse")

from fedbolic.core import tree
from fedbolic.core.figure import DiscFigure, EmbeddingFigure, read_figure
from fedbolic.core.rng import Rng
from fedbolic.data import IID, Partitioned
from fedbolic.federated import Clip, Cohort, LocalTraining, Mean, Median
from fedbolic.methods import Ditto, FedAvg, Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.run import record
from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder
from tests.federated.simple_method import Showing

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
METHOD = FedAvg(backbone=MLP((4,)), rounds=2, local=LocalTraining(epochs=1, batch_size=16))
SHOWING = Showing(**vars(METHOD))


@pytest.fixture(autouse=True)
def _one_thread():
    yield
    torch.set_num_threads(1)


def state_of(path):
    return RunFolder(path).load()


def dtypes(path):
    return {
        leaf.dtype
        for kept in (state_of(path)["server_state"], *state_of(path)["client_states"].values())
        for leaf in tree.tensors(kept).values()
        if leaf.is_floating_point()
    }


@pytest.mark.parametrize(
    ("precision", "dtype"),
    [("64-true", torch.float64), ("32-true", torch.float32), ("bf16-mixed", torch.float32)],
)
@pytest.mark.parametrize("kind", [Ditto, Scaffold])
def test_precision_is_that_of_every_number_kept(precision, dtype, kind, tmp_path):
    method = kind(backbone=MLP((4,)), rounds=1, local=METHOD.local)
    path = run(method, DATA, precision=precision, runs=tmp_path)
    assert dtypes(path) == {dtype}
    assert state_of(path)["client_states"].keys() == {0, 1, 2}


def test_bf16_mixed_computes_in_less(tmp_path):
    paths = [
        run(METHOD, DATA, precision=precision, runs=tmp_path, name=precision)
        for precision in ("32-true", "bf16-mixed")
    ]
    exact, rough = (tree.tensors(state_of(path)["server_state"]["parameters"]) for path in paths)
    assert all(torch.allclose(exact[name], rough[name], atol=0.05) for name in exact)
    assert not all(torch.equal(exact[name], rough[name]) for name in exact)


def test_double_precision_is_single_precision_up_to_rounding(tmp_path):
    paths = [
        run(METHOD, DATA, precision=precision, runs=tmp_path, name=precision)
        for precision in ("32-true", "64-true")
    ]
    single, double = (tree.tensors(state_of(path)["server_state"]["parameters"]) for path in paths)
    for name in single:
        torch.testing.assert_close(single[name].double(), double[name], rtol=1e-4, atol=1e-5)


def test_folders_may_be_strings(tmp_path):
    path = run(METHOD, DATA, runs=str(tmp_path / "of strings"), name="a")
    assert path == tmp_path / "of strings" / "a" / "seed0"
    assert resume(str(path)) is False
    again = run(METHOD, DATA, runs=tmp_path, name="b")
    assert (again / "metrics.csv").read_bytes() == (path / "metrics.csv").read_bytes()


def test_threads_are_those_that_were_asked_for(tmp_path):
    seen = []

    class Watch:
        def on_run_start(self, round, rounds):
            seen.append(torch.get_num_threads())

    path = run(METHOD, DATA, threads=2, runs=tmp_path, callbacks=[Watch()])
    assert seen == [2]
    assert RunFolder(path).environment["threads"] == 2


def test_the_environment_says_how_the_numbers_were_made(tmp_path):
    found = RunFolder(run(METHOD, DATA, device="cpu", runs=tmp_path)).environment
    assert found["engine"] == "Sequential"
    assert (found["precision"], found["device"]) == ("32-true", "cpu")
    assert found["packages"].keys() >= {"torch", "fedbolic"}


def test_a_logger_gets_the_numbers_of_the_federation(tmp_path):
    path = run(METHOD, DATA, runs=tmp_path, loggers=("lightning.fabric.loggers.CSVLogger",))
    (file,) = path.rglob("lightning_logs/**/metrics.csv")
    with file.open(newline="") as stream:
        logged = {int(row.pop("step")): row for row in csv.DictReader(stream)}
    assert logged.keys() == {1, 2}
    for row in RunFolder(path).rows():
        if row.client is None:
            assert float(logged[row.round][row.name]) == row.value
    assert RunFolder(path).rows()[-1].round == 2


class Log:
    """A callback that records its calls."""

    def __init__(self):
        self.calls = []

    def on_run_start(self, round, rounds):
        self.calls.append(("start", round, rounds))

    def on_round_end(self, round, rounds, rows):
        self.calls.append(("round", round, rounds))
        assert {row.round for row in rows} == {round}

    def on_run_end(self):
        self.calls.append(("end",))


class RaisesError(RuntimeError):
    """Error raised by a callback of these tests."""


class Raises:
    """A callback that ends a run after its first round."""

    def on_round_end(self, round, rounds, rows):
        raise RaisesError


def test_callbacks_are_called_at_start_every_round_and_end(tmp_path):
    log = Log()
    path = run(METHOD, DATA, runs=tmp_path, callbacks=[log])
    assert log.calls == [("start", 0, 2), ("round", 1, 2), ("round", 2, 2), ("end",)]
    assert resume(path, callbacks=[log]) is False
    assert len(log.calls) == 4


def test_callbacks_hear_of_the_end_of_a_run_that_failed_and_where_it_goes_on(tmp_path):
    log = Log()
    with pytest.raises(RaisesError):
        run(METHOD, DATA, runs=tmp_path, callbacks=[log, Raises()])
    assert log.calls == [("start", 0, 2), ("round", 1, 2), ("end",)]
    again = Log()
    assert resume(tmp_path / "run" / "seed0", callbacks=[again]) is True
    assert again.calls == [("start", 1, 2), ("round", 2, 2), ("end",)]


@pytest.mark.parametrize(
    ("name", "value"),
    [("engine", "Batched"), ("threads", 4), ("precision", "64-true"), ("device", "cuda")],
)
def test_resume_refuses_another_arithmetic_and_names_it(name, value, tmp_path):
    with pytest.raises(RaisesError):
        run(METHOD, DATA, runs=tmp_path, callbacks=[Raises()])
    folder = tmp_path / "run" / "seed0"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    file = folder / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), name: value}))
    with pytest.raises(SetupError, match="another arithmetic") as caught:
        resume(folder)
    assert repr(name) in str(caught.value)
    assert repr(value) in str(caught.value)
    before[file] = file.read_bytes()
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_resume_refuses_other_versions(tmp_path):
    with pytest.raises(RaisesError):
        run(METHOD, DATA, runs=tmp_path, callbacks=[Raises()])
    file = tmp_path / "run" / "seed0" / "environment.json"
    changed = json.loads(file.read_text())
    changed["packages"]["torch"] = "1.13.0"
    file.write_text(json.dumps(changed))
    with pytest.raises(SetupError, match=r"1\.13\.0"):
        resume(file.parent)


def test_resume_allows_another_machine(tmp_path):
    with pytest.raises(RaisesError):
        run(METHOD, DATA, runs=tmp_path, callbacks=[Raises()])
    file = tmp_path / "run" / "seed0" / "environment.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "python": "3.0", "machine": "x"}))
    assert resume(file.parent) is True


def test_resume_needs_a_run(tmp_path):
    with pytest.raises(SetupError, match="there is no run in"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_resume_goes_on_where_the_folder_was_moved(tmp_path):
    whole = run(METHOD, DATA, runs=tmp_path, name="whole")
    with pytest.raises(RaisesError):
        run(METHOD, DATA, runs=tmp_path, name="cut", callbacks=[Raises()])
    moved = (tmp_path / "cut").rename(tmp_path / "moved") / "seed0"
    assert resume(moved) is True
    assert (moved / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert not (tmp_path / "cut").exists()


def test_a_finished_run_may_be_looked_at_with_a_torn_tail(tmp_path):
    path = run(METHOD, DATA, runs=tmp_path)
    whole = (path / "metrics.csv").read_bytes()
    with (path / "metrics.csv").open("a") as file:
        file.write("3,,x")
    assert resume(path) is False
    assert (path / "metrics.csv").read_bytes() == whole


def test_the_default_name_is_run_and_the_seed_its_folder(tmp_path):
    assert run(METHOD, DATA, seed=7, runs=tmp_path) == tmp_path / "run" / "seed7"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"threads": 0}, "threads must be at least 1, got 0"),
        ({"data": Partitioned(partition=IID(61), num_train=60)}, "61 clients cannot share 60"),
        ({"method": FedAvg(sharing={"tail": "shared"})}, "no pattern of sharing"),
        ({"loggers": ("nowhere.Logger",)}, "nowhere"),
    ],
)
def test_what_cannot_begin_is_refused_and_nothing_is_written(settings, message, tmp_path):
    with pytest.raises(SetupError, match=message):
        run(**{"method": METHOD, "data": DATA, **settings}, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_channel_that_does_not_fit_is_refused_and_nothing_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(FedAvg, "aggregator", property(lambda self: Median()))
    monkeypatch.setattr(Clip, "needs_additive", property(lambda self: True))
    with pytest.raises(SetupError, match=r"Clip needs an aggregator that sums.*FedAvg uses Median"):
        run(METHOD, DATA, channels=(Clip(1.0),), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
    monkeypatch.setattr(FedAvg, "aggregator", property(lambda self: Mean()))
    assert run(METHOD, DATA, channels=(Clip(1.0),), runs=tmp_path / "runs").exists()


def test_channels_and_cohorts_reach_the_training(tmp_path):
    path = run(
        METHOD, DATA, channels=(Clip(1e-3),), cohort=Cohort(0.3), runs=tmp_path, name="clipped"
    )
    rows = RunFolder(path).rows()
    assert {row.value for row in rows if row.name == "clients/asked"} == {1.0}
    factors = [row for row in rows if row.name == "clip/factor" and row.client is not None]
    assert len(factors) == 2
    assert all(row.value < 1 for row in factors)


def weights(server_state, data):
    """Figures that show the server state and data they are made from."""
    weight = server_state["parameters"]["head.weight"]  # one row per class
    labels = torch.arange(len(weight), device=weight.device)
    inputs = data.holdout.test.tensors["x"].flatten(1)
    return {
        "heads": DiscFigure(0.9 * torch.nn.functional.normalize(weight[:, :2]), labels),
        "inputs": EmbeddingFigure(inputs, data.holdout.test.tensors["y"], of="pixels"),
    }


@pytest.fixture
def asked(monkeypatch):
    """Give a method figures; return the list of the requested ones, in order."""
    log = []

    def figures(self, server_state, data):
        assert not torch.is_grad_enabled()
        log.append(weights(server_state, data))
        return log[-1]

    monkeypatch.setattr(Showing, "figures", figures)
    return log


def assert_saved(path, figures):
    files = {file.stem: file for file in RunFolder(path).figures()}
    assert files.keys() == figures.keys()
    for name, file in files.items():
        with np.load(file, allow_pickle=False) as arrays:
            assert np.array_equal(arrays["points"], figures[name].points.numpy())
            assert np.array_equal(arrays["labels"], figures[name].labels.numpy())
        assert type(read_figure(file)) is type(figures[name])


def test_figures_are_of_the_last_round_and_asked_for_once(asked, tmp_path):
    path = run(SHOWING, DATA, runs=tmp_path)
    (figures,) = asked
    assert_saved(path, figures)
    assert_saved(path, weights(state_of(path)["server_state"], DATA.load(Rng(0).at("data"))))
    assert resume(path) is False
    assert len(asked) == 1


def test_figures_change_no_measurement(tmp_path, request):
    without = run(SHOWING, DATA, runs=tmp_path, name="without")
    request.getfixturevalue("asked")
    path = run(SHOWING, DATA, runs=tmp_path, name="with")
    assert (path / "metrics.csv").read_bytes() == (without / "metrics.csv").read_bytes()
    assert not (without / "figures").exists()
    assert {file.name for file in path.iterdir()} == {
        "figures",
        *(file.name for file in without.iterdir()),
    }


def test_a_run_that_was_stopped_saves_its_figures_when_it_is_resumed(asked, tmp_path):
    whole = run(SHOWING, DATA, runs=tmp_path, name="whole")
    with pytest.raises(RaisesError):
        run(SHOWING, DATA, runs=tmp_path, name="cut", callbacks=[Raises()])
    cut = tmp_path / "cut" / "seed0"
    assert len(asked) == 1
    assert not (cut / "figures").exists()
    assert resume(cut) is True
    assert_saved(cut, asked[0])
    assert [file.name for file in (cut / "figures").iterdir()] == [
        file.name for file in (whole / "figures").iterdir()
    ]


@pytest.mark.parametrize(
    ("place", "name"), [(RunFolder, "save_figures"), (record.figure, "write_figure")]
)
def test_a_run_killed_between_its_end_and_its_figures_saves_them_later(
    place, name, asked, tmp_path, monkeypatch
):
    def die(*arguments):
        raise KeyboardInterrupt  # not an Exception, like a kill

    with monkeypatch.context() as patch:
        patch.setattr(place, name, die)
        with pytest.raises(KeyboardInterrupt):
            run(SHOWING, DATA, runs=tmp_path)
    path = tmp_path / "run" / "seed0"
    assert RunFolder(path).figures() == []
    assert state_of(path)["round"] == 2
    assert resume(path) is False  # no round is left
    assert_saved(path, asked[0])
    assert not (path / "figures.draft").exists()


OUTSIDE = functools.partial(DiscFigure, torch.full((1, 2), 9.0), torch.zeros(1).long())


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        (lambda self, state, data: 1 / 0, "division by zero"),
        (lambda self, state, data: {"../heads": weights(state, data)["heads"]}, "be file names"),
        (lambda self, state, data: {"a": OUTSIDE()}, "unit disc"),
    ],
)
def test_figures_that_fail_are_a_warning_and_the_run_is_whole(
    figures, message, tmp_path, monkeypatch, caplog
):
    whole = run(SHOWING, DATA, runs=tmp_path, name="whole")
    monkeypatch.setattr(Showing, "figures", figures)
    path = run(SHOWING, DATA, runs=tmp_path, name="failing")
    (warning,) = caplog.records
    assert warning.levelname == "WARNING"
    assert str(path) in warning.getMessage()
    assert message in caplog.text
    assert (path / "metrics.csv").read_bytes() == (whole / "metrics.csv").read_bytes()
    assert state_of(path)["round"] == 2
    assert not list(path.rglob("figures*"))
    assert not list(tmp_path.rglob("heads*"))


@pytest.mark.gpu
def test_a_run_on_a_gpu_is_that_on_a_cpu_up_to_rounding(tmp_path):
    paths = [
        run(METHOD, DATA, device=device, precision="64-true", runs=tmp_path, name=device)
        for device in ("cpu", "cuda")
    ]
    ours, theirs = (tree.tensors(state_of(path)["server_state"]["parameters"]) for path in paths)
    for name in ours:
        assert theirs[name].is_cuda
        torch.testing.assert_close(ours[name], theirs[name].cpu(), rtol=1e-9, atol=1e-9)
    assert RunFolder(paths[1]).environment["cuda"]
