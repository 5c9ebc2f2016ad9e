"""Masked vectors: their sum, and the masks themselves."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic import tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.modular import num_limbs, reduce_limbs
from fedbolic.federated.secure.mask import bytes_of_modulus, expand, unpack
from fedbolic.federated.secure.roster import Roster
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.log import logger
from fedbolic.types import Tree


@dataclass(frozen=True)
class MaskedSum(Aggregator):
    """The sum of masked vectors, those whose signature or form does not fit left out.

    Args:
        roster: Of this secure sum.
        moduli: By name of the vector.
    """

    roster: Roster
    moduli: tuple[tuple[str, int], ...]

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        sums: dict[tuple[object, ...], _Sum] = {}
        for client_id, update in updates:
            form = self._form(client_id, update.payload)
            if form is None:
                logger.warning("client %d is left out of this secure sum: its signature or form "
                               "does not fit", client_id)  # fmt: skip
                continue
            total = sums.setdefault(form, _Sum())
            total.clients.append(client_id)
            for name, modulus in self.moduli:
                limbs = torch.from_numpy(unpack(update.payload[name].cpu().numpy(), modulus))
                total.limbs[name] = total.limbs[name] + limbs if name in total.limbs else limbs
        if not sums:
            raise ValueError("no masked vector came that can be added")
        form, usual = max(sums.items(), key=lambda each: len(each[1].clients))
        others = [i for total in sums.values() if total is not usual for i in total.clients]
        for client_id in others:
            logger.warning("client %d is left out of this secure sum: its vector has another form "
                           "than most", client_id)  # fmt: skip
        payload = {name: reduce_limbs(usual.limbs[name], modulus) for name, modulus in self.moduli}
        return AggregatedUpdate(
            {**payload, "form": form[0]}, float(len(usual.clients)), tuple(usual.clients)
        )

    def _form(self, client_id: int, payload: Tree) -> tuple[object, ...] | None:
        """Common form of the vectors of a sum; ``None`` if this vector does not belong to it."""
        form, signature = payload.get("form"), tree.signature(payload)
        names = [name for name, _ in self.moduli]
        if payload.keys() != {"form", "signature", *names} or not isinstance(form, str):
            return None
        for name, modulus in self.moduli:
            vector = payload[name]
            if not isinstance(vector, Tensor) or vector.dtype != torch.uint8 or vector.ndim != 2:
                return None
            if vector.shape[1] != bytes_of_modulus(modulus):
                return None
        if not self.roster.is_signed("sums", client_id, payload):
            return None
        return form, *sorted(signature.items())


@dataclass(eq=False)
class _Sum:
    """Vectors of one form that were added, of whom."""

    limbs: Tree = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)


def masks(
    signed_seeds: Iterable[tuple[int, bytes]], modulus: int, length: int, *, stream: int
) -> Int64[Tensor, "n limbs"]:
    """The sum of masks, each with its sign, not yet reduced.

    Args:
        signed_seeds: Signs and seeds.
        modulus: Of the sum.
        length: Numbers in a mask.
        stream: Which of a client's vectors.
    """
    total = torch.zeros(length, num_limbs(modulus), dtype=torch.int64)
    for sign, seed in signed_seeds:
        mask = torch.from_numpy(expand(seed, modulus, length, stream=stream))
        total = total.add_(mask, alpha=sign)
    return total


def pair_sign(client_id: int, other: int) -> int:
    """The sign of a pair's mask at a client; the other's is the opposite.

    Args:
        client_id: Whose.
        other: The other of the pair.
    """
    return 1 if client_id < other else -1
