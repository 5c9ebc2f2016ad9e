"""Joint forms of the methods of this folder, which engines use to compute many clients at once."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.func import vmap

from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.federated.aggregators.update import StackedUpdates
from fedbolic.federated.batched.joint import joint, step_by_numbers
from fedbolic.federated.batched.stacked_batches import stacked_batches
from fedbolic.federated.batched.stacking import at_rows
from fedbolic.methods.fedavg import FedAvg
from fedbolic.methods.personal.fedproto import FedProto

joint(FedAvg.step)(step_by_numbers)


@joint(FedProto.finish)
def _fedproto_results(
    method: FedProto, local: Tree, clients: Sequence[Client], context: Tree, *, axes: Tree
) -> StackedUpdates | None:
    model, meta = method.model(clients[0].meta), clients[0].meta
    if model.mixes_examples:  # features would depend on the examples in a batch
        return None

    def features(local: Tree, context: Tree, batch: Params) -> Tensor:
        return method.features(model, local, batch, context)

    prototypes = context["shared"]["prototypes"]
    classes = torch.arange(meta.num_classes, device=prototypes.device)
    counts = classes.new_zeros(len(clients), len(classes))
    sums = counts.new_zeros(*counts.shape, method.backbone.width_for(meta), dtype=torch.float64)
    for rows, batches in stacked_batches([client.train for client in clients]):
        own, given = at_rows(local, rows), at_rows(context, rows, axes)
        for batch in batches:
            with torch.no_grad():
                z = vmap(features, in_dims=(0, axes, 0))(own, given, batch)
            labels = batch["mask"].unsqueeze(-1) & (batch["y"].unsqueeze(-1) == classes)
            sums[rows] += labels.mT.double() @ z.double()
            counts[rows] += labels.sum(dim=1)
    ended = method.outcome_of_sums(local, sums, counts, like=prototypes)
    return StackedUpdates(*ended, [method.weight(client) for client in clients])
