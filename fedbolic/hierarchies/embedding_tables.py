"""Embedded hierarchies as tables of other tools: CSV and Parquet."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedbolic.core.imports import extra
from fedbolic.core.log import logger
from fedbolic.core.reading import lines, open_file, refuse_larger, table_rows
from fedbolic.hierarchies.embedding_files import EMBEDDING_HEAD, places_of_head, written_head
from fedbolic.manifolds import HalfSpacePlaces, Lorentz, ManifoldPlaces, Places, PolarPlaces

Parts = tuple[tuple[str, ...], Places, Tensor | None]
"""Names, places and parents of an embedding."""

_BATCH = 64
"""Rows of a Parquet file that are decoded at once."""

FORMULA = ("=", "+", "-", "@", *"\uff1d\uff0b\uff0d\uff20", "\t", "\r", "\n")
"""First characters of a cell that a spreadsheet may run as a formula, in full width, too."""


def write_csv(
    file: Path,
    names: tuple[str, ...],
    places: Places,
    parents: Tensor | None,
    *,
    formulas: bool = False,
) -> None:
    """Write a table with a header: the name, the parent, and the places' own coordinates.

    Coordinates are exact, with as many digits as they need. A node has one parent in the column
    ``parent``, empty for a root; if a node has several, the column is ``parents``, with lists in
    JSON. A spreadsheet runs a cell that begins with ``=``, ``+``, ``-`` or ``@``, and a name may
    come from another holder: such a name gets an apostrophe in front, and a warning says how many.

    Args:
        file: New file, in UTF-8.
        names: Names of the nodes.
        places: One place for every name.
        parents: A node and its parent in every row; ``None`` if unknown.
        formulas: Whether to write such names as they are.

    Raises:
        ValueError: If a name is no text in UTF-8.
    """
    rows = _parents(names, parents)
    guarded = {n: f"'{n}" for n in names if n.startswith(FORMULA) and not formulas}
    if guarded:
        logger.warning(
            "%d of %d names in %s got an apostrophe in front, as a spreadsheet would run them: "
            "pass formulas=True to keep them, or write .parquet",
            len(guarded),
            len(names),
            file,
        )
    several = any(len(above) > 1 for above in rows)

    def cell(above: list[str]) -> str:
        if several:
            return json.dumps(above, ensure_ascii=False)
        return guarded.get(above[0], above[0]) if above else ""

    columns = coordinates(places)
    _require_text(names)
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n", quoting=csv.QUOTE_NONNUMERIC)
        writer.writerow(["name", "parents" if several else "parent", *columns])
        values = zip(*(column.tolist() for column in columns.values()), strict=True)
        for name, above, numbers in zip(names, rows, values, strict=True):
            writer.writerow([guarded.get(name, name), cell(above), *numbers])


def write_parquet(
    file: Path, names: tuple[str, ...], places: Places, parents: Tensor | None
) -> None:
    """Write a table of the name, the list of parents, and the places' own coordinates.

    Args:
        file: New file.
        names: Names of the nodes.
        places: One place for every name.
        parents: A node and its parent in every row; ``None`` if unknown.

    Raises:
        MissingExtraError: If the extra ``parquet`` is missing.
        ValueError: If a name is no text in UTF-8.
    """
    with extra("parquet", f"{file}", "write .csv"):
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    _require_text(names)
    above = arrow.array(_parents(names, parents), arrow.list_(arrow.string()))
    columns = {"name": list(names), "parents": above, **coordinates(places)}
    head = {EMBEDDING_HEAD: written_head(places, {})}
    parquet.write_table(arrow.table(columns).replace_schema_metadata(head), file)


def is_table(file: Path) -> bool:
    """True if a ``.csv`` begins as :func:`write_csv` begins one.

    Args:
        file: The file.
    """
    with open_file(file) as stream:
        _, head = next(table_rows(lines(stream, str(file)), str(file), delimiter=","), (0, []))
    return len(head) > 2 and head[0] == "name" and head[1] in ("parent", "parents")


def read_csv(file: Path) -> Parts:
    """Read a file of :func:`write_csv`; names have the apostrophes of the file.

    It says neither the curvature of a ball nor what biases are for, so places are polar with 64
    bits, in the half-space or on a hyperboloid, whose curvature the points tell.

    Args:
        file: The file.

    Raises:
        OSError: If the file is missing.
        ValueError: If it is damaged, or the places are of another kind.
    """
    with open_file(file) as stream:
        rows = table_rows(lines(stream, str(file)), str(file), delimiter=",")
        _, (_, kind, *columns) = next(rows, (0, []))
        names, above, *cells = zip(*(row for _, row in rows), strict=True)
    lists = map(json.loads, above) if kind == "parents" else ([x] if x else [] for x in above)
    whole = {"turns": np.int64}
    values = (
        np.array([*map(int if name in whole else float, column)], whole.get(name, np.float64))
        for name, column in zip(columns, cells, strict=True)
    )
    places = _places(_arrays(dict(zip(columns, values, strict=True))))
    return names, places, _pairs(names, lists)


def read_parquet(file: Path) -> Parts:
    """Read a file of :func:`write_parquet`.

    Args:
        file: The file.

    Raises:
        OSError: If the file is missing.
        ValueError: If it is damaged, or was not written by this library.
        MissingExtraError: If the extra ``parquet`` is missing.
    """
    with extra("parquet", f"{file}", "save it as .npz"):
        arrow, parquet = import_module("pyarrow"), import_module("pyarrow.parquet")
    batches, size = [], 0
    try:
        with open_file(file) as opened, parquet.ParquetFile(opened) as stored:
            groups = map(stored.metadata.row_group, range(stored.metadata.num_row_groups))
            refuse_larger(sum(group.total_byte_size for group in groups), file)
            # values that repeat are stored once, and so take more memory than the file says
            for batch in stored.iter_batches(batch_size=_BATCH):
                batches.append(batch)
                size += batch.nbytes
                refuse_larger(size, file)
            table = arrow.Table.from_batches(batches, stored.schema_arrow)
        head = (table.schema.metadata or {})[EMBEDDING_HEAD.encode()].decode()
        columns = {name: table[name] for name in table.column_names}
        names, lists = (columns.pop(name).to_pylist() for name in ("name", "parents"))
        arrays = _arrays({name: np.array(column.to_numpy()) for name, column in columns.items()})
    except arrow.ArrowException as error:
        raise ValueError(f"it is damaged: {error}") from error
    for space in ("lorentz", "poincare"):
        if space in arrays:
            arrays["points"] = arrays.pop(space)
    return tuple(names), places_of_head(head, arrays), _pairs(names, lists)


def coordinates(places: Places) -> dict[str, np.ndarray]:
    """The places' own coordinates as columns of numbers.

    Points of a manifold are ``lorentz_0, lorentz_1, ...`` (time first) or ``poincare_0, ...``; the
    others have the names of their tensors: ``turns, radii`` in polar coordinates,
    ``positions_0, ..., log_heights`` in the half-space.

    Args:
        places: The places.
    """
    columns: dict[str, np.ndarray] = {}
    tensors = places.tensors()
    if isinstance(places, ManifoldPlaces):
        tensors = {type(places.manifold).__name__.lower(): places.points}
    for stem, tensor in tensors.items():
        array = tensor.detach().cpu().numpy()
        if array.ndim == 1:
            columns[stem] = array
        else:
            columns |= {f"{stem}_{i}": column for i, column in enumerate(array.T)}
    return columns


def _arrays(columns: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The tensors of places by name, from the columns of :func:`coordinates`."""
    found: dict[str, list[np.ndarray]] = {}
    for name, column in columns.items():
        stem, _, number = name.rpartition("_")
        found.setdefault(stem if number.isdigit() else name, []).append(column)
    flat = {name for name in found if name in columns}
    return {n: x[0] if n in flat else np.stack(x, axis=1) for n, x in found.items()}


def _places(arrays: Mapping[str, np.ndarray]) -> Places:
    """The places of a table without a head."""
    if not all(np.isfinite(x).all() for x in arrays.values()):
        raise ValueError("not all of its numbers are finite")
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    if arrays.keys() == {"turns", "radii"}:
        if arrays["turns"].any() and (arrays["turns"] == arrays["turns"].astype(np.int32)).all():
            raise ValueError("it does not say if turns have 32 or 64 bits: give .npz or .parquet")
        return PolarPlaces(**tensors)
    if arrays.keys() == {"positions", "log_heights"}:
        return HalfSpacePlaces(**tensors)
    if arrays.keys() != {"lorentz"}:
        raise ValueError(
            f"columns {', '.join(arrays)[:99]} do not say in which space the places are: give .npz "
            "or .parquet"
        )
    # the time and space coordinates of the innermost point hold 1/c in the most digits
    time, *space = arrays["lorentz"][arrays["lorentz"][:, 0].argmin()]
    gap = (time - np.linalg.norm(space)) * (time + np.linalg.norm(space))
    if not gap * 2000 > time * time:  # digits of float32 that are left are three
        raise ValueError(
            "its points are too far out to tell their curvature: give .npz or .parquet"
        )
    return ManifoldPlaces(Lorentz(1 / gap), tensors["lorentz"])


def _pairs(names: Sequence[str], parents: Iterable[list[str]]) -> Tensor | None:
    """Numbers of nodes and parents; ``None`` without any. Lists have no apostrophes of guards."""
    parents = [*parents]
    if not all(isinstance(above, list) for above in parents):
        raise TypeError("parents must be lists of names")
    numbers = {name.removeprefix("'"): i for i, name in enumerate(names)}
    numbers |= {name: i for i, name in enumerate(names)}
    rows = [(i, numbers[name]) for i, above in enumerate(parents) for name in above]
    return torch.tensor(rows) if rows else None


def _parents(names: tuple[str, ...], parents: Tensor | None) -> list[list[str]]:
    """Names of the parents of every node."""
    rows: list[list[str]] = [[] for _ in names]
    for node, above in () if parents is None else parents.tolist():
        rows[node].append(names[above])
    return rows


def _require_text(names: tuple[str, ...]) -> None:
    try:
        "".join(names).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"a name is no text in UTF-8: {error}") from error
