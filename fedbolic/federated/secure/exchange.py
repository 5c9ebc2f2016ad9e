"""Settings and checks shared by the exchanges of a secure sum."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator, Gather
from fedbolic.federated.aggregators.modular import SumModulo
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.method import Method, Phase
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.secure.fixed_point import FixedPoint, Residues
from fedbolic.federated.secure.keys import new_secret, read_identity, read_secret
from fedbolic.federated.secure.neighbours import DegreePlan, NeighbourGraph
from fedbolic.federated.secure.roster import Roster, read_ids, to_bytes

WEIGHT_MODULUS = 2**62
"""Modulus of the sum of weights; it may be large, because each client sends only one weight."""

PROGRESS = ("round", "turn", "members")
"""Entries about the last sum to which a client has contributed, which limit the next one."""

LASTING = ("session", "signer", "known", *PROGRESS)
"""Entries that client state keeps after a secure sum has ended."""


@dataclass(frozen=True)
class Protocol:
    """Settings shared by all parties of a secure sum; see ``SecureSum`` for the arguments."""

    modulus: int
    threshold: int | None
    fraction_bits: int
    keys: Path | None
    ordered: bool
    """True if the clients agree on an order that the server does not know."""

    least_change: int = 1
    neighbours: NeighbourGraph | None = None

    def least(self, num_clients: int) -> int:
        """Threshold: the least number of clients with which anything is revealed.

        Args:
            num_clients: Number of clients of the whole federation.
        """
        if self.threshold is not None:
            return self.threshold
        if self.neighbours is not None:
            return self.neighbours.least(num_clients)
        return 2 * num_clients // 3 + 1

    def plan(self, num_clients: int) -> DegreePlan | None:
        """Numbers of a sum with neighbours; ``None`` for all pairs.

        Args:
            num_clients: Number of clients of the whole federation.
        """
        if self.neighbours is None:
            return None
        return self.neighbours.plan(num_clients, least=self.least(num_clients))

    def num_shares(self, num_clients: int) -> int:
        """Number of shares that give a secret.

        Args:
            num_clients: Number of clients of the whole federation.
        """
        plan = self.plan(num_clients)
        return self.least(num_clients) if plan is None else plan.threshold

    def code(self, aggregator: Aggregator) -> FixedPoint | Residues:
        """Encoding of the numbers of a summand as integers.

        Args:
            aggregator: Aggregator of the method.
        """
        if isinstance(aggregator, SumModulo):
            return Residues(aggregator.modulus)
        return FixedPoint(self.modulus, self.fraction_bits)

    @property
    def weight_code(self) -> FixedPoint:
        """Encoding of weights as integers."""
        return FixedPoint(WEIGHT_MODULUS, self.fraction_bits)

    def signer(self, own: Tree, client_id: int) -> bytes:
        """Long-term private key of a client: from its key file, from its client state, or new.

        Args:
            own: Entries of the client state that belong to secure sums.
            client_id: Id of the client.
        """
        if self.keys is not None:
            return read_secret(self.keys, client_id)
        return to_bytes(own["signer"]) if "signer" in own else new_secret()

    def check(self, roster: Roster, own: Tree, client: Client) -> None:
        """Refuse a roster under which a secret might leak.

        Args:
            roster: Roster that the server sent; with neighbours, the client and those that it has
                drawn.
            own: Entries of the client state that belong to secure sums.
            client: The client that checks.

        Raises:
            ValueError: If the roster has unknown clients, fewer clients than the threshold, equal
                public keys, a card with a wrong signature, or an identity other than the known one,
                or if the threshold is at most half of its clients.
        """
        size, num_clients = len(roster.members), client.meta.num_clients
        if strangers := [i for i in roster.members if i >= num_clients]:
            raise ValueError(f"the roster has clients {strangers[:8]} of only {num_clients}")
        least = self.least(num_clients)
        plan = self.plan(num_clients)
        if plan is not None:
            _check_enough(size - 1, plan.threshold, "may hold shares of this client")
        else:
            _check_enough(size, least, "show a card")
        if plan is None and 2 * least <= size:
            raise ValueError(
                f"a threshold of {least} is too low for {size} clients: the server could deceive "
                "two halves separately; use more than half, better 2/3"
            )
        shown = [roster.cipher_key(i) for i in roster.members]
        if len({*shown, *map(roster.mask_key, roster.members)}) < 2 * size:
            raise ValueError("the roster has the same public key twice")
        if forged := roster.forged():
            raise ValueError(f"the cards of clients {forged} are not signed by them for this sum")
        folder, seen = self.keys, own.get("known", {})
        if folder is not None:
            roster.check_identities(lambda i: read_identity(folder, i))
        else:
            roster.check_identities(lambda i: to_bytes(seen[str(i)]) if str(i) in seen else None)


def _check_enough(found: int, least: int, what: str) -> None:
    """Refuse fewer clients than the threshold.

    Args:
        found: Number of clients.
        least: The threshold.
        what: Action of the clients, for the error message.

    Raises:
        ValueError: If ``found`` is below ``least``.
    """
    if found < least:
        raise ValueError(
            f"{found} clients {what}, and the threshold is {least}: nothing is summed or revealed"
        )


@dataclass(frozen=True)
class SecureExchange(Phase):
    """One exchange of a secure sum.

    Args:
        inner: The method, or its phase, whose sum is computed.
        protocol: Settings shared by all parties.
        roster: Roster of this sum; ``None`` if neither the server state nor the message holds it.
    """

    inner: Method
    protocol: Protocol
    roster: Roster | None = None

    stage: ClassVar[str]
    after: ClassVar[tuple[str, ...]]
    """Stages from which a client may enter this exchange."""

    traits = Traits(cohort="same", evaluates=False)

    aggregator = Gather()

    @override
    @abstractmethod
    def broadcast(self, server_state: Tree, client_id: int) -> Tree: ...

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        own = client_state.get("secure", {})
        if own.get("stage", "over") not in self.after:
            raise ValueError(
                f"the exchange {self.stage!r} was requested after {own.get('stage')!r}: secrets "
                "are used once, in one secure sum"
            )
        return self.reply(message, client, client_state, rng)

    @abstractmethod
    def reply(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        """Local work of this exchange, once the stage is checked; see :meth:`local_update`."""

    def sign(self, content: Tree, roster: Roster, client: Client, own: Tree) -> Update:
        """Signed update, with the same weight as any other and without metrics.

        Args:
            content: The payload.
            roster: Roster of this secure sum.
            client: The sender.
            own: Entries of its client state that belong to secure sums.
        """
        signer = self.protocol.signer(own, client.id)
        return Update(roster.signed(self.stage, client.id, content, signer=signer))

    def authentic(self, total: AggregatedUpdate, roster: Roster) -> dict[int, Tree]:
        """Payloads with a valid signature, by client id; others are left out with a warning.

        Args:
            total: Result of ``Gather``.
            roster: Roster of this secure sum.
        """
        found = {i: total.payload[str(i)] for i in total.clients}
        kept = {i: p for i, p in found.items() if roster.is_signed(self.stage, i, p)}
        for client_id in sorted(found.keys() - kept.keys()):
            logger.warning("client %d is left out of this secure sum: its signature of %s is not "
                           "valid", client_id, self.stage)  # fmt: skip
        return kept

    def require(self, found: int, server_state: Tree, what: str) -> None:
        """Stop the run if there are fewer clients than the threshold.

        Args:
            found: Number of clients.
            server_state: Current server state.
            what: Action of the clients, for the error message.

        Raises:
            RunStoppedError: If ``found`` is below the threshold.
        """
        try:
            _check_enough(found, self.protocol.least(server_state["num_clients"]), what)
        except ValueError as error:
            raise RunStoppedError(str(error)) from error


def ids_of(tensor: Tensor, among: Sequence[int], *, least: int, own: int, what: str) -> list[int]:
    """Client ids that the server sent, after a check that they are possible.

    Args:
        tensor: Ids as received.
        among: Ids that are allowed.
        least: The threshold.
        own: Id of this client, which must be in ``tensor``; -1 if it may be missing.
        what: Action of these clients, for the error message.

    Raises:
        ValueError: If the ids are too few, unsorted, repeated or not allowed, or lack ``own``.
    """
    ids = read_ids(tensor)
    if ids != sorted(set(ids)) or not set(ids) <= set(among) or own not in (-1, *ids):
        raise ValueError(f"the server says that clients {ids} {what}, which cannot be true")
    _check_enough(len(ids), least, what)
    return ids
