"""FlyNNFL: every party counts its hashes, the server adds the counts, and that is the model."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import check
from fedbolic.data.client import Client
from fedbolic.federated.aggregate import Aggregator, Sum
from fedbolic.federated.method import Method, Total, Update
from fedbolic.federated.score import score_labels
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree
from flynn import bloom
from flynn.fly_hash import check_active, connections, fly_hash
from flynn.noise import Noise
from flynn.private import Mechanism, is_hopeless, release

logger = logging.getLogger("fedbolic")


@dataclass(frozen=True)
class FlyNN(Method):
    r"""Nearest neighbours by a Fly Bloom filter for each class, exact after one round.

    .. math:: \hat y(x) = \arg\min_l \sum_{i : h(x)[i] = 1} \gamma^{c_l[i]}, \qquad
        c_l = \sum_t c_l^t

    with the counts ``c_l^t`` of party t. They are whole numbers, so that the model is that of all
    examples in one place to the last bit, however they are split, and that of whoever answered.

    Args:
        dim: Length of the hash, m, at least 1.
        fan_in: Features that a row of the lift adds up, s, at least 1 and at most all of them.
        active: Ones of a hash, rho, in 1 .. ``dim``.
        decay: Gamma, in [0, 1).
        privacy: How parties make their counts private, each before they leave it; none: not at all.
            Its ledger is logged when a run begins.
        noise: Whose draws hide the counts; only ``seeded`` repeats, and it is not private.

    Raises:
        ValueError: If a value is outside its range.

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
    noise: Literal["own", "opendp", "seeded"] = "own"

    def __post_init__(self) -> None:
        check.at_least(1, dim=self.dim, fan_in=self.fan_in)
        check_active(self.active, self.dim)
        bloom.check_decay(self.decay)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Sum()

    @override
    def check_deployed(self) -> None:
        if self.privacy is not None and self.noise == "seeded":
            raise ValueError(
                "noise is 'seeded', and where clients are nodes their server has the seed and can "
                "take it off: use noise: own"
            )

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        num_inputs = _num_inputs(meta)
        if self.fan_in > num_inputs:
            raise ValueError(f"fan_in is {self.fan_in}, but inputs have {num_inputs} features")
        if self.privacy is not None:
            seeded = self.noise == "seeded"
            logger.warning("%s", self.privacy.ledger(self.active, meta.num_clients, seeded=seeded))
        return {
            "counts": torch.zeros(meta.num_classes, self.dim, dtype=torch.int64),
            "largest": torch.iinfo(torch.int64).max if self.privacy is None else 0,
            "parties": 0,
            "seed": rng.at("hash").number(),
        }

    @override
    def admit(self, state: Tree, sizes: Sequence[int]) -> Tree:
        if self.privacy is None:
            return {**state, "largest": max(sizes)}
        if is_hopeless(self.privacy.epsilon, sum(sizes), state["counts"].numel()):
            logger.warning(
                "noise will drown the counts: %d examples times epsilon %g are fewer than the %d "
                "counts; take a shorter hash or a larger epsilon",
                sum(sizes),
                self.privacy.epsilon,
                state["counts"].numel(),
            )
        return state

    @override
    def broadcast(self, state: Tree, client_id: int) -> Tree:
        if state["parties"]:
            return state
        # the counts to begin with are zeros, which nobody needs to be sent
        return {name: state[name] for name in ("largest", "seed")}

    @override
    def local_update(
        self, message: Tree, client: Client, memory: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        examples = client.train.all()
        counts = bloom.count(
            self._hash(examples["x"], message["seed"], client.meta),
            examples["y"],
            dim=self.dim,
            num_classes=client.meta.num_classes,
        )
        if self.privacy is not None:  # nothing else leaves, not even how many examples there are
            return Update({"counts": self._private(counts, self.privacy, client, rng)}), {}
        if client.size > message["largest"]:  # counts might not fit
            raise ValueError(f"there are {client.size} examples here, and {message['largest']} are "
                             "said to be the most of any party")  # fmt: skip
        counts = counts.to(wire_dtype(message["largest"]))
        metrics = {
            "counts/largest": float(counts.max()),
            "counts/nonzero": float(counts.count_nonzero()),
        }
        return Update({"counts": counts}, weight=float(client.size), metrics=metrics), {}

    @override
    def server_update(self, state: Tree, total: Total) -> Tree:
        counts = total.payload["counts"]
        if self.privacy is not None:
            counts = torch.from_numpy(self.privacy.finish(counts.cpu().numpy())).to(counts.device)
        return {**state, "counts": counts, "parties": len(total.clients)}

    @override
    def evaluate(self, message: Tree, client: Client, memory: Tree, rng: Rng) -> dict[str, float]:
        if not message.get("parties"):
            return {}  # nobody has counted yet

        def labels(examples: Params) -> Tensor:
            winners = self._hash(examples["x"], message["seed"], client.meta)
            return bloom.predictions(bloom.log_scores(message["counts"], winners, self.decay))

        return score_labels(labels, client)

    def _private(self, counts: Tensor, privacy: Mechanism, client: Client, rng: Rng) -> Tensor:
        seed = rng.at("noise").number() if self.noise == "seeded" else None
        noise = Noise(seed, sampler="opendp" if self.noise == "opendp" else "own")
        plan = privacy.plan(self.active, client.meta.num_clients)
        released = torch.from_numpy(release(counts.cpu().numpy(), plan, noise))
        return released.clamp(-(2**31), 2**31 - 1).to(counts.device, torch.int32)

    def _hash(self, x: Tensor, seed: int, meta: Meta) -> Tensor:
        flat, num_inputs = x.flatten(1), _num_inputs(meta)
        if flat.shape[1] != num_inputs:  # it would draw another lift, and add what nobody shares
            raise ValueError(f"examples have {flat.shape[1]} features, those of all {num_inputs}")
        return fly_hash(flat, connections(self.dim, num_inputs, self.fan_in, seed), self.active)


def _num_inputs(meta: Meta) -> int:
    return torch.Size(meta.input_shape).numel()


def wire_dtype(largest: int) -> torch.dtype:
    """The smallest integer type for the counts of a party of up to ``largest`` examples.

    Args:
        largest: Examples of the largest party: no count exceeds it, as all parties know.

    Example:
        >>> wire_dtype(255), wire_dtype(6000)
        (torch.uint8, torch.int16)
    """
    fits = [t for t in (torch.uint8, torch.int16, torch.int32) if torch.iinfo(t).max >= largest]
    return fits[0] if fits else torch.int64
