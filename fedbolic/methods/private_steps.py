"""DP-SGD at the clients: differential privacy of single examples."""

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from torch.func import grad, vmap
from typing_extensions import override

from fedbolic.core import check, tree
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.accounting.charges import charge_releases
from fedbolic.federated.accounting.gaussian import check_delta
from fedbolic.federated.accounting.ledger import PrivacyLedger, log_ledger
from fedbolic.federated.aggregators.update import AggregatedUpdate, Update
from fedbolic.federated.contract.method import Method
from fedbolic.federated.contract.traits import Traits
from fedbolic.federated.contract.wrapping_method import NestedMethod
from fedbolic.federated.noise.draws import (
    DRAWS_VERSION,
    SecretStream,
    check_draws,
    check_mechanism,
)
from fedbolic.federated.noise.gaussian_grid import GaussianGrid
from fedbolic.methods.fedavg import FedAvg
from fedbolic.nn.network.model import Model

BLOCK_NUMBERS = 2**24
"""Numbers of the gradients that are computed together; 64 MiB in float32."""


@dataclass(frozen=True)
class PrivateSteps(NestedMethod):
    r"""FedAvg whose clients take the steps of DP-SGD.

    .. math::
        \tilde g = \frac{1}{q n} \left( \sum_{i \in B} g_i \min(1, b / \|g_i\|)
            + N(0, z^2 b^2 I) \right)

    Every example of a client is in a batch B with probability q, independently; n is the number of
    the client's examples, which counts as public. What a client sends is differentially private for
    each of its examples, whose gradients count or are zero, whoever reads it: the server need not
    be trusted. Clipped gradients are rounded, summed and made noisy as integers
    (:class:`~fedbolic.federated.noise.gaussian_grid.GaussianGrid`), so the proof holds for the
    numbers that are sent. Gradients are computed in blocks of one size, and an example's place in a
    block follows from its number, so a gradient does not depend on the other examples, not even by
    rounding, as long as torch computes the rows of a block independently.
    Clients have disjoint examples, and sampling of cohorts is not credited, so the cost for the
    federation is that of one client that takes part in every round, ``privacy/epsilon`` in
    ``metrics.csv``. It is the only metric of local training, and weights are uniform. Scores of the
    clients on their own test examples are not covered.

    The key of a client's noise is in its client state, and the noise follows from the key and the
    number of the round: a repeated round has the same noise. At a node it follows from the number
    of the charge to the node's account instead.

    Args:
        method: Model, local optimiser, sharing and server's step. Its ``local`` is not used.
        steps: Steps of a client in a round, at least 1.
        rate: Probability of every example to be in a batch, q, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the bound, z, above 0.
        clip_norm: Bound of the norm of an example's gradient, b, above 0.
        dp_delta: Delta, in (0, 1), far below one over the number of a client's examples.

    Raises:
        ValueError: If a value is out of range, the method is another than ``FedAvg``, which the
            proof covers with all of its settings, or (from ``init``) the model mixes the examples
            of a batch or has buffers, such as the seeds of dropout.

    References:
        Abadi et al. (2016), Algorithm 1, arXiv:1607.00133.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.federated import Trainer
        >>> from fedbolic.methods import FedAvg
        >>> data = Partitioned(Digits(), IID(2)).load(Rng(0))
        >>> method = PrivateSteps(FedAvg(rounds=2), steps=5)
        >>> *_, (_, rows) = Trainer().run(method, data, Rng(0))
        >>> [round(r.value, 2) for r in rows if r.name == "privacy/epsilon" and r.client == 0]
        [2.85]
    """

    method: FedAvg
    steps: int = 10
    rate: float = 0.1
    noise_multiplier: float = 1.0
    clip_norm: float = 1.0
    dp_delta: float = 1e-5

    part, sends_part = "method", True
    unsent = ("mechanism",)

    def __post_init__(self) -> None:
        check.at_least(1, steps=self.steps)
        check.positive(
            rate=self.rate, noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm
        )
        check.rate(rate=self.rate)
        check_delta(self.dp_delta)
        if type(self.method) is not FedAvg:
            raise ValueError(
                f"the proof of PrivateSteps covers FedAvg, which sends nothing of its examples but "
                f"their gradients' noisy sums, not {type(self.method).__name__}: use FedAvg"
            )

    @property
    @override
    def traits(self) -> Traits:
        return dataclasses.replace(super().traits, keeps_secrets=True, privacy_unit="example")

    @property
    def ledger(self) -> PrivacyLedger:
        """Ledger of a client that takes part in every round."""
        participation = "everyone" if self.rate == 1 else "poisson"
        settings = self.rate, self.noise_multiplier, self.dp_delta
        releases = self.steps * self.rounds
        return PrivacyLedger(participation, "add/remove", *settings, releases, unit="example")

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        model = self.method.model(meta)
        _, buffers = model.init(seed=0)
        if model.mixes_examples or buffers:
            raise ValueError(
                "DP-SGD needs the gradient of every single example, which a model with batch norm, "
                "dropout or other buffers does not have: use another backbone"
            )
        versions = {"draws": DRAWS_VERSION, "mechanism": self.ledger.mechanism(self.steps)}
        return {"method": self.method.init(meta, rng), "round": 0, **versions}

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        if self.dp_delta * max(sizes) >= 1:
            raise ValueError(
                f"dp_delta must be below one over the number of a client's examples, here up to "
                f"{max(sizes)}; got {self.dp_delta}"
            )
        log_ledger(self.ledger, max(sizes), of="examples of a client")
        return server_state

    @override
    def phase(self, server_state: Tree) -> Method:
        check_draws(server_state)
        check_mechanism(server_state, self.ledger.mechanism(self.steps))
        return self

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        inner = self.method.broadcast(server_state["method"], client_id)
        return {**super().broadcast(server_state, client_id), "method": inner}

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        charge = charge_releases(self.ledger, self.steps)
        key = client_state.get("key")
        secret = SecretStream.fresh() if key is None else SecretStream(bytes(key.tolist()))
        model, inner = self.method.model(client.meta), client_state.get("method", {})
        local, context = self.method.start(message["method"], client, inner)
        local, examples = tree.clone(local), client.train.all()
        for step in range(self.steps):
            stream = secret.at(*charge, *rng.path, "round", message["round"], "step", step)
            gradients = self._gradients(model, local, examples, context, stream)
            local = self.method.step(local, gradients, context)
        update, inner = self.method.finish(local, client, context)
        cost = self.ledger.epsilon((message["round"] + 1) * self.steps)
        key = torch.frombuffer(bytearray(secret.key), dtype=torch.uint8)
        kept = {"method": inner, "key": key}
        return Update(update.payload, metrics={"privacy/epsilon": cost}), kept

    def _gradients(
        self, model: Model, local: Tree, examples: Params, context: Tree, stream: SecretStream
    ) -> Params:
        """Private mean gradient of a Poisson batch."""
        parameters, size = local["parameters"], len(examples["y"])
        chosen = torch.nonzero(stream.at("batch").uniform(size) < self.rate).flatten()
        lengths = [x.numel() for x in parameters.values()]
        grid = GaussianGrid(sum(lengths), self.clip_norm, self.noise_multiplier * self.clip_norm)
        total = grid.noise(stream.at("noise")).to(examples["y"].device)
        for rows in _blocks(chosen, max(1, min(64, BLOCK_NUMBERS // grid.size))):
            rows = rows.to(total.device)
            each = self._each_gradient(model, local, examples, context, rows)
            total += grid.rounded_sum(each)
        mean = grid.scaled(total) / (self.rate * max(size, 1))
        parts = zip(parameters.items(), mean.split(lengths), strict=True)
        return {name: part.to(x).view(x.shape) for (name, x), part in parts}

    def _each_gradient(
        self,
        model: Model,
        local: Tree,
        examples: Params,
        context: Tree,
        rows: Int64[Tensor, " width"],
    ) -> Float[Tensor, "width size"]:
        """Gradients of the examples of a block as rows; zero in rows without an example."""

        def loss(parameters: Params, example: Params) -> Tensor:
            alone = _marked({name: x.unsqueeze(0) for name, x in example.items()})
            buffers = local["buffers"]
            return self.method.loss(model, parameters, buffers, alone, context)[0].sum()

        batch = {name: x[rows.clamp_min(0)] for name, x in examples.items()}
        each = vmap(grad(loss), in_dims=(None, 0))(local["parameters"], batch)
        flat = torch.cat([g.flatten(1) for g in each.values()], dim=1)
        return flat.masked_fill_((rows < 0).unsqueeze(1), 0.0)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        inner = self.method.server_update(server_state["method"], total)
        return {**server_state, "method": inner, "round": server_state["round"] + 1}


def _marked(batch: Params) -> Params:
    """A batch with the entries that every loss may read."""
    y = batch["y"]
    present = torch.ones(len(y), dtype=torch.bool, device=y.device)
    visit = torch.zeros((), dtype=torch.int64, device=y.device)
    return {**batch, "mask": present, "visit": visit}


def _blocks(chosen: Int64[Tensor, " n"], width: int) -> Iterator[Int64[Tensor, " width"]]:
    """Blocks of rows that hold every chosen number k in row ``k % width``, and -1 where empty."""
    rows: list[list[int]] = [[] for _ in range(width)]
    for k in chosen.tolist():
        rows[k % width].append(k)
    for i in range(max(map(len, rows))):
        yield torch.tensor([row[i] if i < len(row) else -1 for row in rows])
