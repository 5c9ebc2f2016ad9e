"""Sweeps: rows times seeds, each run as if it were alone."""

import hashlib
import json
import pickle

import pytest
import torch

from fedbolic.data import Shards, TreesAndRings
from fedbolic.federated import LocalTraining
from fedbolic.methods import Ditto, Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.report.table_rows import find
from fedbolic.run import experiment
from fedbolic.run import sweeps as module
from fedbolic.run.configuration import SetupError, build, describe
from fedbolic.run.experiment import run
from fedbolic.run.record import RunFolder
from fedbolic.run.sweeps import sweep
from tests.command_line import TINY

ROWS = {"plain": None, "slow": {"method.lr": 0.01}}


@pytest.fixture
def base(tmp_path):
    file = tmp_path / "base.yaml"
    file.write_text(TINY)
    return file


def files(folder, *names):
    """Bytes of the named files of all runs below a folder."""
    return {
        file.relative_to(folder): file.read_bytes()
        for name in names
        for file in sorted(folder.rglob(name))
    }


def test_every_row_runs_with_every_seed(base, tmp_path):
    folder, _ = sweep(base, ROWS, seeds=(0, 3), runs=tmp_path / "runs", name="s")
    assert folder == tmp_path / "runs" / "s"
    found = {str(file.parent.relative_to(folder)) for file in folder.rglob("state.pt")}
    assert found == {"plain/seed0", "plain/seed3", "slow/seed0", "slow/seed3"}
    assert [(folder / row / "place").read_text() for row in ROWS] == ["0", "1"]


def test_a_row_is_built_once_whatever_its_seeds(base, tmp_path, monkeypatch):
    built = []
    for place in (module, experiment):
        monkeypatch.setattr(place, "build", lambda *given: built.append(given) or build(*given))
    for _ in range(2):  # finished runs are compared with their rows, and not built
        sweep(base, ROWS, seeds=(0, 1, 2), runs=tmp_path / "runs")
        assert len(built) == len(ROWS)
        built.clear()


def test_a_process_gets_its_run_built(base, tmp_path, monkeypatch):
    given = []
    monkeypatch.setattr(module, "run_jobs", lambda work, jobs, num: given.extend(jobs))
    folder, _ = sweep(base, ROWS, seeds=(3, 4), runs=tmp_path / "runs", jobs=2)
    for job in given:
        settings, path = pickle.loads(pickle.dumps(job.arguments))
        words = ["--method.lr=0.01"] if path.parent.name == "slow" else []
        words += [f"--seed={path.name[4:]}", f"--name={path.parent.relative_to(tmp_path / 'runs')}"]
        expected = build(run, ["--config", str(base), *words, f"--runs={tmp_path / 'runs'}"])
        assert describe(run, settings) == describe(run, expected)
    assert [job.arguments[1] for job in given] == [
        folder / row / f"seed{seed}" for seed in (3, 4) for row in ROWS
    ]


def test_a_row_is_the_base_with_its_own_settings_and_nothing_else(base, tmp_path):
    folder, _ = sweep(base, ROWS, seeds=(3,), runs=tmp_path / "runs")
    words = ["--config", str(base), "--method.lr=0.01", "--seed=3", f"--runs={tmp_path}"]
    alone = run(**build(run, [*words, "--name=alone"]))
    metrics = (folder / "slow" / "seed3" / "metrics.csv").read_bytes()
    assert metrics == (alone / "metrics.csv").read_bytes()
    assert metrics != (folder / "plain" / "seed3" / "metrics.csv").read_bytes()


def test_rows_may_hold_tables_lists_nothing_and_classes(base, tmp_path):
    rows = {
        "table": {"method.sharing": {"head.*": "personal", "*": "shared"}},
        "list": {"method.backbone.widths": [3, 2]},
        "nothing": {"evaluation.fine_tuning": None, "data.num_test": None},
        "class": {"method": "fedbolic.methods.Ditto", "method.personal_proximal": 0.5},
        "truth": {"data.download": False},
        "object": {"data.partition": Shards(num_clients=2)},
        "classes": {
            "data": "fedbolic.data.GraphClassification",
            "data.partition": None,
            "data.families": [{"class_path": "fedbolic.data.TreesAndRings"}],
        },
    }
    folder, _ = sweep(base, rows, runs=tmp_path / "runs")
    built = {
        row: build(run, ["--config", str(folder / row / "seed0" / "config.yaml")]) for row in rows
    }
    assert built["table"]["method"].sharing == {"head.*": "personal", "*": "shared"}
    assert built["list"]["method"].backbone.widths == (3, 2)
    assert built["nothing"]["data"].num_test is None
    assert type(built["class"]["method"]).__name__ == "Ditto"
    assert (built["class"]["method"].rounds, built["class"]["method"].personal_proximal) == (2, 0.5)
    assert built["truth"]["data"].download is False
    assert built["classes"]["data"].families == (TreesAndRings(),)
    assert built["object"]["data"].partition == Shards(num_clients=2)


def test_what_is_finished_is_not_run_again(base, tmp_path, monkeypatch):
    arguments = {"seeds": (0,), "runs": tmp_path / "runs"}
    folder, _ = sweep(base, ROWS, **arguments)
    before = {file: file.stat().st_mtime_ns for file in folder.rglob("state.pt")}
    began = []

    class Note:
        def __init__(self, name):
            self.name = name

        def on_run_start(self, round, rounds):
            began.append(self.name)

    monkeypatch.setattr(module, "ProgressBar", Note)
    sweep(base, {**ROWS, "new": {"method.lr": 0.2}}, **arguments)
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert began == ["new seed0"]


class Cut:
    """A callback that ends a run after its first round."""

    def on_round_end(self, round, rounds, rows):
        raise KeyboardInterrupt


def test_what_was_stopped_goes_on(base, tmp_path, monkeypatch):
    whole, _ = sweep(base, ROWS, runs=tmp_path / "whole", name="s")
    with monkeypatch.context() as patch:
        patch.setattr(module, "ProgressBar", lambda name: Cut())
        with pytest.raises(KeyboardInterrupt):
            sweep(base, ROWS, runs=tmp_path / "cut", name="s")
    cut = tmp_path / "cut" / "s"
    assert torch.load(cut / "plain" / "seed0" / "state.pt", weights_only=True)["round"] == 1
    assert sweep(base, ROWS, runs=tmp_path / "cut", name="s") == (cut, [])
    assert files(cut, "metrics.csv", "place") == files(whole, "metrics.csv", "place")


def test_a_run_of_another_configuration_is_refused_and_kept(base, tmp_path):
    folder, _ = sweep(base, ROWS, runs=tmp_path / "runs")
    before = files(folder, "*.*")
    changed = {"plain": None, "slow": {"method.lr": 0.02}}
    with pytest.raises(SetupError, match=r"another configuration.*--overwrite.*--name") as caught:
        sweep(base, changed, runs=tmp_path / "runs")
    assert str(folder / "slow" / "seed0") in str(caught.value)
    assert files(folder, "*.*") == before


def without(folder, line):
    """Remove a line from the configuration of a run, as if an earlier version had written it."""
    file, made = folder / "config.yaml", folder / "environment.json"
    before = file.read_text()
    assert before.count(line) == 1
    file.write_text(before.replace(line, ""))
    environment = json.loads(made.read_text())
    digest = hashlib.sha256(file.read_bytes()).hexdigest()
    made.write_text(json.dumps(environment | {"config": digest}))
    RunFolder(folder).mark_complete()


def test_an_option_that_a_later_version_added_is_no_difference_at_its_default(base, tmp_path):
    arguments = {"runs": tmp_path / "runs", "name": "s"}
    folder, _ = sweep(base, ROWS, **arguments)
    without(folder / "plain" / "seed0", "  every: 1\n")
    before = files(folder, "*.*")
    assert sweep(base, ROWS, **arguments) == (folder, [])
    assert files(folder, "*.*") == before
    with pytest.raises(SetupError, match=r"plain.seed0 holds .* another configuration.*every: 2"):
        sweep(base, {"plain": {"evaluation.every": 2}}, **arguments)


def test_an_option_that_there_is_no_more_is_a_difference(base, tmp_path):
    folder, _ = sweep(base, ROWS, runs=tmp_path / "runs")
    file = folder / "plain" / "seed0" / "config.yaml"
    file.write_text(file.read_text().replace("  every: 1\n", "  every: 1\n  often: 3\n"))
    with pytest.raises(SetupError, match=r"another configuration.*often: 3"):
        sweep(base, ROWS, runs=tmp_path / "runs")


def test_overwrite_begins_again(base, tmp_path):
    folder, _ = sweep(base, ROWS, runs=tmp_path / "runs")
    before = files(folder, "metrics.csv")
    changed = {"plain": None, "slow": {"method.lr": 0.02}}
    sweep(base, changed, runs=tmp_path / "runs", overwrite=True)
    after = files(folder, "metrics.csv")
    assert [file for file in before if before[file] != after[file]] == [
        (folder / "slow" / "seed0" / "metrics.csv").relative_to(folder)
    ]


def test_an_interrupted_overwrite_goes_on_without_it(base, tmp_path, monkeypatch):
    """Rows that the overwrite had not reached are started over, as they would have been."""
    changed = {"plain": {"method.proximal": 0.5}, "slow": {"method.lr": 0.02}}
    whole, _ = sweep(base, changed, runs=tmp_path / "whole", name="s")
    sweep(base, ROWS, runs=tmp_path / "runs", name="s")
    with monkeypatch.context() as patch:
        patch.setattr(module, "ProgressBar", lambda name: Cut())
        with pytest.raises(KeyboardInterrupt):
            sweep(base, changed, runs=tmp_path / "runs", name="s", overwrite=True)
    sweep(base, changed, runs=tmp_path / "runs", name="s")
    assert files(tmp_path / "runs" / "s", "metrics.csv") == files(whole, "metrics.csv")
    assert not list(tmp_path.rglob(module.OUTDATED))


def test_what_is_common_is_filtered_for_a_row_of_another_class_as_the_base_is(base, tmp_path):
    common = {"method.proximal": 0.5, "method.personal_proximal": 0.25, "method.rounds": 1}
    rows = {
        "other": {"method": "fedbolic.methods.Ditto"},  # has no proximal
        "third": {"method": "fedbolic.methods.Scaffold"},  # has neither
    }
    folder, stopped = sweep(base, rows, common=common, runs=tmp_path / "runs")
    built = {
        row: build(run, ["--config", str(folder / row / "seed0" / "config.yaml")])["method"]
        for row in rows
    }
    assert stopped == []
    assert built == {
        "other": Ditto(
            backbone=MLP((4,)), rounds=1, local=LocalTraining(1, 16), personal_proximal=0.25
        ),
        "third": Scaffold(backbone=MLP((4,)), rounds=1, local=LocalTraining(1, 16)),
    }


@pytest.mark.parametrize(
    ("rows", "common"),
    [
        ({"other": {"method": "fedbolic.methods.Ditto"}}, {"method.proximel": 0.5}),
        (
            {"same": None, "other": {"method": "fedbolic.methods.Ditto"}},
            {"method.personal_proximal": 0.5},
        ),
        ({"other": {"method": "fedbolic.methods.Ditto"}}, {"evaluation.evry": 2}),
    ],
)
def test_what_is_common_and_no_class_of_the_row_has_is_refused(rows, common, base, tmp_path):
    (option,) = common
    with pytest.raises(SetupError, match=option.rpartition(".")[2]):
        sweep(base, rows, common=common, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_a_grid_gives_every_row_every_combination(base, tmp_path):
    grid = {"method.lr": [0.01, 0.1], "data.partition.num_clients": [2, 3]}
    rows = {"plain": None, "prox": {"method.proximal": 0.5}}
    folder, _ = sweep(base, rows, grid=grid, common={"method.rounds": 1}, runs=tmp_path / "runs")
    for row, proximal in (("plain", 0.0), ("prox", 0.5)):
        for lr in (0.01, 0.1):
            for num_clients in (2, 3):
                config = folder / f"{row} lr={lr} num_clients={num_clients}" / "seed0/config.yaml"
                built = build(run, ["--config", str(config)])
                method, partition = built["method"], built["data"].partition
                assert (method.lr, method.proximal, method.rounds) == (lr, proximal, 1)
                assert partition.num_clients == num_clients
    assert len(list(folder.iterdir())) == 8


def test_a_row_has_its_own_word_over_what_is_common(base, tmp_path):
    rows = {"plain": None, "own": {"method.lr": 0.2}}
    folder, _ = sweep(base, rows, common={"method.lr": 0.1}, runs=tmp_path / "runs")
    for row, lr in (("plain", 0.1), ("own", 0.2)):
        built = build(run, ["--config", str(folder / row / "seed0" / "config.yaml")])
        assert built["method"].lr == lr


def test_settings_are_tables_of_their_own_with_their_published_numbers(base, tmp_path):
    file = tmp_path / "table.csv"
    head = "row,setting,column,value,source\n"
    lines = {name: f"plain,{name},G-FL %,{50 + i},T\n" for i, name in enumerate(("One", "Two"))}
    file.write_text(head + "".join(lines.values()))
    settings = {"Two": {"method.lr": 0.2}, "One": {"method.lr": 0.1}}
    folder, _ = sweep(base, ROWS, settings=settings, published=(file,), runs=tmp_path / "runs")
    for setting, options in settings.items():
        built = build(run, ["--config", str(folder / setting / "plain" / "seed0" / "config.yaml")])
        assert built["method"].lr == options["method.lr"]
        assert (folder / setting / "published.csv").read_text() == head + lines[setting]
        slow = build(run, ["--config", str(folder / setting / "slow" / "seed0" / "config.yaml")])
        assert slow["method"].lr == 0.01
    order = [row.folders[0].path.parent.parent.name for row in find(folder)]
    assert order == ["Two", "Two", "One", "One"]


def test_published_numbers_are_kept_with_the_sweep(base, tmp_path):
    file = tmp_path / "table_2.csv"
    file.write_text("row,setting,column,value,source\nplain,Set,G-FL %,50,Table 2\n")
    folder, _ = sweep(base, {"plain": None}, published=(file,), runs=tmp_path / "runs")
    assert (folder / "published.csv").read_bytes() == file.read_bytes()


def test_a_row_that_stops_lets_the_others_end(base, tmp_path):
    rows = {"bad": {"method.lr": 1e39}, "good": None}
    folder, stopped = sweep(base, rows, seeds=(0, 1), runs=tmp_path / "runs")
    for seed, reason in zip((0, 1), stopped, strict=True):
        assert reason.startswith(f"{folder / 'bad' / f'seed{seed}'}: round 1: ")
        assert max(row.round for row in RunFolder(folder / "good" / f"seed{seed}").rows()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"rows": {}}, "num_rows"),
        ({"seeds": ()}, "num_seeds"),
        ({"seeds": (1, 2, 1)}, r"seeds must differ .* \[1, 2, 1\]"),
        ({"jobs": 0}, "jobs must be at least 1"),
        ({"settings": {"../out": {}}}, "setting '../out' must have a name that is a folder"),
        ({"rows": {"good": None, "wrong": {"method.lr": -1}}}, "lr must be a positive"),
        ({"rows": {"a/b": None}}, "row 'a/b'"),
        ({"rows": {".": None}}, r"row '\.'"),
        ({"rows": {"a": {"seed": 1}}}, "row 'a' sets seed"),
    ],
)
def test_a_wrong_sweep_is_refused_before_anything_is_written(arguments, message, base, tmp_path):
    with pytest.raises(SetupError, match=message):
        sweep(base, **{"rows": ROWS, **arguments}, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_the_published_table_must_be_there(base, tmp_path):
    with pytest.raises(SetupError, match=r"nowhere.csv: No such file"):
        sweep(base, ROWS, published=(tmp_path / "nowhere.csv",), runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()
