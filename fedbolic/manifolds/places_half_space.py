"""Places in the half-space model by their position and the logarithm of their height."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.manifolds.places import (
    Places,
    by_rows,
    check_distinct,
    check_reach,
    same_kind,
    separation,
)


@dataclass(frozen=True, eq=False)
class HalfSpacePlaces(Places):
    r"""Points of the upper half-space :math:`\{(x, y) : y > 0\}` by ``x`` and ``log y``.

    .. math:: d = 2 \operatorname{asinh} \sqrt{\frac{|x_u - x_v|^2}{4 y_u y_v}
        + \sinh^2 \frac{\log y_u - \log y_v}{2}}

    A height of :math:`e^{-100}` is a number like any other here, where the ball and the hyperboloid
    have long lost the point. Differences of positions below 1e-154 count as 0. The origin of the
    other models is :math:`x = 0, y = 1`; ``x`` stands first in them, the direction of the height
    last.

    Args:
        positions: ``x``, float64, one point a row; ``dim - 1`` columns.
        log_heights: ``log y``, float64.

    Raises:
        ValueError: If a dtype or the shapes are wrong, or a number is not finite.

    Example:
        >>> log_heights = torch.tensor([0.0, -100.0]).double()
        >>> places = HalfSpacePlaces(torch.zeros(2, 3).double(), log_heights)
        >>> places.dist(places[torch.tensor([1, 1])])
        tensor([100.,   0.], dtype=torch.float64)
    """

    positions: Float64[Tensor, "n flat"]
    log_heights: Float64[Tensor, " n"]

    def __post_init__(self) -> None:
        x, log_y = self.positions, self.log_heights
        if x.dtype != torch.float64 or log_y.dtype != torch.float64:
            raise ValueError(
                f"positions and log_heights must be float64, got {x.dtype} and {log_y.dtype}"
            )
        if x.ndim != 2 or log_y.shape != x.shape[:1]:
            raise ValueError(
                "positions must be one point a row and log_heights one number a point, got the "
                f"shapes {tuple(x.shape)} and {tuple(log_y.shape)}"
            )
        if not (x.isfinite().all() and log_y.isfinite().all()):
            raise ValueError("positions and log_heights must be finite numbers")

    @property
    @override
    def dim(self) -> int:
        return self.positions.shape[1] + 1

    @override
    def tensors(self) -> dict[str, Tensor]:
        return {"positions": self.positions, "log_heights": self.log_heights}

    @override
    def dist(self, others: Places) -> Float64[Tensor, " n"]:
        others = same_kind(self, others)
        apart = torch.linalg.vector_norm(self.positions - others.positions, dim=-1) / 2
        return separation(apart, self.log_heights / -2, others.log_heights / -2)

    @override
    def cdist(self, others: Places) -> Float64[Tensor, "n m"]:
        others = same_kind(self, others)
        x, s, t = self.positions, self.log_heights / -2, others.log_heights / -2

        def distances(at: slice) -> Tensor:
            # by differences: a matrix product would lose the digits of close positions
            apart = torch.cdist(x[at], others.positions, compute_mode=_BY_DIFFERENCES) / 2
            return separation(apart, s[at, None], t)

        return by_rows(distances, s, len(others))

    @override
    def to_poincare(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        points = self._lorentz(dtype)
        return check_distinct(
            (points[:, 1:] / (1 + points[:, :1])).to(dtype), self._keys, "the ball"
        )

    @override
    def to_lorentz(self, dtype: torch.dtype = torch.float64) -> Float[Tensor, "n ambient"]:
        return check_distinct(self._lorentz(dtype).to(dtype), self._keys, "the hyperboloid")

    def _lorentz(self, dtype: torch.dtype) -> Float64[Tensor, "n ambient"]:
        """The points on the hyperboloid in float64, after a check of their radii."""
        origin = HalfSpacePlaces(
            torch.zeros_like(self.positions), torch.zeros_like(self.log_heights)
        )
        check_reach(self.dist(origin), dtype)
        x, y = self.positions, self.log_heights.exp()
        flat = x.square().sum(1)
        # 1 - y^2 without cancellation near the height of 1
        last = (-torch.expm1(2 * self.log_heights) - flat) / (2 * y)
        time = torch.hypot(torch.hypot(torch.ones_like(y), last), flat.sqrt() / y)
        return torch.cat((time[:, None], x / y[:, None], last[:, None]), dim=1)

    @property
    def _keys(self) -> Tensor:
        return torch.cat((self.positions, self.log_heights[:, None]), dim=1)


_BY_DIFFERENCES = "donot_use_mm_for_euclid_dist"
