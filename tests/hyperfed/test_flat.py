"""Flat controls of H-CE against 60-digit arithmetic, and the limit in which H-CE is one of them."""

import dataclasses

import mpmath
import pytest
import torch
from torch.nn.functional import normalize

from fedbolic.data import Examples
from fedbolic.federated import LocalTraining, Mean
from fedbolic.nn.network.backbone import MLP
from hyperfed import (
    CosineCrossEntropy,
    CrossEntropy,
    EuclideanCrossEntropy,
    FedETF,
    Harmonic,
    HyperFed,
)
from hyperfed.prototypes import prototypes
from tests.federated.agreement import assert_engines_agree
from tests.federated.simple_method import RNG, federation, train

mpmath.mp.dps = 60
COUNTS = (4, 0, 7, 1, 2)


def norm(v):
    return mpmath.sqrt(sum(x * x for x in v))


def apart(a, b):
    return norm([x - y for x, y in zip(a, b, strict=True)])


def e_ce(z, w):
    length = norm(w)
    return -2 * apart(z, [mpmath.atanh(length) * x / length for x in w])


def harmonic(z, w):
    return -4 * mpmath.log(apart([x / norm(z) for x in z], w))


def cosine(z, w):
    return sum(x * y for x, y in zip(z, w, strict=True)) / norm(z) / norm(w)


LOGITS = {
    "e-ce": (EuclideanCrossEntropy(2.0), e_ce),
    "harmonic": (Harmonic(4.0), harmonic),
    "etf": (CosineCrossEntropy(10.0), lambda z, w: 10 * cosine(z, w)),
    "fedetf": (FedETF(3.0, balance=0.5), lambda z, w: 3 * cosine(z, w)),
}


@pytest.mark.parametrize("name", LOGITS)
@pytest.mark.parametrize("length", [1e-3, 0.5, 3.1, 40.0])
def test_losses_are_those_of_60_digits(name, length):
    objective, logit = LOGITS[name]
    generator = torch.Generator().manual_seed(0)
    z = length * normalize(torch.randn(6, 4, generator=generator, dtype=torch.float64))
    points, y = prototypes(5, 4, 0.9), torch.tensor([0, 2, 3, 4, 2, 0])
    batch = {"y": y, "scale": torch.tensor(3.0), "prior": 0.5 * torch.tensor(COUNTS).double().log()}
    weights = [mpmath.sqrt(n) if name == "fedetf" else 1 for n in COUNTS]
    for vector, label, found in zip(
        z.tolist(), y.tolist(), objective.losses(z, points, batch).tolist(), strict=True
    ):
        vector = [mpmath.mpf(x) for x in vector]
        terms = [
            n * mpmath.exp(logit(vector, w)) for n, w in zip(weights, points.tolist(), strict=True)
        ]
        assert found == pytest.approx(float(-mpmath.log(terms[label] / sum(terms))), abs=1e-12)


def test_h_ce_tends_to_the_harmonic_loss():
    """The difference is 2e-5 an example at the default bound on features, and falls from there."""
    generator = torch.Generator().manual_seed(1)
    directions = normalize(torch.randn(500, 20, generator=generator, dtype=torch.float64))
    points, y = prototypes(10, 20, 0.9), torch.randint(10, (500,), generator=generator)
    hyperbolic, flat = CrossEntropy(2.0), Harmonic(4.0)
    apart = {}
    for length in (1.0, 3.1, 6.0, 12.0):
        both = [each.losses(length * directions, points, {"y": y}) for each in (hyperbolic, flat)]
        apart[length] = float((both[0] - both[1]).abs().mean())
    assert apart[3.1] <= 2e-5
    assert apart[1.0] > apart[3.1] > apart[6.0] > apart[12.0]


def test_a_class_that_a_client_lacks_takes_no_part_in_its_loss():
    data, method = federation((9, 5)), HyperFed(MLP((4,)), objective=FedETF())
    client = data.clients[0]
    y = client.train.tensors["y"]
    some = dataclasses.replace(client, train=Examples(client.train.at((y == 1).nonzero()[:, 0])))
    prior = method.objective.known(some)["prior"]
    assert prior.exp().tolist() == pytest.approx([0, int((y == 1).sum()), 0])
    z, points = torch.randn(3, 4).double(), prototypes(3, 4, 0.9)
    batch = {"y": torch.tensor([1, 1, 1]), "scale": torch.tensor(5.0), "prior": prior}
    assert method.objective.losses(z, points, batch).tolist() == pytest.approx([0, 0, 0])


def test_the_temperature_is_trained_and_averaged():
    method = HyperFed(
        MLP((4,)), rounds=2, local=LocalTraining(2, 4), objective=FedETF(), aggregator=Mean()
    )
    states, _ = train(method, federation(), RNG)
    scales = [float(each.server_state["parameters"]["loss.scale"]) for each in states]
    assert len({1.0, *scales}) == 3


@pytest.mark.parametrize(
    "objective", [FedETF(), EuclideanCrossEntropy(), Harmonic(), CosineCrossEntropy()], ids=repr
)
def test_engines_agree(objective):
    method = HyperFed(
        MLP((4,)), rounds=2, local=LocalTraining(1, 4), objective=objective, aggregator=Mean()
    )
    assert_engines_agree(method, federation((5, 9, 2)))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        (EuclideanCrossEntropy, {"scale": 0.0}),
        (Harmonic, {"exponent": -1.0}),
        (CosineCrossEntropy, {"scale": 0.0}),
        (FedETF, {"scale": 0.0}),
        (FedETF, {"balance": -1.0}),
    ],
)
def test_values_outside_their_range_are_refused(kind, values):
    with pytest.raises(ValueError, match=next(iter(values))):
        kind(**values)
