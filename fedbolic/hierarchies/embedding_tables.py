"""Embedded hierarchies as tables of other tools: CSV and Parquet."""

import csv
import json
from importlib import import_module
from pathlib import Path

import numpy as np
from torch import Tensor

from fedbolic.core.imports import extra
from fedbolic.core.log import logger
from fedbolic.manifolds import ManifoldPlaces, Places

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
    parquet.write_table(arrow.table(columns), file)


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
