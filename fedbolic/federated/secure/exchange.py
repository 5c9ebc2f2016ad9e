"""Shared parts of the exchanges of a secure sum."""

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torch import Tensor
from typing_extensions import override

from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator, Gather
from fedbolic.federated.aggregators.modular import SumModulo
from fedbolic.federated.engines.engine import RunStoppedError
from fedbolic.federated.method import CohortKind, Method, Phase
from fedbolic.federated.secure.fixed_point import FixedPoint, Residues
from fedbolic.federated.secure.keys import new_secret, read_identity, read_secret
from fedbolic.federated.secure.roster import Roster, to_bytes
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.log import logger
from fedbolic.rng import Rng
from fedbolic.types import Tree

WEIGHT_MODULUS = 2**62
"""Of the sum of weights, which are few: it may be large."""

LASTING = ("session", "signer", "known")
"""What a client keeps of a secure sum when it is over."""


@dataclass(frozen=True)
class Protocol:
    """Settings shared by all parties of a secure sum; see ``SecureSum`` for the arguments."""

    modulus: int
    threshold: int | None
    fraction_bits: int
    keys: Path | None
    ordered: bool
    """Whether clients agree on an order that the server does not know."""

    def least(self, num_clients: int) -> int:
        """The threshold: clients without whom nothing is revealed.

        Args:
            num_clients: Of the whole federation.
        """
        return 2 * num_clients // 3 + 1 if self.threshold is None else self.threshold

    def code(self, aggregator: Aggregator) -> FixedPoint | Residues:
        """Encoding of the numbers of a summand as integers.

        Args:
            aggregator: Of the method.
        """
        if isinstance(aggregator, SumModulo):
            return Residues(aggregator.modulus)
        return FixedPoint(self.modulus, self.fraction_bits)

    @property
    def weight_code(self) -> FixedPoint:
        """Encoding of weights as integers."""
        return FixedPoint(WEIGHT_MODULUS, self.fraction_bits)

    def signer(self, own: Tree, client_id: int) -> bytes:
        """A client's long-term private key: of its file, of its memory, or new.

        Args:
            own: What the client keeps of secure sums.
            client_id: Whose.
        """
        if self.keys is not None:
            return read_secret(self.keys, client_id)
        return to_bytes(own["signer"]) if "signer" in own else new_secret()

    def check(self, roster: Roster, own: Tree, client: Client) -> None:
        """Refuse a roster under which a secret might leak.

        Args:
            roster: As the server shows it.
            own: What the client keeps of secure sums.
            client: Who checks.

        Raises:
            ValueError: Saying why.
        """
        size, num_clients = len(roster.members), client.meta.num_clients
        if strangers := [i for i in roster.members if i >= num_clients]:
            raise ValueError(f"clients {strangers[:8]} are shown, and there are {num_clients}")
        least = self.least(num_clients)
        check_enough(size, least, "show a card")
        if 2 * least <= size:
            raise ValueError(
                f"a threshold of {least} is too low for {size} clients: the server could play two "
                "halves against each other; it must be more than half, and 2/3 are better"
            )
        shown = [roster.cipher_key(i) for i in roster.members]
        if len({*shown, *map(roster.mask_key, roster.members)}) < 2 * size:
            raise ValueError("two clients show the same public key")
        if forged := roster.forged():
            raise ValueError(f"the cards of clients {forged} are not signed by them for this sum")
        folder, seen = self.keys, own.get("known", {})
        if folder is not None:
            roster.check_identities(lambda i: read_identity(folder, i))
        else:
            roster.check_identities(lambda i: to_bytes(seen[str(i)]) if str(i) in seen else None)


def check_enough(found: int, least: int, what: str) -> None:
    """Refuse fewer clients than the threshold.

    Args:
        found: Clients.
        least: The threshold.
        what: They do.

    Raises:
        ValueError: Saying so.
    """
    if found < least:
        raise ValueError(
            f"{found} clients {what}, and the threshold is {least}: nothing is summed or revealed"
        )


@dataclass(frozen=True)
class SecureExchange(Phase):
    """One exchange of a secure sum.

    Args:
        inner: The method, or the phase of it, whose sum is wanted.
        protocol: What was agreed on.
        roster: Who takes part, where the server already knows.
    """

    inner: Method
    protocol: Protocol
    roster: Roster | None = None

    stage: ClassVar[str]
    after: ClassVar[tuple[str, ...]]
    """The stages at which a client may be to take part."""

    @property
    @override
    def cohort(self) -> CohortKind:
        return "same"

    @property
    @override
    def evaluates(self) -> bool:
        return False

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Gather()

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
                f"the exchange {self.stage!r} was asked for after {own.get('stage')!r}: secrets "
                "serve one secure sum, once"
            )
        return self.answer(message, client, client_state, rng)

    @abstractmethod
    def answer(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        """The local work, at the right stage; as :meth:`local_update`."""

    def sign(self, content: Tree, roster: Roster, client: Client, own: Tree) -> Update:
        """An update of the same weight as any other, without metrics, signed.

        Args:
            content: The payload.
            roster: Of this secure sum.
            client: The sender.
            own: What it keeps.
        """
        signer = self.protocol.signer(own, client.id)
        return Update(roster.signed(self.stage, client.id, content, signer=signer))

    def authentic(self, total: AggregatedUpdate, roster: Roster) -> dict[int, Tree]:
        """Payloads with a valid signature, by client id; others are left out with a warning.

        Args:
            total: Of ``Gather``.
            roster: Of this secure sum.
        """
        found = {i: total.payload[str(i)] for i in total.clients}
        kept = {i: p for i, p in found.items() if roster.is_signed(self.stage, i, p)}
        for client_id in sorted(found.keys() - kept.keys()):
            logger.warning("client %d is left out of this secure sum: its signature of %s does "
                           "not fit", client_id, self.stage)  # fmt: skip
        return kept

    def require(self, found: int, server_state: Tree, what: str) -> None:
        """Stop the run at fewer clients than the threshold.

        Args:
            found: Clients.
            server_state: The server's.
            what: They did.

        Raises:
            RunStoppedError: Saying so.
        """
        try:
            check_enough(found, self.protocol.least(server_state["num_clients"]), what)
        except ValueError as error:
            raise RunStoppedError(str(error)) from error


def ids_of(tensor: Tensor, among: Sequence[int], *, least: int, own: int, what: str) -> list[int]:
    """The ids that a server names, if they can be right.

    Args:
        tensor: As they came.
        among: Whom they may be of.
        least: The threshold.
        own: The client's, which must be among them; -1 if it need not be.
        what: They do.

    Raises:
        ValueError: If they are too few, repeated, or others.
    """
    ids = tensor.tolist()
    if ids != sorted(set(ids)) or not set(ids) <= set(among) or own not in (-1, *ids):
        raise ValueError(f"the server names {ids} as those who {what}, which cannot be")
    check_enough(len(ids), least, what)
    return ids
