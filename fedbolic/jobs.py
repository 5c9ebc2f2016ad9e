"""Runs at the same time, each in a process of its own, shown and stopped by the one that asked."""

import contextlib
import logging
import multiprocessing
import os
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from logging.handlers import QueueHandler
from multiprocessing import connection
from multiprocessing.connection import Connection
from typing import Any, cast

from typing_extensions import override

from fedbolic.federated.engines.worker import SPAWN, deaf
from fedbolic.progress import SweepBars
from fedbolic.record import Row

_GRACE = 10.0
"""Seconds that an interrupted run has to close its loggers and end its own processes."""

Work = Callable[..., str | None]
"""Does a job, given its arguments and ``callbacks`` of its run; why the run stopped, if it did."""


@dataclass
class Job:
    """One call of the work, and how it ended.

    Args:
        name: What its bar is called.
        arguments: Of the work.
    """

    name: str
    arguments: tuple
    reason: str | None = field(default=None, init=False)
    """Why the run stopped, if it did."""
    error: str | None = field(default=None, init=False)
    """The text of an error that the work raised, if it did."""


def run_jobs(work: Work, jobs: Sequence[Job], num: int) -> None:
    """Do jobs in processes; an interrupt stops those that are under way and those that wait.

    What the processes log is logged here. A process that dies is replaced.

    Args:
        work: A function of a module.
        jobs: In the order of their beginning; each learns how it ended.
        num: How many go on at the same time, at least 1.

    Raises:
        RuntimeError: If a job raised an error; the others have been done.
    """
    waiting, processes = deque(jobs), list[_Process]()
    with SweepBars(len(jobs)) as bars:
        try:
            for _ in range(min(num, len(jobs))):
                processes.append(_Process(work))  # one by one: all that were started are stopped
            while waiting or any(process.job for process in processes):
                for process in processes:
                    if waiting and not process.job:
                        process.begin(waiting.popleft(), bars)
                busy = [process for process in processes if process.job]
                heard = connection.wait([process.connection for process in busy])
                for process in busy:
                    if process.connection in heard and process.listen():
                        bars.on_sweep_step()
        finally:
            _end(processes)
    if errors := [job.error for job in jobs if job.error]:
        raise RuntimeError("\n".join(errors))


class _Process:
    """A process that does one job after another, seen from the one that started it."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        self.connection, other = SPAWN.Pipe()
        # not a daemon: a run may have processes of its own
        self.process = SPAWN.Process(target=_serve, args=(other, self.work), daemon=False)
        with deaf():
            self.process.start()
        other.close()  # so that the end of the process ends the pipe

    def begin(self, job: Job, bars: SweepBars) -> None:
        """Hand over a job."""
        self.job, self.bar = job, bars.new(job.name)
        with contextlib.suppress(OSError):  # it has just died: listen will tell
            self.connection.send(job.arguments)

    def listen(self) -> bool:
        """Take in one message, or the end of the process; True if its job has ended."""
        job = self.job
        assert job is not None
        kind, value = self._message()
        if kind == "logged":
            logging.getLogger(value.name).handle(value)
        elif kind == "called":
            method, arguments = value
            getattr(self.bar, method)(**arguments)
        else:
            job.reason, job.error = (value, None) if kind == "ended" else (None, value)
            self.job = None
            self.bar.close()
        return self.job is None

    def _message(self) -> tuple[str, Any]:
        """The next message of the process; if it has died, the end of its job, and why."""
        assert self.job is not None
        try:
            return self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            fate = _fate(self.process.exitcode or 0)
            self._start()
            return "ended", f"{self.job.name}: its process {fate}"


def _fate(code: int) -> str:
    if code < 0:
        return f"was killed by {signal.Signals(-code).name}"
    return f"ended with exit code {code}"


def _end(processes: Sequence[_Process]) -> None:
    """See to it that no process is left: at once those that wait, the others as soon as they can.

    A second interrupt kills them.
    """
    try:
        for process in processes:
            process.connection.close()
            if process.job:
                process.process.terminate()
        for process in processes:
            process.process.join(_GRACE)
    finally:
        for process in processes:
            process.process.kill()
            process.process.join()
            process.process.close()


def _serve(told: Connection, work: Work) -> None:
    """The life of a process: job after job, until the other end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that started this process
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    teller = _Teller(told)
    handlers = [_Forward(teller)]
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=handlers)
    logging.captureWarnings(True)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # the other end was closed
        while True:
            arguments = told.recv()
            try:
                teller.tell("ended", work(*arguments, callbacks=[teller]))
            except Exception as error:
                teller.tell("raised", "".join(traceback.format_exception(error)))
    sys.stdout.flush()
    os._exit(0)  # there is nothing to tidy, and Python would take a second for it


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Interrupt this process as soon as the one that started it is gone."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Teller:
    """Callbacks of a run that call those of its bar, in another process."""

    def __init__(self, told: Connection) -> None:
        self.connection, self.lock = told, threading.Lock()

    def tell(self, kind: str, value: Any) -> None:
        """Send one message."""
        with self.lock:  # several threads may log
            self.connection.send((kind, value))

    def on_run_start(self, round: int, rounds: int) -> None:
        """As :class:`~fedbolic.progress.ProgressBar`."""
        self.tell("called", ("on_run_start", {"round": round, "rounds": rounds}))

    def on_round_end(self, round: int, rounds: int, rows: Sequence[Row]) -> None:
        """As :class:`~fedbolic.progress.ProgressBar`; of one client, no row is shown."""
        common = [row for row in rows if row.client is None]
        arguments = {"round": round, "rounds": rounds, "rows": common}
        self.tell("called", ("on_round_end", arguments))

    def on_run_end(self) -> None:
        """As :class:`~fedbolic.progress.ProgressBar`."""
        self.tell("called", ("on_run_end", {}))


class _Forward(QueueHandler):
    """Sends what is logged to the process that shows it."""

    def __init__(self, teller: _Teller) -> None:
        super().__init__(cast(Any, teller))  # which is no queue, but has what enqueue needs

    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        cast(_Teller, self.queue).tell("logged", record)
