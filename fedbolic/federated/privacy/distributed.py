"""Noise that every client adds to its own summand of a secure sum."""

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.accounting.ledger import PrivacyLedger, log_ledger
from fedbolic.federated.aggregators.aggregator import Aggregator, as_double, cast_like
from fedbolic.federated.aggregators.modular import SumModulo
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.capabilities import NoisySummands
from fedbolic.federated.contract.engine import RunStoppedError
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.contract.wrapping_method import NestedMethod
from fedbolic.federated.noise.draws import (
    SecretStream,
    SystemKeys,
    check_keys,
    check_mechanism,
    warn_of_keys,
)
from fedbolic.federated.noise.lattice import NoisyLattice
from fedbolic.federated.noise.rotation import padded_size, rotate, unrotate
from fedbolic.federated.privacy.coverage import covered_form
from fedbolic.federated.privacy.sum_privacy import SumPrivacy

WARNED_INFLATION = 1.1
"""Factor by which rounding may enlarge the noise without a warning."""

_BOUNDS = ("clip_norm", "last_clip_norm")
"""Entries of the server's state under adaptive clipping: the next round's bound and the last's."""


@dataclass(frozen=True)
class DistributedNoise(NestedMethod, NoisySummands):
    r"""Differential privacy of every client by discrete noise of the clients, for secure sums.

    .. math::
        y_k = \left\lfloor \tfrac{1}{\gamma} H D \, \Delta_k \min(1, b / \|\Delta_k\|)
            \right\rceil_{\mathrm{random}} + N_{\mathbb Z}(0, s^2) \bmod 2^{\mathrm{bits}}

    Put it into a :class:`~fedbolic.federated.secure.SecureSum`: the server then needs no trust, and
    the noise of the sum is as small as if one trusted party had added it. Every client clips its
    delta, rotates it by random signs D and a Hadamard matrix H, which makes all numbers about
    equally large, rounds it at random to a grid, and adds discrete Gaussian noise. The server sums
    modulo a power of two, undoes rotation and scale, and divides by the number of clients in the
    sum. The noise of ``survivors`` clients is enough for the stated epsilon, so clients may drop
    out; with more, the sum has more noise than it needs.

    The cost is that of a client that takes part in every round, because the server sees who takes
    part. ``privacy/epsilon`` in ``metrics.csv`` is the cost of all rounds so far. A client counts
    the sums to which it has contributed, and refuses more than ``rounds``. The key of its noise is
    in its client state, and a repeated round has the same noise. Metrics of local training stay at
    the client, weights are equal, and sizes are not used. Scores of the clients on their own test
    examples are not covered.

    With ``privacy.adaptive``, a client adds to its numbers whether its update was within the bound,
    with noise, and the server names the bound of the next round. The grid scales with the bound, so
    the cost is the same whatever the server says.

    Args:
        method: Method to train, which may send only ``delta``.
        privacy: Budget or size of the noise, clipping bound and modulus.
        noise: Source of the noise's keys.

    Raises:
        ValueError: From ``init``, if the modulus is too small, there are too few clients, or the
            method sends more than a delta.

    References:
        Kairouz, Liu and Steinke (2021), Algorithms 1 and 2, arXiv:2102.06387.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.federated import Trainer
        >>> from fedbolic.federated.secure import SecureSum
        >>> from fedbolic.methods import FedAvg
        >>> data = Partitioned(Digits(), IID(5)).load(Rng(0))
        >>> privacy = SumPrivacy(survivors=4, dp_delta=1e-2, noise_multiplier=1.0)
        >>> noisy = DistributedNoise(FedAvg(rounds=1), privacy)
        >>> *_, (state, rows) = Trainer().run(SecureSum(noisy, threshold=4), data, Rng(0))
        >>> [round(row.value, 1) for row in rows if row.name == "privacy/epsilon"]
        [7.2]
    """

    privacy: SumPrivacy
    noise: SystemKeys = SystemKeys()

    sends_part = True

    @property
    @override
    def aggregator(self) -> Aggregator:  # type: ignore[override]  # by a setting
        return SumModulo(2**self.privacy.bits)

    @property
    @override
    def traits(self) -> Traits:  # type: ignore[override]  # by a setting
        return dataclasses.replace(
            super().traits, keeps_secrets=True, privacy_unit="client", charged=("key", "releases")
        )

    @override
    def check_threshold(self, least: int) -> None:
        if least < (needed := self.privacy.survivors):
            raise ValueError(
                f"the noise of {needed} clients is counted, and a secure sum with a threshold of "
                f"{least} may have fewer: enlarge its threshold, or lower survivors, which makes "
                "every client's noise larger"
            )

    @override
    def check_deployed(self, *, summed: int = 1) -> None:
        if summed == 1:
            raise ValueError(
                "the noise of one client alone protects little: put DistributedNoise into a "
                "SecureSum"
            )
        self.check_threshold(summed)
        check_keys(self.noise)
        super().check_deployed(summed=summed)

    def _plan(self, num_clients: int, form: Tree) -> tuple[NoisyLattice, PrivacyLedger]:
        size = _size(form["delta"])
        return self.privacy.plan(num_clients=num_clients, size=size, rounds=self.rounds)

    def _planned(self, server_state: Tree) -> tuple[NoisyLattice, PrivacyLedger]:
        """Grid and ledger by the server's state."""
        inner = server_state["inner"]
        form = covered_form(self.method.phase(inner), inner)
        return self._plan(server_state["num_clients"], form)

    def _mechanism(self, lattice: NoisyLattice) -> str:
        """Text of the noise of one sum, with which alone a run may go on."""
        return repr(self.privacy.ledger(lattice, 1))

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        inner = self.method.init(meta, rng)
        form = covered_form(self.method.phase(inner), inner)
        lattice, ledger = self._plan(meta.num_clients, form)
        log_ledger(ledger, meta.num_clients, of="clients")
        if lattice.inflation > WARNED_INFLATION:
            logger.warning(
                "rounding with %d bits makes the noise %.2f times as large: use more bits",
                self.privacy.bits,
                lattice.inflation,
            )
        warn_of_keys(self.noise)
        seed = rng.at("rotation").number()
        numbers: Tree = {"round": 0, "rotation": seed, "num_clients": meta.num_clients}
        numbers["mechanism"] = self._mechanism(lattice)
        if self.privacy.adaptive is not None:
            numbers |= dict.fromkeys(_BOUNDS, self.privacy.clip_norm)
        return {"inner": inner, **numbers}

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        return super().admit(server_state, [1] * len(sizes))

    @override
    def phase(self, server_state: Tree) -> Method:
        if "num_clients" in server_state:  # not in a message to a node
            check_mechanism(server_state, self._mechanism(self._planned(server_state)[0]))
        return self

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        inner = self.method.broadcast(server_state["inner"], client_id)
        names = [n for n in ("round", "rotation", "clip_norm") if n in server_state]
        return {name: server_state[name] for name in names} | {"inner": inner}

    @override
    def template(self, message: Tree) -> Tree:
        form = self.method.template(message["inner"]) or {}
        dim = padded_size(_size(form["delta"])) + (self.privacy.adaptive is not None)
        return {"numbers": torch.zeros(dim, 1, dtype=torch.int64)}

    def _bound(self, state: Tree) -> float:
        """Clipping bound of a round, from the server's state or its message."""
        if self.privacy.adaptive is None:
            return self.privacy.clip_norm
        check.positive(clip_norm=state["clip_norm"])
        return float(state["clip_norm"])

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        releases = client_state.get("releases", 0)
        if releases >= self.rounds:
            raise ValueError(
                f"this client has contributed to {releases} sums, all that its "
                "privacy budget is for"
            )
        form = self.method.template(message["inner"]) or {}
        lattice, ledger = self._plan(client.meta.num_clients, form)
        charge = charge_releases(ledger)
        key = client_state.get("key")
        if key is None:
            secret = self.noise.stream(Rng(rng.seed).at("privacy", client.id))
        else:
            secret = SecretStream(bytes(key.tolist()))
        state = client_state.get("inner", {})
        update, state = self.method.local_update(message["inner"], client, state, rng)
        stream = secret.at(*charge, "release", releases, "round", message["round"])
        x, within = self._clipped(update.payload["delta"], form["delta"], self._bound(message))
        rounded = lattice.rounded(rotate(x, _signs_of(message)), stream)
        numbers = rounded + torch.from_numpy(
            stream.integers().gaussian(lattice.variance, lattice.dim)
        )
        if lattice.count is not None:
            counted = lattice.count.drawn(within, stream.at("count"))
            numbers = torch.cat([numbers, torch.tensor([counted])])
        kept = {
            "inner": state,
            "key": torch.frombuffer(bytearray(secret.key), dtype=torch.uint8),
            "releases": releases + 1,
        }
        return Update({"numbers": numbers[:, None] % 2**self.privacy.bits}), kept

    def _clipped(
        self, delta: Tree, form: Tree, bound: float
    ) -> tuple[Float64[Tensor, " dim"], bool]:
        """The delta as one vector, and whether it was within the bound.

        The vector is clipped, scaled from this bound to the grid's, and padded with zeros. It is
        zero if the delta is not finite.
        """
        leaves = tree.tensors(delta)
        flat = torch.cat([as_double(leaves[path]).flatten().cpu() for path in tree.tensors(form)])
        if not math.isfinite(norm := float(flat.norm())):  # an error would say so for free
            flat, norm = torch.zeros_like(flat), 0.0
        largest = self.privacy.clip_norm
        flat = flat * min(largest / bound, largest / max(norm, 1e-300))
        return torch.cat([flat, flat.new_zeros(padded_size(len(flat)) - len(flat))]), norm <= bound

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        if (found := len(total.clients)) < self.privacy.survivors:
            raise RunStoppedError(
                f"{found} clients are in the sum, and the noise of {self.privacy.survivors} is "
                "needed: the sum is not used"
            )
        form = covered_form(self.method.phase(server_state["inner"]), server_state["inner"])
        lattice, _ = self._plan(server_state["num_clients"], form)
        half = 2 ** (self.privacy.bits - 1)
        whole = (total.payload["numbers"][:, 0].cpu() + half) % (2 * half) - half
        bound, bounds = self._bound(server_state), {}
        unit = lattice.granularity * (bound / self.privacy.clip_norm)
        if self.privacy.adaptive is not None and lattice.count is not None:
            fraction = lattice.count.fraction(int(whole[-1]), found)
            following = self.privacy.adaptive.next_bound(bound, fraction)
            bounds = dict(zip(_BOUNDS, (following, bound), strict=True))
        flat = unrotate(whole[: lattice.dim].double() * unit, _signs_of(server_state))
        mean = _shaped(flat / found, form["delta"])
        aggregated = AggregatedUpdate({**form, "delta": mean}, float(found), total.clients)
        inner = self.method.server_update(server_state["inner"], aggregated)
        return {**server_state, **bounds, "inner": inner, "round": server_state["round"] + 1}

    @override
    def costs(self, server_state: Tree) -> dict[str, float]:
        _, ledger = self._planned(server_state)
        spent = {"privacy/epsilon": ledger.epsilon(server_state["round"])}
        if self.privacy.adaptive is None:
            return spent
        return spent | {"privacy/clip_norm": server_state["last_clip_norm"]}


def _signs_of(message: Tree) -> Rng:
    """Public random stream of the rotation of a round."""
    return Rng(message["rotation"]).at("round", message["round"])


def _size(delta: Tree) -> int:
    """Number of numbers of a delta."""
    return sum(leaf.numel() for leaf in tree.tensors(delta).values())


def _shaped(flat: Float64[Tensor, " dim"], form: Tree) -> Tree:
    """A vector as a tree of the given form; the padding is dropped."""
    start = 0

    def read(like: Tensor) -> Tensor:
        nonlocal start
        part = flat[start : start + like.numel()].view(like.shape)
        start += like.numel()
        return cast_like(part, like).to(like.device)

    return tree.map(read, form)
