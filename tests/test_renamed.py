"""Names of earlier versions are refused with a message that gives the new name."""

import re
from importlib import import_module

import pytest

from fedbolic import renamed
from fedbolic.checksums import load_sealed, save_sealed
from fedbolic.configuration import SetupError, build
from fedbolic.data import IID, Partitioned
from fedbolic.experiment import resume, run
from fedbolic.methods import FedAvg
from fedbolic.nn.backbone import MLP
from fedbolic.report import report

DATA = Partitioned(partition=IID(2), num_train=20, num_test=10)


def found(path):
    """True if an import path exists."""
    module, _, name = path.rpartition(".")
    try:
        return hasattr(import_module(module), name) or bool(import_module(path))
    except ImportError:
        return False


@pytest.mark.parametrize("table", [renamed.CLASSES, renamed.PREFIXES])
def test_old_paths_are_gone_and_new_ones_are_there(table):
    assert [path for path in table if found(path)] == []
    assert [path for path in table.values() if not found(path)] == []


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["--method=fedbolic.federated.FedAvg"], "fedbolic.methods.FedAvg"),
        (["--method=fedbolic.baselines.Ditto"], "fedbolic.methods"),
        (["--method=fedbolic.methods.FedAvg", "--method.schedule.epochs=2"], "local"),
        (["--method=fedbolic.methods.Ditto", "--method.pull=2"], "personal_proximal"),
        (["--method=flatland.FlatLand", "--method.shrink=2"], "personal_proximal"),
        (["--evaluation.tune.epochs=2"], "fine_tuning"),
        (["--evaluation.calibrate.ridge=2"], "ridge_head"),
        (["--data=fedbolic.data.Images"], "fedbolic.data.Partitioned"),
        (["--engine=fedbolic.federated.batched.Batched"], "fedbolic.federated.engines.batched"),
    ],
)
def test_an_old_option_or_path_is_refused_with_the_new_name(words, hint):
    with pytest.raises(SetupError, match=f"is now called {re.escape(hint)}"):
        build(run, words)


@pytest.mark.parametrize(("old", "new"), renamed.METRICS.items())
def test_a_run_with_metrics_of_an_old_name_is_refused_with_the_new_one(old, new, tmp_path):
    path = run(FedAvg(MLP((4,)), rounds=1), DATA, runs=tmp_path, name="old")
    file = path / "metrics.csv"
    name = old if "/" in old else f"{old}/accuracy"
    file.write_text(file.read_text() + f"1,,{name},0.5\n")
    with pytest.raises(ValueError, match=f"{name} is now called {new}"):
        report([path])


def test_a_checkpoint_with_old_names_is_refused_as_one(tmp_path):
    path = run(FedAvg(MLP((4,)), rounds=1), DATA, runs=tmp_path, name="old")
    checkpoint = load_sealed(path / "state.pt")
    checkpoint["memories"] = checkpoint.pop("client_states")
    with (path / "state.pt").open("wb+") as file:
        save_sealed(checkpoint, file)
    with pytest.raises(ValueError, match="earlier version"):
        resume(path)


def test_an_error_about_something_else_gets_no_hint():
    assert renamed.renamed("the schedule of fedbolic.data.ImagesOfMine was tuned") == ""
