"""Before anything is summed: cards with public keys, and shares of two secrets of every client."""

import hashlib
import logging
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.federated.method import Cohort, Total, Update
from fedbolic.federated.secure.exchange import Exchange
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    SIGNATURE_BYTES,
    agree,
    new_secret,
    seal,
)
from fedbolic.federated.secure.roster import (
    CARD_BYTES,
    Roster,
    ids_tensor,
    is_genuine,
    make_card,
    number,
    to_bytes,
    to_tensor,
)
from fedbolic.federated.secure.shamir import SHARE_BYTES, split_secret
from fedbolic.rng import Rng
from fedbolic.types import Tree

logger = logging.getLogger("fedbolic")

LETTER_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""A sealed letter with a share of the key of masks and one of the own mask's seed."""


@dataclass(frozen=True)
class Cards(Exchange):
    """Every client's fresh public keys, signed with its long-term key."""

    stage = "cards"
    # whatever is left of an earlier sum that was broken off is given up
    after = ("over", "cards", "shares", "sums", "survivors")

    @property
    @override
    def cohort(self) -> Cohort:
        return self.inner.cohort

    @override
    def broadcast(self, state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "session": state["session"]}

    @override
    def template(self, message: Tree) -> Tree:
        return {"card": torch.zeros(CARD_BYTES, dtype=torch.uint8)}

    @override
    def answer(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> tuple[Update, Tree]:
        own, session = memory.get("secure", {}), message["session"]
        if session <= own.get("session", 0):
            raise ValueError(f"secure sum {session} is not newer than the last: a replay")
        signer, cipher, mask = self.protocol.signer(own, client.id), new_secret(), new_secret()
        card = make_card(session, client.id, cipher=cipher, mask=mask, signer=signer)
        kept = {"known": own.get("known", {}), "session": session, "stage": self.stage}
        secret = {"own_card": card, "cipher": cipher, "mask": mask}
        if self.protocol.keys is None:
            secret["signer"] = signer
        kept |= {name: to_tensor(value) for name, value in secret.items()}
        return Update({"card": to_tensor(card)}), {**memory, "secure": kept}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        cards = {i: to_bytes(total.payload[str(i)]["card"]) for i in total.clients}
        genuine = {i: c for i, c in cards.items() if is_genuine(c, state["session"], i)}
        for client_id in sorted(cards.keys() - genuine.keys()):
            logger.warning("client %d is left out: its card is not signed", client_id)
        self.require(len(genuine), state, "showed a card")
        roster = Roster(state["session"], tuple(genuine), tuple(genuine.values()))
        return state | {"stage": Shares.stage, "roster": roster.tree()}


@dataclass(frozen=True)
class Shares(Exchange):
    """Shares of two secrets of every client, sealed for every other: of its key, of its mask."""

    stage = "shares"
    after = ("cards",)

    @override
    def broadcast(self, state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "roster": state["roster"]}

    @override
    def template(self, message: Tree) -> Tree:
        size = len(message["roster"]["members"])
        shapes = {
            "commitment": (KEY_BYTES,),
            "letters": (size, LETTER_BYTES),
            "signature": (SIGNATURE_BYTES,),
        }
        return {name: torch.zeros(shape, dtype=torch.uint8) for name, shape in shapes.items()}

    @override
    def answer(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> tuple[Update, Tree]:
        own, roster = memory["secure"], Roster.read(message["roster"])
        if roster.session != own["session"]:
            raise ValueError("the roster is of another secure sum")
        if roster.cards[roster.index(client.id)] != to_bytes(own["own_card"]):
            raise ValueError("the roster shows another card of this client than its own")
        self.protocol.check(roster, own, client)
        seed, points = new_secret(), [i + 1 for i in roster.members]
        least = self.protocol.least(client.meta.num_clients)
        parts = zip(
            split_secret(to_bytes(own["mask"]), points, least),
            split_secret(seed, points, least),
            strict=True,
        )
        letters, own_shares = [], b""
        for receiver, (of_key, of_seed) in zip(roster.members, parts, strict=True):
            if receiver == client.id:
                own_shares = of_key + of_seed
                letters.append(bytes(LETTER_BYTES))
            else:
                secret = to_bytes(own["cipher"])
                key = letter_key(roster, secret, own=client.id, sender=client.id, receiver=receiver)
                letters.append(seal(key, of_key + of_seed))
        content = {
            "commitment": to_tensor(commitment(seed, roster)),
            "letters": to_tensor(b"".join(letters)).reshape(-1, LETTER_BYTES),
        }
        known = {str(i): to_tensor(roster.identity(i)) for i in roster.members}
        kept = {
            **own,
            "stage": self.stage,
            "known": {**own["known"], **known} if self.protocol.keys is None else {},
            "roster": tree.clone(message["roster"]),
            "seed": to_tensor(seed),
            "own_shares": to_tensor(own_shares),
        }
        return self.sign(content, roster, client, own), {**memory, "secure": kept}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        found = self.authentic(total, Roster.read(state["roster"]))
        self.require(len(found), state, "shared their secrets")
        return state | {
            "stage": "sums",
            "sharers": ids_tensor(list(found)),
            "letters": torch.stack([payload["letters"] for payload in found.values()]),
            "commitments": torch.stack([payload["commitment"] for payload in found.values()]),
        }


def letter_key(roster: Roster, secret: bytes, *, own: int, sender: int, receiver: int) -> bytes:
    """The key of letters from one member to another.

    Args:
        roster: Of this secure sum.
        secret: The private key for letters of one of them.
        own: Whose that is.
        sender: From whom.
        receiver: To whom.
    """
    other = roster.cipher_key(receiver if own == sender else sender)
    purpose = b"letter" + number(sender) + number(receiver)
    return agree(secret, other, session=roster.name, purpose=purpose)


def commitment(seed: bytes, roster: Roster) -> bytes:
    """What a client shows of its own mask's seed, which is bound to it and tells nothing of it.

    Args:
        seed: 32 secret bytes.
        roster: Of this secure sum.
    """
    return hashlib.sha256(b"fedbolic commitment" + roster.name + seed).digest()


def mask_seed(roster: Roster, secret: bytes, other: int) -> bytes:
    """The seed of the mask that two members have in common.

    Args:
        roster: Of this secure sum.
        secret: The private key for masks of one of them.
        other: The other.
    """
    return agree(secret, roster.mask_key(other), session=roster.name, purpose=b"mask")
