"""Concurrent runs in separate processes, displayed and stopped by the parent process."""

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

from fedbolic.core.rows import Row
from fedbolic.federated.processes.worker import SPAWN, deaf
from fedbolic.run.progress import SweepBars

_GRACE = 10.0
"""Seconds for an interrupted run to close its loggers and end its own processes."""

Work = Callable[..., str | None]
"""Function of a job's arguments and ``callbacks`` that returns why the run stopped, or ``None``."""


@dataclass
class Job:
    """One call of the work function, and its outcome.

    Args:
        name: Label of the progress bar.
        arguments: Arguments of the work function.
    """

    name: str
    arguments: tuple
    reason: str | None = field(default=None, init=False)
    """Reason why the run stopped, if it did."""
    error: str | None = field(default=None, init=False)
    """Traceback of an error in the work function, if it raised one."""


def run_jobs(work: Work, jobs: Sequence[Job], num: int) -> None:
    """Run jobs in processes; an interrupt stops running jobs and cancels waiting ones.

    Log records of the processes are logged in this process. A process that dies is replaced.

    Args:
        work: Work function, defined at the top level of a module.
        jobs: Jobs in the order in which they start; their outcome is stored in them.
        num: Number of jobs at the same time, at least 1.

    Raises:
        RuntimeError: If a job raised an error; all other jobs have been run.
    """
    waiting, processes = deque(jobs), list[_Process]()
    with SweepBars(len(jobs)) as bars:
        try:
            for _ in range(min(num, len(jobs))):
                # one by one, so that an interrupt in between stops all that were started
                processes.append(_Process(work))
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
    """Handle of a process that runs one job after another."""

    def __init__(self, work: Work) -> None:
        self.work = work
        self.job: Job | None = None
        self._start()

    def _start(self) -> None:
        self.connection, other = SPAWN.Pipe()
        # not a daemon, because a run may start processes itself
        self.process = SPAWN.Process(target=_serve, args=(other, self.work), daemon=False)
        with deaf():
            self.process.start()
        other.close()  # so that the end of the process ends the pipe

    def begin(self, job: Job, bars: SweepBars) -> None:
        """Start a job."""
        self.job, self.bar = job, bars.new(job.name)
        with contextlib.suppress(OSError):  # the process has just died, and listen reports it
            self.connection.send(job.arguments)

    def listen(self) -> bool:
        """Handle one message, or the end of the process; True if the job has ended."""
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
        """The next message of the process; if it has died, a message that its job has ended."""
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
    """End all processes, with a grace period for those that run a job.

    A second interrupt kills them at once.
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


def _serve(connection: Connection, work: Work) -> None:
    """Run jobs in a child process until the parent closes the pipe."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is handled by the parent
    signal.signal(signal.SIGTERM, _interrupt)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    teller = _Teller(connection)
    handlers = [_Forward(teller)]
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=handlers)
    logging.captureWarnings(True)
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):  # the other end was closed
        while True:
            arguments = connection.recv()
            try:
                teller.tell("ended", work(*arguments, callbacks=[teller]))
            except Exception as error:
                teller.tell("raised", "".join(traceback.format_exception(error)))
    sys.stdout.flush()
    os._exit(0)  # skips Python's finalization, which takes a second and has nothing to clean up


def _interrupt(*_: object) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


def _end_with_parent() -> None:
    """Interrupt this process as soon as its parent has ended."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


class _Teller:
    """Run callbacks that forward their calls to the progress bar in the parent process."""

    def __init__(self, connection: Connection) -> None:
        self.connection, self.lock = connection, threading.Lock()

    def tell(self, kind: str, value: Any) -> None:
        """Send one message."""
        with self.lock:  # several threads may log
            self.connection.send((kind, value))

    def on_run_start(self, round: int, rounds: int) -> None:
        """Forward the call to :class:`~fedbolic.run.progress.ProgressBar`."""
        self.tell("called", ("on_run_start", {"round": round, "rounds": rounds}))

    def on_round_end(self, round: int, rounds: int, rows: Sequence[Row]) -> None:
        """Forward the call to :class:`~fedbolic.run.progress.ProgressBar`, less rows of clients."""
        common = [row for row in rows if row.client is None]
        arguments = {"round": round, "rounds": rounds, "rows": common}
        self.tell("called", ("on_round_end", arguments))

    def on_run_end(self) -> None:
        """Forward the call to :class:`~fedbolic.run.progress.ProgressBar`."""
        self.tell("called", ("on_run_end", {}))


class _Forward(QueueHandler):
    """Log handler that sends records to the parent process."""

    def __init__(self, teller: _Teller) -> None:
        super().__init__(cast(Any, teller))  # not a queue, but enqueue below needs no more

    @override
    def enqueue(self, record: logging.LogRecord) -> None:
        cast(_Teller, self.queue).tell("logged", record)
