"""Pictures as arrays: a method gives them, and a report draws them without knowing whose."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Disc:
    """Points in the Poincare disc of radius 1, whatever curvature they were learned with.

    Args:
        points: At most 1 from the origin, up to rounding.
        labels: The class of every point, from 0; it gives the colour.
        marks: Large markers, each numbered by its row and coloured as that class: prototypes.

    Raises:
        ValueError: If a point or a mark lies outside the disc, or labels do not fit the points.

    Example:
        >>> prototypes = torch.tensor([[0.9, 0.0], [-0.9, 0.0]])
        >>> points = torch.tensor([[0.5, 0.1], [0.6, 0.0], [-0.7, 0.2]])
        >>> figure = Disc(points, labels=torch.tensor([0, 0, 1]), marks=prototypes)
    """

    points: Float[Tensor, "n 2"]
    labels: Int[Tensor, " n"]
    marks: Float[Tensor, "m 2"] = field(default_factory=lambda: torch.empty(0, 2))

    def __post_init__(self) -> None:
        _check(self.points, self.labels)
        for name, points in (("points", self.points), ("marks", self.marks)):
            if points.ndim != 2 or points.shape[1] != 2:
                raise ValueError(f"{name} need two coordinates, got shape {tuple(points.shape)}")
            norms = points.double().norm(dim=1)
            if not (norms <= 1 + 1e-6).all():  # false for NaN, too
                raise ValueError(f"{name} must lie in the unit disc, got norm {norms.max():.6g}")


@dataclass(frozen=True, eq=False)
class Embedding:
    """Points of any dimension, of which only a projection can be drawn.

    Args:
        points: Coordinates in which the Euclidean distance means something, such as tangent
            vectors at the origin.
        labels: The class of every point, from 0; it gives the colour.
        of: What the points are; it stands in the title, behind the name of the projection.

    Raises:
        ValueError: If a coordinate is not finite, or labels do not fit the points.

    Example:
        >>> figure = Embedding(torch.randn(3, 20), torch.tensor([0, 0, 1]), of="tangent vectors")
    """

    points: Float[Tensor, "n dim"]
    labels: Int[Tensor, " n"]
    of: str

    def __post_init__(self) -> None:
        _check(self.points, self.labels)
        if not self.points.isfinite().all():
            raise ValueError("points must be finite, got NaN or infinite coordinates")


Figure: TypeAlias = Disc | Embedding
"""What a method may give to be drawn."""

KINDS = {"disc": Disc, "embedding": Embedding}


def write(figure: Figure, stream: BinaryIO) -> None:
    """The figure as an ``.npz`` of plain arrays: its fields by name, and its ``kind``.

    Raises:
        TypeError: If it is of no kind that is known here.
    """
    kind = next((name for name, known in KINDS.items() if isinstance(figure, known)), None)
    if kind is None:
        raise TypeError(f"a figure must be a Disc or an Embedding, got {type(figure).__name__}")
    arrays: dict[str, Any] = {
        name: value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value)
        for name, value in vars(figure).items()
    }
    np.savez(stream, kind=np.array(kind), **arrays)


def read(file: Path) -> Figure:
    """The figure of a file; its tensors are on the CPU.

    Raises:
        ValueError: If the file holds no figure that is known here.
    """
    with np.load(file, allow_pickle=False) as archive:
        arrays = {name: archive[name] for name in archive.files}
    kind = str(arrays.pop("kind", "none"))
    if kind not in KINDS:
        raise ValueError(f"{file} must hold a figure of kind {' or '.join(KINDS)}, got {kind}")
    return KINDS[kind](
        **{
            name: str(array) if array.dtype.kind == "U" else torch.from_numpy(array)
            for name, array in arrays.items()
        }
    )


def _check(points: Tensor, labels: Tensor) -> None:
    if labels.shape != points.shape[:1]:
        raise ValueError(
            f"every point needs one label, got points {tuple(points.shape)} and labels "
            f"{tuple(labels.shape)}"
        )
    if labels.is_floating_point() or (labels < 0).any():
        raise ValueError("labels must be integers from 0")
