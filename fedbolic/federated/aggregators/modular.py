"""Sums of large integers modulo a number, represented by limbs in int64 tensors."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.update import Update

LIMB = 32
"""Bits of a limb; a sum of 2^31 limbs fits an int64."""


def to_limbs(values: Sequence[int], modulus: int) -> Int64[Tensor, "n limbs"]:
    """Integers of any size as limbs of 32 bits, the lowest first.

    Args:
        values: Integers in 0 .. modulus - 1.
        modulus: Modulus that determines the number of limbs, at least 2.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> to_limbs([2**32 + 5, 7], 2**61 - 1)
        tensor([[5, 1],
                [7, 0]])
    """
    if any(not 0 <= value < modulus for value in values):
        raise ValueError(f"values must lie in 0 .. {modulus - 1}")
    places = range(num_limbs(modulus))
    limbs = [[value >> LIMB * place & (1 << LIMB) - 1 for place in places] for value in values]
    return torch.tensor(limbs, dtype=torch.int64).reshape(len(values), len(places))


def from_limbs(limbs: Int64[Tensor, "n limbs"]) -> list[int]:
    """Integers that limbs represent; a limb may exceed 32 bits.

    Args:
        limbs: Limbs, the lowest first: a result of :func:`to_limbs` or a sum of such results.

    Example:
        >>> from_limbs(to_limbs([2**60], 2**61 - 1) + to_limbs([3], 2**61 - 1))
        [1152921504606846979]
    """
    return [sum(limb << LIMB * place for place, limb in enumerate(row)) for row in limbs.tolist()]


def num_limbs(modulus: int) -> int:
    """Number of limbs of an integer below ``modulus``.

    Args:
        modulus: At least 2.
    """
    return -(-(modulus - 1).bit_length() // LIMB)


def reduce_limbs(limbs: Int64[Tensor, "n limbs"], modulus: int) -> Int64[Tensor, "n limbs"]:
    """Limbs of the residues; the given limbs may be sums of many summands, and negative.

    Args:
        limbs: Limbs, the lowest first, as many as the modulus needs.
        modulus: At least 2.

    Example:
        >>> reduce_limbs(torch.tensor([[5, 1], [-1, 0]]), 2**33)
        tensor([[         5,          1],
                [4294967295,          1]])
    """
    if limbs.shape[1] == 1:
        return limbs % modulus
    if modulus & modulus - 1 == 0:
        carry, digits = torch.zeros_like(limbs[:, 0]), []
        for limb in limbs.unbind(dim=1):
            digits.append(limb + carry & (1 << LIMB) - 1)
            carry = limb + carry >> LIMB
        top = modulus - 1 >> LIMB * (len(digits) - 1)
        return torch.stack([*digits[:-1], digits[-1] & top], dim=1)
    if modulus < 2**62 and limbs.shape[1] == 2:
        low, high = limbs[:, 0] & (1 << LIMB) - 1, limbs[:, 1] + (limbs[:, 0] >> LIMB)
        quotient = (high * (2.0**LIMB / modulus)).floor()
        if not len(quotient) or quotient.abs().max() < 2**50:
            # the quotient is at most one off, so the rest is exact although products wrap around
            rest = (high << LIMB) + low - quotient.long() * modulus
            rest = torch.where(rest < 0, rest + modulus, rest)
            rest = torch.where(rest >= modulus, rest - modulus, rest)
            return torch.stack([rest & (1 << LIMB) - 1, rest >> LIMB], dim=1)
    residues = [value % modulus for value in from_limbs(limbs)]
    return to_limbs(residues, modulus).to(limbs.device)


@dataclass(frozen=True)
class SumModulo(Additive):
    """Sum of integers modulo ``modulus``, as masks that cancel require.

    Every tensor of a payload holds limbs of 32 bits along its last axis; see :func:`to_limbs`.

    Args:
        modulus: At least 2.

    Raises:
        ValueError: If ``modulus`` is below 2, or (from ``to_summand``) a leaf of a payload does not
            hold such limbs.

    Example:
        >>> q = 2**61 - 1
        >>> updates = [(i, Update({"s": to_limbs([q - 1], q)})) for i in range(3)]
        >>> from_limbs(SumModulo(q).aggregate(updates).payload["s"]) == [q - 3]
        True
    """

    modulus: int

    def __post_init__(self) -> None:
        check.at_least(2, modulus=self.modulus)

    @override
    def find_fault(self, update: Update) -> str | None:
        try:
            self.to_summand(update)
        except ValueError as error:
            return str(error)
        return None

    @override
    def to_summand(self, update: Update) -> Tree:
        return tree.map(self._checked, update.payload)

    @override
    def from_sum(self, total: Tree, weight: float, like: Tree) -> Tree:
        del weight, like
        return tree.map(self._reduced, total)

    def _checked(self, limbs: object) -> Tensor:
        expected = num_limbs(self.modulus)
        if (
            not isinstance(limbs, Tensor)
            or limbs.dtype != torch.int64
            or limbs.shape[-1:] != (expected,)
            or bool(((limbs < 0) | (limbs >> LIMB > 0)).any())
        ):
            raise ValueError(
                f"sums modulo {self.modulus} need int64 tensors of {expected} limbs of {LIMB} bits "
                "along the last axis: see to_limbs"
            )
        return limbs.clone()

    def _reduced(self, limbs: Tensor) -> Tensor:
        flat = limbs.reshape(-1, limbs.shape[-1])
        return reduce_limbs(flat, self.modulus).reshape(limbs.shape)
