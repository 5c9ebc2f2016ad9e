"""Label codes: integers whose sum determines which labels were added."""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import flint
import numpy as np
from jaxtyping import Int
from typing_extensions import override

from fedbolic.core import check


class DecodingError(ValueError):
    """Error for a sum that honest clients could not have sent; nothing is decoded."""


class LabelCode(ABC):
    """Code of labels as positive integers that can be recovered from their sum."""

    @abstractmethod
    def values(self, num_labels: int) -> list[int]:
        """Integer of each label, in the order of the labels."""

    @abstractmethod
    def largest_sum(self, num_labels: int) -> int:
        """Largest sum that can be decoded; the field must have more elements than this."""

    @abstractmethod
    def decode(self, total: int, num_labels: int) -> list[int]:
        """Labels whose integers were added, ascending.

        Raises:
            DecodingError: If ``total`` is not the sum of an allowed collection of labels.
        """


@dataclass(frozen=True)
class Binary(LabelCode):
    """Powers of two: one bit for each label, so that any set of labels can be decoded.

    A client reveals a bin at most once for each label, so the labels in a sum are distinct, as this
    code requires.

    Example:
        >>> Binary().values(4), Binary().decode(0b1010, 4)
        ([1, 2, 4, 8], [1, 3])
    """

    @override
    def values(self, num_labels: int) -> list[int]:
        return [1 << label for label in range(num_labels)]

    @override
    def largest_sum(self, num_labels: int) -> int:
        return (1 << num_labels) - 1

    @override
    def decode(self, total: int, num_labels: int) -> list[int]:
        if not 0 < total <= self.largest_sum(num_labels):
            raise DecodingError(
                f"{total} is not a sum of different labels among {num_labels}: a message was "
                "altered, or a label was added twice"
            )
        return [label for label in range(num_labels) if total >> label & 1]


@dataclass(frozen=True)
class BoseChowla(LabelCode):
    r"""Bose-Chowla B_h sequence: sums of up to ``h`` labels, with repetition, are all distinct.

    .. math:: a_l = \log_\beta(\beta + \alpha_{l+1}) - \log_\beta(\beta + \alpha_1)

    with beta primitive in the field of :math:`M^h` elements and the alphas the elements of GF(M),
    in ascending order of logarithm; M is the least prime above the number of labels. More than
    ``h`` labels in one bin cannot be decoded, and may be decoded wrongly: use :class:`Binary` if
    that can happen.

    Departs from the paper: its Appendix G takes differences of neighbours, which are not a B_h
    sequence; it needs one more element of GF(M) than labels; and its range is larger than stated.

    Args:
        h: Largest number of labels in one bin, at least 2.

    References:
        Bose and Chowla (1960), Theorems in the additive theory of numbers; Prakash et al. (2024),
        Sec. 5.4, arXiv:2308.06895.

    Example:
        >>> code = BoseChowla(h=2)
        >>> values = code.values(4)
        >>> code.decode(values[0] + values[2], 4)
        [0, 2]
    """

    h: int = 3

    def __post_init__(self) -> None:
        check.at_least(2, h=self.h)

    @override
    def values(self, num_labels: int) -> list[int]:
        return list(_construction(num_labels, self.h).values)

    @override
    def largest_sum(self, num_labels: int) -> int:
        return self.h * max(self.values(num_labels))

    @override
    def decode(self, total: int, num_labels: int) -> list[int]:
        return _construction(num_labels, self.h).decode(total)


@dataclass(frozen=True, eq=False)
class _Construction:
    """Field of a Bose-Chowla sequence, with the tables for decoding sums."""

    field: flint.fq_default_ctx
    first: int
    pad: int
    labels: dict[int, int]
    values: tuple[int, ...]

    def decode(self, total: int) -> list[int]:
        h, modulus = self.field.degree(), self.field.modulus()
        if not 0 < total <= h * max(self.values):
            raise DecodingError(f"{total} is not a sum of up to {h} labels")
        power = self.field.gen() ** (total + h * self.first)
        # a product of h factors x + alpha; factors with alpha_1 stand for no label
        _, factors = (modulus + power.polynomial()).factor()
        found: list[int] = []
        for factor, times in factors:
            alpha = int(factor[0]) if factor.degree() == 1 else -1
            if alpha not in self.labels and alpha != self.pad:
                raise DecodingError(
                    f"{total} is not a sum of up to {h} labels: a message was altered, or more "
                    "labels fell into one bin; increase h, or use binary labels"
                )
            found += [self.labels[alpha]] * times if alpha != self.pad else []
        if sum(self.values[label] for label in found) != total:
            raise DecodingError(f"{total} is not a sum of up to {h} labels")
        return sorted(found)


@functools.lru_cache(maxsize=16)
def _construction(num_labels: int, h: int) -> _Construction:
    prime = num_labels + 1
    while not flint.fmpz(prime).is_prime():
        prime += 1
    field = primitive_field(prime, h)
    (first, pad), *others = logarithms(field)
    others = others[:num_labels]
    labels = {alpha: label for label, (_, alpha) in enumerate(others)}
    return _Construction(field, first, pad, labels, tuple(log - first for log, _ in others))


def primitive_field(prime: int, h: int) -> flint.fq_default_ctx:
    """Field of ``prime ** h`` elements, from the first polynomial whose root is primitive.

    Args:
        prime: Characteristic of the field.
        h: Degree of the field, at least 2.

    Example:
        >>> primitive_field(7, 2).modulus()
        x^2 + x + 3
    """
    ring = flint.fmpz_mod_poly_ctx(flint.fmpz_mod_ctx(prime))
    order = prime**h - 1
    primes = [int(p) for p, _ in flint.fmpz(order).factor()]
    for number in range(prime, prime**h):
        digits = [number // prime**place % prime for place in range(h)]
        modulus = ring([*digits, 1])
        if digits[0] and modulus.is_irreducible():
            field = flint.fq_default_ctx(modulus=modulus)
            if all(field.gen() ** (order // p) != field.one() for p in primes):
                return field
    raise AssertionError("every finite field has a primitive element")


def logarithms(field: flint.fq_default_ctx) -> list[tuple[int, int]]:
    """Pairs of ``log(beta + alpha)`` and alpha, for the field's generator beta, ascending.

    The algorithm is Pohlig and Hellman's reduction to prime orders, with baby-step giant-step.

    Args:
        field: Field whose generator is primitive; alpha runs over its prime field.

    Example:
        >>> [log for log, _ in logarithms(primitive_field(3, 2))]
        [1, 6, 7]
    """
    generator, order = field.gen(), int(field.order()) - 1
    elements = {alpha: generator + alpha for alpha in range(int(field.characteristic()))}
    logs, modulus = dict.fromkeys(elements, 0), 1
    for prime, exponent in flint.fmpz(order).factor():
        p = int(prime)
        root = generator ** (order // p)
        stride = math.isqrt(p - 1) + 1
        small = {_key(power): i for i, power in enumerate(_powers(root, stride))}
        back = root ** (p - stride % p)
        for _ in range(exponent):
            for alpha, element in elements.items():
                # after division by the known part, the logarithm is a multiple of the modulus
                rest = (element * generator ** (order - logs[alpha])) ** (order // (modulus * p))
                giant = 0
                while _key(rest) not in small:
                    rest, giant = rest * back, giant + 1
                logs[alpha] += modulus * (giant * stride + small[_key(rest)])
            modulus *= p
    return sorted((log, alpha) for alpha, log in logs.items())


def _powers(root: flint.fq_default, count: int) -> Iterator[flint.fq_default]:
    power = root**0
    for _ in range(count):
        yield power
        power *= root


def _key(element: flint.fq_default) -> str:
    return str(element)


def sorted_labels(
    bins: Int[np.ndarray, " m"], labels: Int[np.ndarray, " m"], *, num_classes: int
) -> tuple[Int[np.ndarray, " m"], Int[np.ndarray, " m"]]:
    """Bins and labels with clients renumbered by content, independent of the agreed order.

    The order differs in every run; after renumbering, the trained model does not depend on it.

    Args:
        bins: Bins of all hulls.
        labels: Label of each bin.
        num_classes: Number of labels per client.

    Example:
        >>> sorted_labels(np.array([4, 7, 9]), np.array([2, 5, 3]), num_classes=2)
        (array([4, 7, 9]), array([0, 3, 1]))
    """
    clients, classes = np.divmod(labels, num_classes)
    contents = {
        client: sorted(zip(classes[clients == client], bins[clients == client], strict=True))
        for client in np.unique(clients).tolist()
    }
    places = {client: i for i, client in enumerate(sorted(contents, key=lambda of: contents[of]))}
    moved = np.array([places[client] for client in clients.tolist()], dtype=np.int64)
    labels = moved * num_classes + classes
    order = np.lexsort((labels, bins))
    return bins[order], labels[order]
