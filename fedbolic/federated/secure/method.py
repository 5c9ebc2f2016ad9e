"""A method whose clients' updates nobody can read: the server learns their sum alone."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client, FederatedData
from fedbolic.federated.aggregators.aggregator import Additive, Aggregator
from fedbolic.federated.capabilities import OneTimeSecrets, Ordered
from fedbolic.federated.method import CohortKind, Method
from fedbolic.federated.secure.exchange import Protocol, SecureExchange
from fedbolic.federated.secure.preparation import AdvertiseKeys, ShareKeys
from fedbolic.federated.secure.roster import Roster
from fedbolic.federated.secure.summing import ConsistencyCheck, MaskedInput
from fedbolic.federated.secure.unmasking import Unmasking
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.figure import Figure
from fedbolic.rng import Rng
from fedbolic.types import Meta, Tree

STAGES: dict[str, type[SecureExchange]] = {
    phase.stage: phase
    for phase in (AdvertiseKeys, ShareKeys, MaskedInput, ConsistencyCheck, Unmasking)
}


@dataclass(frozen=True)
class SecureSum(OneTimeSecrets):
    r"""A method with an additive aggregator, whose server sees the sum of a cohort and no summand.

    .. math:: y_u = x_u + G(b_u) + \sum_{v > u} G(s_{uv}) - \sum_{v < u} G(s_{uv}) \bmod q

    Every exchange of the method becomes five over the same clients. *Cards*: fresh X25519 keys,
    signed with a long-term Ed25519 key. *Shares*: Shamir shares of the key of masks and of the seed
    b_u, sealed for each other client. *Sums*: the method's work, masked. *Survivors*: everybody
    signs the list of those who are in the sum. *Unmasking*: shares of the seeds of those who are,
    and of the keys of those who are not. Clients may be lost in every exchange as long as
    ``threshold`` are left; with fewer the run stops, and nothing is revealed.

    The result is that of the method in the clear over those who are in the sum: exactly for
    integers, within ``len(clients) * 2 ** -(fraction_bits + 1)`` of the sum for floats. The method
    has the random streams that it would have in the clear; secrets come from the operating system,
    so masked payloads differ between runs. Weights are added under a mask, too; metrics of local
    work stay at the client. Channels cannot act on what is masked. There is no fine-tuning or
    calibration after the run, for these would send other things in the clear.

    An :class:`~fedbolic.federated.capabilities.Ordered` method finds the places of its clients
    here without its server: each ciphertext of *shares* carries 256 bits that its sender drew
    from the operating system, and in *sums* a client's place is the rank of its bits among the
    sharers. The server deals no order, and learns none while no client tells it. Masks of clients
    that were told different sharers do not cancel, so all in a sum that can be read have the same
    order.

    Secrets serve one sum. They lie in the client's memory from *cards* to *unmasking* and are then
    dropped, so a client answers each exchange once. A simulation keeps memories in its folder,
    and with them the secrets of exchanges under way or over; whoever reads it reads the updates.
    A run that is resumed goes on with the last.

    Detected: any altered or replayed message of a client, a roster or a list of survivors that
    differs between clients, a long-term key that is not the known one, a share that does not fit.
    Not detected: a client that lies about its own numbers, or tells others different bits for its
    place; a server that lies about the sum. See
    PRIVACY.md beside this file's folder for who can learn what.

    Args:
        method: Whose updates are summed.
        modulus: q of the sum, at least 2, of integers and floats; a method that adds modulo a
            number of its own, with ``SumModulo``, keeps it.
        threshold: Clients without whom nothing is revealed, more than half of those who take part;
            ``None``: ``2 * num_clients // 3 + 1``. It must be given if a cohort is a sample, and if
            clients are nodes.
        fraction_bits: Bits after the point of floats, at least 0.
        keys: A folder of :func:`~fedbolic.federated.secure.keys.write_identities`; ``None``: every
            client makes its long-term key at its first turn, and others know it from then on.

    Raises:
        ValueError: If a value is out of range, or the method's aggregator does not sum.

    References:
        Bonawitz et al. (2017), Practical secure aggregation for privacy-preserving machine
        learning, Figure 4 with the consistency check, CCS 2017, doi:10.1145/3133956.3133982.
        Prakash et al. (2024), App. B, for the order, arXiv:2308.06895.

    Example:
        >>> from fedbolic.data import Digits, Partitioned, IID
        >>> from fedbolic.federated import Trainer
        >>> from fedbolic.methods import FedAvg
        >>> data = Partitioned(Digits(), IID(3)).load(Rng(0))
        >>> *_, (state, rows) = Trainer().run(SecureSum(FedAvg(rounds=1)), data, Rng(0))
        >>> state.round
        1
    """

    method: Method
    modulus: int = 2**62
    threshold: int | None = None
    fraction_bits: int = 24
    keys: Path | None = None

    def __post_init__(self) -> None:
        check.at_least(2, modulus=self.modulus)
        check.at_least(0, fraction_bits=self.fraction_bits)
        if self.threshold is not None:
            check.at_least(2, threshold=self.threshold)
        _check_additive(self.method)

    @property
    def rounds(self) -> int:  # type: ignore[override]  # a field of the others
        """The metrics of the method."""
        return self.method.rounds

    @property
    @override
    def aggregator(self) -> Aggregator:
        return self.method.aggregator

    @property
    @override
    def cohort(self) -> CohortKind:
        return self.method.cohort

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        least = self._protocol.least(meta.num_clients)
        if not 2 <= least <= meta.num_clients:
            raise ValueError(
                f"a threshold of {least} does not suit {meta.num_clients} clients: a sum of fewer "
                "than two tells all, and more than there are never come"
            )
        inner = self.method.init(meta, rng)
        order = self.method.order if isinstance(self.method, Ordered) else None
        return {
            "stage": "cards",
            "session": 1,
            "turn": 0,
            "num_clients": meta.num_clients,
            "inner": {name: leaf for name, leaf in inner.items() if name != order},
        }

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return server_state | {"inner": self.method.admit(server_state["inner"], sizes)}

    @override
    def check_deployed(self) -> None:
        if self.threshold is None:
            raise ValueError(
                "SecureSum needs a threshold where clients are nodes, got None, which follows from "
                "the number of clients: set threshold to about 2/3 of those who take part"
            )
        self.method.check_deployed()

    @property
    def _protocol(self) -> Protocol:
        ordered = isinstance(self.method, Ordered)
        return Protocol(self.modulus, self.threshold, self.fraction_bits, self.keys, ordered)

    @override
    def phase(self, server_state: Tree) -> SecureExchange:
        inner = self.method.phase(server_state["inner"]) if "inner" in server_state else self.method
        _check_additive(inner)
        roster = Roster.read(server_state["roster"]) if "roster" in server_state else None
        return STAGES[server_state["stage"]](inner, self._protocol, roster)

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        return self.method.broadcast(server_state["inner"], client_id)

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        return self.phase(message).local_update(message, client, client_state, rng)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        return self.phase(server_state).server_update(server_state, total)

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        return self.method.evaluate(message, client, client_state.get("inner", {}), rng)

    @override
    def figures(self, server_state: Tree, data: FederatedData) -> dict[str, Figure]:
        return self.method.figures(server_state["inner"], data)


def _check_additive(method: Method) -> None:
    if not isinstance(method.aggregator, Additive):
        raise ValueError(
            f"SecureSum needs an aggregator that sums, and {type(method).__name__} uses "
            f"{type(method.aggregator).__name__}"
        )
