"""Secure aggregation of any method that sums: the server learns the sum of the updates alone."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path

from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.aggregator import Additive
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.capabilities import NoisySummands, OneTimeSecrets, Ordered
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.contract.wrapping_method import NestedMethod
from fedbolic.federated.secure.exchange import Protocol, SecureExchange
from fedbolic.federated.secure.neighbours import DegreePlan, NeighbourGraph
from fedbolic.federated.secure.preparation import AdvertiseKeys, ShareKeys
from fedbolic.federated.secure.roster import Roster
from fedbolic.federated.secure.summing import ConsistencyCheck, MaskedInput
from fedbolic.federated.secure.unmasking import SampleWitnesses, Unmasking

STAGES: dict[str, type[SecureExchange]] = {
    phase.stage: phase
    for phase in (
        AdvertiseKeys,
        ShareKeys,
        MaskedInput,
        ConsistencyCheck,
        SampleWitnesses,
        Unmasking,
    )
}


@dataclass(frozen=True)
class SecureSum(NestedMethod, OneTimeSecrets):
    r"""A method with an additive aggregator, whose server sees the sum of a cohort and no summand.

    .. math:: y_u = x_u + G(b_u) + \sum_{v > u} G(s_{uv}) - \sum_{v < u} G(s_{uv}) \bmod q

    Every exchange of the method becomes five exchanges among the same clients. *AdvertiseKeys*:
    every client sends fresh X25519 keys, signed with its long-term Ed25519 key. *ShareKeys*: every
    client seals, for each other client, Shamir shares of its mask key and of its self-mask seed
    b_u. *MaskedInput*: every client does the work of the method and sends the masked result.
    *ConsistencyCheck*: every client signs the list of the clients in the sum, and the broadcast.
    *Unmasking*: every client returns shares of the seeds of clients in the sum, and of the mask
    keys of clients that dropped out. Clients may drop out in every exchange as long as
    ``threshold`` clients remain. With fewer the run stops, and nothing is revealed.

    All clients of a sum must receive the same broadcast, but for a place in an order: a digest of
    it is in the seeds of the pairwise masks, so that masks of clients with different broadcasts do
    not cancel. The method's client state is kept once the sum has been unmasked.

    The result is that of the method without masks over the clients in the sum: exactly for
    integers, within ``len(clients) * 2 ** -(fraction_bits + 1)`` of the sum for floats. The method
    uses the same random streams as without masks in a simulation; a node has its own. Rounds and
    turns only rise, so that no work is done twice. Secrets come from the operating system, so
    masked payloads differ between runs. Weights are masked, too; metrics of local work stay at the
    client. Channels cannot act on masked payloads. There is neither fine-tuning nor a ridge head
    after the run, because both would send other values unmasked.

    An :class:`~fedbolic.federated.contract.capabilities.Ordered` method obtains the places of its
    clients here without its server. Each ciphertext of *ShareKeys* carries 256 bits that its sender
    drew from the operating system; in *MaskedInput*, the place of a client is the rank of its bits
    among the sharers. The server does not learn the order unless a client reveals it. Pairwise
    masks of clients that received different lists of sharers do not cancel, so all clients of a
    readable sum use the same order.

    Secrets are used for one sum only. They are part of client state from *AdvertiseKeys* to
    *Unmasking* and are then deleted, so a client answers each exchange once. A simulation stores
    client states in its run folder, including secrets of unfinished and of earlier exchanges;
    anybody who can read the folder can read the updates. A resumed run continues with the latest
    secrets.

    Detected: any altered or replayed message of a client, a roster, a list of survivors or a
    broadcast that differs between clients, a changed long-term key, a wrong share. Not detected: a
    client that lies about its own numbers, or sends different bits for its place to different
    clients; a server that lies about the sum. ``PRIVACY.md`` in the parent folder says who can
    learn what.

    Args:
        method: Method whose updates are summed.
        modulus: q of the sum, at least 2, for integers and floats; a method with ``SumModulo``
            keeps its own modulus.
        threshold: Least number of clients with which anything is revealed, more than half of the
            participants; ``None`` for ``2 * num_clients // 3 + 1``. Required if a cohort is a
            sample, and if clients are nodes.
        fraction_bits: Fractional bits of floats, at least 0.
        keys: Folder of :func:`~fedbolic.federated.secure.keys.write_identities`. With ``None``,
            every client creates its long-term key in its first exchange, and the others remember
            it. Required if clients are nodes.
        least_change: Least number of clients by which the clients of a sum differ from those of the
            previous one, unless they are the same, at least 1. A client does not sign other lists.
            The difference of two sums tells the more about a client, the fewer clients it is of.
        neighbours: Neighbours in place of all pairs, for sums of hundreds of clients and more in
            which all clients of the federation take part; ``None`` for all pairs. They need
            ``keys``, and the default threshold becomes the clients that are left if as many drop
            out as may. A sum takes six exchanges: before *Unmasking*, clients draw signatures of
            *ConsistencyCheck* to check.

    Raises:
        ValueError: If a value is out of range, the method's aggregator does not sum, or neighbours
            are given without keys or for an ordered method.

    References:
        Bonawitz et al. (2017), Practical secure aggregation for privacy-preserving machine
        learning, Figure 4 with the consistency check, CCS 2017, doi:10.1145/3133956.3133982.
        Pasquini, Francati and Ateniese (2022), Eluding secure aggregation in federated learning via
        model inconsistency, CCS 2022, doi:10.1145/3548606.3560557, for the broadcast.
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

    modulus: int = 2**62
    threshold: int | None = None
    fraction_bits: int = 24
    keys: Path | None = None
    least_change: int = 1
    neighbours: NeighbourGraph | None = None

    def __post_init__(self) -> None:
        check.at_least(2, modulus=self.modulus)
        check.at_least(0, fraction_bits=self.fraction_bits)
        check.at_least(1, least_change=self.least_change)
        if self.threshold is not None:
            check.at_least(2, threshold=self.threshold)
        _check_additive(self.method)
        if self.neighbours is not None and self.keys is None:
            raise ValueError("SecureSum with neighbours needs keys: see write_identities")
        if self.neighbours is not None and isinstance(self.method, Ordered):
            raise ValueError(
                f"{type(self.method).__name__} orders its clients by numbers that each sends to "
                "all others: leave neighbours out"
            )

    @property
    @override
    def traits(self) -> Traits:  # type: ignore[override]  # by a setting
        return dataclasses.replace(super().traits, keeps_secrets=True)

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        least = self._protocol.least(meta.num_clients)
        if not 2 <= least <= meta.num_clients:
            raise ValueError(
                f"a threshold of {least} does not suit {meta.num_clients} clients: it must be at "
                "least 2, as a sum of one hides nothing, and at most the number of clients"
            )
        if isinstance(self.method, NoisySummands):
            self.method.check_threshold(least)
        self.plan(meta.num_clients)  # refuses a threshold that is too low
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
    def check_deployed(self, *, summed: int = 1) -> None:
        if self.threshold is None:
            raise ValueError(
                "SecureSum needs a threshold where clients are nodes, got None, which would depend "
                "on the number of clients: set threshold to about 2/3 of the participants"
            )
        if self.keys is None:
            raise ValueError(
                "SecureSum needs keys where clients are nodes: without them a server that plays "
                "the other clients in its first sum reads the last one's numbers. Create them with "
                "fedbolic.federated.secure.write_identities, and set keys to their folder"
            )
        self.method.check_deployed(summed=self.threshold)

    def plan(self, num_clients: int) -> DegreePlan | None:
        """Numbers of a sum with neighbours; ``None`` for all pairs.

        Args:
            num_clients: Number of clients of the whole federation.
        """
        return self._protocol.plan(num_clients)

    @property
    def _protocol(self) -> Protocol:
        ordered = isinstance(self.method, Ordered)
        return Protocol(
            self.modulus,
            self.threshold,
            self.fraction_bits,
            self.keys,
            ordered,
            self.least_change,
            self.neighbours,
        )

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


def _check_additive(method: Method) -> None:
    if not isinstance(method.aggregator, Additive):
        raise ValueError(
            f"SecureSum needs an aggregator that sums, and {type(method).__name__} uses "
            f"{type(method.aggregator).__name__}"
        )
