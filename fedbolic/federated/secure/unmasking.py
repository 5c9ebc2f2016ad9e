"""Last exchanges of a secure sum: with neighbours a sample of signatures, and the unmasking."""

import dataclasses
import itertools
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.modular import reduce_limbs
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.secure.exchange import LASTING, SecureExchange, ids_of
from fedbolic.federated.secure.fixed_point import decode_tree
from fedbolic.federated.secure.keys import (
    KEY_BYTES,
    SIGNATURE_BYTES,
    Agreement,
    agreement_key,
    new_secret,
    read_identity,
)
from fedbolic.federated.secure.mask import sum_masks
from fedbolic.federated.secure.masked import pair_sign
from fedbolic.federated.secure.neighbours import TAG_BYTES, draw_places
from fedbolic.federated.secure.preparation import commitment, mask_seed
from fedbolic.federated.secure.roster import Roster, ids_tensor, read_ids, to_bytes, to_tensor
from fedbolic.federated.secure.shamir import SHARE_BYTES, join_shares
from fedbolic.federated.secure.summing import AGREED


@dataclass(frozen=True)
class SampleWitnesses(SecureExchange):
    """A sample of the signatures of the survivors, drawn when the server has shown their tags.

    With neighbours, a client checks a sample in place of all signatures. A tag that was shown
    before its client has signed is wrong, so a server that goes on with two lists is found out.
    """

    stage = "witnesses"
    after = ("survivors",)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        tags = server_state["signatures"][:, :TAG_BYTES]
        return {"stage": self.stage, "witnesses": server_state["witnesses"], "tags": tags}

    @override
    def template(self, message: Tree) -> Tree:
        lengths = {"sample": KEY_BYTES, "signature": SIGNATURE_BYTES}
        return {name: torch.zeros(n, dtype=torch.uint8) for name, n in lengths.items()}

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state["secure"]
        least = self.protocol.least(client.meta.num_clients)
        witnesses = ids_of(
            message["witnesses"],
            read_ids(own["survivors"]),
            least=least,
            own=-1,
            what="agreed on the survivors",
        )
        if message["tags"].shape != (len(witnesses), TAG_BYTES):
            raise ValueError(f"{len(witnesses)} clients agreed, and there are other tags")
        content = {"sample": to_tensor(new_secret())}
        kept = {**own, "stage": self.stage, "tags": message["tags"].clone(), **content}
        kept["witnesses"] = ids_tensor(witnesses)
        roster = Roster.read(own["roster"])
        return self.sign(content, roster, client, own), {**client_state, "secure": kept}

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        found = self.authentic(total, Roster.read(server_state["roster"]))
        self.require(len(found), server_state, "asked for signatures")
        samples = {str(i): payload["sample"] for i, payload in found.items()}
        return server_state | {"stage": Unmasking.stage, "samples": samples}


@dataclass(frozen=True)
class Unmasking(SecureExchange):
    """One share of every sender: of its self-mask seed if it is in the sum, else of its mask key.

    A client never returns both shares of one sharer: together they would unmask its vector.
    """

    stage = "unmasking"
    after = ("survivors", "witnesses")

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, evaluates=self.inner.traits.evaluates)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = {name: server_state[name] for name in ("stage", "witnesses", "signatures")}
        plan = self.protocol.plan(server_state["num_clients"])
        if plan is None:
            return message
        signatures = message["signatures"]
        if (seed := server_state["samples"].get(str(client_id))) is None:
            places = []
        else:
            places = draw_places(to_bytes(seed), len(signatures), plan.sample)
        return {"stage": self.stage, "signatures": signatures[places]}

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state["secure"]
        roster = Roster.read(own["roster"])
        survivors = read_ids(own["survivors"])
        # Without these signatures a server could call a sharer lost to some clients and present to
        # others, and so collect both of its secrets: its vector would lie open.
        for witness, signature in self._shown(message, own, survivors, client):
            agreed = {**{name: own[name] for name in AGREED}, "signature": signature}
            public = None if roster.graph is None else self._identity(witness)
            if not roster.is_signed("survivors", witness, agreed, public):
                raise ValueError(
                    f"client {witness} did not sign the survivors and the broadcast that this "
                    "client received"
                )
        there = set(survivors)
        given = [
            shares[SHARE_BYTES:] if i in there else shares[:SHARE_BYTES]
            for i, shares in zip(own["senders"].tolist(), map(to_bytes, own["shares"]), strict=True)
        ]
        content = {"shares": to_tensor(b"".join(given)).reshape(-1, SHARE_BYTES)}
        kept = {name: own[name] for name in LASTING if name in own}
        new = {"inner": own["inner"], "secure": kept}
        return self.sign(content, roster, client, own), new

    def _identity(self, client_id: int) -> bytes:
        if self.protocol.keys is None:
            raise ValueError("neighbours need the folder of keys")
        return read_identity(self.protocol.keys, client_id)

    def _shown(
        self, message: Tree, own: Tree, survivors: list[int], client: Client
    ) -> list[tuple[int, torch.Tensor]]:
        """Witnesses of the survivors and their signatures: all, or a sample with the right tags."""
        num_clients = client.meta.num_clients
        plan, signatures = self.protocol.plan(num_clients), message["signatures"]
        if plan is None:
            witnesses = ids_of(
                message["witnesses"],
                survivors,
                least=self.protocol.least(num_clients),
                own=-1,
                what="agreed on the survivors",
            )
            return list(zip(witnesses, signatures, strict=True))
        if own["stage"] != SampleWitnesses.stage:
            raise ValueError("the server has not shown the tags of signatures")
        witnesses, tags = own["witnesses"].tolist(), own["tags"]
        places = draw_places(to_bytes(own["sample"]), len(witnesses), plan.sample)
        if signatures.shape != (plan.sample, SIGNATURE_BYTES):
            raise ValueError(f"there must be {plan.sample} signatures")
        if not torch.equal(signatures[:, :TAG_BYTES], tags[places]):
            raise ValueError("a signature has another tag than the one that the server has shown")
        return [(witnesses[i], row) for i, row in zip(places, signatures, strict=True)]

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        roster, shared = Roster.read(server_state["roster"]), set(read_ids(server_state["sharers"]))
        found: dict[int, torch.Tensor] = {}
        for client_id, payload in self.authentic(total, roster).items():
            senders = [i for i in roster.senders(client_id) if i in shared]
            form = f"uint8[{len(senders)}, {SHARE_BYTES}]"
            if tree.signature(payload).get("shares") == form:
                found[client_id] = payload["shares"]
        self.require(len(found), server_state, "gave back shares")
        try:
            summed = self._unmasked(server_state, found, roster)
        except ValueError as error:
            raise RunStoppedError(f"nothing was summed: {error}") from error
        rest = {name: server_state[name] for name in ("num_clients", "session", "turn")}
        return rest | {
            "stage": "cards",
            "session": server_state["session"] + 1,
            "turn": 0 if self.traits.evaluates else server_state["turn"] + 1,
            "inner": self.inner.server_update(server_state["inner"], summed),
        }

    def _unmasked(
        self, server_state: Tree, found: Mapping[int, torch.Tensor], roster: Roster
    ) -> AggregatedUpdate:
        """Aggregated update of the method, from the unmasked sum."""
        survivors = tuple(read_ids(server_state["survivors"]))
        agreed = roster.among(read_ids(server_state["sharers"]))
        agreed += to_bytes(server_state["broadcast"])
        secrets = self._secrets(server_state, found, roster)
        # Pairwise masks among survivors have cancelled in the sum. What is left are the survivors'
        # self-masks, and their masks with lost sharers, whose own vectors did not arrive.
        seeds = [(1, secrets[i]) for i in survivors]
        for lost in secrets.keys() - set(survivors):
            mask_key, pairs = Agreement(secrets[lost]), roster.pairs(lost)
            seeds += [
                (pair_sign(i, lost), mask_seed(roster, mask_key, other=i, agreed=agreed))
                for i in survivors
                if i in pairs
            ]
        aggregator, sums = self.inner.aggregator, {}
        if not isinstance(aggregator, Additive):
            raise ValueError(f"a secure sum needs an aggregator that sums, got {aggregator}")
        codes = {"sums": self.protocol.code(aggregator), "weight": self.protocol.weight_code}
        for stream, (name, code) in enumerate(codes.items()):
            limbs = server_state["total"][name].cpu()
            # two vectors under one key stream would betray their difference
            mask = torch.from_numpy(sum_masks(seeds, code.modulus, len(limbs), stream=stream))
            sums[name] = reduce_limbs(limbs - mask, code.modulus)
        weight = codes["weight"].decode(sums["weight"], torch.float64).item()
        device = next((x.device for x in tree.tensors(server_state["inner"]).values()), "cpu")
        whole, like = decode_tree(
            sums["sums"], codes["sums"], server_state["total"]["form"], device
        )
        return AggregatedUpdate(aggregator.from_sum(whole, weight, like), weight, survivors)

    def _secrets(
        self, server_state: Tree, found: Mapping[int, torch.Tensor], roster: Roster
    ) -> dict[int, bytes]:
        """Self-mask seeds of survivors and mask keys of other sharers, joined from their shares."""
        least = self.protocol.num_shares(server_state["num_clients"])
        sharers, survivors = (
            read_ids(server_state["sharers"]),
            set(read_ids(server_state["survivors"])),
        )
        given = {i: iter(rows) for i, rows in sorted(found.items())}  # in the order of sharers
        secrets = {}
        for place, client_id in enumerate(sharers):
            # Any `least` shares give a secret. With all pairs, all secrets are joined from those of
            # the same clients, so the weights are computed once. A client's point is its id + 1; 0
            # is the secret's.
            shares = {
                i + 1: to_bytes(next(given[i])) for i in roster.holders(client_id) if i in given
            }
            secret = join_shares(dict(itertools.islice(shares.items(), least)))
            # shares carry no check: an altered one gives another secret, which its owner's
            # commitment or public key does not fit
            if client_id in survivors:
                whole = commitment(secret, roster) == to_bytes(server_state["commitments"][place])
            else:
                whole = agreement_key(secret) == roster.mask_key(client_id)
            if not whole:
                raise ValueError(f"a share of client {client_id}'s secret was altered")
            secrets[client_id] = secret
        return secrets
