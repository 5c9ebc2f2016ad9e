"""The folder of a run: its configuration, measurements, figures and checkpoint."""

import contextlib
import csv
import io
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from fedbolic.core import figure
from fedbolic.core.checksums import DamagedError, Grown, open_as_folder
from fedbolic.core.client_states import ClientStateLog, ClientStates
from fedbolic.core.figure import Figure
from fedbolic.core.imports import extra
from fedbolic.core.rows import Row
from fedbolic.core.torch_files import load_sealed, save_sealed
from fedbolic.run.run_files import COMPLETE, HEADERS, RunFiles

with extra("run", "fedbolic.run"):
    from filelock import FileLock, Timeout

_NUMBERS = {name: tuple(HEADERS) for name in ("sizes", "checksums")}
_NUMBERS["client_states"] = ("generation", "size", "checksum")


@dataclass(frozen=True)
class RunFolder(RunFiles):
    """The files of a run, written by one process at a time and safe against kills.

    Metrics contain no times, so the files of two runs with one seed are identical. A checkpoint
    records how many bytes of metrics, times and client states belong to it, and their checksums.
    Anything that a killed run wrote after its last checkpoint is cut off on resuming.

    Args:
        path: The folder.
    """

    _grown: dict[str, "Grown"] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def create(
        cls, path: Path, *, config: str, environment: dict[str, Any], overwrite: bool = False
    ) -> "RunFolder":
        """Create a folder, which appears under its name only when it is complete.

        Raises:
            FileExistsError: If ``path`` exists and ``overwrite`` is false.
            BlockingIOError: If another process is writing to the existing folder.
            OSError: If the folder cannot be created.
        """
        if not overwrite:
            refuse_existing(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
        try:
            draft.chmod(0o755)
            (draft / "config.yaml").write_text(config)
            (draft / "environment.json").write_text(json.dumps(environment, indent=2) + "\n")
            for name, header in HEADERS.items():
                (draft / name).write_text(header)
            if path.exists():
                cls(path).remove()
            draft.rename(path)
        except BaseException as error:  # an interrupt must not leave the draft behind either
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
                raise OSError(f"{path} cannot be created: {error}") from error
            raise
        return cls(path)

    @classmethod
    def open(cls, path: Path | str) -> "RunFolder":
        """Open the folder of an existing run.

        Raises:
            FileNotFoundError: If there is no run at ``path``.
        """
        path = Path(path)
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"there is no run in {path}: it has no config.yaml")
        return cls(path)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Lock the folder against other processes until the block or this process ends.

        Raises:
            BlockingIOError: If another process holds the lock.
        """
        try:
            held = FileLock(self.path / ".lock").acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(
                f"{self.path} is in use by another process: wait until it ends, or stop it"
            ) from error
        with held:
            yield

    def restrict(self) -> None:
        """Let nobody but the owner read the folder and its files, as it will hold secret keys."""
        self.path.chmod(0o700)
        for file in self.path.rglob("*"):
            file.chmod(0o700 if file.is_dir() else 0o600)

    def remove(self) -> None:
        """Delete the folder and its content.

        Raises:
            BlockingIOError: If another process is writing to it.
        """
        with self.alone():
            shutil.rmtree(self.path)

    def save_engine(self, engine: str, seconds: Mapping[str, float]) -> None:
        """Save the chosen engine, and the seconds that an exchange took with each candidate."""
        self._save_table("engine.json", {"engine": engine, "seconds": dict(seconds)})

    def mark_complete(self) -> None:
        """Record that nothing is left to do, with length and checksum of every file."""
        self._save_table(COMPLETE, self.grown_files())

    def client_states(self) -> ClientStates:
        """An empty store of client states on disk, for a run that starts in this folder."""
        return ClientStates(ClientStateLog(self.path))

    def save(
        self,
        checkpoint: dict[str, Any],
        rows: Iterable[Row],
        seconds: float,
        *,
        forget: bool = False,
    ) -> None:
        """Append new measurements and states, then replace the checkpoint; safe against kills.

        Args:
            checkpoint: Nested dicts and lists of tensors, numbers and strings, with ``round`` and
                ``exchange``. ``client_states`` may hold client state by id; if it comes from
                :meth:`client_states` of this folder, only changed states are written.
            rows: Measurements since the last checkpoint.
            seconds: Seconds since the last checkpoint, saved in ``times.csv``.
            forget: Whether to delete outdated client states, which may hold secret keys.
        """
        states = checkpoint.get("client_states", {})
        if not isinstance(states, ClientStates):
            states = ClientStates(ClientStateLog(self.path), states)
        states.save(anew=forget)
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        writer.writerows([r.round, r.client, r.name, repr(float(r.value))] for r in rows)
        times = f"{checkpoint['round']},{checkpoint['exchange']},{seconds:.3f}\n"
        for name, lines in {"metrics.csv": text.getvalue(), "times.csv": times}.items():
            self._append(name, lines)
        whole = {
            **checkpoint,
            "client_states": states.store.commit,
            "sizes": {name: grown.size for name, grown in self._grown.items()},
            "checksums": {name: grown.checksum for name, grown in self._grown.items()},
        }
        self._replace("state.pt", lambda file: save_sealed(whole, file))
        states.store.tidy()

    def _append(self, name: str, text: str) -> None:
        """Append lines to a file and update its checksum."""
        path = self.path / name
        grown = self._grown.get(name)
        if grown is None or grown.size != path.stat().st_size:
            grown = Grown.of(path)
        _append(path, text)
        self._grown[name] = grown.after(text.encode())

    def _save_table(self, name: str, table: Mapping[str, Any]) -> None:
        text = json.dumps(table, indent=2)
        self._replace(name, lambda file: file.write(f"{text}\n".encode()))

    def _replace(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        draft = self.path / f"{name}.draft"
        try:
            with open_as_folder(draft, "wb+") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            draft.unlink(missing_ok=True)  # frees space on a full disk
            raise
        draft.replace(self.path / name)  # atomic, so that a reader never sees half a file

    def load(self) -> dict[str, Any] | None:
        """Load the last checkpoint and truncate append-only files to it; ``None`` without one.

        All files are verified now, but client states are read on access.

        Raises:
            DamagedError: If a file was altered or truncated.
            ValueError: If an earlier version of fedbolic wrote the checkpoint.
        """
        checkpoint = _read_entries(self.checkpoint) if self.checkpoint.exists() else None
        first = {name: Grown().after(header.encode()) for name, header in HEADERS.items()}
        if checkpoint is not None:
            sizes, checksums = checkpoint.pop("sizes"), checkpoint.pop("checksums")
            first = {name: Grown(sizes[name], checksums[name]) for name in HEADERS}
        for name, grown in first.items():
            grown.cut(self.path / name)
        self._grown.update(first)
        if checkpoint is None:
            ClientStateLog(self.path).tidy()
            return None
        store = ClientStateLog.open(self.path, checkpoint["client_states"])
        return {**checkpoint, "client_states": ClientStates(store)}

    def read_checkpoint(self) -> dict[str, Any]:
        """The last checkpoint with its tensors on the CPU; changes no file, so a run may go on.

        Raises:
            FileNotFoundError: If the run has saved no checkpoint yet.
            DamagedError: If a file was altered or truncated.
        """
        if not self.checkpoint.exists():
            raise FileNotFoundError(f"{self.path} has no checkpoint yet: its first round goes on")
        checkpoint = _read_entries(self.checkpoint, device="cpu")
        store = ClientStateLog.read(self.path, checkpoint["client_states"])
        return {**checkpoint, "client_states": ClientStates(store)}

    def save_figures(self, figures: Mapping[str, Figure]) -> None:
        """Save figures as ``figures/NAME.npz``; the folder appears only when it is complete.

        Existing figures and their drawings are replaced. Without figures, nothing is written.

        Raises:
            ValueError: If a figure's name cannot be used as a file name.
        """
        if not figures:
            return
        if unclear := [n for n in figures if n in ("", "..") or Path(n).name != n]:
            raise ValueError(f"names of figures must be file names, got {unclear}")
        draft = self.path / "figures.draft"
        shutil.rmtree(draft, ignore_errors=True)  # a killed process may have left a draft
        draft.mkdir()
        try:
            for name, value in figures.items():
                with (draft / f"{name}.npz").open("wb") as file:
                    figure.write_figure(value, file)
                    file.flush()
                    os.fsync(file.fileno())
        except BaseException:
            shutil.rmtree(draft, ignore_errors=True)
            raise
        shutil.rmtree(self.path / "figures", ignore_errors=True)
        draft.rename(self.path / "figures")


def _read_entries(file: Path, *, device: str | None = None) -> dict[str, Any]:
    """Load a checkpoint and check its entries: whoever can write one can seal it, too."""
    found = load_sealed(file, numbers=_NUMBERS, device=device)
    counts = [found.get(name) for name in ("round", "exchange")]
    if any(type(count) is not int or count < 0 for count in counts):
        raise DamagedError(file, "lacks the numbers of completed rounds and exchanges")
    if not isinstance(found.get("server_state"), dict):
        raise DamagedError(file, "lacks the state of the server")
    return found


def refuse_unclear_name(name: str | None, runs: Path) -> None:
    """Refuse a name whose folder would lie outside the folder of all runs.

    Args:
        name: Name of a run or a sweep.
        runs: Folder that contains all runs.

    Raises:
        ValueError: If the name is empty, absolute, or leaves the folder.
    """
    parts = Path(name or "run").parts
    if not parts or ".." in parts or Path(parts[0]).is_absolute():
        raise ValueError(f"name must stay inside {runs} and be a folder name, got {name!r}")


def refuse_existing(path: Path) -> None:
    """Refuse a folder that already exists.

    Raises:
        FileExistsError: If it exists; the message gives the commands to resume or replace it.
    """
    if path.exists():
        raise FileExistsError(
            f"{path} exists: continue it with `fedbolic resume {path}`, or replace it with "
            "--overwrite (in Python: overwrite=True)"
        )


def _append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8", newline="") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
