"""Interface of all manifolds: their operations and the laws these satisfy."""

from abc import ABC, abstractmethod
from typing import Literal, TypeAlias

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedbolic.manifolds.curvature import Curvature

PointTensor: TypeAlias = Float[Tensor, "*#batch ambient"]
"""Points or ambient vectors along the last axis; the other axes broadcast."""

Scalars: TypeAlias = Float[Tensor, "*#batch"]
"""One number per point; the curvature broadcasts with the batch axes."""

Mode: TypeAlias = Literal["auto", "mm", "mm64", "broadcast"]
"""Algorithm of ``cdist``; the modes differ in cost and rounding."""


class Manifold(ABC):
    r"""Space of constant sectional curvature :math:`-c`, with points along the last axis.

    Every space satisfies these laws up to rounding: ``logmap(x, expmap(x, u)) = u``;
    ``norm(x, logmap(x, y)) = dist(x, y)``; ``dist`` is a metric; ``transp`` preserves ``inner``;
    ``dist`` scales with the unit of length, :math:`1 / \sqrt c`. An operation whose name ends in
    ``0`` is the one of the same name at the origin. Operations read a point ``x`` off the space as
    ``projx(x)``. They raise no error, because they do not inspect tensors; ``require`` does.

    ``c`` is a number, or a tensor that broadcasts with the result of ``dist`` (or of ``cdist``), so
    a record is one space, or one space per client or per sample. Operations on float16 and bfloat16
    are computed in float32 and rounded once.

    A learnt curvature is given as its module, ``Lorentz(c=Curvature(1.0))``: ``c`` is then its
    value, read anew by every operation, and a layer that takes the space holds the module.
    """

    c: Tensor | float

    @property
    def curvature(self) -> Curvature | Tensor | float:
        """``c`` as it was given: the module if it is learnt."""
        return vars(self).get("_c", self.c)

    def origin(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*batch ambient"]:
        """The origin as a tensor of ``shape``, whose last number is the ambient dimension."""
        return torch.zeros(shape, dtype=dtype, device=device)

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
            mode: ``broadcast`` calls ``dist`` and needs memory for ``n m ambient`` numbers. ``mm``
                is one matrix product: the fastest, but close pairs far from the origin lose digits.
                ``mm64`` computes this product in float64, which is accurate to float32. ``auto``
                is ``mm`` with close pairs recomputed by ``dist``. As their number depends on the
                data, ``auto`` inside ``vmap`` or ``compile`` is ``mm64`` in float32 and
                ``broadcast`` in float64. On a CUDA device with triton, ``auto`` is one kernel with
                the formula of ``dist``, which keeps no differences of points in memory; ``compile``
                and forward derivatives take the modes above.
        """

    @abstractmethod
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        """The point reached at time 1 by the geodesic from ``x`` with initial velocity ``u``."""

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
        """Parallel transport of the tangent ``v`` at ``x`` along the geodesic to ``y``."""

    def expmap_transp(
        self, x: PointTensor, u: PointTensor, v: PointTensor
    ) -> tuple[PointTensor, PointTensor]:
        """``expmap`` of ``u``, and ``transp`` of the tangent ``v`` along it."""
        y = self.expmap(x, u)
        return y, self.transp(x, y, v)

    @abstractmethod
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        """``transp`` from the origin to ``y``."""

    @abstractmethod
    def projx(self, x: PointTensor) -> PointTensor:
        """The point of the space that operations take in place of ``x``."""

    @abstractmethod
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        """Orthogonal projection of the ambient vector ``u`` to the tangent space at ``x``."""

    @abstractmethod
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        """The Riemannian gradient at ``x`` of a function with the Euclidean gradient ``g``."""

    def squared_gradient(self, x: PointTensor, g: PointTensor) -> tuple[PointTensor, Scalars]:
        """``egrad2rgrad``, and the inner product of this gradient with itself."""
        gradient = self.egrad2rgrad(x, g)
        return gradient, self.inner(x, gradient, gradient)

    @abstractmethod
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        """Inner product of two tangents at ``x``, or of ``u`` with itself if ``v`` is ``None``."""

    @abstractmethod
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        """Length of a tangent at ``x``."""

    @abstractmethod
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        """Lorentzian centroid: the point on the ray through the weighted mean on the hyperboloid.

        Args:
            points: One or more points.
            weights: Numbers of 0 or more, not all 0, of any total; all equal by default.

        Raises:
            ValueError: If there are no points.

        References:
            Law et al. (2019), Eq. (12), PMLR 97; Chen et al. (2022), Eq. (10), arXiv:2105.14686.
        """

    @abstractmethod
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        """Signed distance from ``x`` to the hyperplane through ``p`` with the normal ``a``.

        Args:
            x: Points; their distance is positive on the side that ``a`` points to.
            p: A point of the hyperplane, which is totally geodesic.
            a: A tangent at ``p``, not 0; its length has no effect.

        References:
            Ganea et al. (2018), Thm. 5, arXiv:1805.09112.
        """

    @abstractmethod
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        """Mask of the points that lie on the space up to rounding; False for NaN."""

    @abstractmethod
    def product(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """``cdist`` by one matrix product, and the relative size of its differences.

        The second tensor is each difference divided by the terms subtracted: it is small where
        cancellation costs digits.
        """

    @abstractmethod
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        """``projx`` within the range of ``dtype``, by default the dtype of ``x``."""

    def require(self, x: Float[Tensor, "*batch ambient"]) -> None:
        """Raise an error if points are not on the space; no layer calls this.

        Raises:
            ValueError: If a point is not on the space; the message shows the first one.
        """
        outside = ~self.contains(x)
        if outside.any():
            index = tuple(outside.nonzero()[0].tolist())
            point = x[index].tolist()
            raise ValueError(
                f"{int(outside.sum())} of {outside.numel()} points are not on {self}: the first is "
                f"x[{', '.join(map(str, index))}] = {point}; use projx(x), or check the curvature"
            )
