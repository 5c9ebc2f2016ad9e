"""Exact sums of clipped vectors on a grid of integers, and their rounded Gaussian noise."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor

from fedbolic.core import check
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.rounded_gaussian import LARGEST_SCALE, rounded_gaussian

FINEST = 2.0**25
"""Largest norm of a contribution in units of the grid; its square is a whole number in float64."""


@dataclass(frozen=True)
class GaussianGrid:
    r"""Grid on which contributions are rounded, so that their noisy sum is a vector of integers.

    .. math:: \sum_k \left\lfloor \frac{g_k}{u} \min\left(1, \frac{b - u \sqrt d / 2}{\|g_k\|}
        \right) \right\rceil + \left\lfloor N(0, \sigma^2 / u^2) \right\rceil

    A rounded contribution has a norm of at most b / u, so the noisy sum costs what Gaussian noise
    of standard deviation sigma on a sum of vectors of norm b costs. All of it is computed in
    integers; only the released sum is converted to floating point.

    Args:
        size: Number of coordinates, d, at least 1.
        bound: Clipping bound, b, above 0.
        std: Standard deviation of the noise, sigma, above 0.
        digits: Binary digits of the noise below the grid's unit.

    Raises:
        ValueError: If a value is out of range, or there is so much noise on so many coordinates
            that rounding would take half of the bound.

    Example:
        >>> grid = GaussianGrid(size=2, bound=1.0, std=1.0)
        >>> total = grid.rounded_sum(torch.tensor([[3.0, 4.0], [0.1, 0.0]]))
        >>> grid.scaled(total + grid.noise(SecretStream.fresh())).shape, grid.scaled(total)
        (torch.Size([2]), tensor([0.7000, 0.8000], dtype=torch.float64))
    """

    size: int
    bound: float
    std: float
    digits: int = 0

    def __post_init__(self) -> None:
        check.at_least(1, size=self.size)
        check.positive(bound=self.bound, std=self.std)
        if self._inner < self.bound / 2:
            raise ValueError(
                f"noise of {self.std / self.bound:.3g} times the bound is too large for "
                f"{self.size} numbers: use less noise, or a smaller model"
            )

    @property
    def unit(self) -> float:
        """Length of the grid's unit, u, a power of two."""
        least = max(self.bound / FINEST, self.std * 2**self.digits / LARGEST_SCALE)
        return 2.0 ** math.ceil(math.log2(least) + 1e-9)

    @property
    def _inner(self) -> float:
        """Bound before rounding, which moves a vector by at most sqrt(d) / 2 units."""
        return self.bound * (1 - self._slack) - self.unit * math.sqrt(self.size) / 2

    @property
    def _slack(self) -> float:
        """Bound of the relative error of a norm in float64, in any order of summation."""
        return (self.size + 16) * 2.0**-52

    def rounded_sum(self, rows: Float[Tensor, "n size"]) -> Int64[Tensor, " size"]:
        """Sum of contributions, each rounded to integers of norm at most b / u.

        What a row contributes depends on that row alone; one with a number that is not finite
        contributes zero.

        Args:
            rows: One contribution in each row.
        """
        limit, largest = self._inner, self.bound / self.unit * (1 - self._slack)
        norms = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float64)
        found = rows * (limit / self.unit / norms.clamp_min(limit))
        found = found.masked_fill_(~norms.isfinite(), 0.0).round_()
        while True:  # once, unless the product above was rounded beyond the limit; then it shrinks
            norms = torch.linalg.vector_norm(found, dim=-1, keepdim=True)
            if bool((norms <= largest).all()):
                return found.sum(dim=0).long()  # whole numbers below 2 ** 53, so without rounding
            found = torch.where(norms <= largest, found, (found * 0.999).trunc_())

    def noise(self, stream: SecretStream) -> Int64[Tensor, " size"]:
        """Noise of a sum on the CPU, in units of the grid or, with ``digits``, of parts of it.

        Args:
            stream: Secret random stream that serves nothing else.
        """
        scale = self.std / self.unit * 2**self.digits
        drawn = rounded_gaussian(stream, self.size, scale=scale)
        return torch.from_numpy(drawn)

    def scaled(self, total: Int64[Tensor, " size"]) -> Float[Tensor, " size"]:
        """A noisy sum in units of the contributions, in float64.

        Args:
            total: Sum of rounded contributions and noise.
        """
        return total.double() * self.unit
