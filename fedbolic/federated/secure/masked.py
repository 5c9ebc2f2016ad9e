"""Masked vectors: their sum, and the masks themselves."""

import logging
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from jaxtyping import Int64
from torch import Tensor
from typing_extensions import override

from fedbolic import tree
from fedbolic.federated.aggregate import Aggregator
from fedbolic.federated.method import Total, Update
from fedbolic.federated.modular import num_limbs, reduce_limbs
from fedbolic.federated.secure.mask import expand, num_bytes, unpack
from fedbolic.federated.secure.roster import Roster
from fedbolic.types import Tree

logger = logging.getLogger("fedbolic")


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
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> Total:
        total: Tree = {}
        clients, form = [], None
        for client_id, update in updates:
            payload = update.payload
            now = payload.get("form"), tree.signature(payload)
            if not self._fits(client_id, payload) or form not in (None, now):
                logger.warning(
                    "client %d is left out of this secure sum: its signature or form does not fit",
                    client_id,
                )
                continue
            form = now
            for name, modulus in self.moduli:
                limbs = torch.from_numpy(unpack(payload[name].cpu().numpy(), modulus))
                total[name] = total[name] + limbs if name in total else limbs
            clients.append(client_id)
        if form is None:
            raise ValueError("no masked vector came that can be added")
        for name, modulus in self.moduli:
            total[name] = reduce_limbs(total[name], modulus)
        return Total(total | {"form": form[0]}, float(len(clients)), tuple(clients))

    def _fits(self, client_id: int, payload: Tree) -> bool:
        names = [name for name, _ in self.moduli]
        if payload.keys() != {"form", "signature", *names}:
            return False
        widths = [payload[name].shape[1:] == (num_bytes(q),) for name, q in self.moduli]
        return all(widths) and self.roster.is_signed("sums", client_id, payload)


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
