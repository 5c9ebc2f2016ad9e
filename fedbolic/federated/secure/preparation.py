"""First exchanges of a secure sum: public keys, then shares of two secrets of every client."""

import dataclasses
import hashlib
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.secure.exchange import PROGRESS, SecureExchange
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    SIGNATURE_BYTES,
    Agreement,
    derive,
    new_secret,
    seal,
)
from fedbolic.federated.secure.roster import (
    CARD_BYTES,
    Roster,
    has_keys,
    ids_tensor,
    is_genuine,
    make_card,
    number,
    to_bytes,
    to_tensor,
)
from fedbolic.federated.secure.shamir import SHARE_BYTES, split_secret
from fedbolic.federated.updates.update import AggregatedUpdate, Update

CIPHERTEXT_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""Length of a ciphertext with one share of a mask key and one share of a self-mask seed.

If clients agree on an order, a ciphertext is longer by a number of ``KEY_BYTES`` bytes.
"""


@dataclass(frozen=True)
class AdvertiseKeys(SecureExchange):
    """Every client's fresh public keys, signed with its long-term key."""

    stage = "cards"
    # a new sum discards the secrets of an earlier sum that did not finish
    after = ("over", "cards", "shares", "sums", "survivors")

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, cohort=self.inner.traits.cohort)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "session": server_state["session"]}

    @override
    def template(self, message: Tree) -> Tree:
        return {"card": torch.zeros(CARD_BYTES, dtype=torch.uint8)}

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own, session = client_state.get("secure", {}), message["session"]
        if session <= own.get("session", 0):
            raise ValueError(f"secure sum {session} is not newer than the previous one: a replay")
        signer, cipher, mask = self.protocol.signer(own, client.id), new_secret(), new_secret()
        card = make_card(session, client.id, cipher=cipher, mask=mask, signer=signer)
        kept = {name: own[name] for name in PROGRESS if name in own}
        kept |= {"known": own.get("known", {}), "session": session, "stage": self.stage}
        secret = {"own_card": card, "cipher": cipher, "mask": mask}
        if self.protocol.keys is None:
            secret["signer"] = signer
        kept |= {name: to_tensor(value) for name, value in secret.items()}
        return Update({"card": to_tensor(card)}), {**client_state, "secure": kept}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        cards = {i: to_bytes(total.payload[str(i)]["card"]) for i in total.clients}
        genuine = {i: c for i, c in cards.items() if is_genuine(c, server_state["session"], i)}
        genuine = {i: c for i, c in genuine.items() if has_keys(c)}
        for client_id in sorted(cards.keys() - genuine.keys()):
            logger.warning("client %d is left out: its card has no valid signature or no valid "
                           "keys", client_id)  # fmt: skip
        self.require(len(genuine), server_state, "showed a card")
        roster = Roster(server_state["session"], tuple(genuine), tuple(genuine.values()))
        return server_state | {"stage": ShareKeys.stage, "roster": roster.tree()}


@dataclass(frozen=True)
class ShareKeys(SecureExchange):
    """Shares of two secrets of every client, sealed for each other client.

    The secrets are its mask key and its self-mask seed. If the clients agree on an order, each
    ciphertext also carries a number that only clients may know.
    """

    stage = "shares"
    after = ("cards",)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "roster": server_state["roster"]}

    @override
    def template(self, message: Tree) -> Tree:
        size = len(message["roster"]["members"])
        shapes = {
            "commitment": (KEY_BYTES,),
            "ciphertexts": (size, self._ciphertext_bytes),
            "signature": (SIGNATURE_BYTES,),
        }
        return {name: torch.zeros(shape, dtype=torch.uint8) for name, shape in shapes.items()}

    @property
    def _ciphertext_bytes(self) -> int:
        return CIPHERTEXT_BYTES + (KEY_BYTES if self.protocol.ordered else 0)

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own, roster = client_state["secure"], Roster.read(message["roster"])
        if roster.session != own["session"]:
            raise ValueError("the roster belongs to another secure sum")
        if roster.cards[roster.index(client.id)] != to_bytes(own["own_card"]):
            raise ValueError("the roster has another card of this client than the one it sent")
        self.protocol.check(roster, own, client)
        seed = new_secret()
        plaintexts = self._plaintexts(seed, roster, own, client)
        sealed, opening = self._sealed(plaintexts, roster, to_bytes(own["cipher"]), client.id)
        content = {
            "commitment": to_tensor(commitment(seed, roster)),
            "ciphertexts": to_tensor(sealed).reshape(-1, self._ciphertext_bytes),
        }
        known = {str(i): to_tensor(roster.identity(i)) for i in roster.members}
        kept = {name: leaf for name, leaf in own.items() if name != "cipher"} | {
            "stage": self.stage,
            "known": {**own["known"], **known} if self.protocol.keys is None else {},
            "roster": tree.clone(message["roster"]),
            "opening": to_tensor(opening).reshape(-1, KEY_BYTES),
            "seed": to_tensor(seed),
            "own_plaintext": to_tensor(plaintexts[client.id]),
        }
        return self.sign(content, roster, client, own), {**client_state, "secure": kept}

    def _plaintexts(
        self, seed: bytes, roster: Roster, own: Tree, client: Client
    ) -> dict[int, bytes]:
        """Plaintext for each member: two shares, and the number that sets this client's place."""
        points = [i + 1 for i in roster.members]
        least = self.protocol.least(client.meta.num_clients)
        of_key = split_secret(to_bytes(own["mask"]), points, least)
        of_seed = split_secret(seed, points, least)
        drawn = new_secret() if self.protocol.ordered else b""
        shares = zip(roster.members, of_key, of_seed, strict=True)
        return {i: key_share + seed_share + drawn for i, key_share, seed_share in shares}

    def _sealed(
        self, plaintexts: dict[int, bytes], roster: Roster, secret: bytes, client_id: int
    ) -> tuple[bytes, bytes]:
        """Ciphertexts in the order of members, and the keys that open theirs to this client.

        Zeros are in the place of the sender. One key agreement serves both directions.
        """
        sealed, opening, own = [], [], Agreement(secret)
        for other, plaintext in plaintexts.items():
            if other == client_id:
                sealed.append(bytes(self._ciphertext_bytes))
                opening.append(bytes(KEY_BYTES))
            else:
                common = own.with_party(roster.cipher_key(other))
                key = ciphertext_key(roster, common, sender=client_id, receiver=other)
                sealed.append(seal(key, plaintext))
                opening.append(ciphertext_key(roster, common, sender=other, receiver=client_id))
        return b"".join(sealed), b"".join(opening)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        found = self.authentic(total, Roster.read(server_state["roster"]))
        self.require(len(found), server_state, "shared their secrets")
        return server_state | {
            "stage": "sums",
            "sharers": ids_tensor(list(found)),
            "ciphertexts": torch.stack([payload["ciphertexts"] for payload in found.values()]),
            "commitments": torch.stack([payload["commitment"] for payload in found.values()]),
        }


def ciphertext_key(roster: Roster, common: bytes, *, sender: int, receiver: int) -> bytes:
    """Key of the ciphertexts from one member to another.

    With one key for both directions, the server could return a client its own ciphertext.

    Args:
        roster: Roster of this secure sum.
        common: What the keys for ciphertexts of both agree on.
        sender: Id of the sender.
        receiver: Id of the receiver.
    """
    purpose = b"letter" + number(sender) + number(receiver)
    return derive(common, session=roster.name, purpose=purpose)


def commitment(seed: bytes, roster: Roster) -> bytes:
    """Binding and hiding commitment of a client to its self-mask seed.

    Args:
        seed: The seed, 32 secret bytes.
        roster: Roster of this secure sum.
    """
    return hashlib.sha256(b"fedbolic commitment" + roster.name + seed).digest()


def mask_seed(roster: Roster, own: Agreement, *, other: int, agreed: bytes) -> bytes:
    """Seed of the pairwise mask of two members that received the same sharers and the same work.

    Masks of members that received different ones do not cancel, and nobody can remove them. All
    clients of a readable sum have therefore computed the same order, from the same broadcast.

    Args:
        roster: Roster of this secure sum.
        own: Private key for masks of one of the two members.
        other: Id of the other member.
        agreed: What both received: the result of :meth:`Roster.among` for the sharers, followed by
            the digest of the broadcast.
    """
    return derive(own.with_party(roster.mask_key(other)), session=agreed, purpose=b"mask")
