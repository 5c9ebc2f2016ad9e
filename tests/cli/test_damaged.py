"""Damaged, foreign or unusual files: each is refused in one line, and nothing is trained on it."""

import errno
import itertools
import json
import resource
import shutil
from dataclasses import replace

import pytest
import torch

from fedbolic.core.torch_files import load_sealed, save_sealed
from fedbolic.federated import Sequential, Trainer
from fedbolic.report import plots
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from fedbolic.run.progress import ProgressBar
from fedbolic.run.record import RunFolder
from tests.command_line import TINY, refused

FILES = ("config.yaml", "environment.json", "engine.json", "metrics.csv", "times.csv")

PREFIXES = {"half": lambda text: text[: len(text) // 2], "two bytes short": lambda text: text[:-2]}
"""Prefixes of a file that a crash or a full disk leaves behind."""

DAMAGES = PREFIXES | {
    "empty": lambda text: b"",
    "zeros": lambda text: bytes(len(text)),
    "binary": lambda text: bytes(range(256)) * 4,
    "no unicode": lambda text: b"\xff\xfe" + text,
    "a web page": lambda text: b"<!doctype html>\n<title>404</title>\n" * 20,
    "a list": lambda text: b"[]\n" + b" " * len(text),
    "a number": lambda text: b"7\n" + b" " * len(text),
    "deep": lambda text: b"[" * 100_000,
    "letters": lambda text: b"round,client,name,value\n" + b"one,two,three,four\n" * 50,
    "long line": lambda text: b"x" * 200_000,
    "folder": None,
    "gone": None,
}


class CutError(BaseException):
    """An exception that the code does not catch, like a kill."""


class Cut:
    """A callback that stops a run after its first round."""

    def on_round_end(self, round, rounds, rows):
        raise CutError


def settle_at_once(self, *_):
    """Replacement for ``Auto``'s choice of an engine that measures nothing."""
    return replace(self, engine=Sequential()), {"Sequential()": 0.1}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run of two rounds that was killed after the first."""
    top = tmp_path_factory.mktemp("stopped")
    (top / "tiny.yaml").write_text(TINY)
    words = ["--config", str(top / "tiny.yaml"), "--engine=fedbolic.federated.Auto"]
    settings = build(run, [*words, f"--runs={top}", "--name=a"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "settle", settle_at_once)
        with pytest.raises(CutError):
            run(**settings, callbacks=[Cut()])
    assert (top / "a" / "seed0" / "engine.json").exists()
    return top / "a" / "seed0"


@pytest.fixture
def folder(stopped, tmp_path, monkeypatch):
    monkeypatch.setattr(plots, "installed", lambda: False)  # plotting takes long
    return shutil.copytree(stopped, tmp_path / "runs" / "a" / "seed0")


def damage(file, how):
    text = file.read_bytes()
    file.unlink()
    if how == "folder":
        file.mkdir()
    elif how != "gone":
        file.write_bytes(DAMAGES[how](text))


@pytest.mark.parametrize(
    ("name", "how"),
    [pair for pair in itertools.product(FILES, DAMAGES) if pair != ("engine.json", "gone")],
)  # without that file, an engine is chosen again
def test_a_damaged_file_of_a_run_is_named_in_one_line(name, how, folder, fedbolic):
    damage(folder / name, how)
    before = {file.name for file in folder.iterdir()}
    answer = fedbolic("resume", folder)
    assert refused(answer, names=[str(folder)])
    assert {file.name for file in folder.iterdir()} == before
    code, out, err = fedbolic("report", folder)
    reads = name == "metrics.csv" and how not in PREFIXES  # a prefix may hold complete lines
    if reads or (name, how) == ("config.yaml", "gone"):  # reports find runs by it
        assert refused((code, out, err), names=[str(folder)])
    else:
        assert (code, err) == (0, "")
        assert out.startswith("|")


def test_an_undamaged_copy_goes_on(folder, fedbolic):
    """Resuming an undamaged copy works, so the tests above refuse the damage itself."""
    assert fedbolic("resume", folder)[0] == 0
    assert torch.load(folder / "state.pt", weights_only=True)["round"] == 2


@pytest.mark.parametrize("edit", [("lr: 0.1", "lr: 0.2"), ("seed: 0\n", "seed: 0 \n")])
def test_an_edited_configuration_is_refused_by_all_that_use_it(edit, folder, fedbolic, tmp_path):
    config = folder / "config.yaml"
    text = config.read_text()
    assert edit[0] in text
    config.write_text(text.replace(*edit))
    names = [f"{config} was edited", f"fedbolic run --config {config} --name NAME"]
    files = {"export": ("--to", tmp_path / "x.pt2"), "report": ("--html", tmp_path / "x.html")}
    for command in ("resume", "export", "report"):
        assert refused(fedbolic(command, folder, *files.get(command, ())), names=names)
    assert fedbolic("report", folder)[0] == 0  # a table has no settings
    assert not list(tmp_path.glob("x.*"))
    config.write_text(text)
    for command in files:
        assert fedbolic(command, folder, *files[command])[0] == 0
    assert fedbolic("resume", folder)[0] == 0


def test_a_resealed_checkpoint_without_an_entry_is_refused(folder, fedbolic, tmp_path):
    file, to = folder / "state.pt", tmp_path / "x.pt2"
    whole = load_sealed(file)
    entries = ("server_state", "round", "exchange", "sizes", "checksums", "client_states")
    for entry, value in itertools.product(entries, ("x", -1, None)):
        forged = {n: v for n, v in whole.items() if n != entry}
        with file.open("wb+") as stream:
            save_sealed(forged | ({} if value is None else {entry: value}), stream)
        with pytest.raises(ValueError, match=r"state\.pt lacks the "):
            RunFolder.open(folder).read_checkpoint()
    for words in (["export", folder, "--to", to], ["resume", folder]):
        assert refused(fedbolic(*words), names=["state.pt lacks the "])


def test_a_resealed_server_state_is_refused(folder, fedbolic, tmp_path):
    file, to = folder / "state.pt", tmp_path / "x.pt2"
    whole = load_sealed(file)
    for forged in ({}, {**whole["server_state"], "parameters": {"w": torch.zeros(3)}}):
        with file.open("wb+") as stream:
            save_sealed({**whole, "server_state": forged}, stream)
        for words in (["export", folder, "--to", to], ["resume", folder]):
            assert refused(fedbolic(*words), names=["state.pt holds no server state of FedAvg"])


def test_another_number_of_classes_than_the_model_has_is_refused(folder, fedbolic, tmp_path):
    file = folder / "environment.json"
    made = json.loads(file.read_text())
    made["data"]["num_classes"] += 1
    made["data"]["class_names"].append("one more")
    file.write_text(json.dumps(made))
    answer = fedbolic("export", folder, "--to", tmp_path / "x.pt2")
    assert refused(answer, names=["state.pt holds no server state of FedAvg", "instead of"])


def test_forged_facts_about_the_data_are_refused(folder, fedbolic, tmp_path):
    file, to = folder / "environment.json", tmp_path / "x.pt2"
    made = json.loads(file.read_text())
    for name in ("num_classes", "input_shape", "num_clients", "class_names"):
        large = {"num_classes": [10**9], "input_shape": [[10**9], [-1]]}
        for value in (None, "x", -1, {}, *large.get(name, ())):
            forged = {**made["data"], name: value}
            file.write_text(json.dumps({**made, "data": forged}))
            answer = fedbolic("export", folder, "--to", to)
            assert refused(answer, names=["environment.json is damaged"])


METHOD = "method: {class_path: fedbolic.methods.FedAvg, init_args: "
ODD = {
    "itself in a list": ("loggers: &a [*a]", ["&a holds itself", "line 1"]),
    "itself in a table": (f"{METHOD}&a {{sharing: *a}}}}", ["&a holds itself"]),
    "itself far below": ("method: &a [[{x: [[*a]]}]]", ["&a holds itself"]),
    "more than memory holds": (
        "\n".join(
            ["a: &a [x, x, x, x, x, x, x, x]"]
            + [
                f"{b}: &{b} [*{', *'.join(a * 8)}]"
                for a, b in zip("abcdefgh", "bcdefghi", strict=True)
            ]
        ),
        ["aliases"],
    ),
    "too deep": ("loggers: " + "[" * 500 + "]" * 500, ["nested more than"]),
    "a key twice": ("seed: 1\nname: x\nseed: 2", ["'seed'", "second time", "line 3"]),
    "a key twice, below": (f"{METHOD}{{lr: 0.1, rounds: 2, lr: 0.2}}}}", ["'lr'", "second time"]),
    "no seed": ("seed: null", ["seed is null"]),
    "no seed, empty": ("seed:\nname: x", ["seed is null"]),
    "no threads": ("threads: null", ["threads is null"]),
    "no backbone": (f"{METHOD}{{backbone: null}}}}", ["method.backbone is null"]),
    "no lr": (f"{METHOD}{{lr: null}}}}", ["method.lr is null"]),
    "no widths": (
        f"{METHOD}{{backbone: {{class_path: fedbolic.nn.network.backbone.MLP, "
        "init_args: {widths: null}}}}",
        ["method.backbone.widths is null"],
    ),
    "no epochs": (f"{METHOD}{{local: {{epochs: null}}}}}}", ["method.local.epochs is null"]),
    "no local training": (f"{METHOD}{{local: null}}}}", ["method.local is null"]),
    "no rate": ("cohort: {rate: null}", ["cohort.rate is null"]),
    "no cohort": ("cohort: null", ["cohort is null"]),
    "no logger": ("loggers: [null]", ["loggers"]),
    "no channel": ("channels: [null]", ["channels"]),
    "this folder": ("name: .", ["name must stay inside", "'.'"]),
    "this folder, again": ("name: ./.", ["name must stay inside"]),
    "the folder above": ("name: a/../..", ["name must stay inside"]),
    "no text": (b"\x00\x01\x02", ["config"]),
    "no unicode": (b"seed: \xff\xfe", ["utf-8"]),
    "two texts": ("seed: 1\n---\nseed: 2", ["config"]),
    "a tag that runs code": ('seed: !!python/object/apply:os.system ["true"]', ["tag"]),
    "a list": ("- seed", ["config"]),
    "nothing": ("", ["config"]),
    "an unknown alias": ("seed: *a", ["undefined alias"]),
    "a list for a key": ("? [a]\n: 1", ["config"]),
}


@pytest.mark.parametrize(("text", "names"), ODD.values(), ids=ODD)
def test_an_odd_configuration_is_refused_in_one_line(text, names, fedbolic, tmp_path, runs):
    config = tmp_path / "odd.yaml"
    config.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert refused(fedbolic("run", "--config", config, "--runs", runs), names=names)
    assert not runs.exists()


ODD_SWEEPS = {
    "a row twice": ("rows: {a: null, a: null}", ["'a'", "second time"]),
    "no base": ("base: null\nrows: {a: null}", ["needs base"]),
    "no rows": ("rows: null", ["needs rows"]),
    "no seeds": ("rows: {a: null}\nseeds: null", ["seeds is null"]),
    "this folder": ("rows: {a: null}\nname: .", ["name must stay inside"]),
    "rows of themselves": ("rows: &a {b: *a}", ["&a holds itself"]),
}


@pytest.mark.parametrize(("text", "names"), ODD_SWEEPS.values(), ids=ODD_SWEEPS)
def test_an_odd_sweep_is_refused_in_one_line(text, names, fedbolic, config, runs):
    sweep = config.with_name("odd.yaml")
    sweep.write_text(text if text.startswith("base") else f"base: tiny.yaml\n{text}")
    assert refused(fedbolic("sweep", "--config", sweep, "--runs", runs), names=names)
    assert not runs.exists()


def test_what_has_no_null_in_its_type_is_asked_nothing_more(fedbolic, config, runs):
    words = [
        "--data.num_test=null",
        "--evaluation.fine_tuning=null",
        "--name=null",
        "--print_config",
    ]
    assert fedbolic("run", "--config", config, "--runs", runs, *words)[0] == 0


@pytest.mark.parametrize("how", ["letters", "no unicode", "binary"])
def test_a_damaged_table_of_published_numbers_is_named(how, folder, fedbolic):
    file = folder.parents[1] / "published.csv"
    file.write_bytes(DAMAGES[how](b""))
    assert refused(fedbolic("report", folder.parents[1]), names=[str(file)])


@pytest.mark.parametrize("number", [b"", b"x", b"\xff", b"1" * 5000])
def test_a_damaged_place_costs_only_the_order(number, folder, fedbolic):
    (folder.parent / "place").write_bytes(number)
    assert fedbolic("report", folder.parents[1])[0] == 0


@pytest.mark.parametrize("room", [200, 2000])  # bytes: part of the metrics, of the state
def test_a_run_on_a_full_disk_stops_and_goes_on_when_there_is_room(
    room, fedbolic, config, runs, monkeypatch
):
    assert fedbolic("run", "--config", config, "--runs", runs, "--name=whole")[0] == 0
    plain = ProgressBar.on_round_end
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(self, round, rounds, rows):
        plain(self, round, rounds, rows)
        resource.setrlimit(resource.RLIMIT_FSIZE, (room, unlimited[1]))

    monkeypatch.setattr(ProgressBar, "on_round_end", fill)
    try:
        code, _, err = fedbolic("run", "--config", config, "--runs", runs)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    folder, last = runs / "tiny" / "seed0", err.splitlines()[-1]
    monkeypatch.setattr(ProgressBar, "on_round_end", plain)
    assert code == 1
    assert last.startswith(f"fedbolic: stopped: {folder} cannot be written")
    assert last.endswith(f"`fedbolic resume {folder}`")
    assert "Traceback" not in err
    assert torch.load(folder / "state.pt", weights_only=True)["round"] == 1
    assert not list(folder.glob("*.draft"))
    assert fedbolic("resume", folder)[0] == 0
    metrics = (runs / "whole" / "seed0" / "metrics.csv").read_bytes()
    assert (folder / "metrics.csv").read_bytes() == metrics


def full(*_, **__):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_run_that_cannot_be_made_leaves_nothing_and_keeps_the_old_one(
    fedbolic, config, runs, monkeypatch
):
    words = ["run", "--config", config, "--runs", runs]
    assert fedbolic(*words)[0] == 0
    folder = runs / "tiny" / "seed0"
    before = {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()}
    with monkeypatch.context() as patch:
        patch.setattr("pathlib.Path.write_text", full)
        answer = fedbolic(*words, "--overwrite")
    assert refused(answer, names=[f"{folder} cannot be created", "No space left"])
    assert {file: file.read_bytes() for file in runs.rglob("*") if file.is_file()} == before


def test_figures_that_find_no_room_are_a_warning_of_one_line(
    fedbolic, config, runs, monkeypatch, caplog
):
    showing = "tests.federated.simple_method.Showing"
    config.write_text(config.read_text().replace("fedbolic.methods.FedAvg", showing))
    monkeypatch.setattr(RunFolder, "save_figures", full)
    assert fedbolic("run", "--config", config, "--runs", runs)[0] == 0
    (record,) = caplog.records
    assert "cannot be saved: [Errno 28] No space left" in record.getMessage()
    assert record.exc_info is None


def test_a_report_that_cannot_be_kept_is_printed_all_the_same(folder, fedbolic):
    (folder / "report.md").mkdir()  # a folder in its place, since root may write to read-only files
    code, out, err = fedbolic("report", folder)
    assert (code, out.splitlines()[0][0]) == (1, "|")
    assert err.startswith(f"fedbolic: stopped: the report cannot be saved in {folder}: ")
    assert err.count("\n") == 1
