"""Figures as arrays: methods create them, and reports draw them for any method."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from fedbolic.core.reading import read_arrays


@dataclass(frozen=True, eq=False)
class DiscFigure:
    """Points in the Poincare disc, rescaled to radius 1 from any curvature.

    Args:
        points: Points of norm at most 1, up to rounding.
        labels: Class of every point, from 0; it determines the colour.
        marks: Large numbered markers, such as prototypes; row k has the number and colour of class
            k. Where no curve is dashed, the disc is tinted by the nearest one.
        curves: Points along curves, such as the sides of polygons, one curve after the other.
        curve_ids: Curve of each of these points, from 0, ascending.
        curve_labels: Class of every curve; it determines the colour.
        curve_dashed: True for curves drawn dashed, such as boundaries between classes.

    Raises:
        ValueError: If a point lies outside the disc, a shape is wrong, or labels do not match the
            points or curves in number.

    Example:
        >>> prototypes = torch.tensor([[0.9, 0.0], [-0.9, 0.0]])
        >>> points = torch.tensor([[0.5, 0.1], [0.6, 0.0], [-0.7, 0.2]])
        >>> figure = DiscFigure(points, labels=torch.tensor([0, 0, 1]), marks=prototypes)
    """

    points: Float[Tensor, "n 2"]
    labels: Int[Tensor, " n"]
    marks: Float[Tensor, "m 2"] = field(default_factory=lambda: torch.empty(0, 2))
    curves: Float[Tensor, "k 2"] = field(default_factory=lambda: torch.empty(0, 2))
    curve_ids: Int[Tensor, " k"] = field(default_factory=lambda: torch.empty(0).long())
    curve_labels: Int[Tensor, " p"] = field(default_factory=lambda: torch.empty(0).long())
    curve_dashed: Bool[Tensor, " p"] = field(default_factory=lambda: torch.empty(0).bool())

    def __post_init__(self) -> None:
        _check(self.points, self.labels)
        _check(self.curves, self.curve_ids)
        ids = self.curve_ids.unique_consecutive()
        if not (
            torch.equal(ids.cpu(), torch.arange(len(self.curve_labels)))
            and self.curve_dashed.shape == self.curve_labels.shape
        ):
            raise ValueError("curves must be numbered 0, 1, ... in order, with one label for each")
        for name in ("points", "marks", "curves"):
            points = getattr(self, name)
            if points.ndim != 2 or points.shape[1] != 2:
                raise ValueError(f"{name} need two coordinates, got shape {tuple(points.shape)}")
            norms = points.double().norm(dim=1)
            if not (norms <= 1 + 1e-6).all():  # also refuses NaN
                raise ValueError(f"{name} must lie in the unit disc, got norm {norms.max():.6g}")


@dataclass(frozen=True, eq=False)
class EmbeddingFigure:
    """Points of any dimension, drawn as a projection to the plane.

    Args:
        points: Coordinates with a meaningful Euclidean distance, such as tangent vectors at the
            origin.
        labels: Class of every point, from 0; it determines the colour.
        of: Description of the points, which follows the name of the projection in the title.

    Raises:
        ValueError: If a coordinate is not finite, or points and labels differ in number.

    Example:
        >>> labels = torch.tensor([0, 0, 1])
        >>> figure = EmbeddingFigure(torch.randn(3, 20), labels, of="tangent vectors")
    """

    points: Float[Tensor, "n dim"]
    labels: Int[Tensor, " n"]
    of: str

    def __post_init__(self) -> None:
        _check(self.points, self.labels)
        if not self.points.isfinite().all():
            raise ValueError("points must be finite, got NaN or infinite coordinates")


Figure: TypeAlias = DiscFigure | EmbeddingFigure
"""Figures that a method may return."""

KINDS = {"disc": DiscFigure, "embedding": EmbeddingFigure}


def write_figure(figure: Figure, stream: BinaryIO) -> None:
    """Write a figure as an ``.npz`` with its fields by name and its ``kind``.

    Raises:
        TypeError: If the figure is neither a ``DiscFigure`` nor an ``EmbeddingFigure``.
    """
    kind = next((name for name, known in KINDS.items() if isinstance(figure, known)), None)
    if kind is None:
        raise TypeError(
            f"a figure must be a DiscFigure or an EmbeddingFigure, got {type(figure).__name__}"
        )
    arrays: dict[str, Any] = {
        name: value.detach().cpu().numpy() if isinstance(value, Tensor) else np.array(value)
        for name, value in vars(figure).items()
    }
    np.savez(stream, kind=np.array(kind), **arrays)


def read_figure(file: Path) -> Figure:
    """Read a figure from a file, with tensors on the CPU.

    Raises:
        ValueError: If the file does not hold a figure of a known kind.
    """
    arrays = read_arrays(file)
    kind = str(arrays.pop("kind", "none"))[:80]
    if kind not in KINDS:
        raise ValueError(f"{file} must hold a figure of kind {' or '.join(KINDS)}, got {kind!r}")
    try:
        return KINDS[kind](
            **{
                name: str(array) if array.dtype.kind == "U" else torch.from_numpy(array)
                for name, array in arrays.items()
            }
        )
    except (ValueError, TypeError, RuntimeError, IndexError, AttributeError) as error:
        raise ValueError(f"{file} holds no figure that can be drawn: {error}") from error


def _check(points: Tensor, labels: Tensor) -> None:
    if labels.shape != points.shape[:1]:
        raise ValueError(
            f"every point needs one label, got points {tuple(points.shape)} and labels "
            f"{tuple(labels.shape)}"
        )
    if labels.is_floating_point() or (labels < 0).any():
        raise ValueError("labels must be integers from 0")
