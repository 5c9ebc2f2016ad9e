"""Riemannian Laplace distribution: a density that falls exponentially with the distance."""

import math
from dataclasses import dataclass

import scipy
import torch
from jaxtyping import Float, Float64
from torch import Tensor

from fedbolic.core import check
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.manifolds import Lorentz, Poincare

TINY = 1e-200
"""Value of ``exp(-2 sqrt(c) distance)`` below which its law is that of a power, to all digits."""


@dataclass(frozen=True, eq=False)
class RiemannianLaplace:
    r"""Riemannian Laplace distribution on the hyperboloid or in the ball.

    .. math:: p(z) = \frac{1}{Z} \exp(-d(z, \mu) / \sigma)

    is the density with respect to the volume of the manifold. Z does not depend on :math:`\mu`, so
    the logarithms of the densities around two points differ by at most their distance over
    :math:`\sigma`. In n dimensions the distance :math:`\rho` from :math:`\mu` has a density
    proportional to :math:`e^{-\rho / \sigma} \sinh(\sqrt c \rho)^{n - 1}`, so that

    .. math::
        1 - e^{-2 \sqrt c \rho} \sim \mathrm{Beta}(n, \alpha), \qquad
        \alpha = \frac{1}{2} \left( \frac{1}{\sqrt c \, \sigma} - (n - 1) \right)

    The volume grows exponentially with the distance: the density can be normalised only if
    :math:`\sigma < 1 / ((n - 1) \sqrt c)`. In flat space the distance has a gamma distribution.

    Args:
        space: Space of the distribution, with a number as curvature; ``Poincare(0)`` is flat.
        loc: Point of the largest density.
        scale: Scale of the distance, sigma, above 0, in units of distance.

    Raises:
        ValueError: If the space is of another kind, ``loc`` is not a point of it, or the scale is
            out of range.

    References:
        Reimherr, Bharath and Soto (2021), Sec. 3, arXiv:2111.02516; the beta distribution follows
        by substitution.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> law = RiemannianLaplace(space, space.origin(3, dtype=torch.float64), scale=0.5)
        >>> round(law.cdf(math.log(2.0)), 6), round(law.quantile(0.3125), 6)  # Beta(2, 1/2) at 3/4
        (0.3125, 0.693147)
    """

    space: Lorentz | Poincare
    loc: Float[Tensor, " ambient"]
    scale: float

    def __post_init__(self) -> None:
        if not isinstance(self.space, Lorentz | Poincare) or isinstance(self.space.c, Tensor):
            raise ValueError(
                f"the space must be Lorentz or Poincare with a number as curvature, got "
                f"{self.space!r}"
            )
        check.positive(scale=self.scale)
        self.space.require(self.loc)
        largest = largest_scale(self.space, self.dim)
        if self.scale >= largest:
            raise ValueError(
                f"scale must be below 1 / ((n - 1) sqrt(c)) = {largest:.4g} in n = {self.dim} "
                f"dimensions of curvature -{self.space.c:g}, where volumes grow exponentially; got "
                f"{self.scale:.4g}"
            )

    @property
    def dim(self) -> int:
        """Number of dimensions of the space."""
        return len(self.loc) - isinstance(self.space, Lorentz)

    @property
    def _root(self) -> float:
        return float(self.space.c) ** 0.5

    @property
    def _alpha(self) -> float:
        return (1 / (self._root * self.scale) - (self.dim - 1)) / 2

    def cdf(self, distance: float) -> float:
        """Probability of a distance from ``loc`` of at most ``distance``.

        Args:
            distance: Distance, at least 0.
        """
        check.not_negative(distance=distance)
        if self._root == 0:
            return float(scipy.special.gammainc(self.dim, distance / self.scale))
        within = -math.expm1(-2 * self._root * distance)
        if within < 0.5:
            return float(scipy.special.betainc(self.dim, self._alpha, within))
        return 1 - float(
            scipy.special.betainc(self._alpha, self.dim, math.exp(-2 * self._root * distance))
        )

    def quantile(self, level: float) -> float:
        """Distance from ``loc`` that is not exceeded with probability ``level``.

        Args:
            level: Probability, in (0, 1).

        Raises:
            ValueError: If ``level`` is out of range.
        """
        if not 0 < level < 1:
            raise ValueError(f"level must lie in (0, 1), got {level}")
        n, alpha = self.dim, self._alpha if self._root else 0.0
        if self._root == 0:
            return self.scale * float(scipy.special.gammaincinv(n, level))
        within = float(scipy.special.betaincinv(n, alpha, level))
        if within < 0.5:
            return -math.log1p(-within) / (2 * self._root)
        beyond = float(scipy.special.betaincinv(alpha, n, 1 - level))
        if beyond > TINY:
            return -math.log(beyond) / (2 * self._root)
        power = math.log1p(-level) + math.log(alpha) + float(scipy.special.betaln(alpha, n))
        return -power / alpha / (2 * self._root)

    def log_prob(self, value: Float[Tensor, "*batch ambient"]) -> Float[Tensor, "*batch"]:
        """Logarithm of the density at points, with respect to the volume of the manifold.

        Args:
            value: Points of the space.
        """
        return -self.space.dist(self.loc, value) / self.scale - self._log_normaliser()

    def _log_normaliser(self) -> float:
        n = self.dim
        sphere = math.log(2) + n / 2 * math.log(math.pi) - math.lgamma(n / 2)
        if self._root == 0:
            return sphere + math.lgamma(n) + n * math.log(self.scale)
        return sphere - n * math.log(2 * self._root) + float(scipy.special.betaln(self._alpha, n))

    def sample(self, size: int, stream: SecretStream) -> Float64[Tensor, "size ambient"]:
        """Independent draws; those beyond the range of the dtype are clamped.

        Args:
            size: Number of draws.
            stream: Source of the randomness.
        """
        levels = stream.at("distance").uniform(size).tolist()
        distances = torch.tensor([self.quantile(level) for level in levels], dtype=torch.float64)
        directions = stream.at("direction").normal(size * self.dim).view(size, self.dim)
        directions = directions / directions.norm(dim=-1, keepdim=True)
        tangents = tangent_of(self.space, self.loc, distances[:, None] * directions)
        return self.space.expmap(self.loc.double(), tangents)


def largest_scale(space: Lorentz | Poincare, dim: int) -> float:
    """Scale below which a Riemannian Laplace density can be normalised; infinite in flat space.

    Args:
        space: The space.
        dim: Its number of dimensions, at least 1.

    Example:
        >>> largest_scale(Lorentz(4.0), 3), largest_scale(Lorentz(4.0), 1)
        (0.25, inf)
    """
    growth = (dim - 1) * float(space.c) ** 0.5
    return 1 / growth if growth else math.inf


def tangent_of(
    space: Lorentz | Poincare,
    x: Float[Tensor, " ambient"],
    coordinates: Float[Tensor, "*batch dim"],
) -> Float[Tensor, "*batch ambient"]:
    """Tangents at a point with the given coordinates in an orthonormal basis.

    The basis is that of the axes at the origin, transported to the point, so a vector of standard
    normal coordinates becomes a standard normal vector of the tangent space.

    Args:
        space: Space of the point.
        x: The point.
        coordinates: Coordinates in units of distance.

    Example:
        >>> tangent_of(Poincare(1.0), torch.zeros(2), torch.tensor([1.0, 0.0]))
        tensor([0.5000, 0.0000])
    """
    if isinstance(space, Lorentz):
        return space.transp0(x.to(coordinates), space.lift(coordinates))
    return space.transp0(x.to(coordinates), coordinates / 2)  # an axis of the ball has length 2
