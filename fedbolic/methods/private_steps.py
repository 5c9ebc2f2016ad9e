"""DP-SGD at the clients: differential privacy of single examples."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad, vmap
from typing_extensions import override

from fedbolic import check, tree
from fedbolic.data.client import Client
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.mean import Mean
from fedbolic.federated.privacy.draws import SecretStream
from fedbolic.federated.privacy.gaussian import check_delta
from fedbolic.federated.privacy.ledger import PrivacyLedger
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.federated.wrapping_method import WrappingMethod
from fedbolic.log import logger
from fedbolic.methods.fedavg import FedAvg
from fedbolic.nn.ghost_norms import ghost_norms, linear_layers, recorded_calls
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree


@dataclass(frozen=True)
class PrivateSteps(WrappingMethod):
    r"""FedAvg whose clients take the steps of DP-SGD.

    .. math::
        \tilde g = \frac{1}{q n} \left( \sum_{i \in B} g_i \min(1, b / \|g_i\|)
            + N(0, z^2 b^2 I) \right)

    Every example of a client is in a batch B with probability q, independently; n is the number of
    the client's examples, which counts as public. What a client sends is differentially private for
    each of its examples, present or absent, whoever reads it: the server need not be trusted.
    Clients have disjoint examples, and sampling of cohorts is not credited, so the cost for the
    federation is that of one client that takes part in every round, ``privacy/epsilon`` in
    ``metrics.csv``. It is the only metric of local training, and weights are uniform. Scores of the
    clients on their own test examples are not covered.

    The key of a client's noise is in its client state, and the noise follows from the key and the
    number of the round: a repeated round has the same noise.

    Args:
        method: Model, local optimiser, sharing and server's step. Its ``local`` is not used.
        steps: Steps of a client in a round, at least 1.
        rate: Probability of every example to be in a batch, q, in (0, 1].
        noise_multiplier: Standard deviation of the noise over the bound, z, above 0.
        clip_norm: Bound of the norm of an example's gradient, b, above 0.
        dp_delta: Delta, in (0, 1), below one over the number of a client's examples.
        clipping: Computation of the clipped gradients: ``vmap`` has the gradients of all examples
            of a batch in memory; ``ghost`` needs their norms alone, from which a second backward
            pass gives the sum. It is for networks of linear layers.

    Raises:
        ValueError: If a value is out of range, or (from ``init``) the model mixes the examples of a
            batch, has buffers or, for ``ghost``, other layers than linear ones with parameters.

    References:
        Abadi et al. (2016), Algorithm 1, arXiv:1607.00133; Li et al. (2022), Sec. 4, for ghost
        clipping, arXiv:2110.05679.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.federated import Trainer
        >>> from fedbolic.methods import FedAvg
        >>> data = Partitioned(Digits(), IID(2)).load(Rng(0))
        >>> method = PrivateSteps(FedAvg(rounds=2), steps=5)
        >>> *_, (_, rows) = Trainer().run(method, data, Rng(0))
        >>> [round(r.value, 2) for r in rows if r.name == "privacy/epsilon" and r.client == 0]
        [2.22]
    """

    method: FedAvg
    steps: int = 10
    rate: float = 0.1
    noise_multiplier: float = 1.0
    clip_norm: float = 1.0
    dp_delta: float = 1e-4
    clipping: Literal["vmap", "ghost"] = "vmap"

    def __post_init__(self) -> None:
        check.at_least(1, steps=self.steps)
        check.positive(
            rate=self.rate, noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm
        )
        check.rate(rate=self.rate)
        check_delta(self.dp_delta)
        check.one_of(("vmap", "ghost"), clipping=self.clipping)

    @property
    @override
    def aggregator(self) -> Aggregator:
        return Mean()

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
        server_state = self.method.init(meta, rng)
        if model.mixes_examples or server_state["buffers"]:
            raise ValueError(
                "DP-SGD needs the gradient of every single example, which a model with batch norm "
                "or other buffers does not have: use another backbone"
            )
        if self.clipping == "ghost":
            linear_layers(model)  # refuses others
        logger.info("privacy of single examples at a client in all rounds: %s", self.ledger)
        return {"method": server_state, "round": 0}

    @override
    def admit(self, server_state: Tree, sizes: Sequence[int]) -> Tree:
        if self.dp_delta * max(sizes) >= 1:
            raise ValueError(
                f"dp_delta must be below one over the number of a client's examples, here up to "
                f"{max(sizes)}; got {self.dp_delta}"
            )
        return server_state

    @override
    def broadcast(self, server_state: Tree, client_id: int) -> Tree:
        inner = self.method.broadcast(server_state["method"], client_id)
        return {"method": inner, "round": server_state["round"]}

    @override
    def template(self, message: Tree) -> Tree | None:
        return self.method.template(message["method"])

    @override
    def check_deployed(self) -> None:
        raise ValueError(
            "PrivateSteps counts rounds by what the server says, which a node must not trust: run "
            "it in a simulation"
        )

    @override
    def local_update(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Update, Tree]:
        key = client_state.get("key")
        secret = SecretStream.fresh() if key is None else SecretStream(bytes(key.tolist()))
        model, inner = self.method.model(client.meta), client_state.get("method", {})
        local, context = self.method.start(message["method"], client, inner)
        local, examples = tree.clone(local), client.train.all()
        for step in range(self.steps):
            stream = secret.at(*rng.path, "round", message["round"], "step", step)
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
        size = len(examples["y"])
        chosen = stream.at("batch").uniform(size) < self.rate
        batch = {name: x[chosen.to(x.device)] for name, x in examples.items()}
        total = {name: x.new_zeros(x.shape) for name, x in local["parameters"].items()}
        if len(batch["y"]):
            total = self._clipped_sum(model, local, batch, context)
        drawn = stream.at("noise").normal(sum(g.numel() for g in total.values()))
        noise = drawn.split([g.numel() for g in total.values()])
        std, expected = self.noise_multiplier * self.clip_norm, self.rate * max(size, 1)
        return {
            name: (g + std * z.to(g).view(g.shape)) / expected
            for (name, g), z in zip(total.items(), noise, strict=True)
        }

    def _clipped_sum(self, model: Model, local: Tree, batch: Params, context: Tree) -> Params:
        """Sum of the gradients of the examples, each with a norm of at most the bound."""
        if self.clipping == "ghost":
            return self._ghost_sum(model, local, batch, context)

        def loss(parameters: Params, example: Params) -> Tensor:
            alone = _marked({name: x.unsqueeze(0) for name, x in example.items()})
            buffers = local["buffers"]
            return self.method.loss(model, parameters, buffers, alone, context)[0].sum()

        each = vmap(grad(loss), in_dims=(None, 0), randomness="different")(
            local["parameters"], batch
        )
        squares = [g.double().square().flatten(1).sum(1) for g in each.values()]
        factors = self._factors(torch.stack(squares).sum(0).sqrt())
        return {n: torch.tensordot(factors.to(g), g, dims=1) for n, g in each.items()}

    def _ghost_sum(self, model: Model, local: Tree, batch: Params, context: Tree) -> Params:
        """The same from the norms of the gradients, and a backward pass of the weighted losses."""
        parameters = {n: x.detach().requires_grad_() for n, x in local["parameters"].items()}
        with recorded_calls(model) as calls:
            losses, _ = self.method.loss(
                model, parameters, local["buffers"], _marked(batch), context
            )
        factors = self._factors(ghost_norms(calls, losses, parameters))
        values = list(parameters.values())
        sums = torch.autograd.grad(losses, values, factors.to(losses), materialize_grads=True)
        return dict(zip(parameters, sums, strict=True))

    def _factors(self, norms: Tensor) -> Tensor:
        return self.clip_norm / norms.clamp_min(self.clip_norm)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        inner = self.method.server_update(server_state["method"], total)
        return {"method": inner, "round": server_state["round"] + 1}

    @override
    def evaluate(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> dict[str, float]:
        inner = client_state.get("method", {})
        return self.method.evaluate(message["method"], client, inner, rng)


def _marked(batch: Params) -> Params:
    """A batch with the entries that every loss may read."""
    y = batch["y"]
    present = torch.ones(len(y), dtype=torch.bool, device=y.device)
    visit = torch.zeros((), dtype=torch.int64, device=y.device)
    return {**batch, "mask": present, "visit": visit}
