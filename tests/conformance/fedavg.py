"""FedAvg, and FedProx, FedOpt, local training, FedPer and FedBABU, which are settings of it."""

from dataclasses import replace

import torch
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining, ServerAdagrad, ServerAdam, ServerSGD, ServerYogi
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, everywhere, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedAvg(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.2)


def client_update(network, client, round, lr, *, mu=0.0, parts=("body", "head")):
    """``ClientUpdate``: gradient steps on the loss and, for FedProx, on the proximal term."""
    received = values(network)
    trained = [p for part in parts for p in getattr(network, part).parameters()]
    descent = torch.optim.SGD(trained, lr=lr)
    for x, y in batches(RNG, round, client, epochs=2, batch_size=3):
        descent.zero_grad()
        distance = sum((p - received[n]).square().sum() for n, p in network.named_parameters())
        (cross_entropy(network(x), y) + mu / 2 * distance).backward()
        descent.step()
    return values(network)


def fedavg(method, data, cohorts):
    theta = initial(method, data)
    for r, cohort in enumerate(cohorts, 1):
        ends = [
            client_update(plain_network(theta), data.clients[i], r, method.lr, mu=method.proximal)
            for i in cohort
        ]
        theta = average(ends, [len(data.clients[i].train) for i in cohort])
    return End({"parameters": theta}, models=everywhere(data, theta))


def fedopt(second=None):
    """``FedOpt``: a step of the server along the mean delta, as the paper writes it."""

    def run(method, data, cohorts):
        theta, server = initial(method, data), method.server_optimizer
        m = {n: torch.zeros_like(p) for n, p in theta.items()}
        v = {n: torch.full_like(p, getattr(server, "tau", 0) ** 2) for n, p in theta.items()}
        for r, cohort in enumerate(cohorts, 1):
            ends = [
                client_update(plain_network(theta), data.clients[i], r, method.lr) for i in cohort
            ]
            mean = average(ends, [len(data.clients[i].train) for i in cohort])
            for n in theta:
                delta = mean[n] - theta[n]
                if second is None:  # FedAvgM
                    m[n] = server.momentum * m[n] + delta
                    step = m[n]
                else:
                    m[n] = server.beta1 * m[n] + (1 - server.beta1) * delta
                    v[n] = second(server, v[n], delta**2)
                    step = m[n] / (torch.sqrt(v[n]) + server.tau)
                theta = {**theta, n: theta[n] + server.lr * step}
        return End({"parameters": theta}, models=everywhere(data, theta))

    return run


def partial(personal=(), fixed=()):
    """Clients keep the ``personal`` parts of the network; nobody trains the ``fixed`` ones."""
    trained = [part for part in ("body", "head") if part not in fixed]

    def of(parts, parameters):
        return {n: v for n, v in parameters.items() if n.split(".")[0] in parts}

    def run(method, data, cohorts):
        theta = initial(method, data)
        own = {client.id: of(personal, theta) for client in data.clients}
        for r, cohort in enumerate(cohorts, 1):
            ends = []
            for i in cohort:
                network = plain_network({**theta, **own[i]})
                ends.append(client_update(network, data.clients[i], r, method.lr, parts=trained))
                own[i] = of(personal, ends[-1])
            mean = average(ends, [len(data.clients[i].train) for i in cohort])
            theta = {**theta, **{n: v for n, v in mean.items() if n not in own[0]}}
        seen = set().union(*cohorts) if personal else ()
        models = {i: plain_network({**theta, **own[i]}) for i in own}
        if not personal:
            models[None] = plain_network(theta)
        shared = {n: v for n, v in of(trained, theta).items() if n not in own[0]}
        return End({"parameters": shared}, {i: {"parameters": own[i]} for i in seen}, models)

    return run


def sharing(**rows):
    return {f"{part}.*" if part != "rest" else "*": kind for part, kind in rows.items()}


MCMAHAN = "McMahan et al. (2017), Algorithm 1"
REDDI = "Reddi et al. (2021), Algorithm 2"

LOOPS = {
    "FedAvg": Loop(METHOD, MCMAHAN, fedavg),
    "FedProx": Loop(replace(METHOD, proximal=0.5), "Li et al. (2020), Algorithm 2", fedavg),
    "FedAvgM": Loop(
        replace(METHOD, server_optimizer=ServerSGD(0.7, momentum=0.9)),
        "Hsu et al. (2019), Sec. 4.3",
        fedopt(),
    ),
    "FedAdagrad": Loop(
        replace(METHOD, server_optimizer=ServerAdagrad(0.1, tau=0.125)),
        REDDI,
        fedopt(lambda o, v, square: v + square),
    ),
    "FedAdam": Loop(
        replace(METHOD, server_optimizer=ServerAdam(0.1, tau=0.125)),
        REDDI,
        fedopt(lambda o, v, square: o.beta2 * v + (1 - o.beta2) * square),
    ),
    "FedYogi": Loop(
        replace(METHOD, server_optimizer=ServerYogi(0.1, tau=0.125)),
        REDDI,
        fedopt(lambda o, v, square: v - (1 - o.beta2) * square * torch.sign(v - square)),
    ),
    "Local": Loop(
        replace(METHOD, sharing={"*": "personal"}),
        f"{MCMAHAN}, without the server",
        partial(("body", "head")),
        inert=("server_optimizer.lr", "weights"),
    ),
    "FedPer": Loop(
        replace(METHOD, sharing=sharing(head="personal", rest="shared")),
        "Arivazhagan et al. (2019), Algorithm 1",
        partial(("head",)),
    ),
    "FedBABU": Loop(
        replace(METHOD, sharing=sharing(head="fixed", rest="shared")),
        "Oh et al. (2022), Algorithm 1",
        partial(fixed=("head",)),
    ),
}
