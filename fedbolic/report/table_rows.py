"""Rows of tables: the runs of one name below a folder, with one run for each seed."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from fedbolic.core.checksums import DamagedError
from fedbolic.core.reading import read_text
from fedbolic.run.run_files import RunFiles


@dataclass(frozen=True)
class TableRow:
    """One row of a table: its name and one run per seed."""

    name: str
    folders: tuple[RunFiles, ...]

    @cached_property
    def finished(self) -> tuple[RunFiles, ...]:
        """The runs whose last round has ended; a table has the numbers of these alone."""
        return tuple(run for run in self.folders if is_finished(run))

    @property
    def plotted(self) -> tuple[RunFiles, ...]:
        """The finished runs, or all runs if none is finished."""
        return self.finished or self.folders

    @property
    def num_unfinished(self) -> int:
        """Number of runs whose last round has not ended."""
        return len(self.folders) - len(self.finished)


def is_finished(run: RunFiles) -> bool:
    """True if the last round of a run has ended, or it is unknown how many rounds it has.

    Args:
        run: Folder of the run; damaged files other than its metrics are ignored.

    Raises:
        DamagedError: If the metrics are needed and damaged.
    """
    rounds = None
    with contextlib.suppress(OSError, DamagedError):
        rounds = run.environment.get("rounds")
    if not isinstance(rounds, int):
        return True
    try:
        return any(time[:2] == (rounds, 0) for time in run.times())
    except (OSError, DamagedError):
        return any(row.round >= rounds for row in run.rows())


def find(path: Path) -> list[TableRow]:
    """Find the rows below a folder, sorted by path, or in the order of their sweep.

    Runs of one name with different seeds form one row.

    Raises:
        FileNotFoundError: If the folder contains no run.
    """
    configs = [
        config
        for config in sorted(path.rglob("config.yaml"))
        # a killed process may leave a draft of a run's folder, whose name begins with a dot
        if not any(part.startswith(".") for part in config.relative_to(path).parts)
    ]
    if not configs:
        raise FileNotFoundError(f"there is no run in {path}")
    by_name: dict[Path, list[RunFiles]] = {}
    for config in configs:
        by_name.setdefault(config.parent.parent, []).append(RunFiles(config.parent))
    return [TableRow(name.name, tuple(by_name[name])) for name in sorted(by_name, key=_place)]


def _place(name: Path) -> tuple[str, int, str, int, str]:
    setting = name.parent
    return str(setting.parent), _rank(setting), setting.name, _rank(name), name.name


def _rank(folder: Path) -> int:
    place = folder / "place"  # written by a sweep: number of the setting or row
    try:
        return int(read_text(place, 100))
    except (FileNotFoundError, NotADirectoryError, ValueError):  # only the order depends on it
        return 0


def by_folder(path: Path, rows: Sequence[TableRow]) -> dict[Path, list[TableRow]]:
    """The rows grouped by the folder of their setting.

    Args:
        path: Folder of a single group.
        rows: Rows of :func:`find`.
    """
    groups: dict[Path, list[TableRow]] = {}
    for row in rows:
        groups.setdefault(row.folders[0].path.parent.parent, []).append(row)
    return groups if len(groups) > 1 else {path: list(rows)}


def distinct(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows with unique names: rows of equal names are named by their paths.

    Args:
        rows: Rows of one table.
    """
    names = [row.name for row in rows]
    return [
        row
        if names.count(row.name) == 1
        else TableRow(str(row.folders[0].path.parent), row.folders)
        for row in rows
    ]
