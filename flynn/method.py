"""FlyNNFL: every party counts its hashes, and the sum of the counts is the model."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client, LabelledSplit
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.aggregators.aggregator import Sum
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update, find_outside
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.noise.draws import (
    KeyedNoise,
    SystemKeys,
    check_mechanism,
    warn_of_keys,
)
from fedbolic.federated.scores.score import score_labels
from flynn import bloom
from flynn.channels import Channels, channel_signs, check_channels, width
from flynn.fly_hash import check_active, connections, fly_hash
from flynn.noise import Noise
from flynn.private import Mechanism, is_hopeless, release
from flynn.scaling import Moments, Scaling, ZScores


@dataclass(frozen=True)
class FlyNN(KeyedNoise, Method):
    r"""Nearest-neighbour classification with one Fly Bloom filter per class, exact in one round.

    .. math:: \hat y(x) = \arg\min_l \sum_{i : h(x)[i] = 1} \gamma^{c_l[i]}, \qquad
        c_l = \sum_t c_l^t

    with the counts ``c_l^t`` of party t. The counts are integers, so the model is bitwise equal to
    the centralized model on the examples of all participating parties, for every partition.

    Args:
        dim: Length of the hash, m, at least 1.
        fan_in: Number of inputs in each row of the lift, s, at least 1 and at most the number of
            features, or twice that with ``on-off``.
        active: Number of ones in a hash, rho, in 1 .. ``dim``.
        decay: Gamma, in [0, 1): factor of a filter weight for each counted example.
        privacy: Mechanism that each party applies to its counts before they leave it; ``None`` for
            no privacy. Its ledger is logged when a run starts, and ``privacy/epsilon`` in
            ``metrics.csv`` is the proven cost for one record, by the mechanism's relation.
        noise: Source of the noise's keys, or ``opendp`` for noise of OpenDP.
        channels: ``plain`` (paper) ignores a constant added to all features; ``signed`` gives each
            feature a random sign; ``on-off`` hashes features and their negatives.
        scaling: Scaling of features before the hash, the same at all parties; ``None`` for no
            scaling.

    Raises:
        ValueError: If a value is outside its range, or ``scaling`` depends on private records under
            ``privacy``.

    References:
        Ram and Sinha (2022), Algorithm 2 and Theorem 4, arXiv:2112.07157.

    Example:
        >>> FlyNN(dim=1000, fan_in=4, active=20).rounds
        1
    """

    dim: int = 16384
    fan_in: int = 19
    active: int = 32
    decay: float = 0.5
    privacy: Mechanism | None = None
    noise: SystemKeys | Literal["opendp"] = SystemKeys()
    channels: Channels = "plain"
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim, fan_in=self.fan_in)
        check_active(self.active, self.dim)
        check_channels(self.channels)
        bloom.check_decay(self.decay)
        if self.privacy is not None and isinstance(self.scaling, ZScores):
            raise ValueError(
                "scaling by ZScores sends sums of the records that no privacy mechanism covers: "
                "use PublicBounds, which do not depend on the records"
            )

    @property
    @override
    def traits(self) -> Traits:  # type: ignore[override]  # by a setting
        return Traits(
            LabelledSplit,
            cohort="same" if isinstance(self.scaling, ZScores) else "sample",
            privacy_unit=None if self.privacy is None else "example",
        )

    aggregator = Sum()
    unsent = "epsilon", "mechanism"

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        num_inputs = _num_inputs(meta)
        if self.fan_in > width(self.channels, num_inputs):
            times = ", twice with on-off" if self.channels == "on-off" else ""
            raise ValueError(
                f"fan_in is {self.fan_in}, but inputs have {num_inputs} features{times}"
            )
        if self.scaling is not None:
            self.scaling.check_width(num_inputs)
        server_state: Tree = {
            "counts": torch.zeros(meta.num_classes, self.dim, dtype=torch.int64),
            "largest": torch.iinfo(torch.int64).max if self.privacy is None else 0,
            "parties": 0,
            "seed": rng.at("hash").number(),
        }
        if self.privacy is not None:
            ledger = self.privacy.ledger(self.active, meta.num_clients)
            if isinstance(self.noise, SystemKeys):
                warn_of_keys(self.noise)
            features = "as they are" if self.scaling is None else f"scaled by {self.scaling}"
            logger.warning("%s", dataclasses.replace(ledger, features=features))
            server_state["epsilon"] = ledger.of_examples(ledger.relation).epsilon(1)
            server_state["mechanism"] = self._mechanism
        if isinstance(self.scaling, ZScores):
            return {**server_state, "exchange": "moments", "num_inputs": num_inputs}
        return server_state

    @property
    def _mechanism(self) -> str:
        return f"{self.privacy} for {self.active} ones in a hash"

    @override
    def phase(self, server_state: Tree) -> Method:
        check_mechanism(server_state, self._mechanism)
        if isinstance(self.scaling, ZScores) and server_state["exchange"] == "moments":
            return Moments(self.scaling, server_state["num_inputs"])
        return self

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        if self.privacy is None:
            return {**server_state, "largest": max(sizes)}
        if is_hopeless(self.privacy.epsilon, sum(sizes), server_state["counts"].numel()):
            logger.warning(
                "noise will drown the counts: %d examples times epsilon %g are fewer than the %d "
                "counts; use a shorter hash or a larger epsilon",
                sum(sizes),
                self.privacy.epsilon,
                server_state["counts"].numel(),
            )
        return server_state

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        message = super().broadcast(server_state, client_id)
        if not server_state["parties"]:  # the initial counts are zeros: their number is sent alone
            del message["parties"]
            message["counts"] = server_state["counts"][:, :0]
        return message

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        if self.privacy is not None:
            ledger = self.privacy.ledger(self.active, client.meta.num_clients)
            charge_releases(ledger.of_examples(ledger.relation))
        examples = client.train.all()
        counts = bloom.count(
            self._hash(examples["x"], message, client.meta),
            examples["y"],
            dim=self.dim,
            num_classes=client.meta.num_classes,
        )
        if self.privacy is not None:  # nothing else leaves, not even the number of examples
            return Update({"counts": self._released(counts, self.privacy, client, rng)}), {}
        if client.size > message["largest"]:  # the wire type might overflow
            raise ValueError(f"the party has {client.size} examples, but {message['largest']} were "
                             "announced as the most of any party")  # fmt: skip
        counts = counts.to(wire_dtype(message["largest"]))
        metrics = {
            "counts/largest": float(counts.max()),
            "counts/nonzero": float(counts.count_nonzero()),
        }
        return Update({"counts": counts}, weight=float(client.size), metrics=metrics), {}

    @override
    def template(self, message: Tree) -> Tree:
        dtype = torch.int32 if self.privacy is not None else wire_dtype(message["largest"])
        return {"counts": torch.empty(len(message["counts"]), self.dim, dtype=dtype, device="meta")}

    @override
    def find_fault(self, message: Tree, payload: Tree, norm: float) -> str | None:
        if self.privacy is not None:
            return None  # noise has no bound but that of its type
        return find_outside(payload, "counts", 0, message["largest"])

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        counts = total.payload["counts"]
        if self.privacy is not None:
            counts = torch.from_numpy(self.privacy.finish(counts.cpu().numpy())).to(counts.device)
        return {**server_state, "counts": counts, "parties": len(total.clients)}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        if not message.get("parties"):
            return {}  # there are no counts yet

        def labels(examples: Params) -> Tensor:
            winners = self._hash(examples["x"], message, client.meta)
            return bloom.predictions(bloom.log_scores(message["counts"], winners, self.decay))

        return score_labels(labels, client)

    def _released(self, counts: Tensor, privacy: Mechanism, client: Client, rng: Rng) -> Tensor:
        if isinstance(self.noise, SystemKeys):
            noise = Noise(self.noise.stream(rng.at("noise")))
        else:
            noise = Noise(opendp=True)
        plan = privacy.plan(self.active, client.meta.num_clients)
        released = torch.from_numpy(release(counts.cpu().numpy(), plan, noise))
        return released.clamp(-(2**31), 2**31 - 1).to(counts.device, torch.int32)

    def _hash(self, x: Tensor, message: Tree, meta: Meta) -> Tensor:
        flat, num_inputs, seed = x.flatten(1), _num_inputs(meta), message["seed"]
        if flat.shape[1] != num_inputs:  # another lift would give counts of unrelated hashes
            raise ValueError(f"examples have {flat.shape[1]} features instead of {num_inputs}")
        if self.scaling is not None:
            flat = self.scaling.affine(message, num_inputs)(flat)
        rows = connections(self.dim, width(self.channels, num_inputs), self.fan_in, seed)
        signs = channel_signs(self.channels, num_inputs, seed)
        return fly_hash(flat, rows, self.active, signs=signs)


def _num_inputs(meta: Meta) -> int:
    return torch.Size(meta.input_shape).numel()


def wire_dtype(largest: int) -> torch.dtype:
    """Smallest integer type for the counts of a party with up to ``largest`` examples.

    Args:
        largest: Number of examples of the largest party, which no count exceeds; known to all
            parties.

    Example:
        >>> wire_dtype(255), wire_dtype(6000)
        (torch.uint8, torch.int16)
    """
    fits = [t for t in (torch.uint8, torch.int16, torch.int32) if torch.iinfo(t).max >= largest]
    return fits[0] if fits else torch.int64
