"""Contrastive losses against literal transcriptions in 60 digits and torch's cross entropy."""

import pytest
import torch
from mpmath import acos, acosh, asin, exp, log, mpf, sqrt, workdps
from torch.func import functional_call, grad, vmap

from fedbolic.manifolds import Euclidean, Lorentz, Poincare, to_poincare
from fedbolic.nn import CosineContrast, DistanceContrast, EntailmentContrast, LogitScale

N, DIM = 5, 3


def normal(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def pairs(c, dtype=torch.float64):
    space = Lorentz(c)
    images, texts = (space.expmap0(space.lift(normal(s, N, DIM, dtype=dtype))) for s in (0, 1))
    return space, images, texts


def dot(x, y):
    return sum((mpf(a) * mpf(b) for a, b in zip(x, y, strict=True)), mpf(0))


def minkowski(x, y, c):
    """The product of two points given by their space coordinates."""
    time_x, time_y = (sqrt(1 / mpf(c) + dot(v, v)) for v in (x, y))
    return dot(x, y) - time_x * time_y


def contrast(rows, temperature):
    """The symmetric cross entropy of a square of similarities, written out."""
    z = [[exp(s / mpf(temperature)) for s in row] for row in rows]
    n = range(len(z))
    by_row = [-log(z[i][i] / sum(z[i][j] for j in n)) for i in n]
    by_column = [-log(z[i][i] / sum(z[j][i] for j in n)) for i in n]
    return [(a + b) / 2 for a, b in zip(by_row, by_column, strict=True)]


def meru(images, texts, c, temperature, weight, k):
    """The loss of every pair by the formulas of the paper, in 60 digits."""
    rows = [[-acosh(-mpf(c) * minkowski(x, t, c)) / sqrt(mpf(c)) for t in texts] for x in images]
    made = contrast(rows, temperature)
    for i, (x, t) in enumerate(zip(images, texts, strict=True)):
        product = mpf(c) * minkowski(t, x, c)
        time_x, time_t = (sqrt(1 / mpf(c) + dot(v, v)) for v in (x, t))
        length = sqrt(dot(t, t))
        angle = acos((time_x + time_t * product) / (length * sqrt(product**2 - 1)))
        aperture = asin(min(mpf(1), 2 * mpf(k) / (sqrt(mpf(c)) * length)))
        made[i] += mpf(weight) * max(mpf(0), angle - aperture)
    return [float(value) for value in made]


@pytest.mark.parametrize("c", [0.1, 1.0, 10.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_loss_is_that_of_the_paper_in_60_digits(c, dtype):
    space, images, texts = pairs(c, dtype)
    loss = EntailmentContrast(0.5, weight=0.3, k=0.2).to(dtype)
    temperature = 1 / loss.contrast.scale().item()  # 0.5 but for the rounding of its logarithm
    with workdps(60):
        expected = meru(images[:, 1:].tolist(), texts[:, 1:].tolist(), c, temperature, 0.3, 0.2)
    tolerance = 1e-5 if dtype == torch.float32 else 1e-12
    got = loss(space, images, texts)
    assert got.dtype == dtype
    torch.testing.assert_close(
        got, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance
    )


def test_the_flat_control_is_the_loss_of_clip_written_out():
    x, y = normal(0, N, DIM), normal(1, N, DIM)
    with workdps(60):
        rows = [[dot(a, b) / sqrt(dot(a, a) * dot(b, b)) for b in y.tolist()] for a in x.tolist()]
        expected = [float(value) for value in contrast(rows, 0.07)]
    got = CosineContrast().double()(x, y)
    torch.testing.assert_close(got, torch.tensor(expected).double(), rtol=1e-6, atol=1e-6)


def test_in_flat_space_the_logits_are_minus_euclidean_distances():
    x, y = normal(0, N, DIM), normal(1, N, DIM)
    logits = -torch.cdist(x, y) / 0.5
    right = torch.arange(N)
    both = [torch.nn.functional.cross_entropy(z, right) for z in (logits, logits.T)]
    got = DistanceContrast(0.5).double()(Euclidean(), x, y).mean()
    torch.testing.assert_close(got, sum(both) / 2, rtol=1e-9, atol=0)


def test_both_models_have_one_loss():
    space, images, texts = pairs(0.7)
    loss = EntailmentContrast(0.5).double()
    ball = [to_poincare(space, x) for x in (images, texts)]
    torch.testing.assert_close(loss(space, images, texts), loss(Poincare(0.7), *ball))


def test_stacked_batches_are_independent_and_vmap_agrees():
    space, images, texts = pairs(1.0)
    loss = EntailmentContrast(0.5).double()
    stacked = [torch.stack((x, x.flip(0) * 1)) for x in (images, texts)]
    each = torch.stack([loss(space, *of) for of in zip(*stacked, strict=True)])
    torch.testing.assert_close(loss(space, *stacked), each)
    mapped = vmap(lambda x, t: loss(space, x, t))(*stacked)
    torch.testing.assert_close(mapped, each)


def test_gradients_reach_the_temperature_the_curvature_and_the_points():
    _, images, texts = pairs(1.0)
    loss = EntailmentContrast(0.5).double()
    c = torch.tensor(1.0, dtype=torch.float64)

    def total(log_scale, c, images, texts):
        values = {"contrast.scale.log_scale": log_scale}
        return functional_call(loss, values, (Lorentz(c), images, texts)).sum()

    given = [loss.contrast.scale.log_scale.detach(), c, images, texts]
    given = [t.clone().requires_grad_() for t in given]
    assert torch.autograd.gradcheck(total, given, fast_mode=True)
    found = grad(total, (0, 1, 2, 3))(*given)
    assert all(g.abs().sum() > 0 for g in found)


def test_a_temperature_at_its_bound_can_rise_again():
    scale = LogitScale(0.02)
    with torch.no_grad():
        scale.log_scale += 3.0
    assert scale().item() == pytest.approx(100.0, rel=1e-5)
    scale().backward()
    assert scale.log_scale.grad > 0


def test_one_pair_has_no_negative_and_equal_points_stay_finite():
    space, images, _ = pairs(1.0)
    loss = EntailmentContrast().double()
    one = images[:1].clone().requires_grad_()
    out = loss(space, one, one)
    torch.testing.assert_close(out, torch.zeros_like(out))
    same = images[:1].expand(3, -1).clone().requires_grad_()
    loss(space, same, same).sum().backward()
    assert same.grad.isfinite().all()


def test_settings_out_of_range_are_refused():
    with pytest.raises(ValueError, match=r"temperature must be at least 0\.01, got 0\.001"):
        DistanceContrast(0.001)
    with pytest.raises(ValueError, match="weight must be 0 or more"):
        EntailmentContrast(weight=-1.0)
