"""FedGNN for node classification: a reconstruction with anonymous neighbours from the server."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from jaxtyping import Float, Int64
from torch import Tensor
from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.log import logger
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta, Params, Tree
from fedbolic.data import Client
from fedbolic.federated.aggregators.update import AggregatedUpdate
from fedbolic.federated.contract.gradient_method import BatchPlan
from fedbolic.federated.contract.jagged import Jagged
from fedbolic.federated.contract.sharing import Sharing
from fedbolic.nn.network.model import Model
from flatland.graphs.blocks import GraphBlock, graph_block
from flatland.graphs.graph_method import GraphMethod
from flatland.rivals.signatures import NEIGHBOUR_TABLE, ExpandedGCN, expanded, memberships

EXPANDED: Sharing = {NEIGHBOUR_TABLE: "fixed", "*": "shared"}
"""Sharing table of FedGNN: embeddings of anonymous neighbours are received and not trained."""


@dataclass(frozen=True)
class FedGnn(GraphMethod):
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
        sharing: Map of name patterns to ``shared``, ``personal`` or ``fixed``; first match wins,
            and the table is ``fixed``.
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

    payload_like = GraphMethod.payload_like | {"sums": "sums", "counts": "counts"}

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
        if self.noise:
            logger.info("FedGNN adds noise that no ledger counts: it claims no epsilon")
        num_buckets, width = self.network.num_buckets, self.network.widths[0]
        sums = {"sums": torch.zeros(num_buckets, width), "counts": torch.zeros(num_buckets)}
        return {**super().init(meta, rng), **sums, "round": 0}

    @override
    def begin(
        self, message: Tree, client: Client, client_state: Tree, rng: Rng
    ) -> tuple[Model, Tree, Tree, BatchPlan]:
        model, local, context, plan = super().begin(message, client, client_state, rng)
        end = {"seed": rng.at("noise").number(), "round": message["round"]}
        own = {**context["own"], "end": Jagged((end,), (0,))}
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
            "graph": Jagged((whole,), (len(whole),), GraphBlock),
            "client_graph": Jagged((graph,), (0,)),
        }
        shared = {**context["shared"], "seed": message["seed"]}
        return local, {"shared": shared, "own": own}

    @override
    def outcome(self, local: Tree, context: Tree) -> tuple[Tree, Tree]:
        payload, client_state = super().outcome(local, context)
        draws = [stream.at("delta").generator() for stream in _streams(context)]
        return {**payload, "delta": self.hidden(payload["delta"], draws)}, client_state

    def hidden(self, delta: Params, draws: Sequence[torch.Generator]) -> Params:
        """Deltas after clipping, with Laplace noise.

        Args:
            delta: Change of every parameter, of one client or of several with a leading axis.
            draws: Random stream of each client, on the CPU.
        """
        if self.clip is not None:
            delta = {name: x.clamp(-self.clip, self.clip) for name, x in delta.items()}
        if not self.noise:
            return delta
        rows = {name: x.reshape(len(draws), -1) for name, x in delta.items()}
        widths, like = [x.shape[1] for x in rows.values()], next(iter(rows.values()))
        drawn = [_laplace(sum(widths), of_client).to(like.dtype) for of_client in draws]
        noise = torch.stack(drawn).to(like.device).split(widths, dim=1)
        return {
            name: (x + self.noise * x.abs().mean(dim=1, keepdim=True) * y).view_as(delta[name])
            for (name, x), y in zip(rows.items(), noise, strict=True)
        }

    @override
    def additions(
        self, local: Tree, clients: Sequence[Client], context: Tree
    ) -> tuple[Params, Tree]:
        """Sums and numbers of embeddings in every bucket, which a client also keeps."""
        sums, counts = self._sums(local, context)
        # the server multiplies the weighted mean by all weights, and a weight of 0 sends nothing
        of_clients = [1 / weight if (weight := self.weight(client)) else 0.0 for client in clients]
        shares = torch.tensor(of_clients, dtype=sums.dtype, device=sums.device).unsqueeze(1)
        counts = counts * (shares > 0)
        sums = sums * (shares > 0).unsqueeze(2)
        sent = {"round": context["own"]["end"].parts[0]["round"] + 1}
        kept = {"sent": {**sent, "own_sums": sums, "own_counts": counts}}
        return {"sums": sums * shares.unsqueeze(2), "counts": counts * shares}, kept

    def _sums(self, local: Tree, context: Tree) -> tuple[Tensor, Tensor]:
        """Sums and numbers of embeddings in every bucket of each client, with pseudo nodes."""
        graphs, num_buckets = context["own"]["client_graph"].parts, self.network.num_buckets
        at_nodes = memberships(graphs, self.network.bits, context["shared"]["seed"])
        block = graph_block(graphs)
        space = {**local["parameters"], **context["own"]["fixed"]}["body.0.space"]
        embeddings = block.map_features(space)
        sums = at_nodes.times(embeddings.flatten(0, 1)).unflatten(0, (len(graphs), num_buckets))
        counts = at_nodes.counts.view(len(graphs), num_buckets).to(sums.dtype)
        if not self.pseudo:
            return sums, counts
        mean, deviation = _moments(embeddings, block.num_nodes)
        places, normal = self._pseudo_nodes(context, embeddings)
        buckets = torch.arange(num_buckets, device=places.device)
        chosen = (places.unsqueeze(1) == buckets.unsqueeze(1)).to(sums.dtype)
        return sums + chosen @ (mean + deviation * normal), counts + chosen.sum(dim=2)

    def _pseudo_nodes(self, context: Tree, like: Tensor) -> tuple[Tensor, Tensor]:
        """Random buckets and normal numbers of the pseudo nodes of each client."""
        places, normal = [], []
        for stream in _streams(context):
            draws = stream.at("pseudo").generator()
            places.append(torch.randint(self.network.num_buckets, (self.pseudo,), generator=draws))
            normal.append(torch.randn(self.pseudo, like.shape[-1], generator=draws))
        return torch.stack(places).to(like.device), torch.stack(normal).to(like)

    @override
    def server_update(self, server_state: Tree, total: AggregatedUpdate) -> Tree:
        sums: Params = {n: total.payload[n] * total.weight for n in ("sums", "counts")}
        server_state = super().server_update(server_state, total)
        return {**server_state, **sums, "round": server_state["round"] + 1}


def _streams(context: Tree) -> list[Rng]:
    """Random stream of each client for the end of the round."""
    return [Rng(part["seed"]) for part in context["own"]["end"].parts]


def _laplace(num: int, draws: torch.Generator) -> Tensor:
    """Numbers of a standard Laplace distribution, in float64 on the CPU."""
    u = torch.rand(num, generator=draws, dtype=torch.float64) - 0.5
    return (-u.sign() * torch.log1p(-2 * u.abs())).clamp(-50, 50)  # u = -0.5 once in 2 ** 53


def _moments(
    x: Float[Tensor, "clients n k"], num_nodes: Int64[Tensor, " clients"]
) -> tuple[Float[Tensor, "clients 1 k"], Float[Tensor, "clients 1 k"]]:
    """Mean and standard deviation over the nodes of each client, without padding, which is 0."""
    counts = num_nodes.view(-1, 1, 1)
    mean = x.sum(dim=1, keepdim=True) / counts
    valid = torch.arange(x.shape[1], device=x.device).unsqueeze(1) < counts
    gaps = torch.where(valid, x - mean, 0.0)
    return mean, (gaps.square().sum(dim=1, keepdim=True) / counts).sqrt()
