"""FedAMP: the server steps on the attraction of the models, the clients towards its result."""

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedAMP
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, batches, plain_network, values

METHOD = FedAMP(
    MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2, alpha=0.03, sigma=2.0, coupling=0.04
)


def attracted(method, models):
    """One step of gradient descent on the attraction of all models, from automatic slopes."""
    names = list(models[0])
    columns = [torch.cat([m[n].flatten() for n in names]).requires_grad_() for m in models]
    attraction = sum(
        1 - torch.exp(-(columns[i] - columns[j]).square().sum() / method.sigma)
        for i in range(len(columns))
        for j in range(i)
    )
    # each pair stands once here; half of the derivative of a squared distance is the difference
    found = torch.autograd.grad(attraction, columns)
    means = []
    for column, slope in zip(columns, found, strict=True):
        parts = (
            (column - method.alpha / 2 * slope)
            .detach()
            .split([models[0][n].numel() for n in names])
        )
        means.append({n: x.view_as(models[0][n]) for n, x in zip(names, parts, strict=True)})
    return means


def local_training(method, model, mean, client, round):
    network = plain_network(model)
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        gap = sum((p - mean[n]).square().sum() for n, p in network.named_parameters())
        descent.zero_grad()
        (cross_entropy(network(x), y) + method.coupling / (2 * method.alpha) * gap).backward()
        descent.step()
    return values(network)


def run(method, data, cohorts):
    models = [initial(method, data) for _ in data.clients]
    for r, cohort in enumerate(cohorts, 1):
        means = attracted(method, models)
        ends = {i: local_training(method, models[i], means[i], data.clients[i], r) for i in cohort}
        models = [ends.get(i, model) for i, model in enumerate(models)]
    stacked = {n: torch.stack([model[n] for model in models]) for n in models[0]}
    kept = {i: {"parameters": models[i]} for i in set().union(*cohorts)}
    scored = {i: plain_network(model) for i, model in enumerate(models)}
    return End({"models": stacked}, kept, scored)


LOOPS = {"FedAMP": Loop(METHOD, "Huang et al. (2021), Algorithm 1", run)}
