"""A run's folder: what was asked, what was measured, and where the run stands."""

import contextlib
import csv
import io
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import torch
from filelock import FileLock, Timeout

from fedbolic import figure
from fedbolic.checksums import DamagedError, Grown, load_sealed, save_sealed
from fedbolic.client_states import ClientStateLog, ClientStates
from fedbolic.figure import Figure
from fedbolic.renamed import renamed_metric

HEADERS = {"metrics.csv": "round,client,name,value\n", "times.csv": "round,exchange,seconds\n"}
"""The files that grow, by name, and their first lines."""

_PACKAGES = ("fedbolic", "torch", "numpy", "lightning", "jsonargparse")


class Row(NamedTuple):
    """One measured number; ``client`` is ``None`` for numbers of the whole federation."""

    round: int
    client: int | None
    name: str
    value: float


@dataclass(frozen=True)
class RunFolder:
    """The folder of one run: ``config.yaml, metrics.csv, times.csv, state.pt, environment.json``.

    Where an engine was chosen there is ``engine.json``, too; where clients keep state, their
    states are in ``clients-N.log``; where the method gives figures, there is a folder ``figures``.

    Metrics hold no times, so two runs of one seed are equal byte by byte. A checkpoint knows how
    many bytes of metrics, times and client states belong to it, and their checksums; what a killed
    run wrote after its last checkpoint is cut off when it resumes.

    Args:
        path: The folder.
    """

    path: Path
    _grown: dict[str, "Grown"] = field(default_factory=dict, init=False, repr=False, compare=False)

    @classmethod
    def create(
        cls, path: Path, *, config: str, environment: dict[str, Any], overwrite: bool = False
    ) -> "RunFolder":
        """A new folder that appears under its name only when it is complete.

        Raises:
            FileExistsError: If there is something at ``path`` that is not to be replaced.
            BlockingIOError: If another process is writing there.
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
        except BaseException as error:  # an interrupt must not leave it behind either
            shutil.rmtree(draft, ignore_errors=True)
            if isinstance(error, OSError) and not isinstance(error, BlockingIOError):
                raise OSError(f"{path} cannot be made: {error}") from error
            raise
        return cls(path)

    @classmethod
    def open(cls, path: Path) -> "RunFolder":
        """The folder of an existing run.

        Raises:
            FileNotFoundError: If there is no run at ``path``.
        """
        if not (path / "config.yaml").is_file():
            raise FileNotFoundError(f"there is no run in {path}: it has no config.yaml")
        return cls(path)

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes from writing here, until the block or this process ends.

        Raises:
            BlockingIOError: If another one holds the folder.
        """
        try:
            held = FileLock(self.path / ".lock").acquire(timeout=0)
        except Timeout as error:
            raise BlockingIOError(
                f"{self.path} is being written by another process: wait for its end, or stop it"
            ) from error
        with held:
            yield

    def remove(self) -> None:
        """Delete the folder with all it holds.

        Raises:
            BlockingIOError: If another process is writing there.
        """
        with self.alone():
            shutil.rmtree(self.path)

    @property
    def config(self) -> Path:
        """The file with the whole configuration of the run."""
        return self.path / "config.yaml"

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine of the process that began the run.

        Raises:
            DamagedError: If the file is damaged.
        """
        return _read_table(self.path / "environment.json")

    @property
    def engine(self) -> str | None:
        """The engine that was chosen for the run, if one was.

        Raises:
            DamagedError: If the file is damaged.
        """
        file = self.path / "engine.json"
        if not file.exists():
            return None
        engine = _read_table(file).get("engine")
        if not isinstance(engine, str):
            raise DamagedError(file, "is damaged: it names no engine")
        return engine

    def save_engine(self, engine: str, seconds: Mapping[str, float]) -> None:
        """Keep which engine was chosen, and the seconds of an exchange with each."""
        text = json.dumps({"engine": engine, "seconds": dict(seconds)}, indent=2)
        self._replace("engine.json", lambda file: file.write(f"{text}\n".encode()))

    def client_states(self) -> ClientStates:
        """Empty client state on disk, for a run that begins here."""
        return ClientStates(ClientStateLog(self.path))

    def save(self, checkpoint: dict[str, Any], rows: Iterable[Row], seconds: float) -> None:
        """Append what is new, then replace the checkpoint, each so that a kill is safe.

        Args:
            checkpoint: Nested dicts and lists of tensors, numbers and strings; holds ``round`` and
                ``exchange``. Under ``client_states`` there may be client state by id; of that in
                :meth:`client_states` of this folder only what has changed is written.
            rows: What was measured since the last checkpoint.
            seconds: Time taken since the last checkpoint, kept in ``times.csv``.
        """
        states = checkpoint.get("client_states", {})
        if not isinstance(states, ClientStates):
            states = ClientStates(ClientStateLog(self.path), states)
        states.save()
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
        """Add lines to a file that grows, after what its checksum is known of."""
        path = self.path / name
        grown = self._grown.get(name)
        if grown is None or grown.size != path.stat().st_size:
            grown = Grown.of(path)
        _append(path, text)
        self._grown[name] = grown.after(text.encode())

    def _replace(self, name: str, write: Callable[[BinaryIO], object]) -> None:
        draft = self.path / f"{name}.draft"
        try:
            with draft.open("wb+") as file:
                write(file)
                file.flush()
                os.fsync(file.fileno())
        except OSError:
            draft.unlink(missing_ok=True)  # a full disk has no room for half a file
            raise
        draft.replace(self.path / name)  # atomic: the old one or the new one, never half

    def load(self) -> dict[str, Any] | None:
        """The last checkpoint, with the growing files cut back to it; ``None`` if there is none.

        Client state is read when it is asked for; all files are checked now.

        Raises:
            DamagedError: If a file is not what was written, or has lost something.
            ValueError: If an earlier version wrote the checkpoint.
        """
        file = self.path / "state.pt"
        checkpoint = load_sealed(file) if file.exists() else None
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
        if "client_states" not in checkpoint:
            raise ValueError(f"{file} is of an earlier version: run its configuration again")
        store = ClientStateLog.open(self.path, checkpoint["client_states"])
        return {**checkpoint, "client_states": ClientStates(store)}

    def save_figures(self, figures: Mapping[str, Figure]) -> None:
        """Keep figures as ``figures/NAME.npz``; the folder appears only when it is complete.

        Nothing is written if there is none. Figures of before are replaced, with what was drawn of
        them.

        Raises:
            ValueError: If a name cannot name a file.
        """
        if not figures:
            return
        if unclear := [n for n in figures if n in ("", "..") or Path(n).name != n]:
            raise ValueError(f"figures must have names that can name a file, got {unclear}")
        draft = self.path / "figures.draft"
        shutil.rmtree(draft, ignore_errors=True)  # a killed process may have left one
        draft.mkdir()
        for name, value in figures.items():
            with (draft / f"{name}.npz").open("wb") as file:
                figure.write_figure(value, file)
                file.flush()
                os.fsync(file.fileno())
        shutil.rmtree(self.path / "figures", ignore_errors=True)
        draft.rename(self.path / "figures")

    def figures(self) -> list[Path]:
        """The files of the figures that were saved, by name; empty if there are none."""
        return sorted((self.path / "figures").glob("*.npz"))

    def rows(self) -> list[Row]:
        """All that was measured, in order; a last line that is not whole is left out.

        Raises:
            DamagedError: If the file is damaged.
            ValueError: If an earlier version wrote it, under other names.
        """
        file = self.path / "metrics.csv"
        try:
            whole, end, _ = file.read_bytes().rpartition(b"\n")
            lines = io.StringIO((whole + end).decode(), newline="")
            if lines.readline() != HEADERS["metrics.csv"]:
                raise ValueError("its first line is not that of metrics")
            rows = [
                Row(int(round), int(client) if client else None, name, float(value))
                for round, client, name, value in csv.reader(lines)
            ]
        except (ValueError, csv.Error) as error:
            raise DamagedError(file, f"is damaged: {error}") from error
        for row in rows:
            if new := renamed_metric(row.name):
                raise ValueError(
                    f"{file} is of an earlier version: {row.name} is now called {new}; run its "
                    "configuration again"
                )
        return rows


def refuse_existing(path: Path) -> None:
    """Refuse a folder that is there already.

    Raises:
        FileExistsError: Naming it and the two ways out.
    """
    if path.exists():
        raise FileExistsError(
            f"{path} exists: continue it with `fedbolic resume {path}`, or replace it with "
            "--overwrite"
        )


def environment(**settings: Any) -> dict[str, Any]:
    """Versions and machine of this process, beside ``settings`` that a resumed run must repeat."""
    return {
        **settings,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "cuda": torch.version.cuda if torch.cuda.is_available() else None,
        "packages": {name: metadata.version(name) for name in _PACKAGES},
    }


def _read_table(file: Path) -> dict[str, Any]:
    try:
        table = json.loads(file.read_bytes())
    except (ValueError, RecursionError) as error:
        raise DamagedError(file, f"is damaged: {error}") from error
    if not isinstance(table, dict):
        raise DamagedError(file, "is damaged: it holds no table")
    return table


def _append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8", newline="") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
