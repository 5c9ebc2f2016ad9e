"""FedGNN for node classification: a reconstruction with anonymous neighbours from the server."""

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from typing_extensions import override

from fedbolic import check
from fedbolic.data import Client
from fedbolic.federated.engines.jagged import Jagged
from fedbolic.federated.local_training import BatchPlan
from fedbolic.federated.sharing import Sharing
from fedbolic.federated.update import AggregatedUpdate, Update
from fedbolic.nn.model import Model
from fedbolic.rng import Rng
from fedbolic.types import Meta, Params, Tree
from flatland.blocks import graph_block
from flatland.graph_averaging import GraphAveraging
from flatland.signatures import NEIGHBOUR_TABLE, ExpandedGCN, expanded

EXPANDED: Sharing = {NEIGHBOUR_TABLE: "fixed", "*": "shared"}
"""Sharing table of FedGNN: embeddings of anonymous neighbours are received and not trained."""


@dataclass(frozen=True)
class FedGnn(GraphAveraging):
    r"""Federated averaging on graphs expanded with anonymous neighbours of other clients.

    FedGNN is a recommender: a third party matches encrypted items of users, and sends a user the
    embeddings of others with the same items as anonymous neighbours; gradients are clipped and
    noisy, and gradients of pseudo items hide the true ones. How other work made it a rival in node
    classification is not published, so this is a reconstruction. Decided here:

    - The item of a node is its bucket of equal signatures (random projections of its features),
      since clients of one partitioned graph have no node in common.
    - A client sends the sum of the embeddings :math:`x M_1` of its nodes in every bucket and their
      number. Next round it receives the sums over all clients, subtracts its own, and joins a node
      with the mean embedding to its nodes in the bucket. A bucket that no other client fills has
      the embedding 0, as all have in the first round.
    - Embeddings of ``pseudo`` nodes, normal with the mean and the deviation of the client's own
      and in random buckets, are added to these sums.
    - The delta of a round takes the place of the gradient:
      :math:`\mathrm{clip}(\Delta, \pm\delta) + \mathrm{Laplace}(0, \lambda \bar a)` with the mean
      absolute value :math:`\bar a` of the clipped tensor. As the scale follows the data, this is no
      differential privacy.

    The server only needs sums, so it can run under a secure sum.

    Args:
        network: Graph network with a table of anonymous neighbours.
        rounds: Communication rounds, at least 1.
        local: Local epochs; each step uses the whole graph, whatever the batch size.
        lr: Local step size, above 0.
        optimizer: Local optimiser, without weight decay; each client keeps its state between
            rounds.
        weight_decay: Coefficient of L2 regularisation in the gradient, at least 0.
        sharing: Map of name patterns to ``shared``, ``personal`` or ``fixed``; first match wins,
            and the table is ``fixed``.
        proximal: Coefficient of the proximal term, at least 0.
        weights: Weight of a client in the mean: ``size`` (training nodes) or ``uniform``.
        clip: Bound :math:`\delta` on the absolute value of every number of a delta, above 0;
            ``None`` for no bound.
        noise: Scale :math:`\lambda` of the noise, relative to the delta, at least 0.
        pseudo: Number of pseudo nodes of a client and round, at least 0.

    Raises:
        ValueError: If a value is outside its range, or the table is not ``fixed``.

    References:
        Wu et al. (2021), arXiv:2102.04925, for the recommender.

    Example:
        >>> FedGnn(ExpandedGCN(bits=6)).network.num_buckets
        64
    """

    network: ExpandedGCN = field(default_factory=ExpandedGCN)
    sharing: Sharing = field(default_factory=lambda: dict(EXPANDED))
    clip: float | None = 0.1
    noise: float = 0.2
    pseudo: int = 32

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative(noise=self.noise)
        check.at_least(0, pseudo=self.pseudo)
        if self.clip is not None:
            check.positive(clip=self.clip)
        if self.sharing.get(NEIGHBOUR_TABLE) != "fixed":
            raise ValueError(
                f"sharing of {NEIGHBOUR_TABLE!r} must be fixed, as the table comes from the "
                f"server, got {self.sharing.get(NEIGHBOUR_TABLE)!r}"
            )

    @override
    def init(self, meta: Meta, rng: Rng) -> Tree:
        num_buckets, width = self.network.num_buckets, self.network.widths[0]
        sums = {"sums": torch.zeros(num_buckets, width), "counts": torch.zeros(num_buckets)}
        return {**super().init(meta, rng), **sums, "round": 0}

    @override
    def begin(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Model, Tree, Tree, BatchPlan]:
        model, local, context, plan = super().begin(message, client, client_state, rng)
        own = {**context["own"], "seed": Jagged((rng.at("noise").number(),), (len(client.train),))}
        return model, local, {**context, "own": own}, plan

    @override
    def received(self, message: Tree, client: Client, client_state: Tree) -> tuple[Tree, Tree]:
        local, context = super().received(message, client, client_state)
        (graph,) = context["own"]["graph"].parts
        _, whole = expanded(graph, self.network.bits, message["seed"])
        sums, counts = message["sums"], message["counts"]
        kept = client_state.get("sent", {})
        if kept and kept["round"] == message["round"]:  # the sums contain its own
            sums, counts = sums - kept["own_sums"], counts - kept["own_counts"]
        filled = counts > 0.5  # sums of whole numbers, up to rounding
        table = torch.where(filled, 1 / counts.clamp(min=0.5), 0.0).unsqueeze(-1) * sums
        own = {
            **context["own"],
            "fixed": {**context["own"]["fixed"], NEIGHBOUR_TABLE: table},
            "graph": Jagged((whole,), (len(whole),)),
            "client_graph": Jagged((graph,), (len(graph),)),
        }
        shared = {**context["shared"], "seed": message["seed"], "round": message["round"]}
        return local, {"shared": shared, "own": own}

    @override
    def finish(self, local: Tree, client: Client, context: Tree) -> tuple[Update, Tree]:
        update, client_state = super().finish(local, client, context)
        (seed,) = context["own"]["seed"].parts
        stream = Rng(seed)
        draws = stream.at("delta").generator()
        delta = {n: self.hidden(x, draws) for n, x in update.payload["delta"].items()}
        sums, counts = self._sums(local, context, stream.at("pseudo").generator())
        sent = {"round": context["shared"]["round"] + 1, "own_sums": sums, "own_counts": counts}
        share = 1 / update.weight  # the server multiplies the weighted mean by all weights
        payload = {"delta": delta, "sums": sums * share, "counts": counts * share}
        return replace(update, payload=payload), {**client_state, "sent": sent}

    def hidden(self, delta: Tensor, draws: torch.Generator) -> Tensor:
        """A delta after clipping, with Laplace noise.

        Args:
            delta: Change of one parameter.
            draws: Random stream on the CPU.
        """
        clipped = delta if self.clip is None else delta.clamp(-self.clip, self.clip)
        if not self.noise:
            return clipped
        u = torch.rand(delta.shape, generator=draws, dtype=torch.float64).to(delta.device) - 0.5
        laplace = -u.sign() * torch.log1p(-2 * u.abs())  # u = -0.5 has the probability 2 ** -53
        scale = self.noise * clipped.abs().mean()
        return clipped + scale * laplace.clamp(-50, 50).to(delta.dtype)

    def _sums(self, local: Tree, context: Tree, draws: torch.Generator) -> tuple[Tensor, Tensor]:
        """Sums and numbers of embeddings in every bucket, with those of pseudo nodes."""
        (graph,) = context["own"]["client_graph"].parts
        buckets, _ = expanded(graph, self.network.bits, context["shared"]["seed"])
        space = {**local["parameters"], **context["own"]["fixed"]}["body.0.space"]
        embeddings = graph_block((graph,)).map_features(space)[0]
        num_buckets, width = self.network.num_buckets, embeddings.shape[1]
        at = torch.randint(num_buckets, (self.pseudo,), generator=draws).to(buckets.device)
        normal = torch.randn(self.pseudo, width, generator=draws).to(embeddings)
        deviation, mean = torch.std_mean(embeddings, dim=0, correction=0)
        rows = torch.cat((embeddings, mean + deviation * normal))
        places = torch.cat((buckets, at))
        sums = rows.new_zeros(num_buckets, width).index_add(0, places, rows)
        counts = places.bincount(minlength=num_buckets).to(rows.dtype)
        return sums, counts

    @override
    def template(self, message: Tree) -> Tree:
        return {
            "delta": message["parameters"],
            "sums": message["sums"],
            "counts": message["counts"],
        }

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        sums: Params = {n: total.payload[n] * total.weight for n in ("sums", "counts")}
        server_state = super().server_update(server_state, total)
        return {**server_state, **sums, "round": server_state["round"] + 1}
