"""Invalid command lines: one clear line says what is wrong, and no file is written."""

import gzip
import hashlib
import json
import os
import pickle
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from fedbolic.run.configuration import SetupError, build
from fedbolic.run.experiment import run
from tests.command_line import ROOT, refused

DOORS = {
    "unknown flag": (["--nonsense=3"], ["--nonsense"]),
    "unknown flag of a class": (["--method.nonsense=3"], ["method", "nonsense"]),
    "stray word": (["stray"], ["stray"]),
    "a word for a number": (["--method.rounds=many"], ["rounds", "int", "many"]),
    "a word for the seed": (["--seed=x"], ["seed", "int", "x"]),
    "no such choice": (["--device=tpu"], ["device", "cpu", "tpu"]),
    "negative lr": (["--method.lr=-1"], ["lr must be a positive number", "-1"]),
    "rate above 1": (["--cohort.rate=1.5"], ["rate must lie in [0, 1]", "1.5"]),
    "no thread": (["--threads=0"], ["threads must be at least 1", "0"]),
    "unknown module": (["--method=nowhere.FedAvg"], ["method", "nowhere"]),
    "unknown class": (["--method=fedbolic.federated.FedAvgg"], ["method", "FedAvgg"]),
    "class of another kind": (["--method=fedbolic.federated.Cohort"], ["Cohort", "Method"]),
    "too many clients": (
        ["--data.partition.num_clients=61"],
        ["61 clients cannot share 60 examples", "ask for 60 or fewer"],
    ),
    "too many examples": (["--data.num_train=9999"], ["num_train is 9999", "1352"]),
    "missing data file": (
        ["--data.dataset=fedbolic.data.Arrays", "--data.dataset.path=nowhere.npz"],
        ["nowhere.npz is not in", "give the path"],
    ),
    "a table that matches nothing": (
        ["--method.sharing={'tail.*': shared}"],
        ["no pattern of sharing", "body.1.weight"],
    ),
    "a network for other inputs": (
        ["--method.backbone=fedbolic.nn.network.backbone.ConvNet", "--data.pool=8"],
        ["ConvNet needs images", "use MLP"],
    ),
    "unknown logger": (["--loggers=[nowhere.Logger]"], ["nowhere.Logger", "No module"]),
    "a logger without module": (["--loggers=[Logger]"], ["Logger", "cannot be created"]),
    "a logger that is none": (["--loggers=[torch.nn.Linear]"], ["Linear", "cannot be created"]),
    "a logger that is a function": (["--loggers=[torch.load]"], ["torch.load", "not a subclass"]),
    "a logger of another kind": (
        ["--loggers=[fedbolic.methods.FedAvg]"],
        ["FedAvg", "not a subclass of lightning.fabric.loggers.logger.Logger"],
    ),
    "a logger that is a program": (["--loggers=[pip.__main__.sys]"], ["would run a program"]),
    "a logger that is no path": (["--loggers=['os;system.x']"], ["not an import path of a class"]),
    "a name that leaves the folder": (["--name=../../x"], ["name must stay inside", "../../x"]),
    "an absolute name": (["--name=/x"], ["name must stay inside", "/x"]),
    "no configuration": (["--config=nowhere.yaml"], ["nowhere.yaml", "not exist"]),
}


@pytest.mark.parametrize(("words", "names"), DOORS.values(), ids=DOORS)
def test_what_is_wrong_is_said_in_one_line_and_nothing_is_written(
    words, names, fedbolic, config, runs
):
    assert refused(fedbolic("run", "--config", config, "--runs", runs, *words), names=names)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("option", "example"),
    [
        ("--method.rounds=1", "--method=FedAvg,"),
        ("--data.num_train=10", "--data=Partitioned,"),
        ("--engine.workers=2", "--engine=Sequential,"),
        ("--method=fedbolic.federated.Method", "--method=FedAvg,"),
    ],
)
def test_options_without_a_class_are_refused_with_one_that_has_options(
    option, example, fedbolic, runs
):
    for command in ("run", "flower"):
        answer = fedbolic(command, "--runs", runs, option)
        assert refused(answer, names=["must name a class that can be created", example])
    with pytest.raises(SetupError, match=re.escape(example)):
        build(run, [option])


SPELLS = {
    "a command": (
        'loggers: [os.system]\nname: "x;touch PWNED;#"',
        ["os.system", "a module of Python itself"],
    ),
    "a command for a method": (
        "method: {class_path: os.system, init_args: {command: touch PWNED}}",
        ["os.system", "not allowed"],
    ),
    "a process for a method": (
        "method: {class_path: subprocess.Popen, init_args: {args: [touch, PWNED]}}",
        ["subprocess.Popen", "not allowed"],
    ),
    "a file for an engine": ("engine: {class_path: io.FileIO, init_args: {file: PWNED, mode: w}}",
                             ["io.FileIO", "not allowed"]),
    "a method within a method": (
        "method: {class_path: fedbolic.methods.FedAvg, init_args: {backbone: "
        "{class_path: subprocess.Popen, init_args: {args: [touch, PWNED]}}}}",
        ["subprocess.Popen"],
    ),
    "a module that acts": ("data: {class_path: this.that}", ["this.that", "not allowed"]),
    "a logger that acts": ("loggers: [this.that]", ["this.that", "a module of Python itself"]),
    "a class of another kind": ("data: {class_path: torch.nn.Linear, init_args: "
                                "{in_features: 1, out_features: 1}}", ["torch.nn.Linear"]),
}  # fmt: skip


def backbone(kind, arguments):
    """A configuration with a backbone of another package."""
    kind = f"fedbolic.nn.network.own_network.{kind}"
    return (
        "method: {class_path: fedbolic.methods.FedAvg, init_args: {backbone: "
        f"{{class_path: {kind}, init_args: {{{arguments}}}}}}}}}"
    )


TOUCH = "{class_path: os.system, init_args: {command: touch PWNED}}"
SPELLS |= {
    "a command for a network": (
        backbone("OwnNetwork", "module: os.system, arguments: {command: touch PWNED}"),
        ["os is a module of Python itself"],
    ),
    "a module that acts for a network": (backbone("OwnNetwork", "module: this.that"), ["this"]),
    "a function for a network": (
        backbone("OwnNetwork", "module: torch.hub.load, arguments: {repo_or_dir: a, model: b}"),
        ["torch.hub.load", "not a subclass of torch.nn.modules.module.Module"],
    ),
    "a command among the arguments of a network": (
        backbone("OwnNetwork", f"module: torch.nn.Flatten, arguments: {{start_dim: {TOUCH}}}"),
        ["Flatten"],
    ),
    "an address for a network": (backbone("Timm", "name: 'hf-hub:a/b'"), ["hf-hub:a/b"]),
    "a file for a network": (
        backbone("Timm", "name: resnet18, arguments: {checkpoint_path: theirs.pt}"),
        ["checkpoint_path"],
    ),
    "a command for a logger with arguments": (
        "loggers: [{logger: os.system, arguments: {command: touch PWNED}}]",
        ["os.system", "a module of Python itself"],
    ),
    "a command among the arguments of a logger": (
        f"loggers: [{{logger: csv, arguments: {{touch: {TOUCH}}}}}]",
        ["csv", "touch"],
    ),
    "a command for a metric": ("evaluation: {metrics: [os.system]}", ["metrics", "os.system"]),
}


@pytest.mark.parametrize(("text", "names"), SPELLS.values(), ids=SPELLS)
def test_a_configuration_of_somebody_calls_no_function(
    text, names, fedbolic, tmp_path, monkeypatch, runs
):
    """No module is imported for it either, not even one of Python's own such as ``this``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "this", raising=False)
    Path("theirs.yaml").write_text(text)
    assert refused(fedbolic("run", "--config", "theirs.yaml", "--runs", runs), names=names)
    assert not Path("PWNED").exists()
    assert "this" not in sys.modules
    assert not runs.exists()


class Spell:
    """An object whose pickle runs a command when it is read."""

    def __reduce__(self):
        return os.system, ("touch PWNED",)


FILES = {
    "theirs.npz": "fedbolic.data.Arrays, init_args: {path: theirs.npz}",
    "theirs.csv": "fedbolic.data.TableFile, init_args: {path: theirs.csv, target: a}",
    "theirs.parquet": "fedbolic.data.TableFile, init_args: {path: theirs.parquet, target: a}",
    "theirs.pkl": "fedbolic.data.TableFile, init_args: {path: theirs.pkl, target: a}",
    "theirs/cat/1.png": "fedbolic.data.ImageFolder, init_args: {path: theirs}",
}


@pytest.mark.parametrize("name", FILES)
def test_no_file_of_somebody_is_unpickled(name, fedbolic, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_bytes(pickle.dumps(Spell()))
    dataset = f"{{dataset: {{class_path: {FILES[name]}}}}}"
    text = f"data: {{class_path: fedbolic.data.Partitioned, init_args: {dataset}}}"
    Path("theirs.yaml").write_text(text)
    assert refused(fedbolic("run", "--config", "theirs.yaml", "--runs", runs), names=["theirs"])
    assert not Path("PWNED").exists()
    pickle.loads(Path(name).read_bytes())
    assert Path("PWNED").exists()


def test_no_array_of_objects_of_somebody_is_unpickled(fedbolic, tmp_path, monkeypatch, runs):
    monkeypatch.chdir(tmp_path)
    np.savez("theirs.npz", x=np.array([Spell(), Spell()]), y=np.arange(2))
    words = ["--data.dataset=fedbolic.data.Arrays", "--data.dataset.path=theirs.npz"]
    answer = fedbolic("run", "--data=fedbolic.data.Partitioned", *words, "--runs", runs)
    assert refused(answer, names=["theirs.npz"])
    assert not Path("PWNED").exists()


def test_a_run_of_somebody_calls_no_function_when_it_is_resumed(
    fedbolic, config, runs, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    words = ["--config", config, "--runs", runs, "--name", "x;touch PWNED;#"]
    assert fedbolic("run", *words)[0] == 0
    path = runs / "x;touch PWNED;#" / "seed0"
    theirs = (path / "config.yaml").read_text().replace("loggers: []", "loggers: [os.system]")
    (path / "config.yaml").write_text(theirs)
    made = json.loads((path / "environment.json").read_text())
    made["config"] = hashlib.sha256(theirs.encode()).hexdigest()  # with a recomputed checksum
    (path / "environment.json").write_text(json.dumps(made))
    assert refused(fedbolic("resume", path), names=["os.system", "a module of Python itself"])
    assert not (tmp_path / "PWNED").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("methd: 3", ["methd"]),
        ("method: {class_path: fedbolic.methods.FedAvg, init_args: {speed: 3}}", ["speed"]),
        ("seed: [1\n- {", ["config", "line 1"]),
        ("- 1\n- 2", ["config"]),
    ],
)
def test_a_wrong_configuration_file_is_refused_in_one_line(text, names, fedbolic, tmp_path, runs):
    (tmp_path / "wrong.yaml").write_text(text)
    answer = fedbolic("run", "--config", tmp_path / "wrong.yaml", "--runs", runs)
    assert refused(answer, names=names)
    assert not runs.exists()


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["train"], ["train", "run", "sweep", "resume", "report"]),
        (["resume"], ["run"]),
        (["resume", "nowhere"], ["there is no run in nowhere"]),
        (["report", "nowhere"], ["there is no run in nowhere"]),
        (["sweep"], ["base"]),
    ],
)
def test_a_wrong_command_is_refused_in_one_line(words, names, fedbolic, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refused(fedbolic(*words), names=names)
    assert list(tmp_path.iterdir()) == []


def test_cuda_is_refused_where_there_is_none(fedbolic, config, runs, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    answer = fedbolic("run", "--config", config, "--runs", runs, "--device=cuda")
    assert refused(answer, names=["cuda", "--device=cpu"])
    assert not runs.exists()


def idx(shape, values):
    return struct.pack(f">HBB{len(shape)}I", 0, 8, len(shape), *shape) + bytes(values)


@pytest.fixture
def mnist(tmp_path):
    """A folder of tiny IDX files for tests to damage."""
    raw = tmp_path / "root" / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for stem, n in (("train", 12), ("t10k", 4)):
        (raw / f"{stem}-images-idx3-ubyte").write_bytes(
            idx((n, 4, 4), [i % 251 for i in range(16 * n)])
        )
        (raw / f"{stem}-labels-idx1-ubyte").write_bytes(idx((n,), [i % 3 for i in range(n)]))
    return raw


def truncate(raw):
    file = raw / "train-images-idx3-ubyte"
    file.write_bytes(file.read_bytes()[:-1])
    return [str(file), "expected 208 bytes, found 207"]


def mislabel(raw):
    (raw / "train-labels-idx1-ubyte").write_bytes(idx((12,), [0, 1, 10, *[0] * 9]))
    return ["label 10", "train example 2", "0 .. 9"]


def replace(raw):
    file = raw / "t10k-labels-idx1-ubyte.gz"
    file.write_bytes(gzip.compress(b"another"))
    return [str(file), "expected md5 ec29112dd5afa0611ce80d1b7f02629c"]


def lose(raw):
    (raw / "t10k-labels-idx1-ubyte").unlink()
    return ["t10k-labels-idx1-ubyte", str(raw.parents[1])]


@pytest.mark.parametrize("damage", [truncate, mislabel, replace, lose])
def test_damaged_data_are_refused_in_one_line(damage, mnist, fedbolic, config, runs):
    names = damage(mnist)
    words = ["--data.dataset=fedbolic.data.MNIST", f"--data.root={mnist.parents[1]}"]
    words += ["--data.num_train=null", "--data.num_test=null"]
    assert refused(fedbolic("run", "--config", config, "--runs", runs, *words), names=names)
    assert not runs.exists()


def test_whole_data_of_the_same_kind_are_accepted(mnist, fedbolic, config, runs):
    words = ["--data.dataset=fedbolic.data.MNIST", f"--data.root={mnist.parents[1]}"]
    words += ["--data.num_train=null", "--data.num_test=null"]
    assert fedbolic("run", "--config", config, "--runs", runs, *words)[0] == 0


@pytest.mark.processes
def test_a_process_says_it_in_one_line_too(config, runs, tmp_path):
    """The same in a real process: no warning, no traceback, no other line for each of two."""
    sweep = tmp_path / "sweep.yaml"
    sweep.write_text("base: tiny.yaml\nrows: {good: null, wrong: {method.lr: -1}}")
    words = [["run", "--config", config, "--method.lr=-1"], ["sweep", "--config", sweep]]
    words = [[*map(str, word), f"--runs={runs}"] for word in words]
    code = f"from fedbolic.__main__ import main\nassert [*map(main, {words!r})] == [2, 2]"
    started = [sys.executable, "-c", code]
    done = subprocess.run(started, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    lines = done.stderr.splitlines(keepends=True)
    assert len(lines) == len(words)
    for line in lines:
        assert refused((2, "", line), names=["lr must be a positive number"])
    assert not runs.exists()


SWEEPS = {
    "wrong value": ("rows: {good: null, wrong: {method.lr: -1}}", ["lr must be"]),
    "unknown option": ("rows: {good: null, wrong: {method.nope: 1}}", ["nope"]),
    "unknown class": ("rows: {good: null, wrong: {method: fedbolic.X}}", ["fedbolic.X"]),
    "no row": ("rows: {}", ["num_rows must be at least 1"]),
    "rows without names": ("rows: [a, b]", ["rows"]),
    "no seed": ("rows: {a: null}\nseeds: []", ["num_seeds must be at least 1"]),
    "a seed twice": ("rows: {a: null}\nseeds: [1, 1]", ["seeds must differ", "[1, 1]"]),
    "no job": ("rows: {a: null}\njobs: 0", ["jobs must be at least 1"]),
    "unknown key": ("rows: {a: null}\nrow: 1", ["row"]),
    "no such table": ("rows: {a: null}\npublished: [no.csv]", ["No such file", "no.csv"]),
    "a path for a row": ("rows: {a/b: null}", ["row 'a/b'"]),
    "a way out": ("rows: {..: null}", ["row '..'"]),
    "a number for a row": ("rows: {1: null}", ["row 1"]),
    "own seed": ("rows: {a: {seed: 3}}", ["row 'a' sets seed"]),
    "own folder": ("rows: {a: {runs: x, name: y}}", ["row 'a' sets name, runs"]),
    "no base": ("base: nowhere.yaml\nrows: {a: null}", ["nowhere.yaml"]),
}


@pytest.mark.parametrize(("text", "names"), SWEEPS.values(), ids=SWEEPS)
def test_a_wrong_sweep_is_refused_before_any_row_runs(text, names, fedbolic, config, runs):
    sweep = config.with_name("sweep.yaml")
    sweep.write_text(text if text.startswith("base") else f"base: tiny.yaml\n{text}")
    assert refused(fedbolic("sweep", "--config", sweep, "--runs", runs), names=names)
    assert not runs.exists()


def test_a_file_for_the_other_command_is_told_which_one_runs_it(fedbolic, config):
    sweep = config.with_name("sweep.yaml")
    sweep.write_text("base: tiny.yaml\nrows: {good, with a space: null}")
    answer = fedbolic("run", "--config", sweep)
    assert refused(answer, names=["several rows", f"fedbolic sweep --config {sweep}"])
    answer = fedbolic("sweep", "--config", config)
    assert refused(answer, names=["one run", f"fedbolic run --config {config}"])


def test_a_package_of_an_extra_is_missing(fedbolic, config, runs, monkeypatch):
    for module in ("sklearn", "sklearn.datasets"):
        monkeypatch.setitem(sys.modules, module, None)
    answer = fedbolic("run", "--config", config, "--runs", runs)
    assert refused(answer, names=["Digits needs scikit-learn: pip install 'fedbolic[data]'"])
    assert not runs.exists()
