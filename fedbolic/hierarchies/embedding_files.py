"""Files of embedded hierarchies for this library: ``.npz`` and ``.safetensors``."""

import dataclasses
import itertools
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.core.reading import open_file, read_arrays
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.hierarchies.scored_places import ScoredPlaces
from fedbolic.manifolds import (
    HalfSpacePlaces,
    Lorentz,
    ManifoldPlaces,
    Places,
    Poincare,
    PolarPlaces,
)

EMBEDDING_FORMAT = 1
"""Version of the files."""

EMBEDDING_HEAD = "fedbolic"
"""Name of the head, a text in JSON: the format, the kind of places and the card."""

PLACE_KINDS: dict[str, type[Places]] = {
    kind.__name__: kind for kind in (PolarPlaces, HalfSpacePlaces, ManifoldPlaces, ScoredPlaces)
}
PLACE_MANIFOLDS = {kind.__name__: kind for kind in (Lorentz, Poincare)}


def save_embedding(
    file: Path,
    names: tuple[str, ...],
    places: Places,
    parents: Tensor | None,
    *,
    card: Mapping[str, Any],
) -> None:
    """Write an embedding, which :func:`load_embedding` reads.

    The arrays are the tensors of the places by name, ``names`` (all names in UTF-8, one after the
    other), ``name_ends`` (where each ends, in bytes) and ``parents``.

    Args:
        file: A file that ends in ``.npz`` or ``.safetensors``; the latter needs the extra
            ``export``.
        names: Names of the nodes.
        places: One place for every name.
        parents: A node and its parent in every row; ``None`` if unknown.
        card: Plain values to keep in the head.

    Raises:
        ValueError: If the file has another ending, the places are of another kind, or a name is no
            text in UTF-8.
        MissingExtraError: If the package of the format is missing.
    """
    if file.suffix not in (".npz", ".safetensors"):
        raise ValueError(f"{file} must end in .npz or .safetensors")
    head = written_head(places, card)
    encoded = [name.encode() for name in names]
    arrays = {
        "names": np.frombuffer(b"".join(encoded), np.uint8),
        "name_ends": np.cumsum([len(text) for text in encoded], dtype=np.int64),
        **{name: x.detach().cpu().numpy() for name, x in places.tensors().items()},
    }
    if parents is not None:
        arrays["parents"] = parents.cpu().numpy().astype(np.int32)
    if file.suffix == ".npz":
        with file.open("wb") as stream:
            np.savez_compressed(stream, **{EMBEDDING_HEAD: np.array(head)}, **arrays)
        return
    with extra("export", f"{file}", "write .npz"):
        save_file = import_module("safetensors.numpy").save_file
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    save_file(contiguous, file, metadata={EMBEDDING_HEAD: head})


def load_embedding(file: Path) -> tuple[tuple[str, ...], Places, Tensor | None]:
    """Read names, places and parents.

    Args:
        file: A file of :func:`save_embedding`.

    Raises:
        OSError: If the file is missing.
        ValueError: If it is damaged or holds something else.
        MissingExtraError: If the package of the format is missing.
    """
    head, arrays = _read_safetensors(file) if file.suffix == ".safetensors" else _read_npz(file)
    names = _names(arrays.pop("names"), arrays.pop("name_ends"))
    parents = arrays.pop("parents", None)
    if parents is not None and parents.dtype != np.int32:
        raise ValueError(f"its parents are {parents.dtype}")
    pairs = None if parents is None else torch.from_numpy(parents).long()
    return names, places_of_head(head, arrays), pairs


def written_head(places: Places, card: Mapping[str, Any]) -> str:
    """The head of a file.

    Args:
        places: The places.
        card: Plain values to keep in it.

    Raises:
        ValueError: If the places are of an unknown kind.
    """
    return json.dumps({"format": EMBEDDING_FORMAT, **_kind(places), "card": dict(card)})


def places_of_head(head: str, arrays: Mapping[str, np.ndarray]) -> Places:
    """The places in a file.

    Args:
        head: Its head.
        arrays: The tensors of the places by name.

    Raises:
        ValueError: If the head has another format, or a number is not finite.
    """
    found = json.loads(head)
    if not isinstance(found, dict) or found.get("format") != EMBEDDING_FORMAT:
        raise ValueError(f"its format is not {EMBEDDING_FORMAT}")
    tensors = {name: torch.from_numpy(x) for name, x in arrays.items()}
    if any(x.is_floating_point() and not x.isfinite().all() for x in tensors.values()):
        raise ValueError("not all of its numbers are finite")
    return _places(found, tensors)


def _kind(places: Places) -> dict[str, Any]:
    """The kind of places as plain values, with what else their class needs."""
    kind = type(places).__name__
    if kind not in PLACE_KINDS:
        raise ValueError(f"{kind} cannot be saved, only {', '.join(PLACE_KINDS)}: use to_csv")
    if isinstance(places, ScoredPlaces):
        return {"places": kind, "table": dataclasses.asdict(places.table)}
    if not isinstance(places, ManifoldPlaces):
        return {"places": kind}
    space = places.manifold
    if type(space).__name__ not in PLACE_MANIFOLDS:
        raise ValueError(f"points of {space} cannot be saved, only of {', '.join(PLACE_MANIFOLDS)}")
    return {"places": kind, "manifold": type(space).__name__, "c": float(space.c)}


def _places(kind: Mapping[str, Any], tensors: Mapping[str, Any]) -> Places:
    more = {}
    if kind["places"] == "ManifoldPlaces":
        c = float(kind["c"])
        check.not_negative(c=c)
        more["manifold"] = PLACE_MANIFOLDS[kind["manifold"]](c)
    if kind["places"] == "ScoredPlaces":
        more["table"] = NodeTable(**kind["table"])
    return PLACE_KINDS[kind["places"]](**more, **tensors)


def _read_npz(file: Path) -> tuple[str, dict[str, np.ndarray]]:
    arrays = read_arrays(file)
    return str(arrays.pop(EMBEDDING_HEAD)), arrays


def _read_safetensors(file: Path) -> tuple[str, dict[str, np.ndarray]]:
    with extra("export", f"{file}", "save it as .npz"):
        safetensors = import_module("safetensors")
    open_file(file).close()  # refuses what is no regular file
    try:
        with safetensors.safe_open(file, framework="numpy") as stored:
            arrays = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
            return (stored.metadata() or {})[EMBEDDING_HEAD], arrays
    except safetensors.SafetensorError as error:
        raise ValueError(f"it is damaged: {error}") from error


def _names(text: np.ndarray, ends: np.ndarray) -> tuple[str, ...]:
    """The names in a text, by the byte at which each ends."""
    if text.dtype != np.uint8 or ends.dtype != np.int64 or text.ndim != 1 or ends.ndim != 1:
        raise ValueError("its names are no text")
    starts = np.concatenate(([0], ends))
    if (np.diff(starts) < 1).any() or starts[-1] != len(text):
        raise ValueError("its names do not fill their text")
    whole = text.tobytes()
    return tuple(whole[a:b].decode() for a, b in itertools.pairwise(starts.tolist()))
