"""Encoding of summands as integers modulo a number, to which masks can be added, and decoding."""

import json
import math
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor

from fedbolic.core import check, tree
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.modular import LIMB, from_limbs, num_limbs, reduce_limbs


@dataclass(frozen=True)
class FixedPoint:
    r"""Integers unchanged, floats in units of :math:`2^{-f}`, both modulo q; negative numbers wrap.

    .. math:: x \mapsto \operatorname{round}(2^f x) \bmod q

    Sums of integers are exact. A sum of n floats has an error of at most :math:`n 2^{-f-1}`, plus
    the float64 rounding of numbers above 53 bits.

    Args:
        modulus: q, at least 2.
        fraction_bits: f, at least 0.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> code = FixedPoint(modulus=2**32, fraction_bits=8)
        >>> limbs = code.encode(torch.tensor([1.5, -0.25]).double(), num_summands=2)
        >>> code.decode(limbs + limbs, torch.float64)
        tensor([ 3.0000, -0.5000], dtype=torch.float64)
    """

    modulus: int
    fraction_bits: int = 24

    def __post_init__(self) -> None:
        check.at_least(2, modulus=self.modulus)
        check.at_least(0, fraction_bits=self.fraction_bits)

    def encode(self, values: Tensor, num_summands: int) -> Int64[Tensor, "n limbs"]:
        """Limbs of one summand; they may be negative and are not yet reduced modulo q.

        Args:
            values: Flat tensor of int64 or float64.
            num_summands: Largest number of summands, at least 1.

        Raises:
            ValueError: If a sum of that many values of this size might wrap around.
        """
        bits = self.fraction_bits if values.is_floating_point() else 0
        bound = min((self.modulus - 1) // 2, 2**62) // num_summands
        ends = [values.min().item(), values.max().item()] if len(values) else [0]
        largest = max(abs(end) for end in ends)
        if not largest * 2**bits <= bound:
            raise ValueError(
                f"a value of size {largest:g} is too large for a sum of {num_summands} modulo "
                f"{self.modulus}, which allows {bound / 2**bits:g} with {bits} bits after the "
                "point: enlarge modulus, or lower fraction_bits"
            )
        whole = (values * 2.0**bits).round().long() if values.is_floating_point() else values
        if num_limbs(self.modulus) == 1:
            return whole[:, None]
        limbs = whole.new_zeros(len(whole), num_limbs(self.modulus))
        limbs[:, 0], limbs[:, 1] = whole & (1 << LIMB) - 1, whole >> LIMB
        return limbs

    def decode(self, limbs: Int64[Tensor, "n limbs"], dtype: torch.dtype) -> Tensor:
        """Sum that limbs represent, as a flat tensor.

        Args:
            limbs: Limbs of the sum, reduced or not.
            dtype: Dtype of the summands: int64 or float64.

        Raises:
            ValueError: If the sum exceeds the range of valid summands.
        """
        limbs = reduce_limbs(limbs, self.modulus)
        half = (self.modulus - 1) // 2
        if self.modulus <= 2**62:
            whole = limbs[:, 0] if limbs.shape[1] == 1 else limbs[:, 0] + (limbs[:, 1] << LIMB)
            whole = torch.where(whole > half, whole - self.modulus, whole)
        else:
            found = [v - self.modulus if v > half else v for v in from_limbs(limbs)]
            if any(abs(value) > 2**62 for value in found):
                raise ValueError("the sum is out of range: some client sent too large a number")
            whole = torch.tensor(found, dtype=torch.int64)
        return whole if dtype == torch.int64 else whole.double() / 2.0**self.fraction_bits


@dataclass(frozen=True)
class Residues:
    """Integers that are already limbs modulo q, as ``SumModulo`` adds them.

    Args:
        modulus: q, at least 2.
    """

    modulus: int

    def encode(self, values: Tensor, num_summands: int) -> Int64[Tensor, "n limbs"]:
        """Limbs of one summand, unchanged.

        Args:
            values: Limbs of integers below q.
            num_summands: Ignored: this sum may wrap around.
        """
        del num_summands
        return values.reshape(-1, num_limbs(self.modulus))

    def decode(self, limbs: Int64[Tensor, "n limbs"], dtype: torch.dtype) -> Tensor:
        """Limbs of the residues, as a flat tensor.

        Args:
            limbs: Limbs of the sum.
            dtype: Ignored.
        """
        del dtype
        return reduce_limbs(limbs, self.modulus).flatten()


def form_of(payload: Tree, summand: Tree) -> str:
    """Form of a tree of numbers as text, with which the server decodes the sum.

    Args:
        payload: Form of a method's payloads, with the dtypes of the aggregate.
        summand: Its summand, with the shapes and dtypes of the sum.

    Example:
        >>> form_of({"n": 2}, {"n": torch.tensor(2)})
        '{"n": ["int", "int64", []]}'
    """
    return json.dumps(tree.map(_leaf_form, payload, summand))


def _leaf_form(leaf: object, summed: Tensor) -> list:
    return [_kind(leaf), _kind(summed), list(summed.shape)]


def _kind(leaf: object) -> str:
    name = str(leaf.dtype).removeprefix("torch.") if isinstance(leaf, Tensor) else ""
    return name or type(leaf).__name__


def encode_tree(
    summand: Tree, code: FixedPoint | Residues, num_summands: int
) -> Int64[Tensor, "n limbs"]:
    """Limbs of all numbers of a summand, one after another.

    Args:
        summand: A tree of tensors, int64 or float64.
        code: Encoding of numbers as integers.
        num_summands: Largest number of summands.

    Raises:
        ValueError: If a number is too large, or the tree holds anything but tensors.
    """
    leaves = tree.tensors(summand)
    if len(leaves) < len(dict(tree.leaves(summand))):
        raise ValueError(f"only tensors can be added, got {tree.signature(summand)}")
    rows = [code.encode(leaf.flatten().cpu(), num_summands) for leaf in leaves.values()]
    empty = torch.empty(0, num_limbs(code.modulus), dtype=torch.int64)
    return torch.cat([empty, *rows])


def decode_tree(
    limbs: Int64[Tensor, "n limbs"],
    code: FixedPoint | Residues,
    form: str,
    device: torch.device | str,
) -> tuple[Tree, Tree]:
    """The sum as a tree, and a payload of zeros in the form of the aggregate.

    Args:
        limbs: Sum of results of :func:`encode_tree`.
        code: The same encoding.
        form: Result of :func:`form_of`.
        device: Device of both trees.

    Raises:
        ValueError: If the form has another number of values than the sum, or an unknown dtype.
    """
    start, per_row = 0, num_limbs(code.modulus) if isinstance(code, Residues) else 1

    def read(branch: Tree) -> tuple[Tree, Tree]:
        nonlocal start
        total: Tree = {}
        like: Tree = {}
        for name, of_name in branch.items():
            if isinstance(of_name, dict):
                total[name], like[name] = read(of_name)
                continue
            kind, dtype, shape = of_name
            length = math.prod(shape) // per_row
            flat = code.decode(limbs[start : start + length], _dtype(dtype))
            start += length
            total[name] = flat.reshape(shape).to(device)
            like[name] = _zero(kind, shape, device)
        return total, like

    trees = read(json.loads(form))
    if start != len(limbs):
        raise ValueError(f"the form has {start} numbers, but the sum has {len(limbs)}")
    return trees


def _zero(kind: str, shape: list[int], device: torch.device | str) -> Tensor | int | float:
    if kind in ("int", "float"):
        return {"int": 0, "float": 0.0}[kind]
    return torch.zeros(shape, dtype=_dtype(kind), device=device)


def _dtype(name: str) -> torch.dtype:
    found = getattr(torch, name, None)
    if not isinstance(found, torch.dtype):
        raise ValueError(f"the form has the dtype {name!r}, which is unknown")
    return found
