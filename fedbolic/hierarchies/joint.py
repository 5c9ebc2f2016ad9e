"""Joint forms of this folder's method."""

import torch
from torch import Tensor
from torch.nn import functional

from fedbolic.core.types import Params, Tree
from fedbolic.federated.batched.joint import joint
from fedbolic.hierarchies.method import HierarchyEmbedding
from fedbolic.hierarchies.node_table import TABLE
from fedbolic.nn.network.model import Model


@joint(HierarchyEmbedding.loss)
def _losses(
    method: HierarchyEmbedding,
    model: Model,
    parameters: Params,
    buffers: Params,
    batch: Params,
    context: Tree,
    *,
    axes: tuple[Tree, Tree],
) -> tuple[Tensor, Params]:
    """One gather and one distance for the pairs of all clients, at half the time of ``vmap``."""
    del model
    trained, width = parameters[TABLE], batch["x"].shape[1]
    clients = torch.arange(len(trained), device=trained.device).view(-1, 1, 1)
    nodes = torch.cat((batch["x"], batch["negatives"][:, :width]), dim=-1)

    def at_nodes(values: Tensor, axis: int | None) -> Tensor:
        return values[nodes] if axis is None else values[clients, nodes]

    place = at_nodes(context["own"]["place"], axes[1]["own"]["place"])
    others = at_nodes(context["shared"]["table"], axes[1]["shared"]["table"])
    at = clients * trained.shape[1] + place.clamp(min=0)
    own = functional.embedding(at, trained.flatten(0, 1))
    rows = torch.where((place >= 0).unsqueeze(-1), own, others)
    return method.table.losses(rows, batch["unrelated"][:, :width]), buffers
