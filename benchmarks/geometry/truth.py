"""The textbook formulas in 60 digits: the reference of tests and benchmarks.

The module shares nothing with ``fedbolic.manifolds``. Points and vectors are lists of ``mpf``; a
point of the hyperboloid is given by its space coordinates, which imply its time coordinate.
"""

from collections.abc import Sequence
from typing import Any, TypeAlias

from mpmath import mp, mpf

mp.dps = 60

Number: TypeAlias = Any
"""An ``mpf``, for which mpmath has no type."""

Vector: TypeAlias = list[Any]
"""Coordinates."""


def exact(x: Sequence[float]) -> Vector:
    """The exact values of floats."""
    return [mpf(float(a)) for a in x]


def dot(x: Vector, y: Vector) -> Number:
    """The Euclidean product."""
    return sum((a * b for a, b in zip(x, y, strict=True)), mpf(0))


def length(x: Vector) -> Number:
    """The Euclidean length."""
    return mp.sqrt(dot(x, x))


def combine(a: Number, x: Vector, b: Number, y: Vector) -> Vector:
    """``a x + b y``."""
    return [a * p + b * q for p, q in zip(x, y, strict=True)]


class Ball:
    """The Poincaré ball by its gyrovector formulas (Ganea et al. 2018)."""

    def __init__(self, c: float) -> None:
        self.c = mpf(c)
        self.root = mp.sqrt(self.c)

    def add(self, x: Vector, y: Vector) -> Vector:
        """Eq. (1)."""
        c, xy, xx, yy = self.c, dot(x, y), dot(x, x), dot(y, y)
        below = 1 + 2 * c * xy + c * c * xx * yy
        return combine((1 + 2 * c * xy + c * yy) / below, x, (1 - c * xx) / below, y)

    def dist(self, x: Vector, y: Vector) -> Number:
        """Eq. (8)."""
        moved = length(self.add([-a for a in x], y))
        return 2 / self.root * mp.atanh(self.root * moved)

    def expmap0(self, u: Vector) -> Vector:
        """Lemma 2 at the origin."""
        n = length(u)
        return [mp.tanh(self.root * n) / (self.root * n) * a for a in u]

    def expmap(self, x: Vector, u: Vector) -> Vector:
        """Lemma 2."""
        scale = 1 / (1 - self.c * dot(x, x))
        return self.add(x, self.expmap0([scale * a for a in u]))

    def logmap0(self, y: Vector) -> Vector:
        """Lemma 2 at the origin, inverted."""
        n = length(y)
        return [mp.atanh(self.root * n) / (self.root * n) * a for a in y]

    def logmap(self, x: Vector, y: Vector) -> Vector:
        """Lemma 2, inverted."""
        scale = 1 - self.c * dot(x, x)
        return [scale * a for a in self.logmap0(self.add([-a for a in x], y))]

    def norm(self, x: Vector, u: Vector) -> Number:
        """The length of a tangent."""
        return 2 * length(u) / (1 - self.c * dot(x, x))

    def transp(self, x: Vector, y: Vector, v: Vector) -> Vector:
        """Parallel transport through the hyperboloid, where it is one formula."""
        lorentz = Hyperboloid(self.c)
        moved = lorentz.transp(
            to_hyperboloid(self, x), to_hyperboloid(self, y), push_to_hyperboloid(self, x, v)
        )
        return push_to_ball(lorentz, to_hyperboloid(self, y), moved)


class Hyperboloid:
    """The Lorentz model by space coordinates (Nickel and Kiela 2018)."""

    def __init__(self, c: float) -> None:
        self.c = mpf(c)
        self.root = mp.sqrt(self.c)

    def time(self, x: Vector) -> Number:
        """The time coordinate implied by the space coordinates."""
        return mp.sqrt(1 / self.c + dot(x, x))

    def inner(self, x: Vector, u: Vector, v: Vector) -> Number:
        """The Minkowski product of two tangents at ``x``."""
        return dot(u, v) - dot(x, u) * dot(x, v) / self.time(x) ** 2

    def product(self, x: Vector, y: Vector) -> Number:
        """The Minkowski product of two points."""
        return dot(x, y) - self.time(x) * self.time(y)

    def dist(self, x: Vector, y: Vector) -> Number:
        """The inverse hyperbolic cosine of the Minkowski product."""
        return mp.acosh(max(mpf(1), -self.c * self.product(x, y))) / self.root

    def norm(self, x: Vector, u: Vector) -> Number:
        """The length of a tangent."""
        return mp.sqrt(self.inner(x, u, u))

    def expmap(self, x: Vector, u: Vector) -> Vector:
        """``cosh(n) x + sinh(n) u / n``, where ``n`` is the length of ``u`` over the radius."""
        n = self.root * self.norm(x, u)
        return combine(mp.cosh(n), x, mp.sinh(n) / n, u)

    def expmap0(self, u: Vector) -> Vector:
        """``expmap`` at the origin."""
        return self.expmap([mpf(0)] * len(u), u)

    def logmap(self, x: Vector, y: Vector) -> Vector:
        """The inverse of ``expmap``."""
        n = self.root * self.dist(x, y)
        return combine(n / mp.sinh(n), y, -n / mp.tanh(n), x)

    def logmap0(self, y: Vector) -> Vector:
        """``logmap`` at the origin."""
        return self.logmap([mpf(0)] * len(y), y)

    def transp(self, x: Vector, y: Vector, v: Vector) -> Vector:
        """The part of ``v`` along the geodesic turns with it; the rest does not change."""
        yv = dot(y, v) - self.time(y) * dot(x, v) / self.time(x)
        push = self.c * yv / (1 - self.c * self.product(x, y))
        return combine(mpf(1), v, push, combine(mpf(1), x, mpf(1), y))


def to_hyperboloid(ball: Ball, x: Vector) -> Vector:
    """The isometry from the ball."""
    return [2 * a / (1 - ball.c * dot(x, x)) for a in x]


def to_ball(lorentz: Hyperboloid, x: Vector) -> Vector:
    """The isometry to the ball."""
    return [a / (1 + lorentz.root * lorentz.time(x)) for a in x]


def push_to_hyperboloid(ball: Ball, x: Vector, u: Vector) -> Vector:
    """The differential of ``to_hyperboloid``."""
    gap = 1 - ball.c * dot(x, x)
    return combine(2 / gap, u, 4 * ball.c * dot(x, u) / gap**2, x)


def push_to_ball(lorentz: Hyperboloid, x: Vector, u: Vector) -> Vector:
    """The differential of ``to_ball``, at a point of the hyperboloid."""
    time = 1 + lorentz.root * lorentz.time(x)
    return combine(1 / time, u, -lorentz.root * dot(x, u) / (lorentz.time(x) * time**2), x)
