"""Places: the points of many nodes, kept in coordinates that still tell distant nodes apart."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

import torch
from jaxtyping import Float, Float64, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds.convert import to_lorentz, to_poincare
from fedbolic.manifolds.lorentz import Lorentz
from fedbolic.manifolds.manifold import Manifold
from fedbolic.manifolds.poincare import Poincare

MOST_AT_ONCE = 2**21
"""Most distances that ``cdist`` computes at a time; each needs a dozen numbers of memory."""

LARGEST_EXPONENT = 300.0
"""Largest exponent of which the exponentials of two, and their product, are finite numbers."""

Kind = TypeVar("Kind", bound="Places")


@dataclass(frozen=True, eq=False)
class Places(ABC):
    """Points of a hyperbolic space by row, of curvature -1 unless a manifold says otherwise.

    A record of tensors, each with a row for every point. Unlike a table of coordinates on a
    manifold, places may lie so far out that no float tells them apart in the ball; ``dist`` still
    does.
    """

    @property
    @abstractmethod
    def dim(self) -> int:
        """Dimensions of the space."""

    @abstractmethod
    def tensors(self) -> dict[str, Tensor]:
        """The tensors by name; with them the class makes the places again."""

    def __len__(self) -> int:
        """The number of points."""
        return len(next(iter(self.tensors().values())))

    def __getitem__(self: Kind, rows: Int64[Tensor, " m"]) -> Kind:
        """The points of some rows, in their order.

        Raises:
            IndexError: If a row does not exist.
        """
        return replace(self, **{name: tensor[rows] for name, tensor in self.tensors().items()})

    @abstractmethod
    def dist(self, others: "Places") -> Float64[Tensor, " n"]:
        """Distance of each point from the point of ``others`` in the same row.

        Args:
            others: As many points.
        """

    @abstractmethod
    def cdist(self, others: "Places") -> Float64[Tensor, "n m"]:
        """All distances to the points of ``others``.

        Args:
            others: Any number of points.
        """

    @abstractmethod
    def to_poincare(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        """The points in the Poincaré ball.

        Args:
            dtype: Dtype of the result, which bounds the radius (:func:`reach`).

        Raises:
            ValueError: If ``dtype`` cannot hold the points: one lies too far out, or two different
                points have one image.
        """

    @abstractmethod
    def to_lorentz(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        """The points on the hyperboloid.

        Args:
            dtype: As for :meth:`to_poincare`.

        Raises:
            ValueError: As :meth:`to_poincare`.
        """


@dataclass(frozen=True, eq=False)
class ManifoldPlaces(Places):
    """Points of a manifold, such as a trained table.

    Distances are computed in float64, whatever the dtype of the points.

    Args:
        manifold: Space of the points, with one curvature for all.
        points: One point a row.

    Raises:
        ValueError: If ``points`` are no matrix of floating-point numbers.

    Example:
        >>> space = Lorentz()
        >>> points = space.expmap0(space.lift(torch.tensor([[0.0, 0.0], [1.0, 0.0]])))
        >>> ManifoldPlaces(space, points).to_poincare(torch.float32)
        tensor([[0.0000, 0.0000],
                [0.4621, 0.0000]])
    """

    manifold: Manifold
    points: Float[Tensor, "n ambient"]

    def __post_init__(self) -> None:
        if self.points.ndim != 2 or not self.points.is_floating_point():
            raise ValueError(
                "points must be floating-point numbers, one point a row, got "
                f"{self.points.dtype} of shape {tuple(self.points.shape)}"
            )

    @property
    @override
    def dim(self) -> int:
        return self.points.shape[1] - isinstance(self.manifold, Lorentz)

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"points": self.points}

    @override
    def dist(self, others: "Places") -> Float64[Tensor, " n"]:
        return self.manifold.dist(self.points.double(), same_kind(self, others).points.double())

    @override
    def cdist(self, others: "Places") -> Float64[Tensor, "n m"]:
        x, y = self.points.double(), same_kind(self, others).points.double()
        return by_rows(lambda at: self.manifold.cdist(x[at], y), x, len(y))

    @override
    def to_poincare(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        images = self._hyperbolic(dtype)
        if isinstance(self.manifold, Lorentz):
            images = to_poincare(self.manifold, images)
        return check_distinct(images.to(dtype), self._coordinates, "the ball")

    @override
    def to_lorentz(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        images = self._hyperbolic(dtype)
        if isinstance(self.manifold, Poincare):
            images = to_lorentz(self.manifold, images)
        return check_distinct(images.to(dtype), self._coordinates, "the hyperboloid")

    @property
    def _coordinates(self) -> Tensor:
        """The coordinates by which points differ; the time coordinate follows from the others."""
        return self.points[:, int(isinstance(self.manifold, Lorentz)) :]

    def _hyperbolic(self, dtype: torch.dtype) -> Float64[Tensor, "n ambient"]:
        """The points in float64, after a check that they are in a model, within its reach."""
        space = self.manifold
        if not isinstance(space, Lorentz | Poincare) or float(space.c) == 0:
            raise ValueError(
                f"points of {space} are not in a hyperbolic space: only those of Lorentz "
                "and Poincare convert"
            )
        points = self.points.double()
        check_reach(space.dist0(points) * space.c**0.5, dtype)
        return points


def same_kind(places: Kind, others: Places) -> Kind:
    """``others``, after a check that they are of the same kind.

    Args:
        places: Places of the kind.
        others: Other places.

    Raises:
        TypeError: If they have other coordinates.
    """
    if not isinstance(others, type(places)):
        raise TypeError(
            f"{type(places).__name__} have no distance from {type(others).__name__}: bring both "
            "into one model, for example by to_lorentz"
        )
    return others


def reach(dtype: torch.dtype) -> float:
    r"""Largest radius at which the ball and the hyperboloid hold points: 15.9 in float32.

    .. math:: \log(1 / \epsilon)

    There the rounding of one coordinate moves a point by about a unit of length. It is 36.0 in
    float64.

    Args:
        dtype: Dtype of the coordinates.

    Example:
        >>> reach(torch.float32) < 16 < 36 < reach(torch.float64)
        True
    """
    return -math.log(torch.finfo(dtype).eps)


def check_reach(radii: Float64[Tensor, " n"], dtype: torch.dtype) -> None:
    """Refuse points that ``dtype`` cannot hold in the ball or on the hyperboloid.

    Args:
        radii: Distances from the origin, in radii of curvature.
        dtype: Dtype of the coordinates.

    Raises:
        ValueError: If a point lies beyond :func:`reach`.
    """
    farthest = float(radii.max()) if len(radii) else 0.0
    if not farthest <= reach(dtype):
        raise ValueError(
            f"{dtype} holds points up to radius {reach(dtype):.1f}, but one lies at "
            f"{farthest:.1f}: its neighbours would not be told apart. Keep the places as they are, "
            "or lay the tree out with a smaller radius or in more dimensions"
        )


def check_distinct(
    images: Float[Tensor, "n ambient"], points: Tensor, model: str
) -> Float[Tensor, "n ambient"]:
    """The images, after a check that different points have different images.

    Args:
        images: Coordinates in the model, rounded.
        points: Coordinates by which points differ, a row each.
        model: Name of the model for the message.

    Raises:
        ValueError: If different points have one image.
    """
    kept, given = (len(torch.unique(rows, dim=0)) if len(rows) else 0 for rows in (images, points))
    if kept < given:
        raise ValueError(
            f"{given} different points have {kept} images in {model} in {images.dtype}: "
            "convert to a wider dtype, or keep the places as they are"
        )
    return images


def separation(
    apart: Float64[Tensor, "..."], s: Float64[Tensor, "..."], t: Float64[Tensor, "..."]
) -> Float64[Tensor, "..."]:
    r"""Distances from a difference across and two scales, without cancellation or overflow.

    .. math:: 2 \operatorname{asinh} \sqrt{(a e^{s + t})^2 + \sinh^2(s - t)}

    Both polar coordinates and the half-space have this form. Scales beyond 300 are computed by
    logarithms, with an error of ``eps`` times the scale.

    Args:
        apart: Difference across the direction in which the scale grows, at least 0.
        s: Scales of the first points.
        t: Scales of the second points.
    """
    if s.numel() == 0 or t.numel() == 0:
        return torch.zeros_like(apart * s * t)
    if max(float(s.abs().max()), float(t.abs().max())) <= LARGEST_EXPONENT:
        across = apart * (s.exp() * t.exp())
        return 2 * torch.hypot(across, torch.sinh(s - t)).asinh()
    gap = (s - t).abs()
    along = gap + torch.log(-torch.expm1(-2 * gap) / 2)
    log = torch.logaddexp(2 * (apart.log() + s + t), 2 * along) / 2
    near = torch.exp(log.clamp(max=20)).asinh()
    return 2 * torch.where(log > 20, log + math.log(2), near)


def by_rows(
    distances: Callable[[slice], Float64[Tensor, "rows m"]], like: Tensor, width: int
) -> Float64[Tensor, "n m"]:
    """Concatenated distances of slices of rows, of at most ``MOST_AT_ONCE`` numbers each.

    Args:
        distances: Distances of a slice of rows to all others.
        like: Tensor with as many rows.
        width: Numbers a row.
    """
    step = max(1, MOST_AT_ONCE // max(1, width))
    starts = range(0, max(1, len(like)), step)
    return torch.cat([distances(slice(start, start + step)) for start in starts])
