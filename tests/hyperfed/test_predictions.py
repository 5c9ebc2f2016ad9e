"""The nearest prototype is the one of the largest cosine."""

import pytest
import torch
from torch.nn.functional import normalize

from fedbolic.core.rng import Rng
from fedbolic.data import HOLDOUT, IID, FashionMNIST, Partitioned
from hyperfed import HyperFed
from hyperfed.loss import cosines, excess, prototype_distance
from hyperfed.prototypes import prototypes

RNG = Rng(5)


def nearest_is_largest_cosine(method, data):
    """True if prediction, nearest prototype and largest cosine agree on the whole test set."""
    client = data.holdout
    server_state = method.init(client.meta, RNG)
    local, context = method.start(method.broadcast(server_state, HOLDOUT), client, {})
    model = method.model(client.meta)
    points = context["own"]["prototypes"]["head.weight"]
    equal = []
    for index in torch.arange(len(client.test)).split(1000):
        batch = client.test.at(index)
        z = method.features(model, local, batch, context)
        predicted = method.predict(model, local, batch, context).argmax(dim=-1)
        equal.append(torch.equal(predicted, cosines(z, points).argmax(dim=-1)))
        equal.append(torch.equal(predicted, prototype_distance(z, points).argmin(dim=-1)))
    return all(equal)


@pytest.mark.data
def test_both_predictions_agree_on_every_real_test_image(data_root):
    data = Partitioned(FashionMNIST(), IID(4), num_train=100, root=data_root / "torchvision").load(
        RNG
    )
    for clip in (None, 3.1, 0.1):
        assert nearest_is_largest_cosine(HyperFed(clip=clip), data)


@pytest.mark.parametrize("length", [1e-3, 1.0, 3.0, 30.0])
def test_both_predictions_agree_on_twenty_thousand_random_features(length):
    z = torch.randn(20_000, 20, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    z, points = length * normalize(z), prototypes(10, 20, 0.9)
    cosine = cosines(z, points).argmax(dim=-1)
    assert torch.equal(prototype_distance(z, points).argmin(dim=-1), cosine)
    assert torch.equal(excess(z, points).argmin(dim=-1), cosine)
