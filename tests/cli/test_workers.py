"""Workers from the command line: killed, interrupted, in a sweep; no process or file remains."""

import hashlib
import json
import os
import signal
import time
from pathlib import Path

import pytest

from fedbolic.run.configuration import build
from fedbolic.run.experiment import resume, run
from fedbolic.run.sweeps import sweep
from tests.cli.test_resume import METHODS, SLOWER, num_saved, result
from tests.command_line import refused

WORKERS = ["--engine=fedbolic.federated.Workers", "--engine.num=2"]


def children(pid):
    """Ids of the running processes that a process started."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(parent) == pid and state != "Z":
            found.add(int(entry.name))
    return found


def alive(pids):
    """Processes that still run, without zombies."""
    found = set()
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.add(pid)
    return found


def wait_until(true, seconds=600):
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "too late"
        time.sleep(0.005)


def shared_files():
    """Names in the folder of shared memory, except semaphores of other programs."""
    return {file.name for file in Path("/dev/shm").glob("*") if not file.name.startswith("sem.")}


@pytest.mark.processes
def test_an_interrupted_and_then_killed_run_ends_as_if_it_had_not_been(process, config, runs):
    before = shared_files()
    words = ["--config", str(config), f"--runs={runs}", *METHODS["ditto"], *SLOWER]
    folder = runs / "cut" / "seed0"
    started = process("run", *words, *WORKERS, "--name=cut")
    wait_until(lambda: num_saved(folder) >= 2)
    workers = children(started.pid)
    assert len(workers) >= 2
    for pid in (started.pid, *workers):  # as a terminal does
        os.kill(pid, signal.SIGINT)
    _, err = started.communicate(timeout=600)
    assert started.returncode == 130
    assert "interrupted" in err
    assert "Traceback" not in err
    wait_until(lambda: not alive(workers))

    saved = num_saved(folder)
    started = process("resume", folder)
    wait_until(lambda: num_saved(folder) >= saved + 2)
    workers = children(started.pid)
    started.kill()
    _, err = started.communicate(timeout=600)
    assert len(workers) >= 2, err
    assert num_saved(folder) < 10
    wait_until(lambda: not alive(workers))
    assert "Traceback" not in err

    assert resume(folder)
    assert result(folder) == result(run(**build(run, [*words, "--name=whole"])))
    assert shared_files() <= before


@pytest.mark.slow
@pytest.mark.processes
def test_runs_of_a_sweep_may_have_workers(config, runs):
    rows = {"plain": None, "ditto": {"method": "fedbolic.methods.Ditto"}}
    engine = {"engine": "fedbolic.federated.Workers", "engine.num": 1}
    found = []
    for jobs, common in ((1, {}), (2, engine)):
        folder, stopped = sweep(config, rows, common=common, runs=runs / str(jobs), jobs=jobs)
        assert stopped == []
        found.append([result(folder / row / "seed0") for row in rows])
    assert found[0] == found[1]


def test_wrong_settings_are_refused_in_one_line(fedbolic, config, runs):
    words = ["run", "--config", config, "--runs", runs, WORKERS[0]]
    assert refused(fedbolic(*words, "--engine.num=0"), names=["num must be at least 1, got 0"])
    nested = '--engine.inner={"class_path": "fedbolic.federated.Workers"}'
    assert refused(fedbolic(*words, nested), names=["inner must work in one process"])
    assert not runs.exists()


def test_a_run_may_not_go_on_with_another_engine(fedbolic, config, runs):
    assert fedbolic("run", "--config", config, "--runs", runs)[0] == 0
    folder = runs / "tiny" / "seed0"
    file = folder / "config.yaml"
    text = file.read_text()
    assert text.count("fedbolic.federated.engines.sequential.Sequential") == 1
    edited = text.replace("sequential.Sequential", "workers.Workers")
    file.write_text(edited)
    assert refused(fedbolic("resume", folder), names=["config.yaml was edited"])
    made = json.loads((folder / "environment.json").read_text())
    made["config"] = hashlib.sha256(edited.encode()).hexdigest()  # as if it had started so
    (folder / "environment.json").write_text(json.dumps(made))
    assert refused(fedbolic("resume", folder), names=["engine", "Sequential", "Workers"])
