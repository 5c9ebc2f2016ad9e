"""Wrapped normals against 60 digits, quadrature, exact laws of the radius and other models."""

import math

import numpy as np
import pytest
import torch
from mpmath import mp, mpf
from scipy import special, stats
from torch.autograd import gradcheck, gradgradcheck
from torch.distributions import Independent, Normal

from benchmarks.geometry import truth
from fedbolic.manifolds import Lorentz, Poincare, WrappedNormal, to_lorentz
from tests.manifolds.cases import CURVED, lifted, make, normal, points

CURVATURES = (1e-6, 1e-2, 1.0, 9.0)
CHANCE = 1e-9
"""Probability with which a correct sampler fails a test of its law."""


def law(kind, c, loc, scale, **options):
    return WrappedNormal(kind(c), loc, scale, **options)


def true_log_density(kind, c, loc, scale, z):
    """Alg. 2 of Nagano et al. in 60 digits, with logarithm and transport of the textbook."""
    space = (truth.Hyperboloid if kind is Lorentz else truth.Ball)(c)
    origin = [mpf(0)] * len(z)
    v = space.transp(loc, origin, space.logmap(loc, z))
    v = [a * (1 if kind is Lorentz else 2) for a in v]
    r, n = mp.sqrt(c) * truth.length(v), len(v)
    terms = [-((a / s) ** 2) / 2 - mp.log(s) for a, s in zip(v, scale, strict=True)]
    return sum(terms) - n * mp.log(2 * mp.pi) / 2 - (n - 1) * mp.log(mp.sinh(r) / r)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", CURVATURES)
@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("radii", [1e-4, 0.5, 3.0])
def test_the_density_is_the_printed_formula(kind, c, dim, radii):
    loc, z = (points(kind, c, seed, 6, dim, radius=radii * c**-0.5) for seed in (0, 1))
    scale = normal(2, 6, dim).exp() * c**-0.5
    rows = (t[..., -dim:].tolist() for t in (loc, scale, z))
    true = [
        true_log_density(kind, mpf(c), *(truth.exact(row) for row in given))
        for given in zip(*rows, strict=True)
    ]
    got = law(kind, c, loc, scale).log_prob(z)
    torch.testing.assert_close(got, got.new_tensor(true), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_jacobian_keeps_its_digits_at_every_radius(dtype):
    """A scale so large that the normal term is a constant leaves the Jacobian alone."""
    r = torch.tensor([1e-6, 1e-3, 0.3, 0.99, 1.01, 3.0, 15.0, 30.0], dtype=dtype)
    space, scale = Lorentz(1.0), torch.full((), 1e9, dtype=dtype)
    z = space.expmap0(lifted(Lorentz, torch.stack((r, 0 * r), -1)))
    constant = -math.log(2 * math.pi) - 2 * math.log(1e9)
    got = law(Lorentz, 1.0, space.origin(3, dtype=dtype), scale).log_prob(z)
    true = [constant - float(mp.log(mp.sinh(mpf(a)) / mpf(a))) for a in r.tolist()]
    bound = 60 * torch.finfo(dtype).eps
    torch.testing.assert_close(got, r.new_tensor(true), rtol=bound, atol=bound)


def polar_grid(c, reach, *, radii=400, angles=600):
    """Points of the disc, and the hyperbolic area that each stands for."""
    nodes, weights = special.roots_legendre(radii)
    rho = (nodes + 1) / 2 * reach
    theta = np.arange(angles) * 2 * np.pi / angles
    area = weights * reach / 2 * np.sinh(np.sqrt(c) * rho) / np.sqrt(c) * 2 * np.pi / angles
    norm = np.tanh(np.sqrt(c) * rho / 2) / np.sqrt(c)
    z = norm[:, None, None] * np.stack((np.cos(theta), np.sin(theta)), -1)
    return torch.from_numpy(z), torch.from_numpy(area)[:, None]


@pytest.mark.parametrize("c", [0.01, 1.0, 4.0])
@pytest.mark.parametrize("scale", [(0.3, 0.3), (1.0, 1.0), (0.4, 1.2)])
@pytest.mark.parametrize("radii", [0.0, 0.7, 2.0])
def test_the_density_integrates_to_1_over_the_disc(c, scale, radii):
    space = Poincare(c)
    unit = c**-0.5
    u = torch.tensor([0.6, -0.8], dtype=torch.float64) * radii * unit / 2
    scale = torch.tensor(scale, dtype=torch.float64) * unit
    z, area = polar_grid(c, (radii + 8 * scale.max().item() / unit) * unit)
    density = law(Poincare, c, space.expmap0(u), scale).log_prob(z).exp()
    torch.testing.assert_close((density * area).sum().item(), 1.0, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize(("dim", "scale"), [(1, 0.5), (2, 1.0), (7, 0.2)])
def test_the_distance_from_the_location_has_a_chi_law(kind, dim, scale):
    c, generator = 0.5, torch.Generator().manual_seed(0)
    loc = points(kind, c, 0, dim)
    scale = torch.tensor(scale, dtype=torch.float64)
    z = law(kind, c, loc, scale).rsample((4000,), generator=generator)
    radius = (kind(c).dist(loc, z) / scale).numpy()
    assert stats.kstest(radius, stats.chi(dim).cdf).pvalue > CHANCE


@pytest.mark.parametrize("kind", CURVED)
def test_each_tangent_coordinate_has_its_own_normal_law(kind):
    c, generator = 0.5, torch.Generator().manual_seed(0)
    space, loc = kind(c), points(kind, c, 0, 3)
    scale = torch.tensor([0.1, 0.5, 1.5], dtype=torch.float64)
    z = law(kind, c, loc, scale).rsample((4000,), generator=generator)
    v = space.transp(loc, torch.zeros_like(loc), space.logmap(loc, z))[..., -3:]
    v = v * (2 if kind is Poincare else 1)
    for one, sigma in zip(v.unbind(-1), scale.tolist(), strict=True):
        assert stats.kstest(one.numpy(), stats.norm(scale=sigma).cdf).pvalue > CHANCE


@pytest.mark.parametrize("c", CURVATURES)
def test_the_models_agree_at_corresponding_points(c):
    ball = Poincare(c)
    loc, z = (points(Poincare, c, seed, 20, 3, radius=c**-0.5) for seed in (0, 1))
    scale = normal(2, 3).exp() * c**-0.5
    torch.testing.assert_close(
        law(Poincare, c, loc, scale).log_prob(z),
        law(Lorentz, c, to_lorentz(ball, loc), scale).log_prob(to_lorentz(ball, z)),
        rtol=1e-8,
        atol=1e-8,
    )
    samples = [
        law(kind, c, mean, scale).rsample(generator=torch.Generator().manual_seed(0))
        for kind, mean in ((Poincare, loc), (Lorentz, to_lorentz(ball, loc)))
    ]
    torch.testing.assert_close(to_lorentz(ball, samples[0]), samples[1], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("c", [1e-10, 1e-12])
def test_the_limit_of_no_curvature_is_the_normal_of_torch(kind, c):
    loc, z, scale = normal(0, 5, 3), normal(1, 5, 3), normal(2, 3).exp()
    flat = Independent(Normal(loc, scale), 1)
    half = 2 if kind is Poincare else 1  # lengths in the ball are twice the Euclidean ones
    x, y = (make(kind, c).projx(lifted(kind, t / half)) for t in (loc, z))
    got = law(kind, c, x, scale).log_prob(y)
    torch.testing.assert_close(got, flat.log_prob(z), rtol=1e-7, atol=1e-7)


def test_flat_space_has_the_normal_density():
    loc, z, scale = normal(0, 5, 3), normal(1, 5, 3), normal(2, 3).exp()
    got = law(Poincare, 0.0, loc / 2, scale).log_prob(z / 2)
    torch.testing.assert_close(got, Independent(Normal(loc, scale), 1).log_prob(z))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("radius", [0.0, 1.0])
def test_samples_have_the_derivatives_of_finite_differences(kind, radius):
    v = normal(0, 2, 3) * radius / (2 if kind is Poincare else 1)
    c = torch.tensor(0.7, dtype=torch.float64)

    def sample(c, v, scale):
        loc = kind(c).expmap0(lifted(kind, v))
        same = torch.Generator().manual_seed(0)
        return law(kind, c, loc, scale, validate_args=False).rsample((2,), generator=same)

    given = [t.requires_grad_() for t in (c, v, normal(1, 3).exp())]
    assert gradcheck(sample, given)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("radius", [0.0, 1e-3, 1.0])
def test_densities_have_two_derivatives_also_at_the_location(kind, radius):
    v = normal(0, 1, 3) / (2 if kind is Poincare else 1)
    c = torch.tensor(0.7, dtype=torch.float64)

    def density(c, v, w, scale):
        loc, z = (kind(c).expmap0(lifted(kind, t)) for t in (v, w))
        return law(kind, c, loc, scale, validate_args=False).log_prob(z)

    w = v + radius * normal(1, 1, 3)
    given = [t.clone().requires_grad_() for t in (c, v, w, normal(2, 3).exp())]
    assert gradcheck(density, given)
    assert gradgradcheck(density, given, atol=1e-4)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [0.0, 1e-20, 1e-3, 1.0, 30.0, 100.0])
def test_values_and_gradients_are_finite_at_every_size(kind, dtype, size):
    space = kind(1.0)
    loc = space.expmap0(lifted(kind, normal(0, 4, 3, dtype=dtype) * size)).requires_grad_()
    scale = torch.full((), max(size, 1e-6), dtype=dtype, requires_grad=True)
    p = law(kind, 1.0, loc, scale)
    z = p.rsample((5,), generator=torch.Generator().manual_seed(0))
    assert space.contains(z).all()
    for out in (z, p.log_prob(z), p.log_prob(loc)):
        assert out.isfinite().all()
        grads = torch.autograd.grad(out.sum(), (loc, scale), retain_graph=True, allow_unused=True)
        assert all(g is None or g.isfinite().all() for g in grads)


@pytest.mark.parametrize("kind", CURVED)
def test_batch_axes_are_those_of_a_loop(kind):
    c = torch.tensor([[0.5], [2.0]], dtype=torch.float64)
    loc = torch.stack([points(kind, value, 0, 4, 3) for value in c.flatten().tolist()])
    scale = normal(1, 4, 1).exp()
    p = law(kind, c, loc, scale)
    ambient = loc.shape[-1]
    assert (p.batch_shape, p.event_shape) == ((2, 4), (ambient,))
    z = p.rsample((5,))
    assert z.shape == (5, 2, 4, ambient)
    assert p.sample().shape == (2, 4, ambient)
    assert not p.sample().requires_grad
    got = p.log_prob(z)
    for i, j in np.ndindex(2, 4):
        one = law(kind, c[i, 0].item(), loc[i, j], scale[j])
        torch.testing.assert_close(got[:, i, j], one.log_prob(z[:, i, j]))


@pytest.mark.parametrize("kind", CURVED)
def test_expand_repeats_the_distribution(kind):
    loc = points(kind, 1.0, 0, 3)
    p = law(kind, 1.0, loc, torch.ones(3, dtype=torch.float64)).expand((2, 5))
    assert (p.batch_shape, p.event_shape) == ((2, 5), loc.shape)
    assert p.rsample((3,)).shape == (3, 2, 5, *loc.shape)
    assert p.log_prob(loc).shape == (2, 5)
    with pytest.raises(ValueError, match="value argument"):
        p.log_prob(torch.full_like(loc, 2.0))


@pytest.mark.parametrize("kind", CURVED)
def test_the_mode_has_the_largest_density(kind):
    p = law(kind, 1.0, points(kind, 1.0, 0, 3), torch.ones((), dtype=torch.float64))
    assert torch.equal(p.mode, p.mean)
    assert (p.log_prob(p.rsample((50,))) < p.log_prob(p.mode)).all()


@pytest.mark.parametrize("kind", CURVED)
def test_vmap_over_locations_is_a_batch(kind):
    loc, z = (points(kind, 1.0, seed, 4, 3) for seed in (0, 1))
    scale = normal(2, 3).exp()

    def density(loc, z):
        return law(kind, 1.0, loc, scale, validate_args=False).log_prob(z)

    torch.testing.assert_close(torch.func.vmap(density)(loc, z), density(loc, z))


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_computed_in_float32(kind, dtype):
    loc = points(kind, 1.0, 0, 6, 3, dtype=torch.float32).to(dtype)
    loc = kind(1.0).projx(loc)
    scale = torch.ones(3, dtype=dtype)
    z = law(kind, 1.0, loc, scale).rsample()
    assert z.dtype == dtype
    wide = law(kind, 1.0, loc.float(), scale.float(), validate_args=False).log_prob(z.float())
    torch.testing.assert_close(law(kind, 1.0, loc, scale).log_prob(z), wide.to(dtype))
