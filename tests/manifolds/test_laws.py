"""Laws of every manifold, tested on random manifolds, points and tangents in float64."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbolic.manifolds import (
    Euclidean,
    Lorentz,
    Poincare,
    change_curvature,
    frechet_mean,
    midpoint,
    push_to_lorentz,
    push_to_poincare,
    to_lorentz,
    to_poincare,
)
from fedbolic.testing import MANIFOLD_LAWS, ManifoldSample
from tests.manifolds.cases import CONFORMAL, CURVED, KINDS, lifted, make, normal, points, tangents

settings.register_profile("laws", parent=settings.get_profile("fedbolic"), max_examples=25)
laws = settings(settings.get_profile("laws"))

kinds = st.sampled_from(KINDS)
curvatures = st.floats(-3, 1).map(lambda e: 10.0**e)
seeds = st.integers(0, 10_000)
dims = st.integers(1, 6)
spaces = st.tuples(kinds, curvatures, seeds, dims)
curved = st.tuples(st.sampled_from(CURVED), curvatures, seeds, dims)


def close(got, expected, tolerance=1e-9):
    torch.testing.assert_close(got, expected, rtol=tolerance, atol=tolerance)


def drawn(drawn_space, num_points, num_tangents=0):
    """The manifold, points within a few radii and tangents at the first of them, 20 of each."""
    kind, c, seed, dim = drawn_space
    space = make(kind, c)
    radius = 1 / max(c, 0.1) ** 0.5
    x = [points(kind, c, seed + i, 20, dim, radius=radius) for i in range(num_points)]
    u = [tangents(kind, c, seed + 50 + i, x[0], radius) for i in range(num_tangents)]
    return space, *x, *u


@pytest.mark.parametrize("law", MANIFOLD_LAWS, ids=lambda law: law.__name__)
@laws
@given(drawn_space=spaces)
def test_a_manifold_keeps_the_law(law, drawn_space):
    law(ManifoldSample(*drawn(drawn_space, 3, 2)))


@laws
@given(spaces)
def test_a_rotation_is_an_isometry(drawn_space):
    space, x, y = drawn(drawn_space, 2)
    kind, _, seed, dim = drawn_space
    turn = torch.linalg.qr(normal(seed, dim, dim))[0]
    if kind is Lorentz:
        turn = torch.block_diag(torch.ones(1, 1, dtype=turn.dtype), turn)
    close(space.dist(x @ turn, y @ turn), space.dist(x, y))


@laws
@given(st.tuples(st.sampled_from(CONFORMAL), curvatures, seeds, dims))
def test_a_mobius_translation_is_an_isometry(drawn_space):
    space, a, x, y = drawn(drawn_space, 3)
    close(space.dist(space.mobius_add(a, x), space.mobius_add(a, y)), space.dist(x, y), 1e-8)
    close(space.mobius_add(-a, space.mobius_add(a, x)), x, 1e-8)


@laws
@given(curved)
def test_distance_scales_with_the_unit_of_length(drawn_space):
    space, x, y = drawn(drawn_space, 2)
    kind, c, _, _ = drawn_space
    unit = kind(1.0)
    close(space.dist(x, y) * c**0.5, unit.dist(x * c**0.5, y * c**0.5))


@laws
@given(curved, curvatures)
def test_g18_a_change_of_curvature_is_a_scaled_isometry(drawn_space, c):
    old, x, y = drawn(drawn_space, 2)
    new = drawn_space[0](c)
    moved_x, moved_y = (change_curvature(p, old, new) for p in (x, y))
    assert new.contains(moved_x).all()
    close(new.dist(moved_x, moved_y) * c**0.5, old.dist(x, y) * old.c**0.5)
    close(change_curvature(moved_x, new, old), x)


@pytest.mark.parametrize("c", [1e-3, 0.1, 1.0, 4.0, 10.0])
@pytest.mark.parametrize("shape", [(3,), (7, 3), (2, 7, 3)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_g10_the_models_are_isometric_at_every_rank(c, shape, dtype):
    ball, lorentz = Poincare(c), Lorentz(c)
    radius = 1 / max(c, 0.1) ** 0.5
    x, y = (points(Poincare, c, s, *shape, dtype=dtype, radius=radius) for s in (0, 1))
    there_x, there_y = to_lorentz(ball, x), to_lorentz(ball, y)
    tolerance = 1e-6 if dtype == torch.float32 else 1e-13
    assert lorentz.contains(there_x).all()
    assert there_x.shape == (*shape[:-1], 4)
    close(lorentz.dist(there_x, there_y), ball.dist(x, y), tolerance)
    close(to_poincare(lorentz, there_x), x, tolerance)
    u, v = tangents(Poincare, c, 2, x), tangents(Poincare, c, 3, x)
    pushed_u, pushed_v = (push_to_lorentz(ball, x, w) for w in (u, v))
    close(lorentz.inner(there_x, pushed_u, pushed_v), ball.inner(x, u, v), 10 * tolerance)
    close(push_to_poincare(lorentz, there_x, pushed_u), u, 10 * tolerance)
    if dtype == torch.float64:  # in float32 a point at 7 radii is known to 1e-4
        close(to_lorentz(ball, ball.expmap(x, u)), lorentz.expmap(there_x, pushed_u), 1e-11)


@laws
@given(st.tuples(st.just(Lorentz), curvatures, seeds, dims))
def test_projections_are_orthogonal_and_change_nothing_twice(drawn_space):
    space, x, u = drawn(drawn_space, 1, 1)
    a = normal(drawn_space[2], *x.shape)
    v = space.proju(x, a)

    def minkowski(p, q):
        return (p * q)[..., 1:].sum(-1) - p[..., 0] * q[..., 0]

    close(minkowski(x, v), torch.zeros(20, dtype=x.dtype), 1e-8)
    close(minkowski(u, a - v), torch.zeros(20, dtype=x.dtype), 1e-8)
    close(space.proju(x, v), v, 1e-8)
    close(space.projx(x), x, 1e-14)


@laws
@given(spaces)
def test_the_midpoint_divides_the_geodesic(drawn_space):
    space, x, y = drawn(drawn_space, 2)
    share = torch.linspace(0, 1, 20, dtype=x.dtype)
    m = midpoint(space, x, y, share)
    close(space.dist(x, m), share * space.dist(x, y), 1e-7)
    close(space.dist(x, m) + space.dist(m, y), space.dist(x, y), 1e-7)


@laws
@given(spaces)
def test_two_points_have_one_mean(drawn_space):
    space, x, y = drawn(drawn_space, 2)
    both, middle = torch.stack((x, y), -2), midpoint(space, x, y)
    close(space.centroid(both), middle, 1e-7)
    close(frechet_mean(space, both), middle, 1e-7)


@laws
@given(spaces)
def test_the_frechet_mean_is_where_the_logarithms_cancel(drawn_space):
    kind, c, seed, dim = drawn_space
    space, x = make(kind, c), points(kind, c, seed, 20, 5, dim, radius=1 / max(c, 0.1) ** 0.5)
    w = normal(seed, 20, 5).abs() + 0.01
    m = frechet_mean(space, x, w)
    mean = (w.unsqueeze(-1) * space.logmap(m.unsqueeze(-2), x)).sum(-2)
    close(space.norm(m, mean), torch.zeros(20, dtype=x.dtype), 1e-8)


@laws
@given(curvatures, seeds, dims)
def test_the_centroid_is_the_same_point_in_both_models(c, seed, dim):
    ball, lorentz = Poincare(c), Lorentz(c)
    x, w = points(Poincare, c, seed, 20, 5, dim, radius=1 / c**0.5), normal(seed, 20, 5).abs()
    there = to_lorentz(ball, x)
    close(to_lorentz(ball, ball.centroid(x, w)), lorentz.centroid(there, w), 1e-8)
    mean = (w.unsqueeze(-1) * there).sum(-2)  # near the origin, equal to the textbook formula
    length = (mean[..., 0].square() - mean[..., 1:].square().sum(-1)).sqrt() * c**0.5
    close(lorentz.centroid(there, w), mean / length.unsqueeze(-1), 1e-8)


@pytest.mark.parametrize("kind", CURVED)
def test_the_centroid_of_a_far_tight_cluster_stays_in_it(kind):
    space = kind(1.0)
    v = torch.tensor([[8.0, 0.01], [8.0, -0.01], [8.01, 0.0], [7.99, 0.0]]) / (
        2 if kind is Poincare else 1
    )
    x = space.expmap0(lifted(kind, v))
    spread = space.cdist(x, x, mode="broadcast").max()
    assert space.dist(space.centroid(x), x).max() < spread


@laws
@given(spaces)
def test_the_distance_to_a_hyperplane_is_the_length_of_the_perpendicular(drawn_space):
    space, p, a = drawn(drawn_space, 1, 1)
    length = space.norm(p, a)
    close(space.dist2plane(space.expmap(p, a), p, a), length, 1e-8)
    close(space.dist2plane(space.expmap(p, -a), p, a), -length, 1e-8)
    close(space.dist2plane(p, p, a), torch.zeros_like(length), 1e-12)


@laws
@given(spaces)
def test_every_mode_of_cdist_is_dist(drawn_space):
    space, x, y = drawn(drawn_space, 2)
    expected = space.dist(x.unsqueeze(-2), y.unsqueeze(-3))
    for mode in ("auto", "mm", "mm64", "broadcast"):
        close(space.cdist(x, y, mode=mode), expected, 1e-6 if mode.startswith("mm") else 1e-11)


def test_flat_space_is_the_ball_of_curvature_0():
    flat, ball = Euclidean(), Poincare(0.0)
    x, y, u = (normal(s, 20, 3) for s in (0, 1, 2))
    close(ball.dist(x, y), 2 * flat.dist(x, y), 1e-15)
    close(ball.mobius_add(x, y), x + y, 1e-15)
    close(ball.expmap(x, u), flat.expmap(x, u), 1e-15)
    close(ball.logmap(x, y), flat.logmap(x, y), 1e-15)
    close(ball.transp(x, y, u), flat.transp(x, y, u), 1e-15)
    sets = x.unflatten(0, (4, 5))
    close(ball.centroid(sets), flat.centroid(sets), 1e-15)
