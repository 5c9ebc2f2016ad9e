"""Per-FedAvg, first order: the slope after a step on one batch moves the model before it."""

from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining
from fedbolic.methods import PerFedAvg
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop, everywhere, initial
from tests.federated.simple_method import RNG, average, batches, plain_network

METHOD = PerFedAvg(MLP((4,)), rounds=4, local=LocalTraining(3, 3), lr=0.3, personal_lr=0.2)


def slopes(parameters, x, y):
    network = plain_network(parameters)
    cross_entropy(network(x), y).backward()
    return {n: p.grad for n, p in network.named_parameters()}


def moved(parameters, slope, size):
    return {n: value - size * slope[n] for n, value in parameters.items()}


def local_training(method, w, client, round):
    steps = list(batches(RNG, round, client, epochs=3, batch_size=3))
    for first, second in zip(steps[::2], steps[1::2], strict=False):
        personal = moved(w, slopes(w, *first), method.personal_lr)
        w = moved(w, slopes(personal, *second), method.lr)
    return w


def run(method, data, cohorts):
    w = initial(method, data)
    for r, cohort in enumerate(cohorts, 1):
        ends = [local_training(method, w, data.clients[i], r) for i in cohort]
        w = average(ends, [1.0] * len(ends))
    return End({"parameters": w}, models=everywhere(data, w))


LOOPS = {"Per-FedAvg": Loop(METHOD, "Fallah et al. (2020), Algorithm 1, FO", run)}
