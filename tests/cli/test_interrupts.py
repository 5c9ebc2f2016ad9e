"""Ctrl-C at one moment after another: one line, code 130, and the result of a whole run."""

import os
import pkgutil
import random
import shlex
import shutil
import signal
import sys

import pytest

from fedbolic.cli.commands import execute
from fedbolic.remote.processes import Federation
from tests.command_line import ROOT, hear_interrupts

STAGES = {
    "fedbolic.data.Partitioned.load": True,
    "fedbolic.run.record.RunFolder.create": True,
    "fedbolic.federated.Sequential.run": False,
    "fedbolic.federated.Evaluation.rows": False,
    "fedbolic.run.record.RunFolder._replace": True,
    "fedbolic.cli.commands.keep": False,
}
"""Data, folder, clients, scores, checkpoint, report; whether Ctrl-C comes after the function."""

HEARS = "import signal; exit(signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, ()))"
"""A program that fails if an interrupt cannot reach it."""


@pytest.fixture(autouse=True)
def hearing():
    before = signal.getsignal(signal.SIGINT)
    hear_interrupts()
    yield
    signal.signal(signal.SIGINT, before)


def interrupted(words, moment, number=1, seen=None):
    """Exit code of a command that gets Ctrl-C when a moment has come ``number`` times."""
    left = number

    def look(frame, event, _):
        nonlocal left
        if not frame.f_code.co_filename.startswith(str(ROOT / "fedbolic")):
            return
        here = frame.f_code.co_qualname, event
        if seen is not None:
            seen[here] = seen.get(here, 0) + 1
        if here == moment:
            left -= 1
            if not left:
                sys.setprofile(None)
                signal.raise_signal(signal.SIGINT)

    sys.setprofile(look)
    try:
        return execute([str(word) for word in words])
    finally:
        sys.setprofile(None)


def rung(function, after, times):
    """A function with Ctrl-C before or after its first call."""

    def call(*given, **named):
        found = function(*given, **named) if after else None
        if not times:
            times.append(1)
            signal.raise_signal(signal.SIGINT)
        return found if after else function(*given, **named)

    return call


def result(runs):
    return {file.relative_to(runs): file.read_bytes() for file in runs.rglob("metrics.csv")}


def assert_goes_on(code, words, runs, whole, moment, capsys):
    """An interrupted command, continued as it says, gives what it gives uninterrupted."""
    assert code == 130, moment
    said = [x for x in capsys.readouterr().err.splitlines() if x.startswith("fedbolic: ")]
    assert len(said) == 1, (moment, said)
    again = words
    if "continue with `" in said[0]:
        again = shlex.split(said[0].split("`")[1])[1:]
    else:
        assert said[0] in (  # the shorter while options are read
            "fedbolic: interrupted; the run had not started",
            "fedbolic: interrupted",
        ), moment
    assert execute([str(word) for word in again]) == 0, (moment, capsys.readouterr().err)
    assert result(runs) == whole, moment
    shutil.rmtree(runs)


def test_a_run_is_interrupted_at_every_stage_and_goes_on_to_the_same_result(
    config, runs, fedbolic, capsys, monkeypatch
):
    words = ["run", "--config", config, "--runs", runs]
    assert fedbolic(*words)[0] == 0
    whole = result(runs)
    shutil.rmtree(runs)
    for path, after in STAGES.items():
        with monkeypatch.context() as patch:
            times = []
            patch.setattr(path, rung(pkgutil.resolve_name(path), after, times))
            code = execute([str(word) for word in words])
            assert times, path
            assert_goes_on(code, words, runs, whole, path, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("command", ["run", "overwrite", "sweep"])
def test_a_command_is_interrupted_in_any_function(command, config, runs, capsys):
    """Functions and the number of their calls are drawn; a failure names its moment."""
    (config.parent / "table.yaml").write_text("base: tiny.yaml\nrows: {a: null, b: null}")
    words = ["run", "--config", config, "--runs", runs]
    words = {
        "run": words,
        "overwrite": [*words, "--overwrite"],
        "sweep": ["sweep", "--config", config.parent / "table.yaml", "--runs", runs],
    }[command]
    seen, draws = {}, random.Random(0)
    assert interrupted(words, None, seen=seen) == 0
    whole = result(runs)
    shutil.rmtree(runs)
    seen = {}
    assert interrupted(words, None, seen=seen) == 0  # without what is done once in a process
    shutil.rmtree(runs)
    for moment in draws.sample(sorted(seen), 12):
        if command == "overwrite":
            assert execute([*map(str, words), "--method.rounds=1"]) == 0
        number = draws.choice([1, draws.randint(1, seen[moment])])
        capsys.readouterr()
        code = interrupted(words, moment, number)
        assert_goes_on(code, words, runs, whole, (moment, number), capsys)


def test_a_watched_report_ends_in_one_line(config, runs, fedbolic, monkeypatch):
    assert fedbolic("run", "--config", config, "--runs", runs)[0] == 0
    monkeypatch.setattr("time.sleep", lambda _: signal.raise_signal(signal.SIGINT))
    code, out, err = fedbolic("report", runs / "tiny", "--watch", 5)
    assert (code, err) == (130, "fedbolic: interrupted\n")
    assert out.startswith("|")


def test_ctrl_c_while_a_process_of_a_federation_is_forked_is_heard_after_it(tmp_path):
    """An exception in a hook of fork would be printed and forgotten."""
    hooks = [lambda: signal.raise_signal(signal.SIGINT)]
    os.register_at_fork(after_in_parent=lambda: hooks.pop()() if hooks else None)
    federation = object.__new__(Federation)
    federation.folder, federation.environment, federation.processes = tmp_path, {}, []
    with pytest.raises(KeyboardInterrupt):
        federation._launch("node", [sys.executable, "-c", HEARS])
    assert federation.processes[0].wait(timeout=60) == 0
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, ())
