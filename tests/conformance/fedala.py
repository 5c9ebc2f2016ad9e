"""FedALA: shares of the received head are learned before head and body are trained."""

import torch
from torch.func import functional_call
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedALA
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedALA(
    MLP((4,)), rounds=4, local=LocalTraining(5, 3), lr=0.2, share_lr=0.7, share_steps=0.4
)


def mixture(theta, own, shares):
    """The received model with its head mixed into the client's own."""
    return {**theta, **{n: x + (theta[n] - x) * shares[n] for n, x in own.items()}}


def local_training(method, theta, own, shares, client, round):
    """Two epochs of the shares, then three of the model, as the five have equally many steps."""
    steps = list(batches(RNG, round, client, epochs=5, batch_size=3))
    num_first = round_half(method.share_steps * len(steps))
    shares = {n: w.clone().requires_grad_() for n, w in shares.items()}
    network = plain_network(theta)
    for x, y in steps[:num_first]:
        loss = cross_entropy(functional_call(network, mixture(theta, own, shares), (x,)), y)
        slopes = torch.autograd.grad(loss, list(shares.values()))
        shares = {
            n: (w.detach() - method.share_lr * slope).clamp(0, 1).requires_grad_()
            for (n, w), slope in zip(shares.items(), slopes, strict=True)
        }
    shares = {n: w.detach() for n, w in shares.items()}
    network = plain_network(mixture(theta, own, shares))
    descent = torch.optim.SGD(network.parameters(), lr=method.lr)
    for x, y in steps[num_first:]:
        descent.zero_grad()
        cross_entropy(network(x), y).backward()
        descent.step()
    return values(network), shares


def round_half(number):
    return int(number + 0.5)


def run(method, data, cohorts):
    theta = initial(method, data)
    heads = dict.fromkeys(range(len(data.clients)))
    shares = {i: {n: torch.ones_like(v) for n, v in head_of(theta).items()} for i in heads}
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            own = heads[i] or head_of(theta)
            end, shares[i] = local_training(method, theta, own, shares[i], data.clients[i], r)
            ends.append(end)
            heads[i] = head_of(end)
        theta = average(ends, [float(data.clients[i].size) for i in cohort])
    models = {i: mixture(theta, heads[i] or head_of(theta), shares[i]) for i in heads}
    kept = {
        i: {part: {n.removeprefix("head."): x for n, x in of[i].items()}
            for part, of in (("head", heads), ("shares", shares))}
        for i in set().union(*cohorts)
    }  # fmt: skip
    scored = {i: plain_network(model) for i, model in models.items()}
    return End({"parameters": theta}, kept, {**scored, None: plain_network(theta)})


def head_of(parameters):
    return {n: v for n, v in parameters.items() if n.startswith("head.")}


LOOPS = {"FedALA": Loop(METHOD, "Zhang et al. (2023), Algorithm 1, arXiv:2212.01197", run)}
