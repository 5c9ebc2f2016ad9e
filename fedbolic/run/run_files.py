"""The files of a run as they are read, without torch."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, TypeVar

from fedbolic.core import reading
from fedbolic.core.checksums import DamagedError, Grown, read_table
from fedbolic.core.rows import Row

HEADERS = {"metrics.csv": "round,client,name,value\n", "times.csv": "round,exchange,seconds\n"}
"""Header lines of the append-only files, by name."""

Folders: TypeAlias = Path | str | Sequence[Path | str]
"""One folder or several."""

COMPLETE = "complete.json"
"""File with length and checksum of every other file of a run that has nothing left to do."""

_LASTING = ("config.yaml", "environment.json", "engine.json", *HEADERS, "state.pt", "embedding.npz")
"""Files that such a run no longer changes, besides those of client states and figures."""

_Line = TypeVar("_Line", "Row", "ExchangeTime")


class ExchangeTime(NamedTuple):
    """Seconds until a checkpoint; ``exchange`` is 0 if ``round`` ended there."""

    round: int
    exchange: int
    seconds: float


@dataclass(frozen=True)
class RunFiles:
    """The folder of one run: ``config.yaml, metrics.csv, times.csv, state.pt, environment.json``.

    It also contains ``engine.json`` if the engine was chosen automatically, ``clients-N.log`` if
    clients keep state, a folder ``figures`` if the method gives figures, ``embedding.npz`` if it
    embeds the nodes of a hierarchy, and ``complete.json`` once nothing is left to do.

    Args:
        path: The folder.
    """

    path: Path

    @property
    def config(self) -> Path:
        """File with the complete configuration of the run."""
        return self.path / "config.yaml"

    @property
    def checkpoint(self) -> Path:
        """File with the state after the last exchange."""
        return self.path / "state.pt"

    @property
    def embedding(self) -> Path:
        """File with the embedding of all nodes and their names, if the method gives one."""
        return self.path / "embedding.npz"

    @property
    def environment(self) -> dict[str, Any]:
        """Versions and machine of the process that started the run.

        Raises:
            DamagedError: If the file is damaged.
        """
        return read_table(self.path / "environment.json")

    @property
    def engine(self) -> str | None:
        """The automatically chosen engine of the run; ``None`` if none was chosen.

        Raises:
            DamagedError: If the file is damaged.
        """
        file = self.path / "engine.json"
        if not file.exists():
            return None
        engine = read_table(file).get("engine")
        if not isinstance(engine, str):
            raise DamagedError(file, "is damaged: it names no engine")
        return engine

    def is_complete(self) -> bool:
        """True if nothing is left to do, and no file has changed since."""
        try:
            return read_table(self.path / COMPLETE) == self.grown_files()
        except (OSError, DamagedError):
            return False

    def grown_files(self) -> dict[str, list[int]]:
        """Length and checksum of every file that a resumed run would read, by name."""
        files = [file for name in _LASTING if (file := self.path / name).exists()]
        files += [*sorted(self.path.glob("clients-*.log")), *self.figures()]
        grown = {str(file.relative_to(self.path)): Grown.of(file) for file in files}
        return {name: [each.size, each.checksum] for name, each in grown.items()}

    def figures(self) -> list[Path]:
        """The files of all saved figures, sorted by name; empty if there are none."""
        return sorted((self.path / "figures").glob("*.npz"))

    def rows(self) -> list[Row]:
        """All measurements in order; an incomplete last line is left out.

        Raises:
            DamagedError: If the file is damaged.
        """
        return self._parsed(
            "metrics.csv",
            lambda r, client, name, v: Row(int(r), int(client) if client else None, name, float(v)),
        )

    def times(self) -> list[ExchangeTime]:
        """Seconds of all exchanges in order; an incomplete last line is left out.

        Raises:
            DamagedError: If the file is damaged.
        """
        return self._parsed("times.csv", lambda r, e, s: ExchangeTime(int(r), int(e), float(s)))

    def _parsed(self, name: str, parse: Callable[..., _Line]) -> list[_Line]:
        """The complete lines of an append-only file, of which ``parse`` takes the cells."""
        try:
            with reading.open_file(self.path / name) as file:
                texts = reading.lines(file, name)
                if next(texts, "") != HEADERS[name]:
                    raise ValueError(f"its first line is not the header of {name}")
                whole = (text for text in texts if text.endswith("\n"))
                return [parse(*row) for _, row in reading.table_rows(whole, name, delimiter=",")]
        except (ValueError, TypeError) as error:
            raise DamagedError(self.path / name, f"is damaged: {error}") from error


def listed(folders: Folders) -> list[Path]:
    """Paths of one folder or several."""
    return [Path(each) for each in ([folders] if isinstance(folders, str | Path) else folders)]
