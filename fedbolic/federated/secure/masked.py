"""Sums of masked vectors."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.modular import reduce_limbs
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.secure.keys import KEY_BYTES
from fedbolic.federated.secure.mask import bytes_of_modulus, unpack
from fedbolic.federated.secure.roster import Roster, to_bytes, to_tensor


@dataclass(frozen=True)
class MaskedSum(Aggregator):
    """Sum of masked vectors; vectors with a wrong signature or another form are left out.

    Args:
        roster: Roster of this secure sum.
        moduli: Name and modulus of every vector.
    """

    roster: Roster
    moduli: tuple[tuple[str, int], ...]

    @override
    def aggregate(self, updates: Iterable[tuple[int, Update]]) -> AggregatedUpdate:
        sums: dict[tuple[Any, ...], _Sum] = {}
        for client_id, update in updates:
            form = self._form(client_id, update.payload)
            if form is None:
                logger.warning("client %d is left out of this secure sum: its signature or form "
                               "is not valid", client_id)  # fmt: skip
                continue
            total = sums.setdefault(form, _Sum())
            total.clients.append(client_id)
            for name, modulus in self.moduli:
                limbs = torch.from_numpy(unpack(update.payload[name].cpu().numpy(), modulus))
                total.limbs[name] = total.limbs[name] + limbs if name in total.limbs else limbs
        if not sums:
            raise ValueError("no client sent a masked vector that can be added")
        form, usual = max(sums.items(), key=lambda each: len(each[1].clients))
        others = [i for total in sums.values() if total is not usual for i in total.clients]
        for client_id in others:
            logger.warning("client %d is left out of this secure sum: its vector has another form "
                           "than most, or it received another broadcast", client_id)  # fmt: skip
        payload: Tree = {
            name: reduce_limbs(usual.limbs[name], modulus) for name, modulus in self.moduli
        }
        payload |= {"form": form[0], "broadcast": to_tensor(form[1])}
        return AggregatedUpdate(payload, float(len(usual.clients)), tuple(usual.clients))

    def _form(self, client_id: int, payload: Tree) -> tuple[Any, ...] | None:
        """Form and broadcast of a vector, equal for all of a sum; ``None`` if it is not valid."""
        form, signature = payload.get("form"), tree.signature(payload)
        names = [name for name, _ in self.moduli]
        others = {"form", "broadcast", "signature"}
        if payload.keys() != {*others, *names} or not isinstance(form, str):
            return None
        for name, modulus in self.moduli:
            vector = payload[name]
            if not isinstance(vector, Tensor) or vector.dtype != torch.uint8 or vector.ndim != 2:
                return None
            if vector.shape[1] != bytes_of_modulus(modulus):
                return None
        if signature.get("broadcast") != f"uint8[{KEY_BYTES}]":
            return None
        if not self.roster.is_signed("sums", client_id, payload):
            return None
        return form, to_bytes(payload["broadcast"]), *sorted(signature.items())


@dataclass(eq=False)
class _Sum:
    """Sum of the vectors of one form, with the ids of their clients."""

    limbs: Tree = field(default_factory=dict)
    clients: list[int] = field(default_factory=list)


def pair_sign(client_id: int, other: int) -> int:
    """Sign of a pairwise mask at a client; the other client of the pair uses the opposite sign.

    Args:
        client_id: Id of the client.
        other: Id of the other client of the pair.
    """
    return 1 if client_id < other else -1
