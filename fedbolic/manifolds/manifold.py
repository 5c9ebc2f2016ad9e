"""The operations every space has, and what they promise one another."""

import math
from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

PointTensor: TypeAlias = Float[Tensor, "*#batch ambient"]
"""Points or ambient vectors along the last axis; the other axes broadcast."""

Scalars: TypeAlias = Float[Tensor, "*#batch"]
"""One number per point; the curvature broadcasts with these."""

Mode: TypeAlias = Literal["auto", "mm", "mm64", "broadcast"]
"""How ``cdist`` computes: same value, other cost."""


class Manifold(ABC):
    r"""A space of constant sectional curvature :math:`-c`, with points along the last axis.

    The laws every space keeps, up to rounding: ``logmap(x, expmap(x, u)) = u``;
    ``norm(x, logmap(x, y)) = dist(x, y)``; ``dist`` is a metric; ``transp`` keeps ``inner``;
    ``dist`` scales with the unit of length, which is :math:`1 / \sqrt c`. Verbs ending in ``0`` are
    their namesakes at the origin. A point off the space is read as the nearest one that the
    operations of its space name; nothing is refused, because tensors are not inspected: ``require``
    does that.

    ``c`` is a number or a tensor that broadcasts with the result of ``dist`` (or of ``cdist``),
    so one record is one space, or one space per client or per sample. float16 and bfloat16 are
    computed in float32 and rounded once.
    """

    c: Tensor | float

    @abstractmethod
    def origin(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*batch ambient"]:
        """The base point, ``shape`` times; the last number is the ambient dimension."""

    @abstractmethod
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        """Length of the geodesic from ``x`` to ``y``; exactly 0 from a point to itself."""

    @abstractmethod
    def dist0(self, x: PointTensor) -> Scalars:
        """Length of the geodesic from the origin to ``x``."""

    @abstractmethod
    def cdist(
        self,
        x: Float[Tensor, "*#batch n ambient"],
        y: Float[Tensor, "*#batch m ambient"],
        *,
        mode: Mode = "auto",
    ) -> Float[Tensor, "*#batch n m"]:
        """All distances between the points ``x`` and the points ``y``.

        Args:
            x: ``n`` points.
            y: ``m`` points.
            mode: ``broadcast`` is ``dist`` itself, in memory ``n m ambient``. ``mm`` is one matrix
                product: least cost, but close pairs far out lose digits. ``mm64`` takes that
                product in float64: right to float32. ``auto`` is ``mm`` with close pairs computed
                again by ``dist``; how many there are depends on the data, so where it is traced
                (``vmap``, ``compile``) it is ``mm64`` in float32 and ``broadcast`` in float64.
        """

    @abstractmethod
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        """The point reached from ``x`` along the tangent ``u`` after its length."""

    @abstractmethod
    def expmap0(self, u: PointTensor) -> PointTensor:
        """``expmap`` from the origin."""

    @abstractmethod
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        """The tangent at ``x`` whose ``expmap`` is ``y``."""

    @abstractmethod
    def logmap0(self, y: PointTensor) -> PointTensor:
        """``logmap`` at the origin."""

    @abstractmethod
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        """The tangent ``v`` at ``x``, carried in parallel along the geodesic to ``y``."""

    @abstractmethod
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        """``transp`` from the origin to ``y``."""

    @abstractmethod
    def projx(self, x: PointTensor) -> PointTensor:
        """The point of the space that the operations read ``x`` as."""

    @abstractmethod
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        """The orthogonal projection of the ambient vector ``u`` to the tangents at ``x``."""

    @abstractmethod
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        """The Riemannian gradient of which ``g`` is the Euclidean one."""

    @abstractmethod
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        """The inner product of two tangents at ``x``; of ``u`` with itself if one is given."""

    @abstractmethod
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        """The length of a tangent at ``x``."""

    @abstractmethod
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        """The point on the ray through the weighted mean, in the Lorentz model.

        Args:
            points: At least one.
            weights: 0 or more, not all 0, and they need not sum to one; all equal if not given.

        References:
            Law et al. (2019), Eq. (12), PMLR 97; Chen et al. (2022), Eq. (10), arXiv:2105.14686.
        """

    @abstractmethod
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        """Signed distance from ``x`` to the hyperplane through ``p`` with the normal ``a``.

        Args:
            x: Where the distance is taken from; it is positive on the side ``a`` points to.
            p: A point of the hyperplane, which is totally geodesic.
            a: A tangent at ``p``, not 0; its length does not matter.

        References:
            Ganea et al. (2018), Thm. 5, arXiv:1805.09112.
        """

    @abstractmethod
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        """Mask of the points that lie on the space, up to rounding; NaN does not."""

    @abstractmethod
    def product(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """``cdist`` by one matrix product, and the share of what was subtracted that is left."""

    @abstractmethod
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        """``projx`` to what ``dtype`` can hold (by default the type of ``x``)."""

    def require(self, x: Float[Tensor, "*batch ambient"]) -> None:
        """Refuse points that are not on the space; no layer calls this.

        Raises:
            ValueError: Naming the first such point.
        """
        outside = ~self.contains(x)
        if outside.any():
            index = tuple(outside.nonzero()[0].tolist())
            point = x[index].tolist()
            raise ValueError(
                f"{int(outside.sum())} of {outside.numel()} points are not on {self}: the first is "
                f"x[{', '.join(map(str, index))}] = {point}; use projx(x), or check the curvature"
            )


def curvature(c: Tensor | float, *, flat: bool) -> Tensor | float:
    """``c`` as a space may hold it.

    Args:
        c: A number, which is checked, or a floating tensor, whose values are not looked at.
        flat: Whether ``c = 0`` is a space too.

    Raises:
        ValueError: If a number is negative, not finite, or 0 where that is no space.
    """
    if isinstance(c, Tensor):
        return c
    if not (math.isfinite(c) and (c > 0 or (flat and c == 0))):
        least = "0 or more" if flat else "above 0"
        raise ValueError(
            f"c must be finite and {least}, got {c}: it is minus the sectional curvature"
        )
    return float(c)
