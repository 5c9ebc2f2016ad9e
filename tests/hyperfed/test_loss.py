"""Losses compared with 60-digit arithmetic, geoopt, loops and hand-worked cases."""

import geoopt
import mpmath
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, normalize
from torch.testing import assert_close

from hyperfed.loss import (
    CrossEntropy,
    Geodesic,
    Triplet,
    clip,
    cosines,
    excess,
    mix,
    mixing,
    mixup_loss,
    negative,
    prototype_distance,
)
from hyperfed.prototypes import prototypes

mpmath.mp.dps = 60
LENGTHS = (1e-6, 1e-3, 0.1, 1.0, 1.4722194895832204, 3.1, 8.0, 20.0, 29.9, 30.1, 40.0)
OBJECTIVES = (
    *(Triplet(negatives=kind) for kind in ("one", "all", "hard")),
    Geodesic(),
    CrossEntropy(),
)

lengths = st.sampled_from(LENGTHS)
seeds = st.integers(0, 2**31)
dtypes = st.sampled_from([torch.float32, torch.float64])


def features(length, seed, dtype=torch.float64, *, num=3, dim=4):
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(num, dim, generator=generator, dtype=torch.float64)
    return (length * normalize(z)).to(dtype)


def exact(z, w):
    """Eq. (1) at the point of Eq. (6), evaluated literally, and the distance from the origin."""
    with mpmath.workdps(60 + 9000 * (max(map(abs, z)) > 100)):  # 1 - tanh(1e4)^2 has as many zeros
        z, w = ([mpmath.mpf(value) for value in vector] for vector in (z, w))
        length = mpmath.sqrt(sum(value**2 for value in z))
        x = [mpmath.tanh(length) * value / length for value in z] if length else z
        gap = sum((a - b) ** 2 for a, b in zip(x, w, strict=True))
        inside = [1 - sum(value**2 for value in vector) for vector in (x, w)]
        return mpmath.acosh(1 + 2 * gap / (inside[0] * inside[1])), 2 * length


def relative_error(found, wanted):
    return float(abs(mpmath.mpf(found) - wanted) / wanted)


@given(lengths, seeds, dtypes)
def test_distance_is_that_of_60_digits_at_every_length(length, seed, dtype):
    z, points = features(length, seed, dtype), prototypes(5, 4, 0.9).to(dtype)
    bound = 1e-6 if dtype == torch.float32 else 1e-14
    for row, vector in zip(prototype_distance(z, points).tolist(), z.tolist(), strict=True):
        for found, point in zip(row, points.tolist(), strict=True):
            assert relative_error(found, exact(vector, point)[0]) < bound


@given(lengths, seeds, dtypes)
def test_excess_is_the_distance_less_that_of_the_origin(length, seed, dtype):
    z, points = features(length, seed, dtype), prototypes(5, 4, 0.9).to(dtype)
    bound = 4e-6 if dtype == torch.float32 else 1e-14
    for row, vector in zip(excess(z, points).tolist(), z.tolist(), strict=True):
        for found, point in zip(row, points.tolist(), strict=True):
            far, own = exact(vector, point)
            assert float(abs(found - (far - own))) < bound


def test_excess_keeps_its_digits_where_distances_have_none():
    z, points = features(1e4, 0, torch.float32, num=1), prototypes(3, 4, 0.9).float()
    for found, point in zip(excess(z, points)[0].tolist(), points.tolist(), strict=True):
        far, own = exact(z[0].tolist(), point)
        assert float(abs(found - (far - own))) < 2e-6


@given(st.floats(0.01, 2.5), seeds, st.sampled_from([0.2, 0.9, 0.99]))
def test_distance_equals_geoopt(length, seed, slope):
    z, points = features(length, seed), prototypes(6, 4, slope)
    ball = geoopt.PoincareBall()
    expected = ball.dist(ball.expmap0(z)[:, None], points)
    assert_close(prototype_distance(z, points), expected, rtol=1e-7, atol=1e-9)


@given(st.floats(1e-3, 20.0), seeds)
def test_derivatives_equal_finite_differences(length, seed):
    points = prototypes(5, 4, 0.9)
    z = features(length, seed, num=1).requires_grad_()
    for function in (prototype_distance, excess):
        assert torch.autograd.gradcheck(function, (z, points.requires_grad_()), atol=1e-4)


def test_a_feature_at_the_origin_is_pulled_straight_towards_a_prototype():
    points = prototypes(3, 4, 0.9)
    z = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(prototype_distance(z, points)[0, 1], z)
    assert_close(gradient[0], -2 * normalize(points)[1])  # d(z, w) = rho - 2 <z, w / |w|> + ...


def test_a_feature_at_its_prototype_has_distance_and_slope_zero():
    points = prototypes(3, 4, 0.9)
    z = (points / 0.9 * torch.tensor(0.9, dtype=torch.float64).atanh()).requires_grad_()
    own = prototype_distance(z, points).diagonal()
    assert_close(own, torch.zeros_like(own), atol=1e-13, rtol=0)
    assert torch.autograd.grad(own.sum(), z)[0].isfinite().all()


@pytest.mark.parametrize("objective", OBJECTIVES)
@pytest.mark.parametrize("length", [0.0, 1e-30, 1e-10, 1e-3, 1.0, 8.0, 50.0, 1e4])
def test_losses_and_gradients_are_finite_to_ten_thousand(objective, length):
    z = features(length, 1, torch.float32, num=64).requires_grad_()
    batch = {"y": torch.arange(64) % 5, "negative": torch.rand(64)}
    losses = objective.losses(z, prototypes(5, 4, 0.9).float(), batch)
    (gradient,) = torch.autograd.grad(losses.sum(), z)
    assert losses.isfinite().all()
    assert gradient.isfinite().all()


@given(seeds)
def test_triplets_equal_a_loop(seed):
    z, points = features(1.0, seed, num=6), prototypes(4, 4, 0.9)
    y, drawn = torch.tensor([0, 1, 2, 3, 0, 1]), torch.rand(6, dtype=torch.float64)
    far = prototype_distance(z, points)
    every = [
        [max(float(far[i, y[i]] - far[i, j]) + 2.0, 0.0) for j in range(4) if j != y[i]]
        for i in range(6)
    ]
    batch = {"y": y, "negative": drawn}
    found = {
        kind: Triplet(2.0, kind).losses(z, points, batch).tolist()
        for kind in ("one", "all", "hard")
    }
    assert found["all"] == pytest.approx([sum(row) / 3 for row in every])
    assert found["hard"] == pytest.approx([max(row) for row in every])
    chosen = [int(u * 3) for u in drawn.tolist()]
    assert found["one"] == pytest.approx([row[j] for row, j in zip(every, chosen, strict=True)])


@given(seeds, st.integers(2, 12))
def test_negatives_are_all_other_classes_alike(seed, num_classes):
    num = 4000
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(num_classes, (num, 1), generator=generator)
    drawn = negative(torch.rand(num, generator=generator), y, num_classes)
    steps = (drawn - y) % num_classes
    assert (steps > 0).all()
    counts = steps.flatten().bincount(minlength=num_classes)[1:]
    share = 1 / (num_classes - 1)
    assert_close(
        counts / num, torch.full((num_classes - 1,), share), atol=5 * (share / num) ** 0.5, rtol=0
    )


def test_the_largest_uniform_number_still_names_a_class():
    last = torch.tensor(1.0).nextafter(torch.tensor(0.0)).repeat(2)
    assert negative(last, torch.tensor([[0], [9]]), 10).flatten().tolist() == [9, 8]


@given(st.floats(0.1, 20.0), seeds)
def test_cross_entropy_is_of_a_softmax_of_negative_distances(length, seed):
    z, points, y = features(length, seed), prototypes(5, 4, 0.9), torch.tensor([0, 3, 4])
    expected = cross_entropy(-2 * prototype_distance(z, points), y, reduction="none")
    assert_close(CrossEntropy(2.0).losses(z, points, {"y": y}), expected)


def test_geodesic_is_the_distance_to_the_own_prototype():
    z, points, y = features(1.0, 0), prototypes(5, 4, 0.9), torch.tensor([0, 3, 4])
    assert_close(Geodesic().losses(z, points, {"y": y}), prototype_distance(z, points)[range(3), y])


@given(lengths, seeds, dtypes)
def test_clip_shortens_what_is_too_long_and_leaves_the_rest(length, seed, dtype):
    z = features(length, seed, dtype)
    clipped = clip(z, 3.1)
    if length < 3.1:
        assert torch.equal(clipped, z)
    else:
        assert_close(clipped.norm(dim=-1), torch.full((3,), 3.1, dtype=dtype))
        assert_close(normalize(clipped), normalize(z))


def test_the_cosine_of_a_prototype_with_itself_is_one():
    points = prototypes(5, 4, 0.9)
    assert_close(cosines(7 * points, points).diagonal(), torch.ones(5, dtype=torch.float64))


@given(st.integers(1, 9), st.integers(0, 4), seeds)
def test_partners_are_a_permutation_of_the_examples_that_count(num, num_padded, seed):
    generator = torch.Generator().manual_seed(seed)
    total = num + num_padded
    batch = {
        "y": torch.zeros(total, dtype=torch.long),
        "mask": torch.arange(total) < num,
        "partner": torch.rand(total + 3, generator=generator),
        "share": torch.tensor(0.5),
    }
    _, partners = mixing(batch)
    assert sorted(partners[:num].tolist()) == list(range(num))


def test_shares_are_of_the_arcsine_law():
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    empty = {"y": torch.zeros(0), "mask": torch.zeros(0).bool(), "partner": torch.zeros(0)}
    shares = torch.stack([mixing({**empty, "share": u})[0] for u in uniform])
    law = torch.distributions.Beta(0.5, 0.5)
    assert abs(float(shares.mean() - law.mean)) < 0.01
    assert abs(float(shares.var() - law.variance)) < 0.005


def test_mixup_of_two_examples_by_hand():
    batch = {
        "x": torch.tensor([[1.0, 0.0], [0.0, 1.0]]),
        "y": torch.tensor([0, 1]),
        "mask": torch.tensor([True, True]),
        "partner": torch.tensor([0.9, 0.1]),  # each is the other's partner
        "share": torch.tensor(0.5),  # sin^2(pi / 4) = 1/2
    }
    mixed = mix(batch)
    assert_close(mixed, torch.full((2, 2), 0.5))
    points = torch.tensor([[0.9, 0.0], [0.0, 0.9]])
    loss = mixup_loss(mixed, points, batch, 0.9)
    assert_close(loss, torch.full((2,), 2.0).log())  # both cosines are equal


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_losses_of_stacked_clients_are_those_of_each(objective):
    z = torch.stack([features(1.0, seed, num=6) for seed in range(3)])
    points, y = prototypes(4, 4, 0.9), torch.randint(4, (3, 6))
    drawn = torch.rand(3, 6)

    def losses(z, y, drawn):
        return objective.losses(z, points, {"y": y, "negative": drawn})

    each = torch.stack([losses(*client) for client in zip(z, y, drawn, strict=True)])
    assert_close(torch.vmap(losses)(z, y, drawn), each)


@pytest.mark.parametrize("make", [lambda: Triplet(margin=0.0), lambda: CrossEntropy(scale=-1.0)])
def test_bad_values_are_refused(make):
    with pytest.raises(ValueError, match="must be a positive number"):
        make()
