"""Shamir's secret sharing: a threshold of shares gives the secret, and fewer reveal nothing."""

import functools
import secrets
from collections.abc import Mapping, Sequence

import flint

PRIME = 2**256 + 297
"""Smallest prime above all secrets of 32 bytes."""

SECRET_BYTES = 32
SHARE_BYTES = 33


def split_secret(secret: bytes, points: Sequence[int], threshold: int) -> list[bytes]:
    r"""Values of a random polynomial of degree ``threshold - 1`` whose constant term is the secret.

    .. math:: f(x) = s + a_1 x + \dots + a_{t-1} x^{t-1} \bmod p

    Args:
        secret: 32 bytes.
        points: Points of evaluation, one for each holder: different, at least 1.
        threshold: t, number of shares that give the secret, in 1 .. the number of points.

    Raises:
        ValueError: If an argument is out of range.

    References:
        Shamir (1979), How to share a secret, Communications of the ACM 22.

    Example:
        >>> shares = split_secret(bytes(range(32)), [1, 2, 3], threshold=2)
        >>> join_shares({1: shares[0], 3: shares[2]}) == bytes(range(32))
        True
    """
    if len(secret) != SECRET_BYTES:
        raise ValueError(f"a secret has {SECRET_BYTES} bytes, got {len(secret)}")
    if len(set(points)) < len(points) or any(not 0 < point < PRIME for point in points):
        raise ValueError(f"points must be different and at least 1, got {list(points)}")
    if not 1 <= threshold <= len(points):
        raise ValueError(f"threshold must lie in 1 .. {len(points)}, got {threshold}")
    ring = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(PRIME))
    drawn = [secrets.randbelow(PRIME) for _ in range(threshold - 1)]
    polynomial = ring([int.from_bytes(secret), *drawn])
    values = polynomial.multipoint_evaluate(list(points))
    return [int(value).to_bytes(SHARE_BYTES) for value in values]


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """Secret from as many shares as the threshold requires.

    Too few shares, or altered shares, give other bytes or an error: compare the result with a known
    value that depends on the secret.

    Args:
        shares: Shares by point.

    Raises:
        ValueError: If the shares do not belong to any secret of 32 bytes.
    """
    weights = _weights(tuple(shares))
    pairs = zip(weights, shares.values(), strict=True)
    value = sum(weight * int.from_bytes(share) for weight, share in pairs) % PRIME
    if value >> 8 * SECRET_BYTES:
        raise ValueError("the shares belong to no secret: one was altered, or there are too few")
    return value.to_bytes(SECRET_BYTES)


@functools.lru_cache(maxsize=4)  # the same holders return the shares of many secrets
def _weights(points: tuple[int, ...]) -> tuple[int, ...]:
    """Lagrange weights of the value at 0."""
    weights = []
    for x in points:
        above, below = 1, 1
        for other in points:
            if other != x:
                above = above * other % PRIME
                below = below * (other - x) % PRIME
        weights.append(above * pow(below, -1, PRIME))
    return tuple(weights)
