"""Products of manifolds, whose points are the points of the factors one after another."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from typing_extensions import override

from fedbolic.formulas.numerics import finite, in_float32, root, to_point
from fedbolic.manifolds.manifold import Manifold, Mode, PointTensor, Scalars


@dataclass(frozen=True, eq=False)
class Product(Manifold):
    r"""Product of manifolds, with the coordinates of all factors along the last axis.

    .. math:: d(x, y)^2 = \sum_i d_i(x_i, y_i)^2, \qquad
        \langle u, v \rangle_x = \sum_i \langle u_i, v_i \rangle_{x_i}

    Geodesics, parallel transport and means are those of the factors. A product has no curvature of
    its own, so ``c`` is NaN; a factor may have one curvature per point or per client. Optimisers
    take the product as one space; for one step size per factor, make the factors parameters.

    Args:
        factors: One or more manifolds.
        sizes: Number of coordinates of each factor's points, time included.

    Raises:
        ValueError: If there is no factor, the lengths differ or a size is below 1; when called, if
            points do not have as many coordinates as the sizes say.

    References:
        Gu et al. (2019), Sec. 3, ICLR, "Learning Mixed-Curvature Representations in Product
        Spaces"; Skopek et al. (2020), Sec. 2, arXiv:1911.08411.

    Example:
        >>> from fedbolic.manifolds import Lorentz, Stereographic
        >>> space = Product((Lorentz(1.0), Stereographic(-1.0)), (3, 2))
        >>> space.expmap0(torch.tensor([0.0, 1.0, 0.0, 0.5, 0.0]))
        tensor([1.5431, 1.1752, 0.0000, 0.5463, 0.0000])
        >>> space.dist0(space.expmap0(torch.tensor([0.0, 3.0, 0.0, 1.0, 0.0])))
        tensor(3.6056)
    """

    factors: tuple[Manifold, ...]
    sizes: tuple[int, ...]
    c: Tensor | float = field(default=math.nan, init=False, repr=False)

    def __post_init__(self) -> None:
        if not self.factors or len(self.factors) != len(self.sizes) or min(self.sizes) < 1:
            raise ValueError(
                "a product needs one or more factors and for each its number of coordinates, 1 or "
                f"more, got {len(self.factors)} factors and the sizes {self.sizes}"
            )

    def split(self, x: PointTensor) -> tuple[Tensor, ...]:
        """The coordinates of each factor, as views of ``x``.

        Raises:
            ValueError: If ``x`` does not have as many coordinates as the sizes say.
        """
        if x.shape[-1] != sum(self.sizes):
            raise ValueError(
                f"points of this product have {sum(self.sizes)} coordinates along the last axis, "
                f"{' + '.join(map(str, self.sizes))}, got shape {tuple(x.shape)}"
            )
        return x.split(self.sizes, -1)

    def join(self, parts: Sequence[Tensor]) -> Tensor:
        """The points with the given coordinates of each factor, whose batch axes broadcast."""
        shape = torch.broadcast_shapes(*(part.shape[:-1] for part in parts))
        return torch.cat([part.expand(*shape, part.shape[-1]) for part in parts], -1)

    def each(self, operation: Callable[..., Tensor], *tensors: Tensor | None) -> list[Tensor]:
        """Results of an operation on every factor and its coordinates.

        Args:
            operation: A function of a factor and coordinates of that factor.
            *tensors: Points or tangents of the product; ``None`` is passed on.
        """
        parts = [itertools.repeat(None) if x is None else self.split(x) for x in tensors]
        return [operation(factor, *of) for factor, *of in zip(self.factors, *parts, strict=False)]

    def _length(self, lengths: Sequence[Tensor]) -> Tensor:
        """The root of the sum of squares."""
        together = torch.stack(torch.broadcast_tensors(*lengths), -1)
        largest = together.detach().amax(-1, keepdim=True)
        largest = torch.where(largest > 0, largest, 1.0)  # squares of long distances overflow
        share = together / largest
        return finite(root((share * share).sum(-1)) * largest.squeeze(-1))

    @override
    def origin(
        self,
        *shape: int,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Float[Tensor, "*batch ambient"]:
        empty = torch.empty(shape, dtype=dtype, device=device)
        return self.join(
            self.each(lambda f, x: f.origin(*x.shape, dtype=dtype, device=device), empty)
        )

    @override
    @in_float32
    def dist(self, x: PointTensor, y: PointTensor) -> Scalars:
        return self._length(self.each(lambda f, x, y: f.dist(x, y), x, y))

    @override
    @in_float32
    def dist0(self, x: PointTensor) -> Scalars:
        return self._length(self.each(lambda f, x: f.dist0(x), x))

    @override
    @in_float32
    def cdist(
        self,
        x: Float[Tensor, "*#batch n ambient"],
        y: Float[Tensor, "*#batch m ambient"],
        *,
        mode: Mode = "auto",
    ) -> Float[Tensor, "*#batch n m"]:
        return self._length(self.each(lambda f, x, y: f.cdist(x, y, mode=mode), x, y))

    @override
    def product(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        pairs = [
            factor.product(*of)
            for factor, *of in zip(self.factors, self.split(x), self.split(y), strict=True)
        ]
        distances, shares = zip(*pairs, strict=True)
        return self._length(distances), torch.stack(shares).amin(0)

    @override
    @to_point
    def expmap(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x, u: f.expmap(x, u), x, u))

    @override
    @to_point
    def expmap0(self, u: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, u: f.expmap0(u), u))

    @override
    @in_float32
    def logmap(self, x: PointTensor, y: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x, y: f.logmap(x, y), x, y))

    @override
    @in_float32
    def logmap0(self, y: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, y: f.logmap0(y), y))

    @override
    @in_float32
    def transp(self, x: PointTensor, y: PointTensor, v: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x, y, v: f.transp(x, y, v), x, y, v))

    @override
    @in_float32
    def transp0(self, y: PointTensor, v: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, y, v: f.transp0(y, v), y, v))

    @override
    @to_point
    def projx(self, x: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x: f.projx(x), x))

    @override
    @in_float32
    def proju(self, x: PointTensor, u: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x, u: f.proju(x, u), x, u))

    @override
    @in_float32
    def egrad2rgrad(self, x: PointTensor, g: PointTensor) -> PointTensor:
        return self.join(self.each(lambda f, x, g: f.egrad2rgrad(x, g), x, g))

    @override
    @in_float32
    def inner(self, x: PointTensor, u: PointTensor, v: PointTensor | None = None) -> Scalars:
        parts = self.each(lambda f, x, u, v: f.inner(x, u, v), x, u, v)
        return finite(torch.stack(torch.broadcast_tensors(*parts)).sum(0))

    @override
    @in_float32
    def norm(self, x: PointTensor, u: PointTensor) -> Scalars:
        return self._length(self.each(lambda f, x, u: f.norm(x, u), x, u))

    @override
    @to_point
    def centroid(
        self,
        points: Float[Tensor, "*#batch n ambient"],
        weights: Float[Tensor, "*#batch n"] | None = None,
    ) -> PointTensor:
        return self.join(self.each(lambda f, x: f.centroid(x, weights), points))

    @override
    def dist2plane(self, x: PointTensor, p: PointTensor, a: PointTensor) -> Scalars:
        """Not defined: geodesics that leave ``p`` at right angles to ``a`` span no such plane.

        Raises:
            ValueError: Always; the message names the way round.
        """
        raise ValueError(
            "a product has no totally geodesic hyperplane whose normal has parts in several "
            "factors: take dist2plane of a factor with its coordinates from split(x)"
        )

    @override
    def contains(self, x: PointTensor) -> Bool[Tensor, "*#batch"]:
        parts = self.each(lambda f, x: f.contains(x), x)
        return torch.stack(torch.broadcast_tensors(*parts)).all(0)

    @override
    def within(self, x: PointTensor, dtype: torch.dtype | None = None) -> PointTensor:
        return self.join(self.each(lambda f, x: f.within(x, dtype), x))
