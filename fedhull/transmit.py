"""Power sums of sparse vectors over a prime field: additive, and decodable from their total."""

from collections.abc import Mapping, Sequence

import flint

from fedbolic.core import check
from fedhull.labels import DecodingError

_SPARE = 2
"""Symbols beyond the 2T that T bins need; an overload goes undetected in about 1 of q^2 cases."""


def prime_above(bound: int) -> int:
    """Least prime larger than a number.

    Args:
        bound: Largest number that must not wrap around.

    Example:
        >>> prime_above(48_668_500)
        48668509
    """
    candidate = bound + 1 + bound % 2
    while not flint.fmpz(candidate).is_prime():
        candidate += 2
    return candidate


def num_symbols(capacity: int) -> int:
    """Number of power sums for a given capacity.

    Args:
        capacity: Largest number of distinct bins of all clients together.
    """
    return 2 * capacity + _SPARE


def encode_hulls(values: Mapping[int, int], *, capacity: int, modulus: int) -> list[int]:
    r"""Power sums of one client's bins.

    .. math:: S_l = \sum_j v_j \, j^{l-1} \bmod q, \quad l = 1, \dots, 2T + 2

    Args:
        values: Value of each bin; bins and values are in 1 .. q - 1.
        capacity: T, the largest number of distinct bins of all clients together, at least 1.
        modulus: Prime q, larger than every bin and every sum of values.

    Raises:
        ValueError: If the client has more bins than the capacity, or a bin or a value would wrap
            around.

    References:
        Prakash et al. (2024), Sec. 5.5, arXiv:2308.06895.

    Example:
        >>> encode_hulls({2: 10, 3: 1}, capacity=2, modulus=101)
        [11, 23, 49, 6, 39, 58]
    """
    check.at_least(1, capacity=capacity)
    if len(values) > capacity:
        raise ValueError(
            f"{len(values)} bins do not fit a capacity of {capacity}: agree on a larger capacity"
        )
    wrapped = [item for item in values.items() if not all(0 < number < modulus for number in item)]
    if wrapped:
        raise ValueError(
            f"bins and values must lie in 1 .. {modulus - 1}, got {wrapped[0][1]} in bin "
            f"{wrapped[0][0]}: take a larger field"
        )
    if not values:
        return [0] * num_symbols(capacity)
    ring = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(modulus))
    # the power sums are the coefficients of sum_j v_j / (1 - j x)
    fractions = [(ring([value]), ring([1, -place])) for place, value in values.items()]
    while len(fractions) > 1:
        pairs = zip(fractions[::2], fractions[1::2], strict=False)
        merged = [(n * e + m * d, d * e) for (n, d), (m, e) in pairs]
        fractions = merged + fractions[len(merged) * 2 :]
    (numerator, denominator), *_ = fractions
    length = num_symbols(capacity)
    series = numerator.mul_low(denominator.inverse_series_trunc(length), length)
    found = [int(coefficient) for coefficient in series.coeffs()]
    return found + [0] * (length - len(found))


def decode_hulls(sums: Sequence[int], *, num_bins: int, modulus: int) -> dict[int, int]:
    """Bins of all clients and their total values, from the sum of the clients' power sums.

    The shortest linear recurrence of the sums has the bins as its roots (Berlekamp and Massey). Too
    many bins, or an altered sum, give a recurrence that is too long or has roots that are not bins.

    Args:
        sums: Power sums modulo the prime, :func:`num_symbols` of them.
        num_bins: Number of the last bin.
        modulus: The prime q.

    Returns:
        Total value of each bin, never 0, by bin in ascending order.

    Raises:
        DecodingError: If the sums are not those of bins within the capacity.

    References:
        Prakash et al. (2024), Sec. 5.5, arXiv:2308.06895; values by Lagrange instead of a linear
        system.

    Example:
        >>> decode_hulls([11, 23, 49, 6, 39, 58], num_bins=50, modulus=101)
        {2: 10, 3: 1}
    """
    capacity = (len(sums) - _SPARE) // 2
    if not any(sums):
        return {}
    ring = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(modulus))
    recurrence = ring.minpoly(list(sums))
    degree = recurrence.degree()
    if degree > capacity:
        raise DecodingError(
            f"the sums hold more than {capacity} bins, or one was altered: nothing is decoded; "
            "agree on a larger capacity and send again"
        )
    roots = [(int(root), times) for root, times in recurrence.roots()]
    bins = sorted(root for root, times in roots if times == 1 and 1 <= root <= num_bins)
    if len(bins) < degree:
        raise DecodingError(
            f"{degree - len(bins)} of {degree} positions are no bins of 1 .. {num_bins}: a message "
            "was altered, or there are more bins than the capacity"
        )
    head = recurrence * ring([int(symbol) for symbol in reversed(sums[:degree])])
    numerators = head.right_shift(degree).multipoint_evaluate(bins)
    slopes = recurrence.derivative().multipoint_evaluate(bins)
    pairs = zip(numerators, slopes, strict=True)
    return {place: int(n / d) for place, (n, d) in zip(bins, pairs, strict=True)}
