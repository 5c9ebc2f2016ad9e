"""Operations of geoopt's conformal manifolds, under geoopt's names and with its keywords."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedbolic.formulas.numerics import per_point
from fedbolic.manifolds import gyro
from fedbolic.manifolds.manifold import Manifold


class GyroOperations:
    """Möbius operations and projections of the ball and of the stereographic model.

    Every operation has coordinates along ``dim``.

    Args:
        space: Space of the points.
    """

    space: Manifold

    def lambda_x(self, x: Tensor, *, keepdim: bool = False, dim: int = -1) -> Tensor:
        """Conformal factor of the ball or the stereographic model."""
        space = self._conformal
        return of_points(lambda x: gyro.conformal_factor(space, x), x, keepdim=keepdim, dim=dim)

    def mobius_add(self, x: Tensor, y: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Möbius sum."""
        return of_coordinates(self._conformal.mobius_add, x, y, dim=dim)

    def mobius_sub(self, x: Tensor, y: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Möbius sum of ``x`` and ``-y``."""
        return self.mobius_add(x, -y, dim=dim)

    def mobius_coadd(self, x: Tensor, y: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Möbius coaddition."""
        return of_coordinates(lambda *x: gyro.mobius_coadd(self._conformal, *x), x, y, dim=dim)

    def mobius_cosub(self, x: Tensor, y: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Möbius coaddition of ``x`` and ``-y``."""
        return self.mobius_coadd(x, -y, dim=dim)

    def mobius_scalar_mul(
        self, r: Tensor, x: Tensor, *, project: bool = True, dim: int = -1
    ) -> Tensor:
        """Möbius multiple; ``r`` broadcasts with coordinates."""
        return self.mobius_fn_apply(lambda v: r * v, x, dim=dim)

    def mobius_pointwise_mul(self, w: Tensor, x: Tensor, **settings: Any) -> Tensor:
        """Möbius version of the product of coordinates."""
        return self.mobius_scalar_mul(w, x, **settings)

    def mobius_matvec(self, m: Tensor, x: Tensor, *, project: bool = True, dim: int = -1) -> Tensor:
        """Möbius product of a matrix and a point."""
        return of_coordinates(lambda x: gyro.mobius_matvec(self._conformal, m, x), x, dim=dim)

    def mobius_fn_apply(
        self,
        fn: Callable[..., Tensor],
        x: Tensor,
        *args: Any,
        project: bool = True,
        dim: int = -1,
        **kwargs: Any,
    ) -> Tensor:
        """Apply a function, with the further arguments, in the tangent space at the origin."""
        v = of_coordinates(self._conformal.logmap0, x, dim=dim)
        return of_coordinates(self.space.expmap0, fn(v, *args, **kwargs), dim=dim)

    def mobius_fn_apply_chain(
        self, x: Tensor, *fns: Callable[[Tensor], Tensor], project: bool = True, dim: int = -1
    ) -> Tensor:
        """Apply functions one after the other in the tangent space at the origin."""

        def composed(v: Tensor) -> Tensor:
            return functools.reduce(lambda u, fn: fn(u), fns, v)

        return self.mobius_fn_apply(composed, x, dim=dim)

    def gyration(self, x: Tensor, y: Tensor, z: Tensor, *, dim: int = -1) -> Tensor:
        """Gyration of ``z`` by ``x`` and ``y``."""
        return of_coordinates(lambda *x: gyro.gyration(self._conformal, *x), x, y, z, dim=dim)

    def antipode(self, x: Tensor, *, dim: int = -1) -> Tensor:
        """The opposite point of a sphere; in other spaces ``-x``."""
        return of_coordinates(lambda x: gyro.antipode(self._conformal, x), x, dim=dim)

    def sproj(self, x: Tensor, *, dim: int = -1) -> Tensor:
        """Stereographic image of a point of the hyperboloid or sphere; its last number is time."""

        def projected(x: Tensor) -> Tensor:
            return self._conformal.projx(x[..., :-1] / (1 + x[..., -1:] / self._unit(x)))

        return of_coordinates(projected, x, dim=dim)

    def inv_sproj(self, x: Tensor, *, dim: int = -1) -> Tensor:
        """Point of the hyperboloid or sphere, with time last, of a point of the model."""

        def lifted(x: Tensor) -> Tensor:
            factor = gyro.conformal_factor(self._conformal, x).unsqueeze(-1)
            return torch.cat((factor * x, self._unit(x) * (factor - 1)), -1)

        return of_coordinates(lifted, x, dim=dim)

    def _unit(self, x: Tensor) -> Tensor:
        """Radius of curvature, with an axis for coordinates.

        Raises:
            ValueError: If the space is flat.
        """
        if not isinstance(self.space.c, Tensor) and self.space.c == 0:
            raise ValueError("flat space is no projection of a sphere: give c another value than 0")
        c = torch.as_tensor(per_point(self.space.c, x), dtype=x.dtype, device=x.device)
        return c.abs().rsqrt()

    @property
    def _conformal(self) -> gyro.Conformal:
        """The space, if it has Möbius operations."""
        gyro.require_conformal(self.space)
        return self.space  # pyright: ignore[reportReturnType]  # checked in the line before


def of_coordinates(function: Callable[..., Tensor], *given: Tensor, dim: int) -> Tensor:
    """Points or tangents by a function of coordinates along the last axis."""
    return function(*(x.movedim(dim, -1) for x in given)).movedim(-1, dim)


def of_points(function: Callable[..., Tensor], *given: Tensor, keepdim: bool, dim: int) -> Tensor:
    """Numbers of a function that takes the coordinates along the last axis."""
    found = function(*(x.movedim(dim, -1) for x in given))
    return found.unsqueeze(dim) if keepdim else found
