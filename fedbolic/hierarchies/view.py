"""A page to look at an embedded hierarchy: one HTML file, without network."""

import base64
import gzip
import json
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float64, Int64, UInt64

from fedbolic.hierarchies.embedding import Embedding
from fedbolic.manifolds import ManifoldPlaces, Places, PolarPlaces

_PARTS = ("view_plane.js", "view_map.js", "view_panel.js")

MOST_DEPTH = 2**16 - 1
"""Most levels of a tree on a page."""


def write_view(embedding: Embedding, file: Path | str, *, title: str = "Hierarchy") -> None:
    """Write a page to look at a hierarchy in the hyperbolic plane.

    The file needs nothing else: pan and zoom about any node, search by name, the path to the root,
    the nearest nodes. The view moves by isometries, computed from exact differences of angles, so
    it holds at any radius of :class:`~fedbolic.manifolds.PolarPlaces`.

    Args:
        embedding: Names, places and parents. A node with several parents is drawn under the first.
            Places of more than two dimensions keep their distance from the origin and the direction
            in the two principal axes of all directions.
        file: HTML file to write.
        title: Heading of the page, plain text.

    Raises:
        ValueError: If the places are in no hyperbolic space, or not polar and beyond the reach of
            float64 on the hyperboloid; or a chain is longer than :data:`MOST_DEPTH`.
        OSError: If the file cannot be written.

    Example:
        >>> from tempfile import TemporaryDirectory
        >>> from fedbolic.data import BalancedTree
        >>> from fedbolic.hierarchies import TreeLayout
        >>> tree = BalancedTree(branching=3, depth=3).read(None, download=False)
        >>> with TemporaryDirectory() as folder:
        ...     file = Path(folder) / "tree.html"
        ...     write_view(Embedding.of(tree, TreeLayout().place(tree)), file, title="Tree")
        ...     "</html>" in file.read_text()
        True
    """
    Path(file).write_text(view_page(embedding, title=title), encoding="utf-8")


def view_page(embedding: Embedding, *, title: str = "Hierarchy") -> str:
    """The page of :func:`write_view` as text.

    Args:
        embedding: As for :func:`write_view`.
        title: Likewise.

    Raises:
        ValueError: As for :func:`write_view`.
    """
    here = Path(__file__).parent
    scripts = "\n".join((here / part).read_text(encoding="utf-8") for part in _PARTS)
    scripts = scripts.replace('"use strict";\n', "")
    data = base64.b64encode(gzip.compress(_pack(embedding, title), mtime=0)).decode()
    text = (here / "view.html").read_text(encoding="utf-8")
    return text.replace("@scripts@", scripts).replace("@data@", data)


def _pack(embedding: Embedding, title: str) -> bytes:
    """All data of the page: its length, a text in JSON, and the columns of the nodes."""
    turns, lengths = _polar(embedding.places)
    first, others = _first_parents(embedding)
    order, depths = _preorder(first, turns)
    at = np.empty(len(order), dtype=np.int64)
    at[order] = np.arange(len(order))
    dim = embedding.places.dim
    head = {
        "title": title,
        "note": "" if dim == 2 else f"Directions in two principal axes of {dim} dimensions.",
        "names": [embedding.names[node] for node in order.tolist()],
        "more": at[others].tolist(),
    }
    text = json.dumps(head, separators=(",", ":")).encode()
    turns = turns[order]
    columns = (
        lengths[order].astype("<f8"),
        (turns >> np.uint64(32)).astype("<u4"),
        (turns & np.uint64(0xFFFFFFFF)).astype("<u4"),
        depths.astype("<u2"),
    )
    size = np.array([len(text), 0], dtype="<u4")
    return b"".join((size.tobytes(), text, *(column.tobytes() for column in columns)))


def _polar(places: Places) -> tuple[UInt64[np.ndarray, " n"], Float64[np.ndarray, " n"]]:
    """Turns of 64 bits and radii of places of any kind."""
    if isinstance(places, PolarPlaces):
        shift = 64 - torch.iinfo(places.turns.dtype).bits
        turns = places.turns.cpu().long().numpy().view(np.uint64) << np.uint64(shift)
        return turns, places.radii.cpu().numpy()
    # the space coordinates of the hyperboloid hold their digits where those of the disc end
    points = places.to_lorentz().detach().cpu()[:, 1:]
    points = points * (float(places.manifold.c) ** 0.5 if isinstance(places, ManifoldPlaces) else 1)
    lengths = points.norm(dim=1).asinh()
    directions = points / points.norm(dim=1, keepdim=True).clamp_min(1e-300)
    if places.dim == 1:
        directions = torch.nn.functional.pad(directions, (0, 1))
    elif places.dim > 2:
        # the axes of the directions themselves, so that a node at the origin counts nothing
        directions = directions @ torch.linalg.eigh(directions.T @ directions)[1][:, -2:].flip(1)
    angles = torch.atan2(directions[:, 1], directions[:, 0]).numpy() / (2 * np.pi)
    return ((angles % 1.0) * 2.0**53).astype(np.uint64) << np.uint64(11), lengths.numpy()


def _first_parents(
    embedding: Embedding,
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, "m 2"]]:
    """The first parent of every node, -1 for none, and the pairs of the other parents."""
    first = np.full(len(embedding), -1)
    pairs = torch.empty(0, 2).long() if embedding.parents is None else embedding.parents
    child = pairs.cpu().numpy()[:, 0]
    unique, at = np.unique(child, return_index=True)
    first[unique] = pairs.cpu().numpy()[at, 1]
    return first, np.delete(pairs.cpu().numpy(), at, axis=0)


def _preorder(
    parents: Int64[np.ndarray, " n"], turns: UInt64[np.ndarray, " n"]
) -> tuple[Int64[np.ndarray, " n"], Int64[np.ndarray, " n"]]:
    """The nodes before their descendants, siblings by angle, and their depths in that order."""
    below: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node in np.argsort(turns, kind="stable").tolist():
        below[parents[node]].append(node)  # -1, the last list, holds the roots
    order, depths, waiting = [], [], [(node, 0) for node in reversed(below[-1])]
    while waiting:
        node, depth = waiting.pop()
        order.append(node)
        depths.append(depth)
        waiting.extend((child, depth + 1) for child in reversed(below[node]))
    if max(depths) > MOST_DEPTH:
        raise ValueError(f"a page has at most {MOST_DEPTH} levels, got {max(depths)}")
    return np.array(order), np.array(depths)
