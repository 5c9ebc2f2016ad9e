"""Columns of tables, read row by row: numbers as an array, texts as codes."""

from array import array
from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Int64
from numpy.typing import DTypeLike
from torch import Tensor

from fedbolic.core.reading import refuse_larger
from fedbolic.data.contract.labelled import codes_of

_BLOCK = 2**19
"""Number of characters and cells that are held as texts at a time, up to one row more."""


class Columns:
    """Columns of a table: features as an array of numbers, others as texts that are coded.

    Texts of any length cost their length once, and not once a row.

    Args:
        name: Name of the table in errors.
        head: Names of the columns.
        features: Positions of the features.
        coded: Positions of the columns of texts.
        dtype: Type of the features.
    """

    def __init__(
        self,
        name: str,
        head: Sequence[str],
        *,
        features: Sequence[int],
        coded: Sequence[int],
        dtype: DTypeLike = np.float32,
    ) -> None:
        self.name, self.head, self.features = name, head, features
        self._dtype = np.dtype(dtype)
        self._blocks: list[np.ndarray] = []
        self._numbers: dict[int, dict[str, int]] = {column: {} for column in coded}
        self._codes = {column: array("q") for column in coded}
        self.num_rows = 0

    def read(self, rows: Iterable[Sequence[str]]) -> np.ndarray:
        """Read all rows; return the features, one row per example.

        Raises:
            ValueError: If a row has more or fewer cells than the head, a cell is empty, or a
                feature is no finite number.
        """
        waiting: list[list[str]] = []
        size = 0
        for row in rows:
            self.num_rows += 1
            if len(row) != len(self.head):
                raise ValueError(
                    f"row {self.num_rows} of {self.name} has {len(row)} values for "
                    f"{len(self.head)} columns: quote values that contain the delimiter"
                )
            waiting.append([row[i].strip() for i in self.features])
            for column, numbers in self._numbers.items():
                if (text := row[column].strip()).lower() in ("", "nan"):
                    self._refuse_empty(column, self.num_rows)
                self._codes[column].append(numbers.setdefault(text, len(numbers)))
            size += sum(map(len, waiting[-1])) + len(self.features)
            if size > _BLOCK:
                self._convert(waiting)
                waiting, size = [], 0
        self._convert(waiting)
        blocks, self._blocks = self._blocks, []
        return np.concatenate(blocks)

    def codes(self, column: int) -> tuple[tuple[str, ...], Int64[Tensor, " n"]]:
        """Different values of a column of texts in ascending order, and the code of every row."""
        found = np.array([*self._numbers[column], None], dtype=object)[:-1]
        names, codes = codes_of(found)
        return names, codes[np.frombuffer(self._codes[column], dtype=np.int64)]

    def _convert(self, rows: list[list[str]]) -> None:
        done = self.num_rows - len(rows)
        refuse_larger(self.num_rows * len(self.features) * self._dtype.itemsize, self.name)
        try:
            found = np.array(rows, dtype=np.float64).reshape(len(rows), len(self.features))
        except ValueError:
            self._refuse_text(rows, done)
            raise
        with np.errstate(over="ignore"):  # infinity is refused next
            found = found.astype(self._dtype)
        if not np.isfinite(found).all():
            row, place = np.argwhere(~np.isfinite(found))[0].tolist()
            raise ValueError(
                f"column {self.head[self.features[place]]!r:.80} of {self.name} holds "
                f"{rows[row][place]:.80} in row {done + row + 1}, which is not finite: fill it in, "
                "for instance with the column's mean, or leave out the row or the column"
            )
        self._blocks.append(found)

    def _refuse_text(self, rows: list[list[str]], done: int) -> None:
        for number, row in enumerate(rows, done + 1):
            for place, text in enumerate(row):
                if text.strip().upper() in ("", "NA", "N/A", "NULL", "NONE", "?"):
                    self._refuse_empty(self.features[place], number)
                if not _is_number(text):
                    name = self.head[self.features[place]]
                    cure = (
                        "write it with a decimal point"
                        if _is_number(text.replace(",", "."))
                        else "encode it, for instance as one column of 0 and 1 per value, or leave "
                        f"it out with drop=[{name:.80}]"
                    )
                    raise ValueError(
                        f"column {name!r:.80} of {self.name} holds {text!r:.80} in row {number}, "
                        f"which is no number: {cure}"
                    )

    def _refuse_empty(self, column: int, number: int) -> None:
        raise ValueError(
            f"column {self.head[column]!r:.80} of {self.name} is empty in row {number}: fill such "
            "values in, or leave out the rows"
        )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
