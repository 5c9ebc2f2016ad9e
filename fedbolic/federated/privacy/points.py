"""Private means of points of a curved space, and clipping in its metric."""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import scipy
import torch
from jaxtyping import Float
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.federated.accounting.costs import PureCost
from fedbolic.federated.accounting.gaussian import check_delta
from fedbolic.federated.accounting.ledger import PrivacyLedger, solve_noise
from fedbolic.federated.noise.draws import SecretStream
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.federated.noise.riemannian_laplace import (
    RiemannianLaplace,
    largest_scale,
    tangent_of,
)
from fedbolic.manifolds import Lorentz, Poincare, frechet_mean
from fedbolic.manifolds.manifold import PointTensor


def clip_tangents(
    space: Lorentz | Poincare,
    x: PointTensor,
    u: PointTensor,
    *,
    bound: float,
) -> PointTensor:
    r"""Tangents whose Riemannian length is at most a bound.

    .. math:: u \min\left(1, \frac{b}{\|u\|_x}\right)

    The length is that of the metric at x, not that of the coordinates, which in the ball differ by
    the conformal factor.

    Args:
        space: Space of the points.
        x: Points.
        u: Tangents at these points.
        bound: Bound of the length, b, above 0, in units of distance.

    References:
        Han et al. (2022), Differentially private Riemannian optimization, Sec. 3, arXiv:2205.09494.

    Example:
        >>> clip_tangents(Poincare(), torch.zeros(2), torch.tensor([3.0, 4.0]), bound=5.0)
        tensor([1.5000, 2.0000])
    """
    check.positive(bound=bound)
    length = space.norm(x, u).unsqueeze(-1)
    return u * torch.where(length > bound, bound / length, 1.0)


def clip_points(
    space: Lorentz | Poincare,
    points: Float[Tensor, "n ambient"],
    *,
    center: Float[Tensor, " ambient"],
    radius: float,
) -> Float[Tensor, "n ambient"]:
    """Points of the geodesic ball around a point that are nearest to the given points.

    Args:
        space: Space of the points.
        points: Points, of which those in the ball stay as they are.
        center: Centre of the ball.
        radius: Radius of the ball, above 0, in units of distance.

    Example:
        >>> line, center = torch.tensor([[0.1, 0.0], [0.9, 0.0]]), torch.zeros(2)
        >>> radius = float(Poincare().dist0(torch.tensor([0.5, 0.0])))
        >>> clip_points(Poincare(), line, center=center, radius=radius)
        tensor([[0.1000, 0.0000],
                [0.5000, 0.0000]])
    """
    tangents = clip_tangents(space, center, space.logmap(center, points), bound=radius)
    outside = (space.dist(center, points) > radius).unsqueeze(-1)
    return torch.where(outside, space.expmap(center, tangents), points)


def mean_sensitivity(radius: float, num_points: int) -> float:
    r"""Largest distance between the Fréchet means of two sets of points that differ in one point.

    .. math:: d(\bar x, \bar x') \le \frac{2 r}{n}

    for points of one ball of radius r in a space without positive curvature. *Proof.* Half the mean
    of the squared distances to the points is strongly convex with constant 1, and its gradient at
    :math:`\bar x'`, where that of the other set vanishes, is
    :math:`\frac{1}{n} (\log_{\bar x'} x_n' - \log_{\bar x'} x_n)`. Its length is at least
    :math:`d(\bar x, \bar x')` by convexity, and at most :math:`d(x_n, x_n') / n`, as logarithms do
    not increase distances.

    Args:
        radius: Radius of a ball that holds all points, above 0.
        num_points: Number of points, at least 1.

    References:
        Reimherr, Bharath and Soto (2021), Sec. 3, arXiv:2111.02516.

    Example:
        >>> mean_sensitivity(2.0, 100)
        0.04
    """
    check.positive(radius=radius)
    check.at_least(1, num_points=num_points)
    return 2 * radius / num_points


def necessary_epsilon(
    space: Lorentz | Poincare, dim: int, *, num_points: int, radius: float, error: float
) -> float:
    r"""Epsilon below which no mechanism of delta 0 gives means of an error with probability 1/2.

    .. math::
        \varepsilon \ge \frac{1}{n} \log \frac{V(r)}{2 V(2 a)}
        \ge \frac{(m - 1) \sqrt c \, (r - 2 a) - \log 2}{n}, \qquad
        V(s) = \int_0^s \sinh^{m - 1}(\sqrt c \, t) \, dt

    Proof. Choose as many points of the ball of radius r as fit with distances above 2 a. Balls of
    radius 2 a around these K points cover it, so :math:`K \ge V(r) / V(2 a)`. Let every data set be
    n copies of one of them, which is its mean, and let the mechanism be within a of the mean of
    each with probability 1/2. Two data sets differ in n points, so around any of the K points its
    probability on the first data set is at least :math:`e^{-n \varepsilon} / 2`. The balls of
    radius a are disjoint, hence :math:`K e^{-n \varepsilon} / 2 \le 1`. The second bound follows
    from :math:`(\sinh^{m - 1})' \ge (m - 1) \sinh^{m - 1}`, that is :math:`(\log V)' \ge (m - 1)
    \sqrt c`.

    Args:
        space: Space of the points.
        dim: Its dimension, m, at least 1.
        num_points: Number of points, n, of which neighbours replace one.
        radius: Radius of the public ball, r, above 0.
        error: Error, a, above 0 and below r / 2.

    Raises:
        ValueError: If a value is out of range.

    References:
        Hardt and Talwar (2010), for packings, arXiv:0907.3754.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> round(necessary_epsilon(space, 50, num_points=100, radius=1.0, error=0.25), 2)
        0.4
    """
    check.at_least(1, dim=dim, num_points=num_points)
    check.positive(radius=radius, error=error)
    if 2 * error >= radius:
        raise ValueError(f"the error must be below half of the radius, {radius / 2}, got {error}")
    small, large = (_log_volume(s, dim, float(space.c) ** 0.5) for s in (2 * error, radius))
    return (large - small - math.log(2)) / num_points


def _log_volume(s: float, dim: int, root: float) -> float:
    """Logarithm of V(s), by its integrand over its largest value where that is above e^-60."""
    if root == 0:
        return dim * math.log(s)  # up to a constant
    integral, _ = scipy.integrate.quad(
        lambda t: math.exp((dim - 1) * (_log_sinh(root * t) - _log_sinh(root * s))),
        *(max(0.0, s - 60 / ((dim - 1) * root)) if dim > 1 else 0.0, s),
    )
    return (dim - 1) * _log_sinh(root * s) + math.log(integral)


def _log_sinh(x: float) -> float:
    return x + math.log(-math.expm1(-2 * x) / 2) if x > 0 else -math.inf


class PrivateMean(ABC):
    """Base of differentially private means of points; the number of points counts as public."""

    radius: float

    @abstractmethod
    def ledger(self) -> PrivacyLedger:
        """Cost of one mean, for the replacement of one point by any other."""

    def release(
        self,
        space: Lorentz | Poincare,
        points: Float[Tensor, "n ambient"],
        *,
        center: Float[Tensor, " ambient"] | None = None,
        stream: SecretStream | None = None,
    ) -> Float[Tensor, " ambient"]:
        """A private mean; every call costs epsilon again.

        Args:
            space: Space of the points.
            points: One or more points.
            center: Centre of the ball to which points are clipped, which must not depend on them;
                the origin by default.
            stream: Source of the noise; by default a new one from the operating system.
        """
        exact = points.double()
        dim = exact.shape[-1] - isinstance(space, Lorentz)
        self._check(space, len(points), dim)
        origin = space.origin(exact.shape[-1], dtype=exact.dtype, device=exact.device)
        center = origin if center is None else center.to(exact)
        clipped = clip_points(space, exact, center=center, radius=self.radius)
        return self._mean(space, clipped, center, stream or SecretStream.fresh()).to(points)

    @abstractmethod
    def _check(self, space: Lorentz | Poincare, num_points: int, dim: int) -> None:
        """Refuse a budget that the number of points or the space does not allow."""

    @abstractmethod
    def _mean(
        self, space: Lorentz | Poincare, clipped: Tensor, center: Tensor, stream: SecretStream
    ) -> Tensor:
        """Mean of clipped points in float64, with noise."""


@dataclass(frozen=True)
class LaplaceMean(PrivateMean):
    r"""Private Fréchet mean by the Riemannian Laplace mechanism.

    .. math:: p(z) \propto \exp\left(-\frac{n \varepsilon}{2 r} \, d(z, \bar x) \right)

    Its delta is 0, and it has no preferred direction or centre. As volumes grow exponentially, such
    a density exists only for :math:`\varepsilon > 2 (\dim - 1) \sqrt c \, r / n`: the more curved a
    space, the more points a mean needs; :class:`TangentMean` has no such limit. The draw is in
    floating point, whereas the proof is for real numbers: the last digits of a released mean may
    reveal more than epsilon allows.

    Args:
        epsilon: Privacy budget of one mean, above 0.
        radius: Radius of the ball to which points are clipped, r, above 0, in units of distance.

    Raises:
        ValueError: If a value is out of range, or (from ``release``) epsilon is too small for the
            space and the number of points.

    References:
        Reimherr, Bharath and Soto (2021), Sec. 3, arXiv:2111.02516.

    Example:
        >>> space = Lorentz(c=1.0)
        >>> points = space.expmap0(space.lift(torch.full((10_000, 2), 0.5).double()))
        >>> mean = LaplaceMean(epsilon=8.0, radius=1.0).release(space, points)
        >>> bool(space.dist(mean, points[0]) < 0.01)
        True
    """

    epsilon: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon, radius=self.radius)

    @override
    def ledger(self) -> PrivacyLedger:
        noise, cost = 2 / self.epsilon, PureCost(self.epsilon)
        return PrivacyLedger("everyone", "replace", 1.0, noise, 0.0, 1, "example", cost)

    @override
    def _check(self, space: Lorentz | Poincare, num_points: int, dim: int) -> None:
        least = mean_sensitivity(self.radius, num_points) / largest_scale(space, dim)
        if self.epsilon <= least:
            raise ValueError(
                f"epsilon must be above {least:.4g} for {num_points} points within "
                f"{self.radius:g} in {dim} dimensions of curvature -{space.c:g}, got "
                f"{self.epsilon:g}: use more points, a smaller radius, or TangentMean"
            )

    @override
    def _mean(
        self, space: Lorentz | Poincare, clipped: Tensor, center: Tensor, stream: SecretStream
    ) -> Tensor:
        scale = mean_sensitivity(self.radius, len(clipped)) / self.epsilon
        return RiemannianLaplace(space, frechet_mean(space, clipped), scale).sample(1, stream)[0]


@dataclass(frozen=True)
class TangentMean(PrivateMean):
    r"""Private mean of the tangents towards the points, by the Gaussian mechanism.

    .. math:: \exp_p \left( \frac{1}{n} \left( \sum_i \log_p x_i \min\left(1,
        \frac{r}{d(p, x_i)}\right) + N(0, z^2 r^2 I) \right) \right)

    The noise is normal in the metric of the tangent space at the centre p. Without noise it is the
    first step of a descent towards the Fréchet mean, and near it if the points are near p. Tangents
    are rounded, summed and made noisy as integers
    (:class:`~fedbolic.federated.noise.gaussian_grid.GaussianGrid`).

    Args:
        epsilon: Privacy budget of one mean, above 0.
        dp_delta: Delta, in (0, 1), below one over the number of points.
        radius: Bound of the tangents, r, above 0, in units of distance.

    Raises:
        ValueError: If a value is out of range, or (from ``release``) ``dp_delta`` is too large for
            the number of points.

    References:
        Han et al. (2022), Sec. 3, arXiv:2205.09494; Balle and Wang (2018), arXiv:1805.06530.

    Example:
        >>> space = Poincare(c=1.0)
        >>> mean = TangentMean(epsilon=8.0, dp_delta=1e-6).release(space, torch.zeros(10_000, 2))
        >>> bool(space.dist0(mean) < 0.01)
        True
    """

    epsilon: float
    dp_delta: float
    radius: float = 1.0

    def __post_init__(self) -> None:
        check.positive(epsilon=self.epsilon, radius=self.radius)
        check_delta(self.dp_delta)

    @override
    def ledger(self) -> PrivacyLedger:
        budget = {"epsilon": self.epsilon, "dp_delta": self.dp_delta}
        noise = solve_noise("everyone", "replace", 1.0, **budget, rounds=1)
        return PrivacyLedger("everyone", "replace", 1.0, noise, self.dp_delta, 1, "example")

    @override
    def _check(self, space: Lorentz | Poincare, num_points: int, dim: int) -> None:
        if self.dp_delta * num_points >= 1:
            raise ValueError(
                f"dp_delta must be below one over the number of points, {1 / num_points:.2g}, "
                f"got {self.dp_delta}"
            )

    @override
    def _mean(
        self, space: Lorentz | Poincare, clipped: Tensor, center: Tensor, stream: SecretStream
    ) -> Tensor:
        dim = clipped.shape[-1] - isinstance(space, Lorentz)
        basis = tangent_of(space, center, torch.eye(dim).to(clipped))
        coordinates = space.inner(center, space.logmap(center, clipped).unsqueeze(1), basis)
        grid = GaussianGrid(dim, self.radius, self.ledger().noise_multiplier * self.radius)
        total = grid.rounded_sum(coordinates) + grid.noise(stream).to(clipped.device)
        return space.expmap(center, tangent_of(space, center, grid.scaled(total) / len(clipped)))
