"""Losses of pairs and the Fermi-Dirac decoder, compared with mpmath and torch."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from mpmath import exp, log, mp, mpf
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.nn import FermiDirac, MarginLoss, RankingLoss
from tests.nn.cases import points

mp.dps = 60
LOSSES = {"ranking": RankingLoss(), "margin": MarginLoss(margin=0.75)}
every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
every_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
lengths = st.floats(0, 60, width=32)
cases = st.tuples(lengths, st.lists(st.tuples(lengths, st.booleans()), min_size=1, max_size=6))


def numbers(case, dtype=torch.float64):
    d, rows = case
    negatives, mask = zip(*rows, strict=True)
    return (
        torch.tensor(d, dtype=dtype),
        torch.tensor(negatives, dtype=dtype),
        torch.tensor(mask),
    )


@every_dtype
@given(case=cases)
def test_the_ranking_loss_is_the_cross_entropy_of_minus_distances(dtype, case):
    d, rows = case
    near = exp(-mpf(d))
    expected = -log(near / (near + sum(exp(-mpf(x)) for x, counted in rows if counted)))
    positive, negatives, mask = numbers(case, dtype)
    found = RankingLoss()(positive, negatives, mask=mask)
    eps = torch.finfo(dtype).eps
    assert float(found) == pytest.approx(float(expected), rel=8 * eps, abs=8 * eps)


@every_dtype
@given(case=cases)
def test_the_margin_loss_is_the_mean_hinge_of_the_counted_negatives(dtype, case):
    d, rows = case
    hinges = [max(mpf(0), mpf("0.75") + mpf(d) - mpf(x)) for x, counted in rows if counted]
    expected = sum(hinges) / len(hinges) if hinges else 0
    positive, negatives, mask = numbers(case, dtype)
    found = MarginLoss(margin=0.75)(positive, negatives, mask=mask)
    eps = torch.finfo(dtype).eps  # of sums as long as the distances
    assert float(found) == pytest.approx(float(expected), rel=8 * eps, abs=64 * 8 * eps)


def test_without_a_mask_the_ranking_loss_is_torch_s_cross_entropy():
    generator = torch.Generator().manual_seed(0)
    d = 5 * torch.rand(8, 21, generator=generator, dtype=torch.float64)
    expected = functional.cross_entropy(-d, torch.zeros(8, dtype=torch.int64), reduction="none")
    torch.testing.assert_close(RankingLoss()(d[:, 0], d[:, 1:]), expected)


@every_loss
@every_dtype
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)])
def test_without_negatives_loss_and_gradients_are_zero(loss, dtype, batch):
    positive = torch.full(batch, 2.0, dtype=dtype, requires_grad=True)
    negatives = torch.full((*batch, 4), 1.0, dtype=dtype, requires_grad=True)
    value = loss(positive, negatives, mask=torch.zeros(*batch, 4, dtype=torch.bool))
    assert value.shape == batch
    assert value.dtype == dtype
    gradients = torch.autograd.grad(value.sum(), (positive, negatives))
    assert not value.any()
    assert not any(g.any() for g in gradients)


@every_loss
def test_a_masked_distance_changes_nothing(loss):
    positive = torch.tensor(2.0, requires_grad=True)
    mask = torch.tensor([True, False, True])
    results = []
    for masked in (0.0, 100.0, math.inf):
        negatives = torch.tensor([1.0, masked, 3.0], requires_grad=True)
        value = loss(positive, negatives, mask=mask)
        results.append([value, *torch.autograd.grad(value, (positive, negatives))])
    for values in zip(*results, strict=True):
        assert all(torch.equal(values[0], other) for other in values)
    without = loss(positive, torch.tensor([1.0, 3.0]))
    torch.testing.assert_close(results[0][0], without)


@every_loss
def test_gradients_are_those_of_differences(loss):
    generator = torch.Generator().manual_seed(0)
    d = torch.rand(4, 6, generator=generator, dtype=torch.float64)
    mask = torch.arange(20).reshape(4, 5) % 3 > 0
    given = (d[:, 0].clone().requires_grad_(), d[:, 1:].clone().requires_grad_())
    assert torch.autograd.gradcheck(lambda p, n: loss(p, n, mask=mask), given)


@every_loss
@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_gradients_are_finite_where_all_points_coincide(loss, kind):
    space = kind(1.0)
    x = points(kind, 1.0, torch.zeros(5, 3)).requires_grad_()
    value = loss(space.dist(x[0], x[1]), space.dist(x[0], x[2:]))
    (gradient,) = torch.autograd.grad(value, x)
    assert gradient.isfinite().all()


@every_loss
def test_vmap_gives_the_same_losses_and_gradients(loss):
    generator = torch.Generator().manual_seed(0)
    d = torch.rand(3, 5, 7, generator=generator)
    mask = torch.rand(3, 5, 6, generator=generator) > 0.5
    given = d[..., 0], d[..., 1:], mask

    def of(p, n, m):
        return loss(p, n, mask=m)

    torch.testing.assert_close(vmap(of)(*given), of(*given))
    by_client = vmap(grad(lambda p, n, m: of(p, n, m).sum()))(*given)
    alone = [grad(lambda p, n, m: of(p, n, m).sum())(*one) for one in zip(*given, strict=True)]
    torch.testing.assert_close(by_client, torch.stack(alone))


@every_loss
def test_no_distance_to_a_negative_is_refused(loss):
    with pytest.raises(ValueError, match=r"at least 1 distance, got shape \(2, 0\)"):
        loss(torch.zeros(2), torch.zeros(2, 0))


@pytest.mark.parametrize("margin", [0.0, -1.0, math.inf])
def test_a_margin_that_is_not_positive_is_refused(margin):
    with pytest.raises(ValueError, match="margin must be a positive number"):
        MarginLoss(margin=margin)


powers = pytest.mark.parametrize("squared", [False, True])
settings = st.tuples(st.floats(0, 10), st.floats(0.05, 5))


@powers
@given(d=st.floats(0, 30), setting=settings, learnable=st.booleans())
def test_the_decoder_is_fermi_and_dirac_s(squared, d, setting, learnable):
    r, t = setting
    decoder = FermiDirac(r, t, squared=squared, learnable=learnable, dtype=torch.float64)
    power = mpf(d) ** (1 + squared)
    logit, distance = (mpf(r) - power) / mpf(t), torch.tensor(d, dtype=torch.float64)
    size = float((abs(mpf(r)) + power) / mpf(t))  # cancellation near the radius
    assert decoder(distance).item() == pytest.approx(float(logit), abs=1e-14 * (1 + size))
    expected = 1 / (exp((power - mpf(r)) / mpf(t)) + 1)
    found = decoder.probability(distance).item()
    assert found == pytest.approx(float(expected), rel=1e-13 * (1 + size), abs=1e-300)


@powers
def test_the_loss_of_links_stays_exact_where_probabilities_round(squared):
    decoder = FermiDirac(r=1.0, t=0.01, squared=squared)
    logits = decoder(torch.tensor([5.0]))
    assert decoder.probability(torch.tensor([5.0])).item() == 0
    loss = functional.binary_cross_entropy_with_logits(logits, torch.ones(1))
    assert loss.item() == pytest.approx(2400 if squared else 400)


@every_dtype
@pytest.mark.parametrize("t", [1e-3, 0.7, 1.0, 30.0, 500.0])
def test_a_learnable_decoder_reads_what_was_set(dtype, t):
    decoder = FermiDirac(1.5, t, learnable=True, dtype=dtype)
    assert {name for name, _ in decoder.named_parameters()} == {"r", "raw_t"}
    assert decoder.r.item() == 1.5
    assert decoder.t.item() == pytest.approx(t, rel=16 * torch.finfo(dtype).eps)
    assert list(FermiDirac(1.5, t).parameters()) == []


@powers
def test_learning_recovers_radius_and_temperature(squared):
    d = torch.linspace(0, 4, 50, dtype=torch.float64)
    target = FermiDirac(1.2, 0.6, squared=squared).probability(d)
    decoder = FermiDirac(squared=squared, learnable=True, dtype=torch.float64)
    optimiser = torch.optim.LBFGS(
        decoder.parameters(), max_iter=200, tolerance_grad=1e-12, line_search_fn="strong_wolfe"
    )

    def closure():
        optimiser.zero_grad()
        loss = functional.binary_cross_entropy_with_logits(decoder(d), target)
        loss.backward()
        return loss

    optimiser.step(closure)
    assert decoder.r.item() == pytest.approx(1.2, rel=1e-4)
    assert decoder.t.item() == pytest.approx(0.6, rel=1e-4)


@powers
@pytest.mark.parametrize("learnable", [False, True])
def test_the_decoder_s_gradients_are_those_of_differences(squared, learnable):
    decoder = FermiDirac(squared=squared, learnable=learnable, dtype=torch.float64)
    names = [name for name, _ in decoder.named_parameters()]

    def f(d, *values):
        return functional_call(decoder, dict(zip(names, values, strict=True)), (d,))

    d = torch.linspace(0, 3, 5, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(f, (d, *decoder.parameters()))


def test_clients_learn_their_own_decoders_under_vmap():
    decoder = FermiDirac(learnable=True)
    own = {"r": torch.tensor([1.0, 2.0]), "raw_t": torch.tensor([0.0, 1.0])}
    d = torch.rand(2, 5, generator=torch.Generator().manual_seed(0))
    found = vmap(lambda values, x: functional_call(decoder, values, (x,)))(own, d)
    t = functional.softplus(own["raw_t"])
    torch.testing.assert_close(found, (own["r"][:, None] - d) / t[:, None])


@pytest.mark.parametrize(
    ("setting", "message"),
    [({"t": 0.0}, "t must be a positive"), ({"r": math.inf}, "r must be a finite number, got inf")],
)
def test_bad_settings_of_the_decoder_are_refused(setting, message):
    with pytest.raises(ValueError, match=message):
        FermiDirac(**setting)


def test_a_decoder_shows_its_settings():
    assert repr(FermiDirac(2.0, 0.5)) == "FermiDirac(r=2, t=0.5, squared=False, learnable=False)"
    assert "t=0.5, squared=True, learnable=True" in repr(
        FermiDirac(2.0, 0.5, squared=True, learnable=True)
    )
