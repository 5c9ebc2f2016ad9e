"""A head that starts as a regular simplex."""

import pytest
import torch
from torch.testing import assert_close

from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.nn.network.classifier import SimplexHead
from tests.federated.simple_method import RNG, federation, train


@pytest.mark.parametrize(("num_features", "num_classes"), [(20, 10), (9, 10), (2, 3), (5, 2)])
def test_rows_are_a_regular_simplex(num_features, num_classes):
    weight = SimplexHead(num_features, num_classes).weight.detach().double()
    gram = torch.full((num_classes, num_classes), -1 / (num_classes - 1), dtype=torch.float64)
    assert_close(3 * weight @ weight.T, gram.fill_diagonal_(1.0), rtol=0, atol=1e-5)


def test_with_too_few_features_rows_keep_their_length():
    weight = SimplexHead(4, 10).weight.detach()
    assert_close(weight.norm(dim=1), torch.full((10,), 3**-0.5))


def test_fedavg_starts_there_and_the_head_is_trained():
    data, method = federation(), FedAvg(MLP((4,)), rounds=1, head="simplex")
    weight = method.init(data.meta, RNG.at("init"))["parameters"]["head.weight"]
    assert_close(weight @ weight.T, (torch.eye(3) * 1.5 - 0.5) / 3, rtol=0, atol=1e-5)
    states, _ = train(method, data, RNG)
    assert (states[-1].server_state["parameters"]["head.weight"] - weight).abs().max() > 1e-3
