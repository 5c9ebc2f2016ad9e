"""Tables of the user in CSV or Parquet files, with a target and a client column."""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch
from typing_extensions import override

from fedbolic.core.imports import extra
from fedbolic.core.reading import lines, open_file, refuse_larger, table_rows
from fedbolic.data.contract.dataset import Dataset, OfficialParts
from fedbolic.data.contract.labelled import parts_from_whole
from fedbolic.data.files.published_files import find_given
from fedbolic.data.tables.columns import Columns

_BATCH = 1024
"""Number of rows of a Parquet file that are decoded at a time."""


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
        classes: All values of the target, each once and numbers as strings, where a client's own
            file may lack some; by default those of the file.

    Raises:
        ValueError: If ``classes`` names one twice; when read, if the file is damaged, lacks a
            column, has a feature that is empty or no number, or another class than ``classes``.
    """

    path: Path
    target: str
    client: str | None = None
    drop: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if len(set(self.classes)) < len(self.classes):
            raise ValueError(f"classes must differ, got {', '.join(self.classes):.400}")

    @override
    def read(self, root: Path | None, *, download: bool) -> OfficialParts:
        path = find_given(self.path, root, kind="table")
        with _opened(path) as (head, rows):
            asked = (self.target, *([self.client] if self.client else []))
            if missing := [name for name in (*asked, *self.drop) if name not in head]:
                signs = [sign for sign in ";|\t" if sign in head[0]] if len(head) == 1 else []
                cure = f": separate its columns by commas, not by {signs[0]!r}" if signs else ""
                raise ValueError(
                    f"{path} has no column {', '.join(missing)}: it has "
                    f"{', '.join(head):.400}{cure}"
                )
            features = [i for i, name in enumerate(head) if name not in (*asked, *self.drop)]
            if not features:
                raise ValueError(f"{path} has no column of features besides {', '.join(asked)}")
            coded = [head.index(name) for name in asked]
            columns = Columns(str(path), head, features=features, coded=coded)
            x = torch.from_numpy(columns.read(rows))
        names, y = columns.codes(coded[0])
        if self.classes:
            if more := sorted(set(names) - set(self.classes)):
                raise ValueError(f"{path} has classes that `classes` lacks: {', '.join(more):.400}")
            names, y = self.classes, torch.tensor([self.classes.index(name) for name in names])[y]
        owners = columns.codes(coded[1])[1] if self.client else None
        return parts_from_whole(str(path), x, y, class_names=names, owners=owners)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Iterator[list[str]]]]:
    """Names of the columns of a table, and its rows."""
    with contextlib.ExitStack() as stack:
        if path.suffix == ".parquet":
            head, rows = _parquet(path, stack)
        elif path.suffix in (".csv", ".tsv"):
            file = stack.enter_context(open_file(path))
            delimiter = "\t" if path.suffix == ".tsv" else ","
            numbered = table_rows(lines(file, str(path)), str(path), delimiter=delimiter)
            head = [name.strip() for name in next(numbered, (0, []))[1]]
            rows = (row for _, row in numbered)
        else:
            raise ValueError(f"{path} must end in .csv, .tsv or .parquet")
        if not head:
            raise ValueError(f"{path} is empty: it needs the names of its columns and examples")
        if len(set(head)) < len(head):
            raise ValueError(f"{path} has columns of the same name: {', '.join(head):.400}")
        yield head, rows


def _parquet(path: Path, stack: contextlib.ExitStack) -> tuple[list[str], Iterator[list[str]]]:
    with extra("parquet", str(path), "save it as .csv"):
        parquet = import_module("pyarrow.parquet")
        damaged = import_module("pyarrow").ArrowException

    def rows() -> Iterator[list[str]]:
        try:
            for batch in table.iter_batches(batch_size=_BATCH):
                columns = [column.to_pylist() for column in batch.columns]
                for row in zip(*columns, strict=True):
                    yield ["" if value is None else str(value) for value in row]
        except (OSError, damaged) as error:
            raise refused(error) from error

    def refused(error: Exception) -> ValueError:
        text = " ".join(str(error).split())
        return ValueError(f"{path} is damaged or not a Parquet file: {text}")

    try:
        table = parquet.ParquetFile(stack.enter_context(open_file(path)))
    except (OSError, damaged) as error:
        raise refused(error) from error
    for group in range(table.metadata.num_row_groups):
        refuse_larger(table.metadata.row_group(group).total_byte_size, path)
    return list(table.schema_arrow.names), rows()
