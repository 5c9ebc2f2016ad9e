"""SphereFed: a fixed orthonormal head; the closed form of its last round has tests of its own."""

import torch
from torch.nn.functional import mse_loss, normalize

from fedbolic.federated import LocalTraining
from fedbolic.methods import SphereFed
from fedbolic.nn.network.backbone import MLP
from tests.conformance.loop import End, Loop
from tests.federated.simple_method import RNG, average, batches, plain_network, values

METHOD = SphereFed(MLP((4,)), rounds=4, local=LocalTraining(2, 3), lr=0.5, closed_form_head=False)
HEAD = "head.weight"


def run(method, data, cohorts):
    """Mean squared error of cosines against one-hot labels; bodies averaged by size."""
    theta = method.init(data.meta, RNG.at("init"))["parameters"]
    theta = {name: value.double() for name, value in theta.items()}
    weight, bias = theta.pop(HEAD), torch.zeros(3).double()
    for r, cohort in enumerate(cohorts, 1):
        ends = []
        for i in cohort:
            body = plain_network({**theta, HEAD: weight, "head.bias": bias}).body
            descent = torch.optim.SGD(body.parameters(), lr=method.lr)
            for x, y in batches(RNG, r, data.clients[i], epochs=2, batch_size=3):
                descent.zero_grad()
                cosines = normalize(body(x)) @ weight.T
                mse_loss(cosines, torch.eye(3, dtype=torch.float64)[y]).backward()
                descent.step()
            ends.append({f"body.{name}": value for name, value in values(body).items()})
        theta = average(ends, [len(data.clients[i].train) for i in cohort])
    return End({"parameters": {**theta, HEAD: weight}})


LOOPS = {"SphereFed": Loop(METHOD, "Dong et al. (2022), Sec. 3", run, inert=("ridge",))}
