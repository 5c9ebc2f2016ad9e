"""Figures of a long table, kept in a CSV so that an interrupted run goes on where it stopped."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import ParamSpec

from benchmarks.table import head, interval, line
from benchmarks.timing import Clock

Key = tuple[str, ...]
Figures = dict[str, float]
Arguments = ParamSpec("Arguments")


@dataclass(frozen=True)
class Results:
    """Figures by key, kept in a CSV.

    Args:
        file: The CSV; it is read if it exists.
        quiet: Print nothing as figures are added.
    """

    file: Path
    quiet: bool = False
    known: dict[Key, Figures] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.exists():
            with self.file.open(newline="") as lines:
                for *key, name, value in csv.reader(lines):
                    self.known.setdefault(tuple(key), {})[name] = float(value)

    def add(
        self,
        key: Key,
        measure: Callable[Arguments, Figures],
        *args: Arguments.args,
        **keywords: Arguments.kwargs,
    ) -> Figures:
        """The figures of a key, and the CPU seconds they took, measured unless the file has them.

        Args:
            key: Table, data, row, and so on.
            measure: Computes the figures.
            args: Its arguments.
            keywords: Its named arguments.
        """
        if key not in self.known:
            clock = Clock()
            found = measure(*args, **keywords)
            self.known[key] = {**found, "seconds": clock.lap()}
            self.file.parent.mkdir(parents=True, exist_ok=True)
            with self.file.open("a", newline="") as lines:
                rows = [[*key, name, value] for name, value in self.known[key].items()]
                csv.writer(lines, lineterminator="\n").writerows(rows)
            if not self.quiet:
                cells = ", ".join(f"{name} {value:.4g}" for name, value in self.known[key].items())
                print(" / ".join(filter(None, key)), cells, flush=True)
        return self.known[key]

    def show(self, table: str, names: Iterable[str]) -> None:
        """Print the mean and 95 % interval of some figures over seeds, a row for each key.

        Args:
            table: Table to print.
            names: Its columns.
        """
        groups: dict[Key, list[Figures]] = {}
        for key, figures in self.known.items():
            if key[0] == table:
                groups.setdefault(key[1:-1], []).append(figures)
        columns = list(names)
        print(f"\n{head(table, 'seeds', *columns)}")
        for key, found in groups.items():
            cells = [[of[name] for of in found if name in of] for name in columns]
            if any(cells):
                texts = [interval(of) if of else "" for of in cells]
                print(line(", ".join(filter(None, key)), len(found), *texts))
