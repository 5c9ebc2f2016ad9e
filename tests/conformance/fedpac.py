"""FedPAC: first the head, then the body towards prototypes; heads by quadratic programs."""

import numpy as np
import torch
from torch.nn.functional import cross_entropy, mse_loss

from fedbolic.federated import LocalTraining
from fedbolic.methods import FedPAC
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = FedPAC(
    MLP((4,)), rounds=4, local=LocalTraining(5, 3), lr=0.2, alignment=0.6, head_share=0.4
)


def statistics(network, client):
    """Moments and variance of the features, class by class as in the authors' code."""
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    z, moments, variance = network.body(x).detach(), [], 0.0
    for c in range(3):
        of_class, share = z[y == c], float((y == c).double().mean())
        mean = of_class.mean(dim=0) if len(of_class) else torch.zeros(4).double()
        moments.append(share * mean)
        if len(of_class):
            second = torch.trace(of_class.T @ of_class / len(of_class))
            variance += float(share * second - share**2 * (mean @ mean))
    return torch.stack(moments), variance / len(y)


def local_training(method, network, prototypes, client, round):
    steps = list(batches(RNG, round, client, epochs=5, batch_size=3))
    num_head = 2 * len(steps) // 5
    for part, of_part in ((network.head, steps[:num_head]), (network.body, steps[num_head:])):
        descent = torch.optim.SGD(part.parameters(), lr=method.lr)
        for x, y in of_part:
            z = network.body(x)
            target = z.detach().clone()
            for i, label in enumerate(y.tolist()):
                target[i] = prototypes.get(label, target[i])
            loss = cross_entropy(network.head(z), y) + method.alignment * mse_loss(z, target)
            descent.zero_grad()
            loss.backward()
            descent.step()
    x, y = client.train.tensors["x"], client.train.tensors["y"]
    z = network.body(x).detach()
    return {c: (z[y == c].mean(dim=0), int((y == c).sum())) for c in set(y.tolist())}


def weights_of(moments, variances, k):
    """The weights of client k by brute force over the faces of the simplex."""
    gaps = [(m - moments[k]).flatten() for m in moments]
    form = np.diag(variances) + np.array([[float(a @ b) for b in gaps] for a in gaps])
    num, best, least = len(form), None, np.inf
    for face in range(1, 2**num):
        used = [j for j in range(num) if face >> j & 1]
        ones = np.ones(len(used))
        solved = np.linalg.solve(form[np.ix_(used, used)], ones)
        alpha = np.zeros(num)
        alpha[used] = solved / solved.sum()
        value = alpha @ form @ alpha
        if (alpha >= -1e-15).all() and value < least:
            best, least = alpha, value
    return best


def run(method, data, cohorts):
    theta = initial(method, data)
    head = {n: v for n, v in theta.items() if n.startswith("head.")}
    body = {n: v for n, v in theta.items() if n not in head}
    heads, prototypes = [head for _ in data.clients], {}
    for r, cohort in enumerate(cohorts, 1):
        moments, variances, ends, found = [], [], [], []
        for i in cohort:
            network = plain_network({**body, **heads[i]})
            of_moments, variance = statistics(network, data.clients[i])
            moments.append(of_moments)
            variances.append(variance)
            found.append(local_training(method, network, prototypes, data.clients[i], r))
            ends.append(values(network))
        sizes = [float(data.clients[i].size) for i in cohort]
        body = {n: average(ends, sizes)[n] for n in body}
        for k, i in enumerate(cohort):
            alpha = weights_of(moments, variances, k)
            heads[i] = {
                n: sum(a * end[n] for a, end in zip(alpha, ends, strict=True)) for n in head
            }
        for c in set().union(*found):
            means, counts = zip(*[of[c] for of in found if c in of], strict=True)
            mean = sum(n * m for m, n in zip(means, counts, strict=True)) / sum(counts)
            prototypes = {**prototypes, c: mean}
    server = {
        "parameters": body,
        "heads": {n: torch.stack([h[n] for h in heads]) for n in head},
        "prototypes": torch.stack([prototypes.get(c, torch.zeros(4).double()) for c in range(3)]),
    }
    return End(server, {}, {i: plain_network({**body, **h}) for i, h in enumerate(heads)})


LOOPS = {"FedPAC": Loop(METHOD, "Xu et al. (2023), Algorithm 1", run)}
