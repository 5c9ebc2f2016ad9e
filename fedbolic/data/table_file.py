"""Tables of the user in CSV or Parquet files, with a target and a client column."""

import csv
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.data.dataset import Dataset, OfficialParts
from fedbolic.data.files import find_given
from fedbolic.data.labelled import codes_of, inputs_from_array, parts_from_whole

Columns = dict[str, np.ndarray]
"""Values of every column by name; strings in a CSV file."""


@dataclass(frozen=True)
class TableFile(Dataset):
    """A table with column names on its first line: CSV, TSV or Parquet, by the extension.

    All other columns than the target and the client are features and must be numbers. They are
    read as float32 and not rescaled. The classes are the different values of the target, in
    ascending order. Every fourth example of each class is used for testing. A Parquet file needs
    the extra ``parquet``.

    Args:
        path: The file. A relative path is looked up in ``root`` if that is given, otherwise in the
            folders of ``FEDBOLIC_DATA`` and then in the working directory.
        target: Name of the column with the class, numbers or strings.
        client: Name of the column with the client of every example, for the partition
            ``ByColumn``; ``None`` if there is none.
        drop: Names of columns to leave out.

    Raises:
        ValueError: When read, if the file is damaged, lacks a column, or has a feature that is
            empty or no number.
    """

    path: Path
    target: str
    client: str | None = None
    drop: tuple[str, ...] = ()

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        path = find_given(self.path, root, kind="table")
        columns = _read_columns(path)
        asked = (self.target, *([self.client] if self.client else []), *self.drop)
        if missing := [name for name in asked if name not in columns]:
            raise ValueError(
                f"{path} has no column {', '.join(missing)}: it has {', '.join(columns)}"
            )
        features = {name: column for name, column in columns.items() if name not in asked}
        if not features:
            raise ValueError(f"{path} has no column of features besides {', '.join(asked)}")
        x = torch.stack([_numbers(c, n, path) for n, c in features.items()], dim=1)
        _refuse_empty(columns[self.target], self.target, path)
        names, y = codes_of(columns[self.target])
        owners = None
        if self.client:
            _refuse_empty(columns[self.client], self.client, path)
            owners = codes_of(columns[self.client])[1]
        return parts_from_whole(str(path), x, y, class_names=names, owners=owners)


def _read_columns(path: Path) -> Columns:
    if path.suffix == ".parquet":
        return _read_parquet(path)
    if path.suffix not in (".csv", ".tsv"):
        raise ValueError(f"{path} must end in .csv, .tsv or .parquet")
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            head, *rows = csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ",")
    except (ValueError, csv.Error) as error:  # no text, or no line
        raise ValueError(f"{path} is empty or not a table of text: {error}") from error
    head, rows = [name.strip() for name in head], [row for row in rows if row]
    if len(set(head)) < len(head):
        raise ValueError(f"{path} has columns of the same name: {', '.join(head)}")
    for number, row in enumerate(rows, 1):
        if len(row) != len(head):
            raise ValueError(
                f"row {number} of {path} has {len(row)} values for {len(head)} columns: quote "
                "values that contain the delimiter"
            )
    values = np.array(rows, dtype=str).reshape(len(rows), len(head))
    return {name: np.char.strip(values[:, i]) for i, name in enumerate(head)}


def _read_parquet(path: Path) -> Columns:
    try:
        parquet = import_module("pyarrow.parquet")  # in the extra `parquet`
        damaged = import_module("pyarrow").ArrowException
    except ImportError as error:
        raise ValueError(
            f"{path} needs pyarrow: pip install 'fedbolic[parquet]', or save it as .csv"
        ) from error
    try:
        table = parquet.read_table(path)
    except damaged as error:
        raise ValueError(f"{path} is damaged or not a Parquet file: {error}") from error
    return {
        name: np.array(["" if v is None else str(v) for v in table[name].to_pylist()], dtype=str)
        for name in table.column_names
    }


def _refuse_empty(column: np.ndarray, name: str, path: Path) -> None:
    empty = np.flatnonzero(column == "")
    if len(empty):
        raise ValueError(
            f"column {name!r} of {path} is empty in row {empty[0] + 1} and {len(empty) - 1} "
            "others: fill these values in, or leave out the rows"
        )


def _numbers(column: np.ndarray, name: str, path: Path) -> Tensor:
    """A column of features as float32."""
    _refuse_empty(column, name, path)
    try:
        values = column.astype(np.float64)
    except ValueError:
        row, value = next((i, v) for i, v in enumerate(column, 1) if not _is_number(v))
        raise ValueError(
            f"column {name!r} of {path} holds {str(value)!r} in row {row}, which is no number: "
            f"encode it, for instance as one column of 0 and 1 per value, or leave it out with "
            f"drop=[{name}]"
        ) from None
    return inputs_from_array(values[:, None], f"column {name!r} of {path}")[:, 0]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
