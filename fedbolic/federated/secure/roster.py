"""Roster of a secure sum: signed public keys, and signatures bound to the sum."""

import dataclasses
import hashlib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fedbolic.core.tree_bytes import tree_digest
from fedbolic.core.types import Tree
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    Agreement,
    AlteredError,
    agreement_key,
    identity,
    is_signed,
    new_secret,
    sign,
)
from fedbolic.federated.secure.neighbours import DrawnGraph

CARD_BYTES = 3 * KEY_BYTES + 64
"""Length of a card: two public keys of the sum, the identity, and its signature."""

BARE_BYTES = 2 * KEY_BYTES
"""Length of the two public keys of the sum, the beginning of a card."""


def to_tensor(content: bytes) -> UInt8[Tensor, " n"]:
    """Bytes as a tensor, the form in which they travel in trees.

    Args:
        content: Any bytes.
    """
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def to_bytes(tensor: Tensor) -> bytes:
    """Bytes of a tensor, in memory order.

    Args:
        tensor: Tensor of any dtype.
    """
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def number(value: int) -> bytes:
    """An id or a count as 8 bytes.

    Args:
        value: At least 0.
    """
    return value.to_bytes(8)


def make_card(session: int, client_id: int, *, cipher: bytes, mask: bytes, signer: bytes) -> bytes:
    """Signed public keys of one client.

    Args:
        session: Number of the secure sum.
        client_id: Id of the client.
        cipher: Private key for ciphertexts.
        mask: Private key for pairwise masks.
        signer: Private key of the identity.
    """
    shown = agreement_key(cipher) + agreement_key(mask) + identity(signer)
    return shown + sign(signer, _card_statement(session, client_id, shown))


def _card_statement(session: int, client_id: int, shown: bytes) -> bytes:
    return b"fedbolic secure sum card" + number(session) + number(client_id) + shown


@dataclass(frozen=True)
class Roster:
    """Clients of one secure sum with their cards, as the server sent them.

    Args:
        session: Number of the secure sum.
        members: Ids of the clients, ascending.
        cards: Cards of the clients, in the same order.
        graph: Neighbours that clients have drawn; a client knows its own only, and its roster has
            no members but itself and its neighbours. ``None`` for all pairs.

    Raises:
        ValueError: If the ids are not ascending, or a client does not have exactly one card.
    """

    session: int
    members: tuple[int, ...]
    cards: tuple[bytes, ...]
    graph: DrawnGraph | None = None

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)) or min(self.members, default=0) < 0:
            raise ValueError(f"members must be different and ascending, got {self.members}")
        if [len(card) for card in self.cards] != [CARD_BYTES] * len(self.members):
            raise ValueError(f"a roster needs one card of {CARD_BYTES} bytes for each member")

    @classmethod
    def read(cls, shown: Tree) -> "Roster":
        """Roster from a tree.

        Args:
            shown: Tree with ``session``, ``members``, ``cards`` and perhaps ``graph``.
        """
        cards = tuple(to_bytes(card) for card in shown["cards"])
        graph = DrawnGraph.read(shown["graph"]) if "graph" in shown else None
        return cls(shown["session"], tuple(shown["members"].tolist()), cards, graph)

    def tree(self) -> Tree:
        """The roster as a tree."""
        found: Tree = {
            "session": self.session,
            "members": ids_tensor(self.members),
            "cards": to_tensor(b"".join(self.cards)).reshape(-1, CARD_BYTES),
        }
        return found if self.graph is None else found | {"graph": self.graph.tree()}

    def pairs(self, client_id: int) -> set[int]:
        """Members with whom a client has a pairwise mask, and perhaps the client itself.

        Args:
            client_id: Id of the client.
        """
        return {*self.holders(client_id), *self.senders(client_id)}

    @property
    def size(self) -> int:
        """Largest number of clients in the sum."""
        return len(self.members) if self.graph is None else self.graph.num_clients

    def holders(self, client_id: int) -> list[int]:
        """Members with a card that hold shares of a client's secrets, ascending.

        Args:
            client_id: Id of the client.
        """
        if self.graph is None:
            return list(self.members)
        return [i for i in self.graph.holders[client_id] if i in self._places]

    def senders(self, client_id: int) -> list[int]:
        """Members whose shares a client holds, ascending.

        Args:
            client_id: Id of the client.
        """
        if self.graph is None:
            return list(self.members)
        return self.graph.senders.get(client_id, [])

    @cached_property
    def name(self) -> bytes:
        """Digest of 32 bytes that identifies this roster; with neighbours, the sum alone."""
        if self.graph is not None:
            sizes = number(self.session) + number(self.graph.num_clients)
            return hashlib.sha256(b"fedbolic neighbours" + sizes).digest()
        shown = zip(self.members, self.cards, strict=True)
        content = b"".join(number(client_id) + card for client_id, card in shown)
        return hashlib.sha256(b"fedbolic roster" + number(self.session) + content).digest()

    def among(self, ids: Sequence[int]) -> bytes:
        """Digest of 32 bytes that identifies a subset of the members of this roster.

        Args:
            ids: Ids of the subset, ascending.
        """
        content = b"".join(map(number, ids))
        return hashlib.sha256(b"fedbolic members" + self.name + content).digest()

    def index(self, client_id: int) -> int:
        """Position of a member in the roster.

        Args:
            client_id: Id of the member.

        Raises:
            ValueError: If the client is not a member.
        """
        if client_id not in self._places:
            raise ValueError(f"client {client_id} is not among the members of this secure sum")
        return self._places[client_id]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client_id: i for i, client_id in enumerate(self.members)}

    def cipher_key(self, client_id: int) -> bytes:
        """Public key for ciphertexts to a member.

        Args:
            client_id: Id of the member.
        """
        return self.cards[self.index(client_id)][:KEY_BYTES]

    def mask_key(self, client_id: int) -> bytes:
        """Public key for pairwise masks with a member.

        Args:
            client_id: Id of the member.
        """
        return self.cards[self.index(client_id)][KEY_BYTES : 2 * KEY_BYTES]

    def identity(self, client_id: int) -> bytes:
        """Public key that verifies signatures of a member.

        Args:
            client_id: Id of the member.
        """
        return self.cards[self.index(client_id)][2 * KEY_BYTES : 3 * KEY_BYTES]

    def part(self, ids: Collection[int]) -> "Roster":
        """The roster of some of the members.

        Args:
            ids: Their ids.
        """
        kept = [(i, c) for i, c in zip(self.members, self.cards, strict=True) if i in ids]
        return dataclasses.replace(self, members=tuple(i for i, _ in kept),
                                   cards=tuple(card for _, card in kept))  # fmt: skip

    def forged(self) -> list[int]:
        """Members whose card does not carry their signature for this session."""
        return [
            client_id
            for client_id, card in zip(self.members, self.cards, strict=True)
            if not is_genuine(card, self.session, client_id)
        ]

    def signed(self, kind: str, client_id: int, content: Tree, *, signer: bytes) -> Tree:
        """A payload with the signature of its sender.

        Args:
            kind: Kind of message, the stage of its exchange.
            client_id: Id of the sender.
            content: The payload.
            signer: Private key of the sender.
        """
        statement = self._statement(kind, client_id, tree_digest(content))
        return content | {"signature": to_tensor(sign(signer, statement))}

    def is_signed(
        self, kind: str, client_id: int, payload: Tree, public: bytes | None = None
    ) -> bool:
        """True if this member signed a payload, for this roster and this kind of message.

        Args:
            kind: Kind of message, the stage of its exchange.
            client_id: Id of the alleged sender.
            payload: Payload as received.
            public: Its identity; ``None`` for that on its card.
        """
        signature = payload.get("signature")
        if not isinstance(signature, Tensor):
            return False
        content = {name: leaf for name, leaf in payload.items() if name != "signature"}
        try:
            statement = self._statement(kind, client_id, tree_digest(content))
        except ValueError:  # no tree that a client could have signed
            return False
        public = self.identity(client_id) if public is None else public
        return is_signed(public, statement, to_bytes(signature))

    def _statement(self, kind: str, client_id: int, content: bytes) -> bytes:
        return f"fedbolic secure sum {kind} ".encode() + self.name + number(client_id) + content

    def check_identities(self, known: Callable[[int], bytes | None]) -> None:
        """Refuse a roster in which the identity of a member is not the known one.

        Args:
            known: Maps a client id to its known identity; ``None`` if it is not known yet.

        Raises:
            ValueError: If an identity differs from the known one.
        """
        others = [i for i in self.members if known(i) not in (None, self.identity(i))]
        if others:
            raise ValueError(
                f"clients {others} show another long-term key than the known one: somebody may "
                "impersonate them"
            )


def is_genuine(card: bytes, session: int, client_id: int) -> bool:
    """True if a card is signed by the identity on it, for this session and client.

    Args:
        card: Card as received.
        session: Number of the secure sum.
        client_id: Id of the alleged sender.
    """
    shown, signature = card[: 3 * KEY_BYTES], card[3 * KEY_BYTES :]
    statement = _card_statement(session, client_id, shown)
    return is_signed(shown[2 * KEY_BYTES :], statement, signature)


def has_keys(card: bytes) -> bool:
    """True if the two public keys of a card differ and are valid for key agreement.

    Every client refuses a roster with any other card.

    Args:
        card: Card as received.
    """
    keys = card[:KEY_BYTES], card[KEY_BYTES : 2 * KEY_BYTES]
    party = Agreement(new_secret())
    try:
        for key in keys:
            party.with_party(key)
    except AlteredError:
        return False
    return keys[0] != keys[1]


def ids_tensor(ids: tuple[int, ...] | list[int]) -> Int64[Tensor, " n"]:
    """Client ids as a tensor, the form in which they travel in trees.

    Args:
        ids: Any client ids.
    """
    return torch.tensor(ids, dtype=torch.int64)


def listed_ids(ids: tuple[int, ...] | list[int], roster: Roster) -> Tensor:
    """Ids of many clients as a tensor: with neighbours, one bit for each client of the federation.

    Args:
        ids: Ids, ascending.
        roster: Roster of the secure sum.
    """
    if roster.graph is None:
        return ids_tensor(ids)
    there = np.zeros(roster.graph.num_clients, dtype=bool)
    there[list(ids)] = True
    return torch.from_numpy(np.packbits(there))


def read_ids(tensor: Tensor) -> list[int]:
    """Ids from a result of :func:`listed_ids`.

    Args:
        tensor: Ids, or bits.
    """
    if tensor.dtype != torch.uint8:
        return tensor.tolist()
    return np.flatnonzero(np.unpackbits(tensor.cpu().numpy())).tolist()
