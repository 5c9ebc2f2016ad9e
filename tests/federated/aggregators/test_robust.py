"""Laws of all robust aggregators."""

import copy

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.federated import (
    CenteredClipping,
    GeometricMedian,
    Krum,
    LocalTraining,
    Median,
    Trainer,
    TrimmedMean,
    Update,
)
from fedbolic.federated.aggregators import deltas
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.reproducible import reproducible
from tests.federated.aggregators.test_aggregator import Largest
from tests.federated.aggregators.vectors import rows, seeds, updates, vector
from tests.federated.simple_method import assert_near, assert_same, federation

OF_DELTAS = [Krum(2), Krum(2, num_selected=5), GeometricMedian(), CenteredClipping(2.0)]
ROBUST = [TrimmedMean(0.25), *OF_DELTAS, CenteredClipping(0.5, iterations=20)]
EQUIVARIANT = [TrimmedMean(0.25), Krum(2), Krum(2, num_selected=5), GeometricMedian()]


@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
@given(seeds, st.randoms(use_true_random=False))
def test_the_order_of_clients_does_not_matter(aggregator, seed, shuffle):
    pairs = updates(rows(9, 4, seed))
    other = list(pairs)
    shuffle.shuffle(other)
    assert_near(aggregator.aggregate(pairs).payload, aggregator.aggregate(other).payload, 1e-6)


@pytest.mark.parametrize("aggregator", EQUIVARIANT, ids=repr)
@given(seeds)
def test_a_common_shift_of_all_deltas_shifts_the_result(aggregator, seed):
    x = rows(9, 4, seed)
    shift = np.array([10.0, -20.0, 5.0, 0.5])
    here, there = (vector(aggregator.aggregate(updates(each))) for each in (x, x + shift))
    np.testing.assert_allclose(there, here + shift, atol=1e-5)


@pytest.mark.parametrize("aggregator", EQUIVARIANT, ids=repr)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_deltas_give_that_delta(aggregator, dtype):
    row = rows(1, 4, seed=0)
    total = aggregator.aggregate(updates(np.repeat(row, 9, axis=0), dtype=dtype))
    expected = torch.as_tensor(row[0], dtype=dtype).numpy()
    np.testing.assert_allclose(
        vector(total), expected, rtol=1e-6 if dtype == torch.float32 else 1e-14
    )
    assert total.payload["delta"]["w"].dtype == dtype


@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
@given(seeds, st.sampled_from([1e3, 1e8, 1e30]))
def test_two_far_outliers_of_nine_move_the_result_by_a_bounded_amount(aggregator, seed, far):
    x = rows(9, 4, seed)
    honest = vector(aggregator.aggregate(updates(x)))
    x[2:4] = far * np.random.default_rng(seed).standard_normal((2, 4))
    attacked = vector(aggregator.aggregate(updates(x)))
    spread = np.linalg.norm(x[[0, 1, 4, 5, 6, 7, 8]].std(axis=0))
    assert np.linalg.norm(attacked - honest) < 10 * spread


@pytest.mark.parametrize("aggregator", OF_DELTAS, ids=repr)
def test_other_parts_are_the_median_over_all_clients(aggregator):
    pairs = updates(rows(9, 4, seed=0))
    buffers = aggregator.aggregate(pairs).payload["buffers"]
    assert_same(buffers, {"mean": torch.tensor([4.0, -8.0]), "count": torch.tensor(40)})


@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
def test_arguments_are_untouched_and_read_once(aggregator):
    pairs = updates(rows(9, 4, seed=0), range(1, 10), torch.float32)
    before = copy.deepcopy([update.payload for _, update in pairs])
    total = aggregator.aggregate(iter(pairs))
    for (_, update), old in zip(pairs, before, strict=True):
        assert_same(update.payload, old)
    assert_same(total.payload, aggregator.aggregate(pairs).payload)
    assert total.clients == tuple(i for i, _ in pairs)
    assert total.weight == 45


@pytest.mark.parametrize("aggregator", [each for each in ROBUST if each != GeometricMedian()])
def test_weights_that_clients_report_have_no_influence(aggregator):
    x = rows(9, 4, seed=0)
    plain = aggregator.aggregate(updates(x)).payload
    assert_same(aggregator.aggregate(updates(x, [1e6, *[1.0] * 8])).payload, plain)


@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
def test_nothing_to_aggregate_is_refused(aggregator):
    with pytest.raises(ValueError, match="no update to aggregate"):
        aggregator.aggregate(iter([]))


@pytest.mark.parametrize("aggregator", OF_DELTAS, ids=repr)
def test_a_payload_without_delta_is_refused(aggregator):
    name = type(aggregator).__name__
    with pytest.raises(ValueError, match=rf"client 3 sent \['sum'\]: {name} needs the part"):
        aggregator.aggregate([(3, Update({"sum": torch.zeros(2)}))])


@pytest.mark.parametrize("aggregator", OF_DELTAS, ids=repr)
def test_a_delta_whose_square_overflows_is_left_out(aggregator, caplog):
    x = rows(9, 4, seed=0)
    x[3] = 1e200
    total = aggregator.aggregate(updates(x))
    assert total.clients == (0, 2, 4, 8, 10, 12, 14, 16)
    assert np.isfinite(vector(total)).all()
    assert "client 6 is left out: its delta is not finite" in caplog.text


@pytest.mark.parametrize("aggregator", [TrimmedMean(0.25), *OF_DELTAS], ids=repr)
def test_nothing_is_much_larger_than_a_payload_in_double_precision(aggregator, monkeypatch):
    """Twenty deltas take one megabyte each; a copy of them in float64 would take forty."""
    monkeypatch.setattr(deltas, "BLOCK", 2**16)
    pairs = [(i, Update({"delta": {"a": torch.full((2**18,), float(i))}})) for i in range(20)]
    with Largest() as largest:
        aggregator.aggregate(pairs)
    assert largest.num_bytes < 3 * 2**20


def test_a_secure_sum_refuses_a_robust_aggregator():
    from fedbolic.federated.secure import SecureSum

    with pytest.raises(ValueError, match=r"needs an aggregator that sums.*FedAvg uses Median"):
        SecureSum(FedAvg(aggregator=Median()))


@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
def test_fedavg_learns_with_every_aggregator(aggregator):
    local = LocalTraining(epochs=1, batch_size=4)
    method = FedAvg(MLP((4,)), rounds=2, local=local, lr=0.1, aggregator=aggregator)
    *_, (state, made) = Trainer().run(method, federation((6, 7, 5, 6, 8, 6, 4)), Rng(0))
    assert state.round == 2
    losses = [row.value for row in made if row.name == "train/loss" and row.client is None]
    assert np.isfinite(losses).all()


@pytest.mark.gpu
@pytest.mark.parametrize("aggregator", ROBUST, ids=repr)
def test_a_gpu_gives_the_result_of_the_cpu(aggregator):
    pairs = updates(rows(9, 4, seed=0), dtype=torch.float32)
    there = [(i, Update(tree.to(update.payload, "cuda"), update.weight)) for i, update in pairs]
    with reproducible(torch.device("cuda")):  # an operation that is not gives a warning
        found = aggregator.aggregate(there).payload
    assert found["delta"]["w"].device.type == "cuda"
    assert_near(tree.to(found, "cpu"), aggregator.aggregate(pairs).payload, 1e-5)
