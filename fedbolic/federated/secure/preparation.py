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
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.secure.exchange import PROGRESS, SecureExchange, ids_of
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    SEAL_BYTES,
    SIGNATURE_BYTES,
    Agreement,
    derive,
    new_secret,
    seal,
)
from fedbolic.federated.secure.neighbours import DrawnGraph
from fedbolic.federated.secure.roster import (
    BARE_BYTES,
    CARD_BYTES,
    Roster,
    has_keys,
    ids_tensor,
    is_genuine,
    listed_ids,
    make_card,
    number,
    to_bytes,
    to_tensor,
)
from fedbolic.federated.secure.shamir import SHARE_BYTES, split_secret

CIPHERTEXT_BYTES = 2 * SHARE_BYTES + SEAL_BYTES
"""Length of a ciphertext with one share of a mask key and one share of a self-mask seed.

If clients agree on an order, a ciphertext is longer by a number of ``KEY_BYTES`` bytes.
"""


@dataclass(frozen=True)
class AdvertiseKeys(SecureExchange):
    """Every client's fresh public keys, signed with its long-term key."""

    stage = "cards"
    # a new sum discards the secrets of an earlier sum that did not finish
    after = ("over", "cards", "shares", "sums", "survivors", "witnesses")

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, cohort=self.inner.traits.cohort)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return {"stage": self.stage, "session": server_state["session"]}

    @override
    def template(self, message: Tree) -> Tree:
        lengths = {"card": CARD_BYTES}
        if self.protocol.neighbours is not None:
            lengths["draw"] = KEY_BYTES
        return {name: torch.zeros(n, dtype=torch.uint8) for name, n in lengths.items()}

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
        shown = {"card": to_tensor(card)}
        if self.protocol.neighbours is not None:
            shown["draw"] = kept["draw"] = to_tensor(new_secret())
        return Update(shown), {**client_state, "secure": kept}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        cards = {i: to_bytes(total.payload[str(i)]["card"]) for i in total.clients}
        genuine = {i: c for i, c in cards.items() if is_genuine(c, server_state["session"], i)}
        genuine = {i: c for i, c in genuine.items() if has_keys(c)}
        for client_id in sorted(cards.keys() - genuine.keys()):
            logger.warning("client %d is left out: its card has no valid signature or no valid "
                           "keys", client_id)  # fmt: skip
        self.require(len(genuine), server_state, "showed a card")
        graph, num_clients = None, server_state["num_clients"]
        if (plan := self.protocol.plan(num_clients)) is not None:
            draws = {i: to_bytes(total.payload[str(i)]["draw"]) for i in genuine}
            graph = DrawnGraph(num_clients, plan.degree, draws)
        roster = Roster(server_state["session"], tuple(genuine), tuple(genuine.values()), graph)
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
        roster = self.roster or Roster.read(server_state["roster"])
        if roster.graph is None:
            return {"stage": self.stage, "roster": server_state["roster"]}
        drawn = roster.part({client_id, *roster.holders(client_id)})
        senders = roster.part(set(roster.senders(client_id)))
        bare = to_tensor(b"".join(card[:BARE_BYTES] for card in senders.cards))
        return {
            "stage": self.stage,
            "roster": dataclasses.replace(drawn, graph=None).tree(),
            "senders": ids_tensor(senders.members),
            "keys": bare.reshape(-1, BARE_BYTES),
        }

    @override
    def template(self, message: Tree) -> Tree:
        size = len(message["roster"]["members"]) - ("senders" in message)
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
        own = client_state["secure"]
        roster, senders = self._received(message, own, client)
        if roster.session != own["session"]:
            raise ValueError("the roster belongs to another secure sum")
        if roster.cards[roster.index(client.id)] != to_bytes(own["own_card"]):
            raise ValueError("the roster has another card of this client than the one it sent")
        drawn = roster.part({client.id, *roster.holders(client.id)})
        self.protocol.check(drawn, own, client)
        seed = new_secret()
        plaintexts = self._plaintexts(seed, roster, own, client)
        sealed, opening = self._sealed(plaintexts, roster, to_bytes(own["cipher"]), client.id)
        content = {
            "commitment": to_tensor(commitment(seed, roster)),
            "ciphertexts": to_tensor(sealed).reshape(-1, self._ciphertext_bytes),
        }
        known = {str(i): to_tensor(roster.identity(i)) for i in drawn.members}
        kept = {name: leaf for name, leaf in own.items() if name != "cipher"} | {
            "stage": self.stage,
            "known": {**own["known"], **known} if self.protocol.keys is None else {},
            "roster": tree.clone(roster.tree()),
            "senders": ids_tensor(senders),
            "opening": to_tensor(opening).reshape(-1, KEY_BYTES),
            "seed": to_tensor(seed),
            "own_plaintext": to_tensor(plaintexts.get(client.id, b"")),
        }
        return self.sign(content, roster, client, own), {**client_state, "secure": kept}

    def _received(self, message: Tree, own: Tree, client: Client) -> tuple[Roster, list[int]]:
        """Roster of this client, and the ids of the clients whose shares it holds.

        With neighbours, the cards of those that it has drawn are signed. Of those that have drawn
        it, the public keys suffice: a false key makes the sum unreadable.
        """
        roster, num_clients = Roster.read(message["roster"]), client.meta.num_clients
        plan = self.protocol.plan(num_clients)
        if plan is None:
            return roster, list(roster.members)
        graph = DrawnGraph(num_clients, plan.degree, {client.id: to_bytes(own["draw"])})
        if strangers := set(roster.members) - {client.id, *graph.holders[client.id]}:
            raise ValueError(f"this client has not drawn {sorted(strangers)[:8]} as neighbours")
        senders = ids_of(
            message["senders"], range(num_clients), least=0, own=-1, what="have drawn this client"
        )
        if client.id in senders:
            raise ValueError("the server says that this client has drawn itself")
        bare = map(to_bytes, message["keys"])
        cards = {i: keys.ljust(CARD_BYTES, b"\0") for i, keys in zip(senders, bare, strict=True)}
        cards |= dict(zip(roster.members, roster.cards, strict=True))
        everybody = tuple(sorted(cards))
        local = Roster(roster.session, everybody, tuple(cards[i] for i in everybody), graph)
        return local, senders

    def _plaintexts(
        self, seed: bytes, roster: Roster, own: Tree, client: Client
    ) -> dict[int, bytes]:
        """Plaintext for each holder: two shares, and the number that sets this client's place."""
        holders = roster.holders(client.id)
        points = [i + 1 for i in holders]
        least = self.protocol.num_shares(client.meta.num_clients)
        of_key = split_secret(to_bytes(own["mask"]), points, least)
        of_seed = split_secret(seed, points, least)
        drawn = new_secret() if self.protocol.ordered else b""
        shares = zip(holders, of_key, of_seed, strict=True)
        return {i: key_share + seed_share + drawn for i, key_share, seed_share in shares}

    def _sealed(
        self, plaintexts: dict[int, bytes], roster: Roster, secret: bytes, client_id: int
    ) -> tuple[bytes, bytes]:
        """Ciphertexts in the order of holders, and the members' keys that open theirs.

        Zeros are in the place of the sender. One key agreement serves both directions.
        """
        sealed, opening, own = (
            dict.fromkeys(plaintexts, bytes(self._ciphertext_bytes)),
            [],
            Agreement(secret),
        )
        for other in roster.members:
            if other == client_id:
                opening.append(bytes(KEY_BYTES))
                continue
            common = own.with_party(roster.cipher_key(other))
            opening.append(ciphertext_key(roster, common, sender=other, receiver=client_id))
            if other in plaintexts:
                key = ciphertext_key(roster, common, sender=client_id, receiver=other)
                sealed[other] = seal(key, plaintexts[other])
        return b"".join(sealed.values()), b"".join(opening)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        roster = Roster.read(server_state["roster"])
        found = self.authentic(total, roster)
        self.require(len(found), server_state, "shared their secrets")
        ciphertexts = {str(i): payload["ciphertexts"] for i, payload in found.items()}
        return server_state | {
            "stage": "sums",
            "sharers": listed_ids(list(found), roster),
            "ciphertexts": ciphertexts if roster.graph else torch.stack([*ciphertexts.values()]),
            "commitments": torch.stack([payload["commitment"] for payload in found.values()]),
        }


def ciphertext_key(roster: Roster, common: bytes, *, sender: int, receiver: int) -> bytes:
    """Key of the ciphertexts from one member to another.

    With one key for both directions, the server could return a client its own ciphertext.

    Args:
        roster: Roster of this secure sum.
        common: Shared secret of their ciphertext keys.
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
        agreed: Values that both received: those of :meth:`Roster.among` for the sharers, then
            the digest of the broadcast.
    """
    return derive(own.with_party(roster.mask_key(other)), session=agreed, purpose=b"mask")
