"""Adapter from fedbolic's manifolds to ``geoopt.Manifold``; the only file that imports geoopt."""

from typing import Any

import geoopt
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds.manifold import Manifold


class Bridge(geoopt.Manifold):
    """Manifold for ``geoopt.ManifoldParameter``, ``geoopt.optim.RiemannianAdam`` and ``...SGD``.

    Every operation is that of ``space``; geoopt's formulas are not used.

    Args:
        space: Space to wrap; its curvature must not require a gradient.

    Example:
        >>> from fedbolic.manifolds import Lorentz
        >>> x = geoopt.ManifoldParameter(Lorentz().origin(2, 3), manifold=Bridge(Lorentz()))
        >>> geoopt.optim.RiemannianAdam([x]).param_groups[0]["params"][0].manifold
        Lorentz(c=1.0) manifold
    """

    ndim = 1
    reversible = False

    def __init__(self, space: Manifold) -> None:
        super().__init__()
        self.space = space
        self.name = str(space)

    @override
    def __repr__(self) -> str:
        return f"{self.space} manifold"

    @override
    def dist(self, x: Tensor, y: Tensor, *, keepdim: bool = False) -> Tensor:
        return _kept(self.space.dist(x, y), keepdim)

    @override
    def retr(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.expmap(x, u)

    @override
    def expmap(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.expmap(x, u)

    @override
    def logmap(self, x: Tensor, y: Tensor) -> Tensor:
        return self.space.logmap(x, y)

    @override
    def transp(self, x: Tensor, y: Tensor, v: Tensor) -> Tensor:
        return self.space.transp(x, y, v)

    @override
    def inner(
        self, x: Tensor, u: Tensor, v: Tensor | None = None, *, keepdim: bool = False
    ) -> Tensor:
        return _kept(self.space.inner(x, u, v), keepdim)

    @override
    def norm(self, x: Tensor, u: Tensor, *, keepdim: bool = False) -> Tensor:
        return _kept(self.space.norm(x, u), keepdim)

    @override
    def proju(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.proju(x, u)

    @override
    def egrad2rgrad(self, x: Tensor, u: Tensor) -> Tensor:
        return self.space.egrad2rgrad(x, u)

    @override
    def projx(self, x: Tensor) -> Tensor:
        return self.space.projx(x)

    @override
    def origin(
        self,
        *size: Any,
        dtype: torch.dtype | None = None,
        device: Any = None,
        seed: int | None = 42,
    ) -> geoopt.ManifoldTensor:
        shape = geoopt.utils.size2shape(*size)
        origin = self.space.origin(*shape, dtype=dtype, device=device)
        # ManifoldTensor's __new__ takes the manifold, the stub of Tensor's __init__ does not
        return geoopt.ManifoldTensor(origin, manifold=self)  # pyright: ignore[reportCallIssue]

    @override
    def _check_point_on_manifold(
        self, x: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        return _checked(self.space.contains(x), "not on the space: use projx")

    @override
    def _check_vector_on_tangent(
        self, x: Tensor, u: Tensor, *, atol: float = 1e-5, rtol: float = 1e-5
    ) -> tuple[bool, str | None]:
        near = torch.isclose(self.space.proju(x, u), u, atol=atol, rtol=rtol).all(-1)
        return _checked(near, "not tangent: use proju")


def _kept(value: Tensor, keepdim: bool) -> Tensor:
    return value.unsqueeze(-1) if keepdim else value


def _checked(good: Tensor, reason: str) -> tuple[bool, str | None]:
    return (True, None) if bool(good.all()) else (False, reason)
