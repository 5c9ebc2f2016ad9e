import copy
import dataclasses
import itertools

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.federated import Mean, MinNorm, Update
from fedbolic.federated.aggregators.min_norm import QUIET
from tests.federated.aggregators.hulls import hulls, nearest_by_faces, seeds, updates

recipes = st.builds(
    MinNorm,
    solver=st.sampled_from(["exact", "cu"]),
    normalize=st.sampled_from(["none", "l2", "l2_direction"]),
    rescale=st.sampled_from(["none", "average"]),
)


NINE = torch.tensor([[-2.0, 1.0, -1.0], [1.0, -2.0, 0.0], [0.0, 1.0, -2.0]], dtype=torch.float64)
NINE = torch.cat([NINE, NINE + 1, NINE + 2])
"""Directions around zero: many weights give zero as their combination."""
SIDES = torch.tensor([[2.0, 2.0], [-1.0, -2.0], [1.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
"""Repeated directions: any share of their weight may fall on the shorter vector."""


def rounding(x):
    """Accuracy of a step: inner products are exact to 1e-16, and a length is the root of one."""
    return 1e-7 * float(x.norm(dim=1).max())


def step(recipe, x, weights=None, dtype=torch.float64):
    """The flat step that a recipe takes on these deltas, and its aggregated update."""
    total = recipe.aggregate(updates(x, weights, dtype).items())
    delta = tree.tensors(total.payload["delta"]).values()
    return torch.cat([leaf.flatten() for leaf in delta]), total


@given(recipes, hulls(), seeds)
def test_total_has_the_form_of_a_payload_and_arguments_stay_untouched(recipe, x, seed):
    weights = np.random.default_rng(seed).uniform(1, 9, len(x))
    before = copy.deepcopy(updates(x, weights))
    given_updates = updates(x, weights)
    total = recipe.aggregate(iter(given_updates.items()))  # an iterator can be read only once
    for i, update in given_updates.items():
        assert tree.signature(update.payload) == tree.signature(before[i].payload)
        for path, leaf in tree.tensors(update.payload).items():
            assert torch.equal(leaf, tree.tensors(before[i].payload)[path])
    assert tree.signature(total.payload) == tree.signature(before[0].payload)
    assert total.clients == tuple(range(len(x)))
    assert total.weight == pytest.approx(weights.sum())
    assert set(total.metrics) == {
        *("ca/weight_max", "ca/weight_zero", "ca/gap", "ca/length", "ca/cosine_min")
    }
    assert all(np.isfinite(value) for value in total.metrics.values())


@given(st.sampled_from(["none", "l2", "l2_direction"]), hulls(), seeds)
@example("l2", NINE, 0)
@example("l2", SIDES, 0)
@example("l2_direction", SIDES, 0)
def test_order_of_the_clients_does_not_change_the_step(normalize, x, seed):
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(seed))
    recipe = MinNorm(normalize=normalize)
    first, second = step(recipe, x)[0], step(recipe, x[order])[0]
    assert_close(first, second, rtol=0, atol=rounding(x))


@given(st.sampled_from(["none", "l2", "l2_direction"]), hulls(), seeds)
def test_a_client_that_comes_twice_does_not_move_the_step(normalize, x, seed):
    again = torch.from_numpy(np.random.default_rng(seed).integers(0, len(x), 3))
    recipe = MinNorm(normalize=normalize)
    first, second = step(recipe, x)[0], step(recipe, torch.cat([x, x[again]]))[0]
    assert_close(first, second, rtol=0, atol=rounding(x))


def least_norm_weights(unit):
    """Vertices of the set of weights that give the least-norm point, by trying every support."""
    rows = np.vstack([unit.numpy().T, np.ones(len(unit))])
    target = np.append(nearest_by_faces(unit).numpy(), 1)
    for size in range(1, min(rows.shape) + 1):
        for support in map(list, itertools.combinations(range(len(unit)), size)):
            if np.linalg.matrix_rank(rows[:, support], tol=1e-7) == size:
                w = np.linalg.lstsq(rows[:, support], target, rcond=None)[0]
                if np.allclose(rows[:, support] @ w, target, atol=1e-7) and (w >= -1e-9).all():
                    weights = np.zeros(len(unit))
                    weights[support] = w
                    yield weights


@st.composite
def dependent(draw):
    """A few vectors of different lengths whose directions often repeat or surround zero."""
    rng = np.random.default_rng(draw(seeds))
    x = rng.integers(-2, 3, (draw(st.integers(1, 5)), draw(st.integers(1, 3)))).astype(float)
    x[~x.any(axis=1)] = 1.0
    return torch.from_numpy(x * draw(st.sampled_from([1.0, rng.uniform(0.01, 3, (len(x), 1))])))


@given(dependent())
def test_of_all_steps_of_least_norm_weights_the_shortest_is_taken(x):
    lengths = x.norm(dim=1, keepdim=True)
    corners = np.array(list(least_norm_weights(x / lengths)))
    steps = corners @ x.numpy()
    _, different = np.unique(steps.round(9), axis=0, return_index=True)
    found, total = step(MinNorm(normalize="l2"), x)
    assert_close(
        found, nearest_by_faces(torch.from_numpy(steps[different])), rtol=0, atol=rounding(x)
    )
    assert total.metrics["ca/gap"] <= 1e-12
    along = corners @ (x / lengths).numpy()
    along = along / (corners / lengths.T.numpy()).sum(axis=1, keepdims=True)
    found, total = step(MinNorm(normalize="l2_direction"), x)
    shortest = along[np.linalg.norm(along, axis=1).argmin()]
    assert_close(found.numpy(), shortest, rtol=0, atol=rounding(x))
    assert total.metrics["ca/gap"] <= 1e-12


@given(hulls(), st.sampled_from(["none", "l2_direction"]))
def test_step_is_against_no_client(x, normalize):
    delta, total = step(MinNorm(normalize=normalize), x)
    lengths = x.norm(dim=1)
    if not lengths.any():
        assert not delta.any()
        return
    heard = lengths > 1e-8 * lengths[lengths > 0].median()
    units = lengths[heard] if normalize == "l2_direction" else lengths.max()
    assert (x[heard] @ delta / units).min() >= -1e-12 * lengths.max()
    if delta.norm() > 1e-5 * lengths.max():
        cosine = (x[heard] @ delta / lengths[heard] / delta.norm()).min()
        assert total.metrics["ca/cosine_min"] == pytest.approx(float(cosine), abs=1e-6)


@given(recipes, seeds)
def test_identical_clients_equal_the_mean(recipe, seed):
    rng = np.random.default_rng(seed)
    x = torch.from_numpy(rng.standard_normal(6)).expand(4, 6)
    delta, total = step(recipe, x, rng.uniform(1, 9, 4))
    assert_close(delta, x[0], rtol=1e-13, atol=0)
    assert total.metrics["ca/length"] == pytest.approx(1)
    assert total.metrics["ca/cosine_min"] == pytest.approx(1)
    assert total.metrics["ca/weight_zero"] == 0


@given(recipes)
def test_one_client_decides_alone(recipe):
    x = torch.tensor([[3.0, 4.0]], dtype=torch.float64)
    assert_close(step(recipe, x)[0], x[0])


@given(recipes)
def test_changes_of_length_zero_give_no_step_and_keep_the_weights(recipe):
    delta, total = step(recipe, torch.zeros(3, 2), [1, 2, 5])
    assert not delta.any()
    assert total.metrics["ca/weight_max"] == 5 / 8
    assert total.metrics["ca/weight_zero"] == 0


@given(recipes, hulls(), st.sampled_from([0.0, 1e-12]))
@example(MinNorm(normalize="l2"), NINE[:3], 0.0)
def test_a_silent_client_does_not_freeze_training(recipe, x, length):
    # the average length shrinks with a silent client, and Frank-Wolfe may break ties differently
    recipe = dataclasses.replace(recipe, rescale="none", solver="exact")
    x = torch.cat([x, x + 1, x + 2])
    silent = torch.cat([x, torch.full_like(x[:1], length)])
    lengths = silent.norm(dim=1)
    if lengths[-1] > QUIET / 2 * lengths[lengths > 0].median():  # not counted as silent
        return
    assert_close(step(recipe, silent)[0], step(recipe, x)[0], rtol=0, atol=rounding(x))


@pytest.mark.parametrize("solver", ["exact", "cu"])
@pytest.mark.parametrize("num_silent", [1, 3, 9])
def test_many_silent_clients_do_not_freeze_training(num_silent, solver):
    x = torch.cat([torch.zeros(num_silent, 2), torch.tensor([[4.0, 0.0], [0.0, 2.0]])]).double()
    delta, total = step(MinNorm(solver), x)
    assert_close(delta, torch.tensor([0.8, 1.6], dtype=torch.float64))
    assert total.metrics["ca/weight_zero"] == num_silent


def test_a_client_of_weight_zero_has_no_say():
    x = torch.tensor([[1.0, 1.0], [0.1, 0.0]], dtype=torch.float64)
    assert torch.equal(step(MinNorm(), x, [3, 0])[0], x[0])


def test_duplicates_change_nothing():
    x = torch.tensor([[4.0, 0.0], [0.0, 2.0], [4.0, 0.0], [4.0, 0.0]], dtype=torch.float64)
    delta, total = step(MinNorm(), x)
    assert_close(delta, torch.tensor([0.8, 1.6], dtype=torch.float64))
    assert total.metrics["ca/weight_zero"] == 2


def test_normalizations_by_hand():
    x = torch.tensor([[4.0, 0.0], [0.0, 2.0]], dtype=torch.float64)
    expected = {"none": [0.8, 1.6], "l2": [2.0, 1.0], "l2_direction": [4 / 3, 4 / 3]}
    for normalize, value in expected.items():
        delta, _ = step(MinNorm(normalize=normalize), x)
        assert_close(delta, torch.tensor(value, dtype=torch.float64))


def test_metrics_by_hand():
    x = torch.tensor([[4.0, 0.0], [0.0, 2.0], [8.0, 8.0]], dtype=torch.float64)
    _, total = step(MinNorm(), x)
    assert total.metrics["ca/weight_max"] == pytest.approx(0.8)
    assert total.metrics["ca/weight_zero"] == 1
    assert total.metrics["ca/gap"] <= 1e-16
    assert total.metrics["ca/length"] == pytest.approx(np.hypot(0.8, 1.6) / np.hypot(4, 10 / 3))
    assert total.metrics["ca/cosine_min"] == pytest.approx(0.8 / np.hypot(0.8, 1.6))


@given(st.sampled_from(["none", "l2", "l2_direction"]), hulls(), seeds)
def test_rescaled_step_keeps_its_direction_and_has_the_length_of_the_mean(normalize, x, seed):
    weights = np.random.default_rng(seed).uniform(1, 9, len(x))
    short, _ = step(MinNorm(normalize=normalize), x, weights)
    long, _ = step(MinNorm(normalize=normalize, rescale="average"), x, weights)
    if short.norm() <= 1e-6 * x.norm(dim=1).max():
        return
    average = (torch.from_numpy(weights / weights.sum())[:, None] * x).sum(dim=0)
    assert_close(long.norm(), average.norm())
    assert_close(long / long.norm(), short / short.norm())


def test_a_step_may_be_far_shorter_than_the_average():
    x = torch.tensor([[1e-7, 0.0], [0.0, 1.0]], dtype=torch.float64)
    delta, total = step(MinNorm(rescale="average"), x)
    assert delta.norm() == pytest.approx(0.5)
    assert total.metrics["ca/length"] == pytest.approx(2e-7)
    assert total.metrics["ca/cosine_min"] == pytest.approx(1e-7)


@pytest.mark.parametrize("normalize", ["none", "l2_direction"])
def test_a_step_of_rounding_is_not_scaled_up(normalize):
    x = torch.tensor([[1.0, 0.3], [-1.0, -0.3], [3.0, 0.9]], dtype=torch.float64)  # hull over zero
    assert step(MinNorm(normalize=normalize, rescale="average"), x)[0].norm() < 1e-7


@given(hulls())
def test_float32_changes_give_a_float32_step_close_to_that_of_float64(x):
    narrow, total = step(MinNorm(), x, dtype=torch.float32)
    assert narrow.dtype == torch.float32
    assert total.payload["delta"]["b"]["c"].shape == (x.shape[1] - 1, 1)
    wide, _ = step(MinNorm(), x.float().double())
    assert_close(narrow.double(), wide, rtol=0, atol=1e-6 * float(x.norm(dim=1).max()) + 1e-30)


def test_buffers_are_averaged_by_weight_and_counters_take_the_largest():
    sent = updates(torch.randn(3, 4, generator=torch.Generator().manual_seed(0)), [1, 2, 5])
    buffers = MinNorm().aggregate(sent.items()).payload["buffers"]
    assert_close(buffers["mean"], Mean().aggregate(sent.items()).payload["buffers"]["mean"])
    assert torch.equal(buffers["steps"], torch.tensor(20))


def test_a_change_that_is_not_finite_is_left_out_of_everything(caplog):
    x = torch.tensor([[1.0, 2.0], [np.nan, 0.0], [2.0, 1.0], [np.inf, 1.0]], dtype=torch.float64)
    delta, total = step(MinNorm(), x, [1, 2, 3, 4])
    assert total.clients == (0, 2)
    assert total.weight == 4
    assert_close(delta, torch.tensor([1.5, 1.5], dtype=torch.float64))
    assert_close(total.payload["buffers"]["mean"], torch.tensor([1.5]))
    assert [record.args for record in caplog.records] == [(1,), (3,)]


@pytest.mark.parametrize(
    ("sent", "message"),
    [
        ([], "no update"),
        ([{"parameters": {}}], r"client 0 sent \['parameters'\]: MinNorm needs the part 'delta'"),
        ([{"delta": {"a": torch.tensor([np.nan])}}], "no client sent a finite delta"),
        (
            [{"delta": {"a": torch.ones(2)}}, {"delta": {"a": torch.ones(3)}}],
            "client 1 sent a payload of another form",
        ),
    ],
)
def test_what_does_not_fit_is_refused(sent, message):
    with pytest.raises(ValueError, match=message):
        MinNorm().aggregate((i, Update(payload)) for i, payload in enumerate(sent))


def test_weights_that_are_all_zero_are_refused():
    with pytest.raises(ValueError, match="no client has training data"):
        step(MinNorm(), torch.eye(2), [0, 0])


def test_max_steps_must_be_positive():
    with pytest.raises(ValueError, match="max_steps must be at least 1, got 0"):
        MinNorm(max_steps=0)
