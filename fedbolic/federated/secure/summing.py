"""Masked input of a secure sum, and the agreement of the clients on who is in the sum."""

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.tree_bytes import tree_digest
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Additive, Aggregator
from fedbolic.federated.aggregators.modular import reduce_limbs
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.rounds.update_filter import find_update_fault
from fedbolic.federated.secure.exchange import SecureExchange, ids_of
from fedbolic.federated.secure.fixed_point import FixedPoint, Residues, encode_tree, form_of
from fedbolic.federated.secure.keys import KEY_BYTES, SIGNATURE_BYTES, Agreement, unseal
from fedbolic.federated.secure.mask import pack, sum_masks
from fedbolic.federated.secure.masked import MaskedSum, pair_sign
from fedbolic.federated.secure.order import place_among
from fedbolic.federated.secure.preparation import mask_seed
from fedbolic.federated.secure.roster import (
    Roster,
    ids_tensor,
    listed_ids,
    read_ids,
    to_bytes,
    to_tensor,
)
from fedbolic.federated.secure.shamir import SHARE_BYTES

AGREED = ("survivors", "broadcast")
"""Entries that a client signs before unmasking: the clients in the sum, and what was broadcast."""


@dataclass(frozen=True)
class MaskedInput(SecureExchange):
    """The method's local work, sent as a summand under pairwise masks and a self-mask."""

    stage = "sums"
    after = ("shares",)

    @property
    @override
    def aggregator(self) -> Aggregator:
        if self.roster is None:
            raise ValueError("only the server, which has the roster, can add masked vectors")
        moduli = (("sums", self._codes[0].modulus), ("weight", self._codes[1].modulus))
        return MaskedSum(self.roster, moduli)

    @property
    def _codes(self) -> tuple[FixedPoint | Residues, FixedPoint]:
        return self.protocol.code(self.inner.aggregator), self.protocol.weight_code

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        roster = self.roster or Roster.read(server_state["roster"])
        ciphertexts = server_state["ciphertexts"]
        if roster.graph is None:
            received = ciphertexts[:, roster.index(client_id)]
        else:
            senders = [i for i in roster.senders(client_id) if str(i) in ciphertexts]
            places = [roster.holders(i).index(client_id) for i in senders]
            rows = [ciphertexts[str(i)][place] for i, place in zip(senders, places, strict=True)]
            received = torch.stack(rows) if rows else torch.zeros(0, 0, dtype=torch.uint8)
        return {
            "stage": self.stage,
            "sharers": server_state["sharers"],
            "ciphertexts": received,
            "turn": server_state["turn"],
            "inner": self.inner.broadcast(server_state["inner"], client_id),
        }

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state["secure"]
        roster = Roster.read(own["roster"])
        least = self.protocol.least(client.meta.num_clients)
        among = roster.members if roster.graph is None else range(roster.size)
        sharers = ids_of(
            message["sharers"], among, least=least, own=client.id, what="shared secrets"
        )
        shared = set(sharers)
        senders = [i for i in own["senders"].tolist() if i in shared]
        plaintexts = self._read(message["ciphertexts"], senders, roster, own, client.id)
        broadcast = broadcast_digest(message, client, rng, ordered=self.protocol.ordered)
        message = self._placed(message, plaintexts, client.id)
        before = client_state.get("inner", {})
        stream = _in_the_clear(rng, message["turn"])
        place = _place_in_run(stream, message["turn"])
        if place <= (own.get("round", -1), own.get("turn", -1)):
            raise ValueError(
                f"round and turn {place} are not after those of the last sum: a repetition in "
                "which one client is missing would reveal its numbers"
            )
        update, inner = self._work(message, client, before, stream)
        agreed = roster.among(sharers) + broadcast
        others = [i for i in roster.members if i in shared and i != client.id]
        content = self._masked(update, others, roster, own, client.id, agreed)
        content["broadcast"] = to_tensor(broadcast)
        shares = b"".join(each[: 2 * SHARE_BYTES] for each in plaintexts.values())
        # what has served is forgotten, so that nobody finds it in the client state later
        used = ("opening", "mask", "seed", "own_plaintext", "own_card")
        kept = {name: leaf for name, leaf in own.items() if name not in used}
        kept |= {
            "stage": self.stage,
            "sharers": ids_tensor(sharers),
            "senders": ids_tensor(senders),
            "shares": to_tensor(shares).reshape(-1, 2 * SHARE_BYTES),
            "broadcast": content["broadcast"],
            "round": place[0],
            "turn": place[1],
            "inner": inner,  # kept when the sum has been unmasked, and otherwise forgotten
        }
        charged = {name: inner[name] for name in self.inner.traits.charged if name in inner}
        kept_now = {"inner": {**before, **charged}, "secure": kept}
        return self.sign(content, roster, client, own), kept_now

    def _read(
        self, ciphertexts: Tensor, senders: list[int], roster: Roster, own: Tree, client_id: int
    ) -> dict[int, bytes]:
        """Plaintexts from those that shared with this client; a broken seal is an error."""
        found = {}
        for sender, ciphertext in zip(senders, ciphertexts, strict=True):
            if sender == client_id:
                found[sender] = to_bytes(own["own_plaintext"])
            else:
                key = to_bytes(own["opening"][roster.index(sender)])
                found[sender] = unseal(key, to_bytes(ciphertext))
        return found

    def _placed(self, message: Tree, plaintexts: dict[int, bytes], client_id: int) -> Tree:
        """The message with the client's place among the sharers, if the method has an order."""
        if not self.protocol.ordered:
            return message
        numbers = {sender: each[2 * SHARE_BYTES :] for sender, each in plaintexts.items()}
        return message | {"inner": message["inner"] | {"place": place_among(numbers, client_id)}}

    def _work(
        self, message: Tree, client: Client, client_state: Tree, stream: Rng
    ) -> tuple[Update, Tree]:
        """Local work of the method, checked here because nobody can check it under a mask."""
        inner = message["inner"]
        update, client_state = self.inner.local_update(inner, client, client_state, stream)
        template = self.inner.template(inner)
        expected = None if template is None else tree.signature(template)
        fault = find_update_fault(update, client_state, expected, self.inner.aggregator)
        if fault is not None:
            raise ValueError(fault)
        return update, client_state

    def _masked(
        self,
        update: Update,
        others: list[int],
        roster: Roster,
        own: Tree,
        client_id: int,
        agreed: bytes,
    ) -> Tree:
        aggregator = self.inner.aggregator
        if not isinstance(aggregator, Additive):
            raise ValueError(f"a secure sum needs an aggregator that sums, got {aggregator}")
        summand = aggregator.to_summand(update)
        weight = torch.tensor([update.weight], dtype=torch.float64)
        mask_key = Agreement(to_bytes(own["mask"]))
        seeds = [
            (pair_sign(client_id, i), mask_seed(roster, mask_key, other=i, agreed=agreed))
            for i in others
        ]
        # Without the self-mask, a server that calls a slow client lost would learn its mask key and
        # then read the vector that arrives late.
        seeds.append((1, to_bytes(own["seed"])))
        content: Tree = {"form": form_of(aggregator.form(update.payload), summand)}
        named = {"sums": summand, "weight": {"weight": weight}}
        for stream, (name, code) in enumerate(zip(named, self._codes, strict=True)):
            limbs = encode_tree(named[name], code, roster.size)
            limbs += torch.from_numpy(sum_masks(seeds, code.modulus, len(limbs), stream=stream))
            packed = pack(reduce_limbs(limbs, code.modulus).numpy(), code.modulus)
            content[name] = torch.from_numpy(packed)
        return content

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        self.require(len(total.clients), server_state, "sent a masked vector")
        return server_state | {
            "stage": ConsistencyCheck.stage,
            "total": total.payload,
            "broadcast": total.payload["broadcast"],
            "survivors": listed_ids(total.clients, Roster.read(server_state["roster"])),
        }


def broadcast_digest(message: Tree, client: Client, rng: Rng, *, ordered: bool) -> bytes:
    """Digest of 32 bytes of everything that the server sends for a client's local work.

    It covers the method's message, the facts about the federation and the random stream, as the
    client received them. It is the same for all clients, so the own id is left out, and so is the
    place, which clients with an order find themselves. The seed of the stream is left out, too: at
    a node it is a secret of the node.

    Args:
        message: Message of :class:`MaskedInput`.
        client: The client that received it.
        rng: Random stream of the client in this exchange.
        ordered: True if the clients agree on an order.
    """
    inner = message["inner"]
    if ordered:
        inner = {name: leaf for name, leaf in inner.items() if name != "place"}
    path = rng.path[:-2] if rng.path[-2:] == ("client", client.id) else rng.path
    context = {"turn": message["turn"], "meta": repr(client.meta), "path": repr(path)}
    return tree_digest({"inner": inner, **context})


def _in_the_clear(rng: Rng, turn: int) -> Rng:
    """Random stream that the client would have without the secure sum.

    Args:
        rng: Random stream of this exchange.
        turn: Number of the exchange in the method without the secure sum.
    """
    if "exchange" not in rng.path:
        return rng
    place = len(rng.path) - rng.path[::-1].index("exchange")
    return dataclasses.replace(rng, path=(*rng.path[:place], turn, *rng.path[place + 1 :]))


def _place_in_run(stream: Rng, turn: int) -> tuple[int, int]:
    """Round and turn in the name of a stream: those of two sums differ, or their streams are one.

    Args:
        stream: Random stream of the local work.
        turn: Number of the exchange in the method without the secure sum.

    Raises:
        ValueError: If one of them is not an integer.
    """
    path = stream.path
    round = path[path.index("round") + 1] if "round" in path[:-1] else 0
    turn = turn if "exchange" in path else 0  # another turn would not be another stream
    if type(round) is not int or type(turn) is not int:
        raise ValueError(f"round and turn must be integers, got {round!r:.80} and {turn!r:.80}")
    return round, turn


@dataclass(frozen=True)
class ConsistencyCheck(SecureExchange):
    """Every client's signature of the list of clients in the sum, and of the broadcast.

    A client that received another broadcast than ``threshold`` others returns no share later.
    """

    stage = "survivors"
    after = ("sums",)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "survivors": server_state["survivors"]}

    @override
    def template(self, message: Tree) -> Tree:
        return {
            "survivors": message["survivors"],
            "broadcast": torch.zeros(KEY_BYTES, dtype=torch.uint8),
            "signature": torch.zeros(SIGNATURE_BYTES, dtype=torch.uint8),
        }

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state["secure"]
        roster = Roster.read(own["roster"])
        least = self.protocol.least(client.meta.num_clients)
        among = own["sharers"].tolist()
        survivors = ids_of(
            message["survivors"], among, least=least, own=client.id, what="are in the sum"
        )
        last = read_ids(own["members"]) if "members" in own else survivors
        moved = set(survivors) ^ set(last)
        if moved and len(moved) < self.protocol.least_change:
            raise ValueError(
                f"the clients in the sum differ from those of the last one by {len(moved)} clients"
            )
        kept = {**own, "stage": self.stage, "survivors": listed_ids(survivors, roster)}
        kept["members"] = kept["survivors"]
        content = {name: kept[name] for name in AGREED}
        return self.sign(content, roster, client, own), {**client_state, "secure": kept}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        found = {
            client_id: payload["signature"]
            for client_id, payload in self.authentic(
                total, Roster.read(server_state["roster"])
            ).items()
            if all(torch.equal(payload[name].cpu(), server_state[name].cpu()) for name in AGREED)
        }
        self.require(len(found), server_state, "agreed on who is in the sum and on the broadcast")
        roster = Roster.read(server_state["roster"])
        return server_state | {
            "stage": "unmasking" if roster.graph is None else "witnesses",
            "witnesses": listed_ids(list(found), roster),
            "signatures": torch.stack(list(found.values())),
        }
