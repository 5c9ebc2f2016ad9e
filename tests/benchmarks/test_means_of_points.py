"""Means of points against a search for the point with the least sum of squared distances."""

import pytest
import torch

from benchmarks.hierarchies.means_of_points import MeanOfPoints, PointRows
from fedbolic.core.rng import Rng
from fedbolic.data import BalancedTree, PartitionedHierarchy, Subtrees
from fedbolic.federated import LocalTraining, Update
from fedbolic.manifolds import Lorentz
from tests.federated.simple_method import train


def update(rows, values, weights):
    part = {
        "num_rows": 3,
        "rows": torch.tensor(rows, dtype=torch.int32),
        "values": torch.tensor(values, dtype=torch.float64),
        "weights": torch.tensor(weights, dtype=torch.float64),
    }
    return Update({"weight": part})


UPDATES = [
    (0, update([0, 1], [[0.0, 1.0], [2.0, 0.0]], [1.0, 3.0])),
    (1, update([1], [[0.0, 2.0]], [1.0])),
]


@pytest.mark.parametrize("mean", ["centroid", "frechet"])
def test_a_row_of_one_client_is_its_own(mean):
    found = PointRows(Lorentz(0.5), mean).aggregate(UPDATES).payload["weight"]
    torch.testing.assert_close(found["values"][0], torch.tensor([0.0, 1.0]).double())
    assert not found["values"][2].any()
    assert found["weights"].tolist() == [1.0, 4.0, 0.0]


def test_a_frechet_mean_has_the_least_sum_of_squares():
    space = Lorentz(0.5)
    row = PointRows(space, "frechet").aggregate(UPDATES).payload["weight"]["values"][1]

    def point(v):
        return space.expmap0(torch.cat((torch.zeros(1), v)).double())

    def total(v):
        parts = [
            (3.0, UPDATES[0][1].payload["weight"]["values"][1]),
            (1.0, UPDATES[1][1].payload["weight"]["values"][0]),
        ]
        return sum(w * float(space.dist(point(v), point(x))) ** 2 for w, x in parts)

    for step in torch.eye(2) * 0.01:
        assert total(row) < min(total(row + step), total(row - step))


def test_a_centroid_is_the_normalised_mean_of_ambient_coordinates():
    space = Lorentz(0.5)
    row = PointRows(space, "centroid").aggregate(UPDATES).payload["weight"]["values"][1]
    a, b = (space.expmap0(torch.tensor([0.0, *v]).double()) for v in ([2.0, 0.0], [0.0, 2.0]))
    mean = (3 * a + b) / 4
    length = (mean[0] ** 2 - mean[1:].square().sum()).sqrt() * 0.5**0.5
    expected = space.logmap0(mean / length)[1:]
    torch.testing.assert_close(row, expected)


@pytest.mark.parametrize("mean", ["centroid", "frechet"])
def test_the_controls_run(mean):
    method = MeanOfPoints(dim=2, rounds=2, local=LocalTraining(1, 8), mean=mean)
    data = PartitionedHierarchy(BalancedTree(2, 3), Subtrees(2)).load(Rng(0))
    states, rows = train(method, data, Rng(0))
    assert states[-1].server_state["parameters"]["weight"].isfinite().all()
    assert any(row.name == "holdout/map" for row in rows)
