"""Flat space with the operations of a hyperbolic one."""

from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas import numerics
from fedbolic.formulas.centroids import normalized_weights
from fedbolic.formulas.numerics import finite, in_float32, root, square
from fedbolic.manifolds import pairwise
from fedbolic.manifolds.manifold import Manifold, Mode, PointTensor, Scalars


@dataclass(frozen=True, eq=False)
class Euclidean(Manifold):
    r"""Euclidean space :math:`\mathbb R^n`, with straight geodesics and constant transport.

    Example:
        >>> Euclidean().dist(torch.tensor([0.0, 3.0]), torch.tensor([4.0, 0.0]))
        tensor(5.)
    """

    c: Tensor | float = field(default=0.0, init=False, repr=False)

    @override
    @in_float32
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        return root(square(x - y)).squeeze(-1)

    @override
    @in_float32
    def dist0(self, x: PointTensor) -> Scalars:
        return root(square(x)).squeeze(-1)

    @override
    @in_float32
    def cdist(
        self,
        x: Float[Tensor, "*#batch n ambient"],
        y: Float[Tensor, "*#batch m ambient"],
        *,
        mode: Mode = "auto",
    ) -> Float[Tensor, "*#batch n m"]:
        return pairwise.cdist(self, x, y, mode)

    @override
    def product(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        size = square(x) + square(y).mT
        gap = (size - 2 * (x @ y.mT)).clamp_min(0)
        return root(gap), gap / size.clamp_min(torch.finfo(x.dtype).tiny)

    @override
    @in_float32
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return x + u

    @override
    @in_float32
    def expmap0(self, u: PointTensor) -> PointTensor:
        return u

    @override
    @in_float32
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        return y - x

    @override
    @in_float32
    def logmap0(self, y: PointTensor) -> PointTensor:
        return y

    @override
    @in_float32
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        return v + torch.zeros_like(x) + torch.zeros_like(y)

    @override
    @in_float32
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        return v + torch.zeros_like(y)

    @override
    @in_float32
    def projx(self, x: PointTensor) -> PointTensor:
        return x

    @override
    @in_float32
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return u + torch.zeros_like(x)

    @override
    @in_float32
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        return g + torch.zeros_like(x)

    @override
    @in_float32
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        product = u * (u if v is None else v) + torch.zeros_like(x)
        return finite(product.sum(-1))

    @override
    @in_float32
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        return root(square(u + torch.zeros_like(x))).squeeze(-1)

    @override
    @in_float32
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        return numerics.dot(x - p, numerics.unit(a)).squeeze(-1)

    @override
    @in_float32
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        return normalized_weights(points, weights).mul(points).sum(-2)

    @override
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        return x.isfinite().all(-1)

    @override
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        return x
