"""Processes of a Flower federation on this machine, all stopped when the federation ends."""

import contextlib
import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbolic.remote.fork_server import MODULES, write_programs
from fedbolic.run.configuration import SetupError

HOST = "127.0.0.1"

_GRACE = 1.0
"""Seconds that processes have to exit before they are killed; SuperNodes would take five."""

_PAUSE = 0.2
"""Seconds between two polls of the processes."""

PATIENCE = 60.0
"""Seconds that a SuperLink has to accept connections after its start."""

MARK = "FEDBOLIC_FEDERATION"
"""Environment variable that all processes of a federation inherit, which identifies them."""


class Federation:
    """A SuperLink and SuperNodes on this machine; leaving the context stops all processes.

    Connections use the loopback interface and are not encrypted. Logs and Flower's own files are
    written to a folder next to the run's; it is deleted at the end unless there was an error.

    Args:
        path: Folder of the run, which need not exist.

    Raises:
        SetupError: If Flower is not installed.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.folder = path, path
        self.mark = secrets.token_hex(16)
        self.processes: list[subprocess.Popen] = []
        self.address = f"{HOST}:{_free_port()}"
        folders = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
        if shutil.which("flower-superlink", path=folders) is None:
            raise SetupError("Flower is not installed: pip install 'fedbolic[flower]'")
        self.environment = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.25",
            **os.environ,
            "PATH": folders,
            MARK: self.mark,
        }

    def __enter__(self) -> "Federation":
        self.path.parent.mkdir(parents=True, exist_ok=True)
        prefix = f"{self.path.name}.flower-"
        self.folder = Path(tempfile.mkdtemp(prefix=prefix, dir=self.path.parent))
        home = self.folder / "home"
        home.mkdir()
        (home / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n'
            f'[superlink.loopback]\naddress = "{self.address}"\ninsecure = true\n'
        )
        self.environment["FLWR_HOME"] = str(home)
        _adopt_orphans(True)
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        try:
            self._end()
        finally:
            _adopt_orphans(False)
        if error is None or kind is KeyboardInterrupt:
            shutil.rmtree(self.folder, ignore_errors=error is not None)

    def start(self, nodes: Sequence[str], *, simulated: bool) -> None:
        """Start the SuperLink and a SuperNode for every client.

        Args:
            nodes: Flower's configuration of every node, at least one.
            simulated: True to let Flower simulate the clients, without SuperNodes.

        Raises:
            SetupError: If the SuperLink exits or accepts no connection.
        """
        if sys.platform == "linux" and not simulated:
            programs = self.folder / "programs"
            self.environment["PATH"] = f"{programs}{os.pathsep}{self.environment['PATH']}"
            with write_programs(programs) as listener:
                words = [sys.executable, "-m", "fedbolic.remote.fork_server", *MODULES]
                self._launch("forks", words, listener)
        host, port = self.address.split(":")
        link = ["flower-superlink", "--insecure", "--host", host, "--port", port]
        link += ["--disable-runtime-dependency-installation"]
        link += ["--simulation"] if simulated else []
        process = self._launch("superlink", link)
        end = time.monotonic() + PATIENCE
        while not _answers(host, int(port)):
            if process.poll() is not None or time.monotonic() > end:
                raise SetupError(f"the SuperLink did not start: see {self.folder}/superlink.log")
            time.sleep(_PAUSE)
        for i, config in enumerate(() if simulated else nodes):
            node = ["flower-supernode", "--insecure", "--superlink", self.address]
            node += ["--host", HOST, "--port", str(_free_port())]
            self._launch(f"node{i}", [*node, "--node-config", config])

    def submit(self, app: Path, settings: Sequence[str] = ()) -> None:
        """Run an app and wait for its end; its log goes to standard error.

        Args:
            app: Folder of the app.
            settings: Flower's settings of a simulation, as ``name=value``.
        """
        words = ["flwr", "run", str(app), "loopback", "--stream"]
        if settings:
            words += ["--federation-config", " ".join(settings)]
        self._launch("run", words, output=sys.stderr).wait()
        while any(map(_serves, self._left())):  # the log may end before the run
            time.sleep(_PAUSE)

    def _launch(
        self, name: str, words: Sequence[str], source: Any = subprocess.DEVNULL, output: Any = None
    ) -> subprocess.Popen:
        with contextlib.ExitStack() as stack:
            file = output or stack.enter_context((self.folder / f"{name}.log").open("wb"))
            # an interrupt that a hook of fork hears would be lost: it waits until after the fork
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            stack.callback(signal.pthread_sigmask, signal.SIG_SETMASK, before)
            process = subprocess.Popen(
                words,
                stdin=source,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # Ctrl-C reaches this process, which ends the others
                preexec_fn=_prepare_child,
            )
            self.processes.append(process)
        return process

    def _end(self) -> None:
        """Terminate all processes of the federation and their children; kill any that stay."""
        self._signal_all(signal.SIGTERM)
        end = time.monotonic() + _GRACE
        while any(self._left()) and time.monotonic() < end + 10 * _GRACE:
            if time.monotonic() > end:
                self._signal_all(signal.SIGKILL)
            time.sleep(_PAUSE)
        for process in self.processes:
            process.poll()  # of those that ended while the others were looked at

    def _signal_all(self, number: signal.Signals) -> None:
        for pid in self._left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, number)

    def _left(self) -> Iterator[int]:
        """Ids of this federation's running processes; processes that have ended are reaped.

        The environment of a process is gone some time before the process is.
        """
        started = {process.pid for process in self.processes if process.poll() is None}
        yield from started
        wanted = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _is_zombie_of_ours(folder):
                    os.waitpid(int(folder.name), os.WNOHANG)
                elif (pid := int(folder.name)) not in started and wanted in (
                    folder / "environ"
                ).read_bytes().split(b"\0"):
                    yield pid


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def _answers(host: str, port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex((host, port)) == 0


def _control(option: int, value: int) -> None:
    """Call ``prctl`` on Linux; do nothing on other systems."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _prepare_child() -> None:
    """Have the calling process hear interrupts, and terminated when its parent ends."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # a child inherits what is blocked
    _control(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _adopt_orphans(adopt: bool) -> None:
    """Set whether this process becomes the parent of orphaned descendants, to end them later."""
    _control(36, int(adopt))  # PR_SET_CHILD_SUBREAPER


def _serves(pid: int) -> bool:
    """True if a process is the server of a run."""
    with contextlib.suppress(OSError):
        words = Path(f"/proc/{pid}/cmdline").read_bytes()
        return b"flwr-serverapp" in words or b"flwr-simulation" in words
    return False


def _is_zombie_of_ours(folder: Path) -> bool:
    """True if a process, given its folder in /proc, is a child that has ended but is not reaped."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    return state == "Z" and int(parent) == os.getpid()
