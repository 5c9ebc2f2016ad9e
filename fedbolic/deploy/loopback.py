"""A whole Flower federation on this machine: a SuperLink, a SuperNode for every client, one run."""

import contextlib
import ctypes
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, build, describe, setting_up
from fedbolic.experiment import load, run
from fedbolic.federated import RunStoppedError
from fedbolic.record import RunFolder, refuse_existing

HOST = "127.0.0.1"
GRACE = 10.0
"""Seconds that processes have to end by themselves."""
PATIENCE = 60.0
"""Seconds that a SuperLink has to answer after its start."""
MARK = "FEDBOLIC_LOOPBACK"
"""The variable that all processes of one federation inherit, by which they are found again."""

PROJECT = """\
[project]
name = "fedbolic-run"
version = "1.0.0"
description = "A run of fedbolic"
license = "Apache-2.0"
dependencies = ["fedbolic[flower]"]

[tool.flwr.app]
publisher = "fedbolic"

[tool.flwr.app.components]
serverapp = "fedbolic.deploy.app:server"
clientapp = "fedbolic.deploy.app:client"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Terms:
    """On which terms clients take part.

    Args:
        timeout: Seconds to wait for the answers of an exchange, above 0.
        least: Clients that must answer in every exchange and evaluation, as far as so many are
            asked; with fewer the run stops, to be resumed.

    Raises:
        ValueError: If a value is out of range.
    """

    timeout: float = 600.0
    least: int = 1

    def __post_init__(self) -> None:
        check.positive(timeout=self.timeout)
        check.at_least(1, least=self.least)


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """The Flower app of a run, which is a project file alone: code is what fedbolic installs.

    Args:
        folder: Where; made if it is not there.
        config: What both sides read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # a JSON text, number or truth value is one of TOML as well
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in config.items()]
    (folder / "pyproject.toml").write_text(PROJECT + "".join(lines))


def flower(settings: dict[str, Any], terms: Terms = Terms(), *, overwrite: bool = False) -> Path:
    """A run whose clients are SuperNodes of this machine, each in processes of its own.

    Args:
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        terms: On which clients take part.
        overwrite: Replace a run of the same name and seed.

    Returns:
        The run's folder, as :func:`~fedbolic.experiment.run` leaves it; the memories of clients lie
        in ``nodes`` there.

    Raises:
        SetupError: If the run cannot begin.
        RunStoppedError: If training cannot go on; the last good state is saved.
    """
    settings = {**settings, "runs": settings["runs"].absolute(), "name": settings["name"] or "run"}
    path = settings["runs"] / settings["name"] / f"seed{settings['seed']}"
    with setting_up():
        if not overwrite:
            refuse_existing(path)
        config = describe(run, settings)
    _serve(path, config, len(load(settings).clients), terms, overwrite=overwrite)
    return path


def go_on(path: Path) -> None:
    """Go on with a run of :func:`flower` that was stopped.

    Args:
        path: Its folder.

    Raises:
        SetupError: If it cannot go on here as it began.
        RunStoppedError: If training cannot go on; the last good state is saved.
    """
    folder = RunFolder.open(path.absolute())
    with setting_up():
        settings = build(run, ["--config", str(folder.config)])
        terms = Terms(**folder.environment["terms"])
    number = len(load(settings).clients)
    _serve(folder.path, folder.config.read_text(), number, terms, overwrite=False)


def is_deployed(path: Path) -> bool:
    """Whether the run in a folder is one of :func:`flower`."""
    return (path / "environment.json").is_file() and "terms" in RunFolder(path).environment


def prepare(
    folder: Path, settings: dict[str, Any], terms: Terms = Terms(), *, clients: int | None = None
) -> None:
    """Write the app of a run between machines, for ``flwr run``; run again, it goes on.

    Args:
        folder: Where.
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        terms: On which clients take part.
        clients: How many; none: as many as the data here have.
    """
    with setting_up():
        settings = {**settings, "name": settings["name"] or "run"}
        app = {
            "config": describe(run, settings),
            "clients": len(load(settings).clients) if clients is None else clients,
            "timeout": terms.timeout,
            "least": terms.least,
            "overwrite": False,
            "memory": "fedbolic",
            "run": secrets.token_hex(8),
            "outcome": "",
        }
        write_app(folder, app)


def _serve(path: Path, config: str, number: int, terms: Terms, *, overwrite: bool) -> None:
    """Start everything, run, and stop everything."""
    with Federation(path.with_name(f"{path.name}.flower")) as federation:
        outcome = federation.folder / "outcome.json"
        app = {
            "config": config,
            "clients": number,
            "timeout": terms.timeout,
            "least": terms.least,
            "overwrite": overwrite,
            "memory": str(path / "nodes"),
            "run": "memory",
            "outcome": str(outcome),
        }
        write_app(federation.folder / "app", app)
        federation.start(number)
        federation.submit(federation.folder / "app")
        said = json.loads(outcome.read_text()) if outcome.exists() else None
        if said is None or said["code"]:
            federation.keep_logs()
        if said is None:
            raise RunStoppedError(f"the server's process was lost; see {federation.folder}")
        if said["code"] == 2:
            raise SetupError(said["error"])
        if said["code"]:
            raise RunStoppedError(said["error"])


class Federation:
    """A SuperLink and SuperNodes of this machine; leaving it as a context ends all processes.

    They talk over loopback, in the clear.

    Args:
        folder: For logs and Flower's own files; removed at the end unless something went wrong.

    Raises:
        SetupError: If Flower is not installed.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, secrets.token_hex(16)
        self.processes: list[subprocess.Popen] = []
        self.failed = False
        self.address = f"{HOST}:{_free_port()}"
        bin = Path(sys.executable).parent
        self.environment = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "RAY_USAGE_STATS_ENABLED": "0",
            **os.environ,
            "PATH": f"{bin}{os.pathsep}{os.environ.get('PATH', os.defpath)}",
            "FLWR_HOME": str(folder / "home"),
            MARK: self.mark,
        }
        if shutil.which("flower-superlink", path=self.environment["PATH"]) is None:
            raise SetupError("Flower is not here: pip install 'fedbolic[flower]'")

    def __enter__(self) -> "Federation":
        shutil.rmtree(self.folder, ignore_errors=True)
        (self.folder / "home").mkdir(parents=True)
        (self.folder / "home" / "config.toml").write_text(
            '[superlink]\ndefault = "loopback"\n\n'
            f'[superlink.loopback]\naddress = "{self.address}"\ninsecure = true\n'
        )
        _adopt_orphans(True)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._end()
        finally:
            _adopt_orphans(False)
        if error is None and not self.failed:
            shutil.rmtree(self.folder)

    def keep_logs(self) -> None:
        """Leave the folder where it is."""
        self.failed = True

    def start(self, number: int) -> None:
        """The SuperLink and ``number`` SuperNodes.

        Raises:
            SetupError: If the SuperLink does not answer.
        """
        host, port = self.address.split(":")
        link = ["flower-superlink", "--insecure", "--host", host, "--port", port]
        link += ["--disable-runtime-dependency-installation"]
        process = self._launch("superlink", link)
        end = time.monotonic() + PATIENCE
        while not _answers(host, int(port)):
            if process.poll() is not None or time.monotonic() > end:
                self.keep_logs()
                raise SetupError(f"the SuperLink does not start; see {self.folder}/superlink.log")
            time.sleep(0.2)
        for i in range(number):
            node = ["flower-supernode", "--insecure", "--superlink", self.address]
            node += ["--host", HOST, "--port", str(_free_port())]
            self._launch(f"node{i}", [*node, "--node-config", f"partition-id={i}"])

    def submit(self, app: Path) -> None:
        """Run an app to its end, its log on standard error."""
        words = ["flwr", "run", str(app), "loopback", "--stream"]
        process = self._launch("run", words, output=sys.stderr)
        process.wait()

    def _launch(self, name: str, words: Sequence[str], output: Any = None) -> subprocess.Popen:
        with contextlib.ExitStack() as stack:
            file = output or stack.enter_context((self.folder / f"{name}.log").open("wb"))
            process = subprocess.Popen(
                words,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=self.environment,
                start_new_session=True,  # Ctrl-C is for this process, which ends the others
                preexec_fn=_end_with_parent,
            )
        self.processes.append(process)
        return process

    def _end(self) -> None:
        """Ask all to end, and see to it that none is left, nor any that they started."""
        for process in reversed(self.processes):
            process.terminate()
        end = time.monotonic() + GRACE
        while (left := list(self._left())) and time.monotonic() < end:
            time.sleep(0.1)
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        end = time.monotonic() + GRACE
        while list(self._left()) and time.monotonic() < end:
            time.sleep(0.1)

    def _left(self) -> Iterator[int]:
        """The processes of this federation that have not ended; those that have are forgotten."""
        for process in self.processes:
            process.poll()
        wanted = f"{MARK}={self.mark}".encode()
        for folder in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if _is_zombie_of_ours(folder):
                    os.waitpid(int(folder.name), os.WNOHANG)
                elif wanted in (folder / "environ").read_bytes().split(b"\0"):
                    yield int(folder.name)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        return listener.getsockname()[1]


def _answers(host: str, port: int) -> bool:
    with socket.socket() as caller:
        caller.settimeout(1.0)
        return caller.connect_ex((host, port)) == 0


def _control(option: int, value: int) -> None:
    """Linux's prctl; elsewhere nothing."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _end_with_parent() -> None:
    """Let the process that calls this be terminated when its parent ends, however that does."""
    _control(1, signal.SIGTERM)  # PR_SET_PDEATHSIG


def _adopt_orphans(adopt: bool) -> None:
    """Let processes whose parent has ended become this one's, which can then see to their end."""
    _control(36, int(adopt))  # PR_SET_CHILD_SUBREAPER


def _is_zombie_of_ours(folder: Path) -> bool:
    """Whether a process, by its folder in /proc, has ended as a child that nobody waited for."""
    state, parent = (folder / "stat").read_text().rpartition(")")[2].split()[:2]
    return state == "Z" and int(parent) == os.getpid()
