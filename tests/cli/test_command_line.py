"""The command line: files of a run, resuming and stopping."""

import json
import sys

import pytest
import torch
import yaml

import fedbolic.run.experiment
from fedbolic.federated import RunStoppedError, Sequential
from fedbolic.federated.contract.engine import Failure
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from tests.command_line import refused

FOLDER = {"config.yaml", "metrics.csv", "times.csv", "state.pt", "environment.json"}


def tensors(folder):
    """Every leaf of a checkpoint by its path; tensors as bytes with their dtype and shape.

    Only the checksum of the times is left out: seconds differ between runs.
    """

    def walk(value, path):
        if isinstance(value, dict):
            return [leaf for k, v in value.items() for leaf in walk(v, f"{path}/{k}")]
        if isinstance(value, torch.Tensor):
            return [(path, value.dtype, tuple(value.shape), value.numpy().tobytes())]
        return [(path, value)]

    checkpoint = torch.load(folder / "state.pt", weights_only=True)
    del checkpoint["checksums"]["times.csv"]
    return walk(checkpoint, "")


def test_a_run_leaves_a_folder_named_by_its_configuration(fedbolic, config, runs):
    code, out, err = fedbolic("run", "--config", config, "--runs", runs)
    folder = runs / "tiny" / "seed0"
    assert code == 0
    assert {file.name for file in folder.iterdir()} >= FOLDER
    assert [file.name for file in folder.parent.iterdir()] == ["seed0"]
    assert out.splitlines()[0].startswith("|")
    assert out.splitlines()[-1] == str(folder)
    assert "round 2/2" in err
    assert torch.load(folder / "state.pt", weights_only=True)["round"] == 2
    assert json.loads((folder / "environment.json").read_text())["packages"]["torch"]


def test_the_folder_holds_the_configuration_to_run_it_again(fedbolic, config, runs):
    words = ["--method.lr=0.03", "--seed=5", "--evaluation.fine_tuning.epochs=2"]
    assert fedbolic("run", "--config", config, "--runs", runs, *words)[0] == 0
    first, second = runs / "tiny" / "seed5", runs / "again" / "seed5"
    written = yaml.safe_load((first / "config.yaml").read_text())
    assert written["method"]["init_args"]["lr"] == 0.03
    assert written["name"] == "tiny"
    again = ("run", "--config", first / "config.yaml", "--name=again")
    assert fedbolic(*again)[0] == 0
    assert (second / "metrics.csv").read_bytes() == (first / "metrics.csv").read_bytes()
    assert tensors(second) == tensors(first)


def test_two_seeds_differ_and_stand_side_by_side(fedbolic, config, runs):
    for seed in (0, 1):
        assert fedbolic("run", "--config", config, "--runs", runs, f"--seed={seed}")[0] == 0
    one, other = ((runs / "tiny" / f"seed{seed}") for seed in (0, 1))
    assert (one / "metrics.csv").read_bytes() != (other / "metrics.csv").read_bytes()
    _, out, _ = fedbolic("report", runs)
    assert "±" in out
    assert out.splitlines()[2].rstrip(" |").endswith("2")  # the number of seeds


def test_a_name_is_taken_from_flag_then_file_then_stem(fedbolic, config, runs):
    one = ["--config", config, "--runs", runs, "--method.rounds=1"]
    config.write_text(f"name: inside\n{config.read_text()}")
    assert fedbolic("run", *one)[0] == 0
    assert fedbolic("run", *one, "--name=given")[0] == 0
    assert {path.name for path in runs.iterdir()} == {"inside", "given"}


def test_an_existing_run_is_refused_with_two_ways_out_and_kept(fedbolic, config, runs):
    words = ["run", "--config", config, "--runs", runs, "--method.rounds=1"]
    fedbolic(*words)
    folder = runs / "tiny" / "seed0"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    answer = fedbolic(*words, "--method.lr=0.5")
    assert refused(answer, names=[str(folder), f"fedbolic resume {folder}", "--overwrite"])
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_overwrite_replaces_all_of_a_run(fedbolic, config, runs):
    words = ["run", "--config", config, "--runs", runs, "--method.rounds=1"]
    fedbolic(*words)
    folder = runs / "tiny" / "seed0"
    (folder / "mine.txt").touch()
    before = (folder / "metrics.csv").read_bytes()
    assert fedbolic(*words, "--method.lr=0.5", "--overwrite")[0] == 0
    assert (folder / "metrics.csv").read_bytes() != before
    assert not (folder / "mine.txt").exists()
    assert "overwrite" not in yaml.safe_load((folder / "config.yaml").read_text())


def test_overwrite_keeps_the_old_run_if_the_new_one_cannot_begin(fedbolic, config, runs):
    words = ["run", "--config", config, "--runs", runs, "--overwrite", "--method.rounds=1"]
    fedbolic(*words)
    folder = runs / "tiny" / "seed0"
    before = {file: file.read_bytes() for file in folder.iterdir()}
    assert fedbolic(*words, "--data.partition.num_clients=61")[0] == 2
    assert fedbolic(*words, "--method.sharing={'tail.*': shared}")[0] == 2
    assert {file: file.read_bytes() for file in folder.iterdir()} == before


def test_resume_of_a_finished_run_says_so_and_changes_nothing(fedbolic, config, runs):
    fedbolic("run", "--config", config, "--runs", runs, "--method.rounds=1")
    folder = runs / "tiny" / "seed0"
    before = {name: (folder / name).read_bytes() for name in FOLDER}
    code, out, _ = fedbolic("resume", folder)
    assert code == 0
    assert f"{folder} is finished" in out
    assert {name: (folder / name).read_bytes() for name in FOLDER} == before


def test_the_printed_configuration_is_complete_and_gives_the_same_run(fedbolic, config, runs):
    code, out, _ = fedbolic("run", "--config", config, "--runs", runs, "--print_config")
    assert code == 0
    assert not runs.exists()
    printed = yaml.safe_load(out)
    assert printed["method"]["init_args"]["rounds"] == 2
    assert {name: printed[name] for name in ("seed", "threads", "runs", "precision")} == {
        "seed": 0, "threads": 1, "runs": str(runs), "precision": "32-true",
    }  # fmt: skip
    for option in ("overwrite", "dry_run"):  # of the command, not of the run
        printed.pop(option)
    file = config.with_name("printed.yaml")
    file.write_text(yaml.safe_dump(printed))
    assert build(run, ["--config", str(file)]) == build(
        run, ["--config", str(config), "--runs", str(runs)]
    )


class PowerError(RuntimeError):
    """Error raised by a client of these tests."""


def failing_from(round):
    """An engine's ``run`` in which all clients fail from a given round on."""
    plain = Sequential.run

    def work(self, exchange):
        for client, update, client_state in plain(self, exchange):
            path = exchange.rng.path
            now = path[path.index("round") + 1]
            yield client, Failure(PowerError("no power")) if now >= round else update, client_state

    return work


def test_a_run_without_a_usable_update_stops_with_one_line_and_its_last_good_state(
    fedbolic, config, runs, monkeypatch, caplog
):
    words = ["run", "--config", config, "--runs", runs, "--method.rounds=4"]
    assert fedbolic(*words, "--name=whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(Sequential, "run", failing_from(3))
        code, _, err = fedbolic(*words)
    assert code == 1
    assert err.splitlines()[-1].startswith("fedbolic: stopped: round 3: no client delivered")
    assert [r.getMessage() for r in caplog.records].count(
        "client 0 is left out of this exchange: PowerError: no power"
    ) == 1
    folder = runs / "tiny" / "seed0"
    assert torch.load(folder / "state.pt", weights_only=True)["round"] == 2
    # once the cause is removed, the run continues as if nothing had happened
    assert fedbolic("resume", folder)[0] == 0
    assert tensors(folder) == tensors(runs / "whole" / "seed0")


FAILING = """
from dataclasses import dataclass

from fedbolic.methods import Majority
from fedbolic.federated import Mean, Method


@dataclass(frozen=True)
class Failing(Method):
    rounds: int = 3

    aggregator = property(lambda self: Mean())

    def init(self, meta, rng):
        return {"n": 0}

    def local_update(self, message, client, client_state, rng):
        raise ValueError("no power")

    def server_update(self, state, total):
        return state

    def evaluate(self, message, client, client_state, rng):
        return {}
"""


def test_somebody_elses_failing_method_stops(fedbolic, config, runs, tmp_path, monkeypatch, caplog):
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "somebody.py").write_text(FAILING)
    config.write_text(config.read_text().replace("fedbolic.methods.FedAvg", "somebody.Failing"))
    config.write_text("\n".join(
        line for line in config.read_text().splitlines()
        if not any(word in line for word in ("backbone", "local"))
    ))  # fmt: skip
    code, out, err = fedbolic("run", "--config", config, "--runs", runs)
    assert (code, out) == (1, "")
    assert "Traceback" not in err
    assert "client 2 is left out of this exchange: ValueError: no power" in caplog.messages
    last = "stopped: round 1: no client delivered a usable update; the warnings above say why"
    assert err.splitlines()[-1] == f"fedbolic: {last}"


def test_a_step_size_beyond_all_bounds_stops_the_run(fedbolic, config, runs):
    words = ["--method.lr=1e39", "--method.rounds=9"]
    code, _, err = fedbolic("run", "--config", config, "--runs", runs, *words)
    assert code == 1
    assert err.splitlines()[-1].startswith("fedbolic: stopped: round ")


def test_what_stops_a_library_call_is_an_error_of_its_own(config, runs, monkeypatch):
    monkeypatch.setattr(Sequential, "run", failing_from(1))
    settings = build(fedbolic.run.experiment.run, ["--config", str(config), "--runs", str(runs)])
    with pytest.raises(RunStoppedError, match="round 1"):
        run(**settings)


def test_an_interrupt_says_how_to_go_on(fedbolic, config, runs, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("fedbolic.federated.trainer.Trainer.run", interrupt)
    code, out, err = fedbolic("run", "--config", config, "--runs", runs)
    assert (code, out) == (130, "")
    folder = runs / "tiny" / "seed0"
    assert err == f"fedbolic: interrupted; continue with `fedbolic resume {folder}`\n"
    code, _, err = fedbolic("resume", folder)
    assert code == 130
    assert err == f"fedbolic: interrupted; continue with `fedbolic resume {folder}`\n"
    sweep = config.with_name("sweep.yaml")
    sweep.write_text("base: tiny.yaml\nrows: {a: null, b: null}")
    words = ["sweep", "--config", str(sweep), "--runs", str(runs)]
    code, _, err = fedbolic(*words, "--overwrite")
    assert code == 130
    assert err == f"fedbolic: interrupted; continue with `fedbolic {' '.join(words)}`\n"
    assert not (runs / "sweep" / "b" / "seed0").exists()


def test_an_interrupt_before_anything_began_says_so(fedbolic, config, runs, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    fedbolic("run", "--config", config, "--runs", runs, "--method.rounds=1")
    monkeypatch.setattr("fedbolic.data.Partitioned.load", interrupt)
    words = ("run", "--config", config, "--runs", runs)
    for more in (["--name=new"], ["--overwrite"]):  # neither goes on with the old run
        code, _, err = fedbolic(*words, *more)
        assert (code, err) == (130, "fedbolic: interrupted; the run had not started\n")


INTERRUPTED = """
import os, signal
try:
    os.kill(os.getpid(), signal.SIGINT)
    for _ in range(10**7):
        pass
except BaseException as error:
    raise ImportError("a package that was halfway through its import") from error
"""


def test_an_interrupt_while_importing_is_one_line(process, tmp_path):
    (tmp_path / "jsonargparse.py").write_text(INTERRUPTED)
    started = process("report", "runs", path=[tmp_path], first=True)
    assert started.communicate(timeout=60) == (
        "",
        "fedbolic: interrupted before anything began\n",
    )
    assert started.returncode == 130


OWN = """
from dataclasses import dataclass

from fedbolic.data import IID


@dataclass(frozen=True)
class Own(IID):
    pass
"""


def test_classes_of_the_folder_one_stands_in_are_found_after_all_others(
    fedbolic, config, tmp_path, monkeypatch
):
    """The installed command lacks this folder on the path: Python adds it for ``-m`` only."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "mine_alone.py").write_text(OWN)
    monkeypatch.chdir(here)
    installed = [folder for folder in sys.path if folder not in ("", str(here))]
    monkeypatch.setattr(sys, "path", list(installed))
    words = ["--data.partition=mine_alone.Own", "--data.partition.num_clients=2", "--print_config"]
    code, out, _ = fedbolic("run", "--config", config, *words)
    assert code == 0
    assert yaml.safe_load(out)["data"]["init_args"]["partition"]["class_path"] == "mine_alone.Own"
    assert sys.path == [*installed, str(here)]
    fedbolic("run", "--config", config, *words)
    assert sys.path == [*installed, str(here)]
