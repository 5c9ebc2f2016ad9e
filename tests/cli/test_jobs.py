"""Parallel runs of a sweep equal sequential ones byte for byte; their bars, and interruption."""

import fcntl
import os
import pty
import re
import select
import shlex
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from fedbolic.run import sweeps as module
from fedbolic.run.jobs import Job, run_jobs
from fedbolic.run.sweeps import sweep
from tests.command_line import ROOT, hear_interrupts


@pytest.mark.processes
def test_two_jobs_give_what_one_gives(config, runs):
    rows = {"plain": None, "ditto": {"method": "fedbolic.methods.Ditto"}}
    found = []
    for jobs in (1, 2):
        folder, stopped = sweep(config, rows, seeds=(0, 1), runs=runs / str(jobs), jobs=jobs)
        assert stopped == []
        found.append(
            {
                file.relative_to(folder): file.read_bytes()
                for name in ("metrics.csv", "place")
                for file in folder.rglob(name)
            }
        )
    assert found[0] == found[1]
    assert len(found[0]) == 6


class Screen:
    """A terminal of 80 columns: the lines it shows for the bytes that a program has written."""

    PIECE = re.compile(r"\x1b\[([0-9;?]*)([a-zA-Z])|([\r\n])|([^\x1b\r\n])")

    def __init__(self):
        self.lines, self.row, self.column = [""], 0, 0
        self.text = ""

    def show(self, text):
        self.text += text
        for number, control, move, letter in self.PIECE.findall(text):
            if control == "A":
                self.row -= int(number or 1)
            elif control == "K":
                self.lines[self.row] = ""
            elif move == "\r":
                self.column = 0
            elif move == "\n":
                self._down()
            elif letter:
                self._write(letter)

    def _down(self):
        self.row += 1
        self.lines += [""] * (self.row + 1 - len(self.lines))

    def _write(self, letter):
        if self.column == 80:
            self._down()
            self.column = 0
        line = self.lines[self.row].ljust(self.column)
        self.lines[self.row] = line[: self.column] + letter + line[self.column + 1 :]
        self.column += 1

    def watch(self, terminal, until):
        """Show output until ``until()`` holds or the program ends."""
        end = time.monotonic() + 120
        while not until():
            assert time.monotonic() < end, self.text
            if select.select([terminal], [], [], 0.1)[0]:
                try:
                    self.show(os.read(terminal, 65536).decode(errors="replace"))
                except OSError:  # the other side is closed
                    return


def start_in_terminal(*words):
    """Start the command line in a terminal of 80 x 24; return the process and our side."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (24, 80))

    def take():
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        hear_interrupts()

    hidden = {"COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    process = subprocess.Popen(
        [sys.executable, "-m", "fedbolic", *map(str, words)],
        cwd=ROOT,
        env={**kept, "TERM": "xterm-256color", "PYTHONPATH": str(ROOT)},
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=take,
    )
    os.close(theirs)
    return process, ours


def session(leader):
    """Ids of the processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == leader and fields[0] != "Z":
            found.append(stat.parent.name)
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
@pytest.mark.processes
def test_ctrl_c_stops_all_of_a_sweep_and_says_how_to_go_on(config, runs, fedbolic, monkeypatch):
    """Both bars show the time left; Ctrl-C in the terminal then ends every process."""
    table = config.with_name("my table.yaml")
    table.write_text(
        "base: tiny.yaml\ncommon: {method.rounds: 100000}\n"
        "rows: {one: null, two: null, three: null}"
    )
    words = ["sweep", "--config", table, "--runs", runs, "--jobs", "2"]
    process, terminal = start_in_terminal(*words, "--overwrite")
    screen, leader = Screen(), process.pid
    bars = [
        re.compile(rf"{name} seed0 .*round \d+/100000 .*left \d+:\d\d") for name in ("one", "two")
    ]

    def both():
        return all(any(bar.match(line) for line in screen.lines) for bar in bars)

    screen.watch(terminal, both)
    assert sum("seed0" in line for line in screen.lines) == 2
    assert len(session(leader)) > 2
    os.write(terminal, b"\x03")
    screen.watch(terminal, lambda: False)
    os.close(terminal)
    assert process.wait(timeout=60) == 130
    assert "Traceback" not in screen.text
    said = re.search(r"fedbolic: interrupted; continue with `(.*)`", screen.text)
    assert shlex.split(said[1]) == ["fedbolic", *map(str, words)]
    for _ in range(600):  # the tracker of shared resources outlives all other processes
        if not session(leader):
            break
        time.sleep(0.1)
    assert session(leader) == []
    folder = runs / "my table"
    assert {path.parent.parent.name for path in folder.rglob("state.pt")} == {"one", "two"}
    began = []
    monkeypatch.setattr(module, "_run_all", lambda tasks, jobs: began.extend(tasks) or [])
    states = {path: path.read_bytes() for path in folder.rglob("state.pt")}
    assert fedbolic(*shlex.split(said[1])[1:])[0] == 0
    assert [path.parent.name for _, path in began] == ["one", "two", "three"]
    assert {path: path.read_bytes() for path in folder.rglob("state.pt")} == states
    assert not list(folder.rglob(module.OUTDATED))  # no run would start over


def work(what, *, callbacks):
    """Task of the worker processes in these tests."""
    if what == "die":
        os.kill(os.getpid(), 9)
    if what == "raise":
        raise ZeroDivisionError("by nothing")
    if what == "stop":
        return "stopped"
    callbacks[0].on_run_start(round=0, rounds=1)
    return None


@pytest.mark.processes
def test_a_process_that_dies_is_replaced_and_an_error_lets_the_others_end():
    jobs = [Job(what, (what,)) for what in ("die", "stop", "raise", "do")]
    with pytest.raises(RuntimeError, match="ZeroDivisionError: by nothing"):
        run_jobs(work, jobs, 1)
    assert [job.reason for job in jobs] == [
        "die: its process was killed by SIGKILL",
        "stopped",
        None,
        None,
    ]
    assert [bool(job.error) for job in jobs] == [False, False, True, False]
