"""Loggers of a run: each gets the keywords it wants, the numbers and the hyper-parameters."""

import contextlib
import csv
import importlib
import importlib.machinery
import sqlite3
import sys
import types

import pytest
import yaml
from lightning.fabric.loggers.logger import Logger

from fedbolic.data import IID, Partitioned
from fedbolic.federated import LocalTraining, RunStoppedError
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.configuration import SetupError, build, describe
from fedbolic.run.experiment import resume, run
from fedbolic.run.loggers import LOGGERS, PACKAGES, LoggerSettings

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
METHOD = FedAvg(backbone=MLP((4,)), rounds=2, local=LocalTraining(epochs=1, batch_size=16))


class Recorder(Logger):
    """A logger that keeps what it is given."""

    made: list["Recorder"] = []  # noqa: RUF012
    fails = False

    def __init__(self, *args, **kwargs):
        if self.fails:
            raise OSError("no network")
        self.given = (args, kwargs)
        self.metrics, self.params, self.status = [], None, None
        self.experiment = types.SimpleNamespace(finish=lambda exit_code: None)
        self.made.append(self)

    @property
    def name(self):
        return "recorder"

    @property
    def version(self):
        return 0

    def log_metrics(self, metrics, step=None):
        self.metrics.append((step, dict(metrics)))

    def log_hyperparams(self, params, *args, **kwargs):
        self.params = dict(params)

    def finalize(self, status):
        self.status = status


@pytest.fixture
def recorded(monkeypatch):
    """Stand-ins for the loggers of Lightning with the signatures of the real ones."""
    monkeypatch.setattr(Recorder, "made", [])
    module = importlib.import_module("lightning.pytorch.loggers")
    for path in LOGGERS.values():
        name = path.rpartition(".")[2]
        real = getattr(module, name)
        fake = type(name, (Recorder,), {"__module__": real.__module__})
        fake.__signature__ = importlib.import_module("inspect").signature(real)
        monkeypatch.setattr(module, name, fake)
    for packages in PACKAGES.values():
        for package in packages:
            fake = types.ModuleType(package)
            fake.__spec__ = importlib.machinery.ModuleSpec(package, None)
            monkeypatch.setitem(sys.modules, package, fake)
    return Recorder.made


@pytest.mark.parametrize("name", LOGGERS)
def test_a_logger_gets_the_folder_the_numbers_and_the_hyperparameters(name, recorded, tmp_path):
    path = run(METHOD, DATA, runs=tmp_path, name="mine", loggers=(name,))
    (logger,) = recorded
    args, kwargs = logger.given
    assert str(path) in str([*args, *kwargs.values()])
    if name in ("wandb", "mlflow", "comet"):
        assert "mine/seed0" in (kwargs.get("name"), kwargs.get("run_name"), *kwargs.values())
        assert "fedbolic" in kwargs.values()
    assert [step for step, _ in logger.metrics] == [1, 2]
    assert "holdout/accuracy" in logger.metrics[0][1]
    assert logger.params["method"] == "fedbolic.methods.fedavg.FedAvg"
    assert (logger.params["method.lr"], logger.params["seed"]) == (0.1, 0)
    assert logger.params["method.backbone.widths"] == "[4]"
    assert logger.status == "success"


def test_arguments_of_the_user_replace_the_defaults(recorded, tmp_path):
    chosen = LoggerSettings("wandb", {"project": "theirs", "offline": True})
    run(METHOD, DATA, runs=tmp_path, loggers=(chosen,))
    (logger,) = recorded
    assert (logger.given[1]["project"], logger.given[1]["offline"]) == ("theirs", True)


def test_arguments_are_written_and_read_back(tmp_path):
    given = {"loggers": ("csv", LoggerSettings("csv", {"flush_logs_every_n_steps": 1}))}
    file = tmp_path / "config.yaml"
    file.write_text(describe(run, given))
    assert build(run, ["--config", str(file)])["loggers"] == given["loggers"]


def test_the_csv_logger_of_lightning_writes_both(tmp_path):
    path = run(METHOD, DATA, runs=tmp_path, loggers=("csv",))
    (metrics,) = path.rglob("lightning_logs/*/metrics.csv")
    with metrics.open() as file:
        assert [row["step"] for row in csv.DictReader(file)] == ["1", "2"]
    (params,) = path.rglob("hparams.yaml")
    assert yaml.safe_load(params.read_text())["method.rounds"] == 2


def test_the_tensorboard_logger_writes_events(tmp_path):
    pytest.importorskip("tensorboard")
    path = run(METHOD, DATA, runs=tmp_path, loggers=("tensorboard",))
    assert list(path.rglob("events.out.tfevents.*"))


@pytest.mark.filterwarnings("ignore")  # those of other packages
def test_weights_and_biases_keeps_each_run_apart_offline(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    for seed in (0, 1):
        path = run(METHOD, DATA, runs=tmp_path, seed=seed, loggers=("wandb",))
        (kept,) = path.rglob("run-*.wandb")
        assert b"holdout/accuracy" in kept.read_bytes()


@pytest.mark.filterwarnings("ignore")
def test_mlflow_keeps_a_run_in_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("mlflow")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    path = run(METHOD, DATA, runs="runs", loggers=("mlflow",))
    with contextlib.closing(sqlite3.connect(path / "mlflow.db")) as kept:
        steps = kept.execute("select step from metrics where key = 'holdout/accuracy'").fetchall()
        rate = kept.execute("select value from params where key = 'method.lr'").fetchall()
    assert (sorted(steps), rate) == ([(1,), (2,)], [("0.1",)])
    assert [entry.name for entry in tmp_path.iterdir()] == ["runs"]


@pytest.mark.parametrize("name", [n for n in LOGGERS if n != "csv"])
def test_a_package_that_is_missing_is_named_before_anything_is_written(name, tmp_path, monkeypatch):
    monkeypatch.setattr("fedbolic.run.loggers.find_spec", lambda package: None)
    with pytest.raises(SetupError, match=r"needs \w+: pip install"):
        run(METHOD, DATA, runs=tmp_path / "runs", loggers=(name,))
    assert not (tmp_path / "runs").exists()


def test_an_argument_that_a_logger_does_not_take_is_refused(tmp_path):
    chosen = LoggerSettings("csv", {"projekt": "x"})
    with pytest.raises(SetupError, match="projekt"):
        run(METHOD, DATA, runs=tmp_path / "runs", loggers=(chosen,))
    assert not (tmp_path / "runs").exists()


def test_a_run_whose_logger_cannot_start_goes_on_later(recorded, tmp_path, monkeypatch):
    whole = run(METHOD, DATA, runs=tmp_path, name="whole", loggers=("comet",))
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "fails", True)
        with pytest.raises(RunStoppedError, match=r"no network.*fedbolic resume"):
            run(METHOD, DATA, runs=tmp_path, name="cut", loggers=("comet",))
    assert resume(tmp_path / "cut" / "seed0")
    metrics = [
        (tmp_path / name / "seed0" / "metrics.csv").read_bytes() for name in ("cut", "whole")
    ]
    assert metrics[0] == metrics[1]
    assert (whole / "state.pt").exists()
