"""Last exchange of a secure sum: clients return shares, and the server removes the masks."""

import dataclasses
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
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.secure.exchange import LASTING, SecureExchange, ids_of
from fedbolic.federated.secure.fixed_point import decode_tree
from fedbolic.federated.secure.keys import Agreement, agreement_key
from fedbolic.federated.secure.mask import sum_masks
from fedbolic.federated.secure.masked import pair_sign
from fedbolic.federated.secure.preparation import commitment, mask_seed
from fedbolic.federated.secure.roster import Roster, to_bytes, to_tensor
from fedbolic.federated.secure.shamir import SHARE_BYTES, join_shares
from fedbolic.federated.secure.summing import AGREED
from fedbolic.federated.updates.update import AggregatedUpdate, Update


@dataclass(frozen=True)
class Unmasking(SecureExchange):
    """One share of every sharer: of its self-mask seed if it is in the sum, else of its mask key.

    A client never returns both shares of one sharer: together they would unmask its vector.
    """

    stage = "unmasking"
    after = ("survivors",)

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, evaluates=self.inner.traits.evaluates)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        names = ("stage", "witnesses", "signatures")
        return {name: server_state[name] for name in names}

    @override
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state["secure"]
        roster = Roster.read(own["roster"])
        least = self.protocol.least(client.meta.num_clients)
        survivors, sharers = own["survivors"].tolist(), own["sharers"].tolist()
        witnesses = ids_of(
            message["witnesses"], survivors, least=least, own=-1, what="agreed on the survivors"
        )
        # Without these signatures a server could call a sharer lost to some clients and present to
        # others, and so collect both of its secrets: its vector would lie open.
        for witness, signature in zip(witnesses, message["signatures"], strict=True):
            agreed = {**{name: own[name] for name in AGREED}, "signature": signature}
            if not roster.is_signed("survivors", witness, agreed):
                raise ValueError(
                    f"client {witness} did not sign the survivors and the broadcast that this "
                    "client received"
                )
        given = [
            shares[SHARE_BYTES:] if i in survivors else shares[:SHARE_BYTES]
            for i, shares in zip(sharers, map(to_bytes, own["shares"]), strict=True)
        ]
        content = {"shares": to_tensor(b"".join(given)).reshape(-1, SHARE_BYTES)}
        kept = {name: own[name] for name in LASTING if name in own}
        new = {"inner": own["inner"], "secure": kept}
        return self.sign(content, roster, client, own), new

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        roster = Roster.read(server_state["roster"])
        num_sharers = len(server_state["sharers"])
        found = {
            client_id: payload["shares"]
            for client_id, payload in self.authentic(total, roster).items()
            if tree.signature(payload).get("shares") == f"uint8[{num_sharers}, {SHARE_BYTES}]"
        }
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
        survivors = tuple(server_state["survivors"].tolist())
        agreed = roster.among(server_state["sharers"].tolist())
        agreed += to_bytes(server_state["broadcast"])
        secrets = self._secrets(server_state, found, roster)
        # Pairwise masks among survivors have cancelled in the sum. What is left are the survivors'
        # self-masks, and their masks with lost sharers, whose own vectors did not arrive.
        seeds = [(1, secrets[i]) for i in survivors]
        for lost in secrets.keys() - set(survivors):
            mask_key = Agreement(secrets[lost])
            seeds += [
                (pair_sign(i, lost), mask_seed(roster, mask_key, other=i, agreed=agreed))
                for i in survivors
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
        least = self.protocol.least(server_state["num_clients"])
        # Any `least` shares give a secret. All secrets are joined from those of the same clients,
        # so that the weights are computed once. A client's point is its id + 1; 0 is the secret's.
        responders = {client_id + 1: found[client_id] for client_id in sorted(found)[:least]}
        survivors, secrets = set(server_state["survivors"].tolist()), {}
        for place, client_id in enumerate(server_state["sharers"].tolist()):
            shares = {point: to_bytes(rows[place]) for point, rows in responders.items()}
            secret = join_shares(shares)
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
