"""Costs of single releases whose noise is not Gaussian."""

from dataclasses import dataclass

from fedbolic.core import check
from fedbolic.federated.accounting.accountants import concentrated_epsilon


@dataclass(frozen=True)
class ConcentratedCost:
    r"""Cost of a release whose Rényi divergence of every order grows at most linearly.

    .. math:: D_\alpha \le \xi + \rho \alpha

    Args:
        rho: Slope, at least 0; :math:`1 / (2 z^2)` for Gaussian noise of multiplier z.
        xi: Constant, at least 0.

    Raises:
        ValueError: If a value is negative.

    References:
        Bun and Steinke (2016), Definition 8.1, arXiv:1605.02065.

    Example:
        >>> round(ConcentratedCost(rho=0.125).epsilon(1, dp_delta=1e-5), 2)
        2.17
    """

    rho: float
    xi: float = 0.0

    def __post_init__(self) -> None:
        check.not_negative(rho=self.rho, xi=self.xi)

    def epsilon(self, num_releases: int, *, dp_delta: float) -> float:
        """Upper bound of epsilon after some releases of this cost.

        Args:
            num_releases: Number of releases, at least 1.
            dp_delta: Delta, in (0, 1).

        Raises:
            ValueError: If dp-accounting, the extra ``accounting``, is not installed.
        """
        return concentrated_epsilon(self.rho, self.xi, num_releases, dp_delta=dp_delta)

    def divergence(self, order: int) -> float:
        """Upper bound of the Rényi divergence of one release.

        Args:
            order: Order of the divergence, above 1.
        """
        return self.xi + self.rho * order

    def __add__(self, other: "ConcentratedCost") -> "ConcentratedCost":
        """Cost of both releases together."""
        return ConcentratedCost(self.rho + other.rho, self.xi + other.xi)


@dataclass(frozen=True)
class PureCost:
    """Cost of a release whose privacy loss is bounded with certainty, with a delta of 0.

    Args:
        of_one: Epsilon of one release, at least 0.

    Raises:
        ValueError: If the value is negative.

    References:
        Dwork and Roth (2014), Theorem 3.16, doi:10.1561/0400000042, for several releases.

    Example:
        >>> PureCost(0.5).epsilon(3, dp_delta=0.0)
        1.5
    """

    of_one: float

    def __post_init__(self) -> None:
        check.not_negative(of_one=self.of_one)

    def epsilon(self, num_releases: int, *, dp_delta: float) -> float:
        """Epsilon after some releases of this cost: their sum.

        Args:
            num_releases: Number of releases, at least 0.
            dp_delta: Ignored: the bound holds for every delta.
        """
        del dp_delta
        return num_releases * self.of_one

    def divergence(self, order: int) -> float:
        """Upper bound of the Rényi divergence of one release.

        Args:
            order: Order of the divergence, above 1.

        References:
            Bun and Steinke (2016), Proposition 3.3, arXiv:1605.02065.
        """
        return min(self.of_one, order * self.of_one**2 / 2)
