"""A run killed at any moment and resumed ends as if it had not been interrupted."""

import random
import time

import pytest
import torch

from fedbolic.run import record
from fedbolic.run.configuration import build
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder
from fedbolic.run.run_files import HEADERS
from tests.command_line import TINY

METHODS = {
    "ditto": ["--method=fedbolic.methods.Ditto"],  # every client keeps a personal model
    "spherefed": ["--method=fedbolic.methods.SphereFed"],  # the last round is another phase
    "scaffold": ["--method=fedbolic.methods.Scaffold", "--cohort.rate=0.5"],
    "fedper": [
        "--method.sharing={'head.*': personal, '*': shared}",
        "--evaluation.fine_tuning.epochs=1",
    ],
}
COMMON = ["--method.rounds=4", "--evaluation.every=3"]


def flat(value, path=""):
    """Every leaf of a nested dict by its path; tensors as bytes with their dtype and shape."""
    if isinstance(value, dict):
        return {p: leaf for k, v in value.items() for p, leaf in flat(v, f"{path}/{k}").items()}
    if isinstance(value, torch.Tensor):
        return {path: (value.dtype, tuple(value.shape), value.numpy().tobytes())}
    return {path: value}


def result(folder):
    """Metrics and last state of a run, which must be equal to the last bit between two runs."""
    server_state = torch.load(folder / "state.pt", weights_only=True)
    for counted in ("sizes", "checksums"):
        del server_state[counted]["times.csv"]  # seconds differ on a busy machine
    states = {str(i): own for i, own in RunFolder(folder).load()["client_states"].items()}
    return (folder / "metrics.csv").read_text(), flat(server_state), flat(states)


@pytest.fixture(scope="module", params=METHODS)
def words(request, tmp_path_factory):
    file = tmp_path_factory.mktemp("whole") / "tiny.yaml"
    file.write_text(TINY)
    return ["--config", str(file), *METHODS[request.param], *COMMON]


@pytest.fixture(scope="module")
def whole(words, tmp_path_factory):
    """The result of an uninterrupted run."""
    runs = tmp_path_factory.mktemp("runs")
    return result(run(**build(run, [*words, "--name=whole", f"--runs={runs}"])))


class PowerError(BaseException):
    """An exception that the code does not catch, like a kill."""


class Dies:
    """A callback that stops a run right after a round was saved."""

    def __init__(self, round):
        self.round = round

    def on_round_end(self, round, rounds, rows):
        if round == self.round:
            raise PowerError


def go_on(settings, folder):
    """Start a run or resume it; without an interruption, one call completes it."""
    if folder.exists():
        resume(folder)
    else:
        run(**settings)


def test_a_crash_after_any_round_changes_nothing(words, whole, runs):
    settings = build(run, [*words, "--name=cut", f"--runs={runs}"])
    folder = runs / "cut" / "seed0"
    with pytest.raises(PowerError):
        run(**settings, callbacks=[Dies(1)])
    for round in (2, 3):
        assert len(RunFolder(folder).rows()) < len(whole[0].splitlines()) - 1
        with pytest.raises(PowerError):
            resume(folder, callbacks=[Dies(round)])
    assert resume(folder) is True
    assert result(folder) == whole
    assert resume(folder) is False
    assert result(folder) == whole


@pytest.mark.parametrize("moment", ["before the rows", "after the rows", "in the checkpoint"])
def test_a_crash_while_saving_changes_nothing(moment, words, whole, runs, monkeypatch):
    """At every exchange in turn: half-written rows, rows without state, half a checkpoint."""
    settings = build(run, [*words, "--name=cut", f"--runs={runs}"])
    folder = runs / "cut" / "seed0"
    save, append = RunFolder.save, record._append
    saves = []

    def torn_save(self, checkpoint, rows, seconds, **options):
        key = (checkpoint["round"], checkpoint["exchange"])
        first = key not in saves
        saves.append(key)
        if first and moment == "before the rows":
            raise PowerError
        with monkeypatch.context() as patch:
            if first and moment == "after the rows":
                patch.setattr(RunFolder, "_replace", die)
            if first and moment == "in the checkpoint":
                patch.setattr(torch, "save", half)
            save(self, checkpoint, rows, seconds, **options)

    def die(*arguments, **options):
        append(folder / "metrics.csv", "3,0,test/accur")  # and an incomplete line
        raise PowerError

    def half(checkpoint, file):
        file.write(b"PK\x03\x04half")
        raise PowerError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", torn_save)
        crashes = 0
        while True:
            try:
                go_on(settings, folder)
                break
            except PowerError:
                crashes += 1
    assert crashes == len(set(saves)) == 4
    assert result(folder) == whole


def test_a_torn_line_of_metrics_is_cut_off(words, whole, runs):
    settings = build(run, [*words, "--name=cut", f"--runs={runs}"])
    folder = runs / "cut" / "seed0"
    with pytest.raises(PowerError):
        run(**settings, callbacks=[Dies(3)])
    with (folder / "metrics.csv").open("a") as file:
        file.write("4,,train/loss,0.12\n4,,test/acc")
    resume(folder)
    assert result(folder) == whole


def test_a_run_that_never_saved_begins_at_the_beginning(words, whole, runs, monkeypatch):
    settings = build(run, [*words, "--name=cut", f"--runs={runs}"])
    folder = runs / "cut" / "seed0"

    def die(self, checkpoint, rows, seconds, **options):
        raise PowerError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", die)
        with pytest.raises(PowerError):
            run(**settings)
    assert (folder / "metrics.csv").read_text() == HEADERS["metrics.csv"]
    assert not (folder / "state.pt").exists()
    resume(folder)
    assert result(folder) == whole


HANDSHAKE = """
from dataclasses import dataclass, replace

from fedbolic.federated import Gather, Mean, Method, Traits, Update
from fedbolic.methods import FedAvg


@dataclass(frozen=True)
class Handshake(Method):
    rounds: int = 3
    asks: bool = False

    @property
    def aggregator(self):
        return Gather() if self.asks else Mean()

    @property
    def traits(self):
        return Traits(cohort="sample" if self.asks else "same", evaluates=not self.asks)

    def phase(self, state):
        return replace(self, asks=state["exchange"] == 0)

    def init(self, meta, rng):
        return {"exchange": 0, "met": 0, "sum": 0.0}

    def local_update(self, message, client, client_state, rng):
        number = rng.at("draw").numpy().random() + client_state.get("number", 0.0)
        return Update({"number": number}), {"number": number}

    def server_update(self, state, total):
        if self.asks:
            return {**state, "exchange": 1, "met": state["met"] + sum(total.clients)}
        return {**state, "exchange": 0, "sum": state["sum"] + total.payload["number"]}

    def evaluate(self, message, client, client_state, rng):
        return {"test/sum": message["sum"] + client_state.get("number", 0.0), "test/examples": 1}
"""


def test_a_run_goes_on_between_the_exchanges_of_a_round(tmp_path, runs, monkeypatch):
    (tmp_path / "handshake.py").write_text(HANDSHAKE)
    monkeypatch.syspath_prepend(tmp_path)
    words = [
        "--method=handshake.Handshake",
        "--data=fedbolic.data.Partitioned",
        "--cohort.rate=0.3",
    ]
    words += [f"--runs={runs}"]
    whole = result(run(**build(run, [*words, "--name=whole"])))
    folder, save, seen = runs / "cut" / "seed0", RunFolder.save, []

    def save_and_die(self, checkpoint, rows, seconds, **options):
        save(self, checkpoint, rows, seconds, **options)
        seen.append((checkpoint["round"], checkpoint["exchange"]))
        raise PowerError

    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "save", save_and_die)
        for _ in range(6):
            with pytest.raises(PowerError):
                go_on(build(run, [*words, "--name=cut"]), folder)
    assert seen == [(0, 1), (1, 0), (1, 1), (2, 0), (2, 1), (3, 0)]
    assert resume(folder) is False
    assert result(folder) == whole
    asked = [row.value for row in RunFolder(folder).rows() if row.name == "clients/asked"]
    assert asked == [6, 6, 6]  # both exchanges together


SLOWER = ["--method.rounds=10", "--method.local={epochs: 3, batch_size: 8}"]
SLOWER += ["--data.num_train=600", "--data.num_test=50"]
"""Rounds of about a tenth of a second, so that a kill can fall into one."""


def kill(started, *, when):
    """Kill a process as soon as ``when()`` holds; return whether it was still alive."""
    while started.poll() is None and not when():
        time.sleep(0.005)
    alive = started.poll() is None
    started.kill()
    _, err = started.communicate()
    assert alive or started.returncode == 0, err
    return alive


def start(process, words, folder):
    return process("resume", folder) if folder.exists() else process("run", *words)


def num_saved(folder):
    file = folder / "times.csv"
    return file.read_text().count("\n") - 1 if file.exists() else 0


@pytest.mark.processes
def test_a_killed_process_ends_as_if_it_had_not_been(process, config, runs):
    draw = random.Random("ditto")
    words = ["--config", str(config), f"--runs={runs}", *METHODS["ditto"], *SLOWER]
    folder = runs / "cut" / "seed0"
    started = process("run", *words, "--name=cut")
    whole = result(run(**build(run, [*words, "--name=whole"])))
    rounds = draw.randrange(1, 5)  # far from the last round, since the test may notice late
    moment = []

    def when():
        if num_saved(folder) >= rounds and not moment:
            moment.append(time.monotonic() + draw.uniform(0, 0.1))
        return moment and time.monotonic() >= moment[0]

    assert kill(started, when=when)
    assert resume(folder)
    assert result(folder) == whole


@pytest.mark.slow
@pytest.mark.parametrize("method", ["ditto", "spherefed"])
def test_any_twenty_moments_to_kill_change_nothing(method, process, config, runs):
    draw = random.Random(method)
    words = ["--config", str(config), f"--runs={runs}", *METHODS[method], *SLOWER]
    began = time.monotonic()
    first = process("run", *words, "--name=whole")
    assert first.communicate() is not None
    assert first.returncode == 0
    lifetime = time.monotonic() - began
    whole, folder = result(runs / "whole" / "seed0"), runs / "cut" / "seed0"
    kills = ends = 0
    while kills < 20 or not ends:
        now = time.monotonic() + (draw.uniform(0, lifetime) if kills < 20 else 300)
        started = start(process, [*words, "--name=cut"], folder)
        if kill(started, when=lambda now=now: time.monotonic() > now):
            kills += 1
            continue
        ends += 1
        assert result(folder) == whole
        if kills < 20:
            RunFolder(folder).remove()
