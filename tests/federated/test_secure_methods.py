"""The methods of the house under a secure sum: the results that they have in the clear."""

from pathlib import Path

import pytest

from fedbolic.data import HalfPlanes, Points
from fedbolic.data.digits import Digits
from fedbolic.data.images import Images
from fedbolic.data.partition import IID, Dirichlet
from fedbolic.data.points import ClassRuns
from fedbolic.federated.secure import SecureSum
from fedbolic.rng import Rng
from fedhull import FedHull, Hyperbolic, Spectral
from fedhull.quantise import PolarGrid
from flynn import FlyNN
from tests.federated.boring import assert_same, train
from tests.federated.secure_parties import Losing

RNG = Rng(7)


def same_in_secret(method, data, **options):
    """Checks that a run under masks ends as the one in the clear, and gives the rows of both."""
    clear, rows = train(method, data, RNG)
    secret, masked_rows = train(SecureSum(method, **options), data, RNG)
    assert_same(secret[-1].state["inner"], clear[-1].state)
    for i, memory in clear[-1].memories.items():
        assert_same(secret[-1].memories[i]["inner"], memory)

    def scores(found):
        return [row for row in found if "accuracy" in row.name]

    assert scores(masked_rows) == scores(rows)
    assert scores(rows)
    return rows, masked_rows


@pytest.mark.parametrize("modulus", [2**32, 2**61 - 1])
def test_fly_counts_are_the_same_to_the_last_bit(modulus):
    data = Images(Digits(), Dirichlet(10, alpha=0.5, min_size=10)).load(Rng(0))
    same_in_secret(FlyNN(dim=2048, active=32), data, modulus=modulus)


def test_hulls_are_the_same_to_the_last_bit_at_21_and_at_127_bits():
    data = HalfPlanes(num_points=600, least=60, margin=0.1, partition=IID(5)).load(Rng(0))
    same_in_secret(FedHull(), data)
    same_in_secret(FedHull(bits=127), data)


def test_hulls_of_those_who_are_left_are_read():
    data = HalfPlanes(num_points=600, least=60, margin=0.1, partition=IID(5)).load(Rng(0))
    engine = Losing(lost=(("unmasking", 3),))  # of the first sum, and so of those that follow
    positions, _ = train(SecureSum(FedHull()), data, RNG, engine=engine)
    assert positions[-1].round == 1
    assert "names" in positions[-1].state["inner"]
    named = {i for i, m in positions[-1].memories.items() if "own_names" in m["inner"]}
    assert named == {0, 1, 2, 4}


@pytest.mark.data
def test_olsson_is_the_same_in_secret(data_root):
    source = Points(
        Path("single_cell/olsson/olsson_poincare_embedding.npz"),
        ClassRuns(3, legacy=3),
        split=3,
        root=data_root,
    )
    grid = PolarGrid(epsilon=0.01, radius=0.9772)
    method = FedHull(grid, grouping=Spectral(), boundary=Hyperbolic(C=0.1, pairs=3))
    same_in_secret(method, source.load(Rng(0)))
