"""Roster of a secure sum: signed public keys, and signatures bound to the sum."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Int64, UInt8
from torch import Tensor

from fedbolic import tree
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    AlteredError,
    agree,
    agreement_key,
    identity,
    is_signed,
    new_secret,
    sign,
)
from fedbolic.types import Tree

CARD_BYTES = 3 * KEY_BYTES + 64
"""Two public keys of the exchange, the identity, and its signature of them."""


def to_tensor(content: bytes) -> UInt8[Tensor, " n"]:
    """Bytes as they travel in trees.

    Args:
        content: Any.
    """
    return torch.from_numpy(np.frombuffer(content, dtype=np.uint8).copy())


def to_bytes(tensor: Tensor) -> bytes:
    """The bytes of a tensor, in memory order.

    Args:
        tensor: Of any type.
    """
    return tensor.detach().cpu().contiguous().numpy().tobytes()


def number(value: int) -> bytes:
    """An id or a count in 8 bytes.

    Args:
        value: From 0.
    """
    return value.to_bytes(8)


def digest(content: Tree) -> bytes:
    """SHA-256 of a tree: of names, types, shapes and values.

    Args:
        content: Tensors and strings, the leaves of a payload.

    Example:
        >>> digest({"a": torch.zeros(2)}) == digest({"a": torch.zeros(2, 1)})
        False
    """
    found = hashlib.sha256()
    for path, leaf in sorted(tree.leaves(content)):
        name = f"{path} {tree.signature({path: leaf})[path]}".encode()
        value = to_bytes(leaf) if isinstance(leaf, Tensor) else str(leaf).encode()
        found.update(number(len(name)) + name + number(len(value)) + value)
    return found.digest()


def make_card(session: int, client_id: int, *, cipher: bytes, mask: bytes, signer: bytes) -> bytes:
    """Signed public keys of one client.

    Args:
        session: The number of the secure sum.
        client_id: Whose.
        cipher: The private key of ciphertexts.
        mask: The private key of masks.
        signer: The private key of the identity.
    """
    shown = agreement_key(cipher) + agreement_key(mask) + identity(signer)
    return shown + sign(signer, _card_statement(session, client_id, shown))


def _card_statement(session: int, client_id: int, shown: bytes) -> bytes:
    return b"fedbolic secure sum card" + number(session) + number(client_id) + shown


@dataclass(frozen=True)
class Roster:
    """The clients of one secure sum with their cards, as the server shows them.

    Args:
        session: The number of the secure sum.
        members: Their ids, ascending.
        cards: In the same order.

    Raises:
        ValueError: If the ids are not ascending, or there is not one card for each.
    """

    session: int
    members: tuple[int, ...]
    cards: tuple[bytes, ...]

    def __post_init__(self) -> None:
        if list(self.members) != sorted(set(self.members)) or min(self.members, default=0) < 0:
            raise ValueError(f"members must be different and ascending, got {self.members}")
        if [len(card) for card in self.cards] != [CARD_BYTES] * len(self.members):
            raise ValueError(f"a roster needs a card of {CARD_BYTES} bytes of each member")

    @classmethod
    def read(cls, shown: Tree) -> "Roster":
        """The roster of a tree.

        Args:
            shown: With ``session``, ``members`` and ``cards``.
        """
        cards = tuple(to_bytes(card) for card in shown["cards"])
        return cls(shown["session"], tuple(shown["members"].tolist()), cards)

    def tree(self) -> Tree:
        """The roster as a tree."""
        return {
            "session": self.session,
            "members": ids_tensor(self.members),
            "cards": to_tensor(b"".join(self.cards)).reshape(-1, CARD_BYTES),
        }

    @cached_property
    def name(self) -> bytes:
        """32 bytes that stand for this roster and no other."""
        shown = zip(self.members, self.cards, strict=True)
        content = b"".join(number(client_id) + card for client_id, card in shown)
        return hashlib.sha256(b"fedbolic roster" + number(self.session) + content).digest()

    def among(self, ids: Sequence[int]) -> bytes:
        """32 bytes that stand for these members of this roster and no others.

        Args:
            ids: Theirs, ascending.
        """
        content = b"".join(map(number, ids))
        return hashlib.sha256(b"fedbolic members" + self.name + content).digest()

    def index(self, client_id: int) -> int:
        """The place of a member.

        Args:
            client_id: Its id.

        Raises:
            ValueError: If it is no member.
        """
        if client_id not in self._places:
            raise ValueError(f"client {client_id} is not among the members of this secure sum")
        return self._places[client_id]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {client_id: i for i, client_id in enumerate(self.members)}

    def cipher_key(self, client_id: int) -> bytes:
        """The public key for ciphertexts to a member.

        Args:
            client_id: Whose.
        """
        return self.cards[self.index(client_id)][:KEY_BYTES]

    def mask_key(self, client_id: int) -> bytes:
        """The public key for masks in common with a member.

        Args:
            client_id: Whose.
        """
        return self.cards[self.index(client_id)][KEY_BYTES : 2 * KEY_BYTES]

    def identity(self, client_id: int) -> bytes:
        """The key for signatures of a member.

        Args:
            client_id: Whose.
        """
        return self.cards[self.index(client_id)][2 * KEY_BYTES : 3 * KEY_BYTES]

    def forged(self) -> list[int]:
        """Members whose card does not carry their signature of this session."""
        return [
            client_id
            for client_id, card in zip(self.members, self.cards, strict=True)
            if not is_genuine(card, self.session, client_id)
        ]

    def signed(self, kind: str, client_id: int, content: Tree, *, signer: bytes) -> Tree:
        """A payload with its sender's signature.

        Args:
            kind: Of message.
            client_id: The sender.
            content: What it sends.
            signer: Its private key.
        """
        statement = self._statement(kind, client_id, digest(content))
        return content | {"signature": to_tensor(sign(signer, statement))}

    def is_signed(self, kind: str, client_id: int, payload: Tree) -> bool:
        """True if a payload of :meth:`signed` is what this member sent, here and as this kind.

        Args:
            kind: Of message.
            client_id: From whom it is said to be.
            payload: What came.
        """
        signature = payload.get("signature")
        if not isinstance(signature, Tensor):
            return False
        content = {name: leaf for name, leaf in payload.items() if name != "signature"}
        statement = self._statement(kind, client_id, digest(content))
        return is_signed(self.identity(client_id), statement, to_bytes(signature))

    def _statement(self, kind: str, client_id: int, content: bytes) -> bytes:
        return f"fedbolic secure sum {kind} ".encode() + self.name + number(client_id) + content

    def check_identities(self, known: Callable[[int], bytes | None]) -> None:
        """Refuse a roster in which a member has another identity than the one that is known.

        Args:
            known: The identity of a client; ``None``: not yet known.

        Raises:
            ValueError: Naming the members.
        """
        others = [i for i in self.members if known(i) not in (None, self.identity(i))]
        if others:
            raise ValueError(
                f"clients {others} show another long-term key than the one known of them: somebody "
                "plays their part"
            )


def is_genuine(card: bytes, session: int, client_id: int) -> bool:
    """True if a card is signed by the identity on it, for this session and client.

    Args:
        card: What came.
        session: Of which secure sum.
        client_id: From whom it is said to be.
    """
    shown, signature = card[: 3 * KEY_BYTES], card[3 * KEY_BYTES :]
    statement = _card_statement(session, client_id, shown)
    return is_signed(shown[2 * KEY_BYTES :], statement, signature)


def has_keys(card: bytes) -> bool:
    """True if the two public keys of a card differ and others can agree on secrets with it.

    With a card of others every client refuses the roster.

    Args:
        card: What came.
    """
    keys = card[:KEY_BYTES], card[KEY_BYTES : 2 * KEY_BYTES]
    try:
        for key in keys:
            agree(new_secret(), key, session=b"", purpose=b"")
    except AlteredError:
        return False
    return keys[0] != keys[1]


def ids_tensor(ids: tuple[int, ...] | list[int]) -> Int64[Tensor, " n"]:
    """Client ids as they travel in trees.

    Args:
        ids: Any.
    """
    return torch.tensor(ids, dtype=torch.int64)
