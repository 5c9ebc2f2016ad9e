"""Rows of ``benchmarks.gpu``: printed as they come, kept for a file, cut off by a deadline."""

import contextlib
import json
import logging
import math
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedbolic.core.log import logger

Row = dict[str, Any]
"""Figures of one row by name, with its ``part`` and ``name``; ``error`` if it has none."""


@dataclass(eq=False)
class Report:
    """Rows of a benchmark that must end in time and must lose no row to another row's failure."""

    minutes: float
    file: Path | None = None
    """File to which every row is appended as a line of JSON; the rows that it has are read."""

    rows: list[Row] = field(default_factory=list)
    _began: float = field(default_factory=time.monotonic)

    def __post_init__(self) -> None:
        self.read()

    def read(self) -> None:
        """Read the rows that other processes have added to the file."""
        if self.file is not None and self.file.exists():
            self.rows = [json.loads(text) for text in self.file.read_text().splitlines()]

    @property
    def seconds_left(self) -> float:
        """Seconds until no further row is begun."""
        return 60 * self.minutes - (time.monotonic() - self._began)

    def add(
        self, part: str, name: str, measure: Callable[[], Row], *, needs: float = 0.0
    ) -> Row | None:
        """Measure, print and keep one row; ``None`` if it failed or there is no time for it."""
        found: Row
        if self.seconds_left < needs or self.seconds_left <= 0:
            found = {"error": "left out: no time"}
        else:
            began = time.monotonic()
            try:
                with fallbacks() as noted:
                    found = measure()
                if noted:  # its figures are those of something else
                    found = {"error": f"fell back: {noted[0]}"}
            except Exception as error:  # whatever it is, the other rows are still wanted
                found = {"error": _described(error)}
            found = {**found, "took_s": time.monotonic() - began}
        self._keep({"part": part, "name": name, **found})
        cells = ", ".join(f"{key} {_text(value)}" for key, value in found.items())
        print(f"{part} | {name} | {cells}", flush=True)
        return None if "error" in found else found

    def attempt(self, part: str, run: Callable[[], None]) -> None:
        """Run a part; what fails outside its rows becomes a row."""
        try:
            run()
        except Exception as error:  # the rows so far and the other parts are still wanted
            text = _described(error)
            self.fail(part, text)

    def fail(self, part: str, text: str) -> None:
        """Keep a row that says why a part has ended early."""
        self._keep({"part": part, "name": "the whole part", "error": text})
        print(f"{part} | the whole part | error {text}", flush=True)

    def _keep(self, row: Row) -> None:
        self.rows.append(row)
        if self.file is not None:
            with self.file.open("a") as lines:
                lines.write(json.dumps(_finite(row)) + "\n")

    def figure(self, part: str, name: str, key: str) -> float | None:
        """A figure of a row; ``None`` if there is no such figure."""
        for row in self.rows:
            if (row["part"], row["name"]) == (part, name):
                return row.get(key)
        return None

    def save(self, file: Path, **others: Any) -> None:
        """Write all rows to a JSON file."""
        rows = [_finite(row) for row in self.rows]
        file.write_text(json.dumps({**others, "rows": rows}, indent=1) + "\n")


def _described(error: Exception) -> str:
    """An error with the place where it was raised."""
    where = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error!r} at {Path(where.filename).name}:{where.lineno}"


@contextlib.contextmanager
def fallbacks() -> Iterator[list[str]]:
    """Context manager that collects the messages of work that was done in a slower way."""
    noted: list[str] = []

    class Noting(logging.Handler):
        @override
        def emit(self, record: logging.LogRecord) -> None:
            if getattr(record, "is_fallback", False):
                noted.append(record.getMessage())

    handler, level = Noting(), logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield noted
    finally:
        logger.setLevel(level)
        logger.removeHandler(handler)


def _finite(row: Row) -> Row:
    return {key: _without_nan(value) for key, value in row.items()}


def _without_nan(value: Any) -> Any:
    """The value, or ``None`` for NaN, which JSON does not know."""
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
