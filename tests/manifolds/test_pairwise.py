"""Pairwise distances: all modes agree, and ``auto`` is exact where it matters (G15)."""

import pytest
import torch

from fedbolic.manifolds import Poincare, pairwise
from tests.manifolds.cases import CURVED, KINDS, lifted, make, normal, points, tangents

TABLE = [(0.5, 0.1), (2.0, 0.1), (2.0, 0.01), (5.0, 1.0), (5.0, 0.1)]


def near_pairs(kind, radius, separation, dim=128, num=64):
    """Points at a radius, and one more at the given distance from each of them."""
    space = kind(1.0)
    u = normal(0, num, dim, dtype=torch.float32)
    u = u / u.norm(dim=-1, keepdim=True) * (radius / 2 if kind is Poincare else radius)
    x = space.expmap0(lifted(kind, u))
    v = tangents(kind, 1.0, 1, x)
    return x, space.expmap(x, v / space.norm(x, v).unsqueeze(-1) * separation)


@pytest.mark.parametrize("kind", CURVED)
@pytest.mark.parametrize(("radius", "separation"), TABLE)
@pytest.mark.parametrize("mode", ["auto", "mm64"])
def test_g15_auto_is_right_to_2e5_within_radius_5(kind, radius, separation, mode):
    x, y = near_pairs(kind, radius, separation)
    true = kind(1.0).cdist(x.double(), y.double(), mode="broadcast")
    got = kind(1.0).cdist(x, y, mode=mode).double()
    assert ((got - true).abs() / true).max() <= 2e-5


@pytest.mark.parametrize("kind", KINDS)
def test_auto_gives_exactly_0_on_the_diagonal(kind):
    x = points(kind, 1.0, 0, 50, 8, dtype=torch.float32)
    assert torch.equal(make(kind, 1.0).cdist(x, x).diagonal(), torch.zeros(50))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["auto", "mm", "mm64", "broadcast"])
def test_every_mode_has_the_gradient_of_dist(kind, mode):
    x = points(kind, 1.0, 0, 6, 3).requires_grad_()
    y = torch.cat((x.detach()[:2], points(kind, 1.0, 1, 3, 3)))  # two pairs of equal points
    space = make(kind, 1.0)
    expected = torch.autograd.grad(space.dist(x.unsqueeze(-2), y).square().sum(), x)[0]
    got = torch.autograd.grad(space.cdist(x, y, mode=mode).square().sum(), x)[0]
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", CURVED)
def test_sets_and_curvatures_broadcast(kind):
    c = torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64).reshape(3, 1, 1)
    x, y = points(kind, 0.5, 0, 3, 4, 2), points(kind, 0.5, 1, 5, 2)
    x = torch.cat((x, y[:1].expand(3, 1, -1)), -2)  # one close pair in every set
    for mode in ("auto", "mm", "mm64", "broadcast"):
        got = kind(c).cdist(x, y, mode=mode)
        each = [kind(float(k)).cdist(p, y, mode="broadcast") for k, p in zip(c, x, strict=True)]
        torch.testing.assert_close(got, torch.stack(each), rtol=1e-9, atol=1e-6)


@pytest.mark.parametrize("kind", CURVED)
def test_autocast_does_not_reach_the_product(kind):
    x, y = near_pairs(kind, 2.0, 0.5, dim=8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = kind(1.0).cdist(x, y)
    assert torch.equal(got, kind(1.0).cdist(x, y))


def test_empty_sets_have_no_distances():
    assert Poincare(1.0).cdist(torch.zeros(0, 3), torch.zeros(2, 3)).shape == (0, 2)


@pytest.mark.parametrize("kind", CURVED)
def test_the_derivatives_of_many_distances_take_the_memory_of_a_few_matrices(kind, monkeypatch):
    monkeypatch.setattr(pairwise, "LARGE", 2**12)
    held, c = [], torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    space = make(kind, c)
    x, y = (points(kind, 0.7, i, n, 3).requires_grad_() for i, n in enumerate((1000, 50)))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: held.append(t) or t, lambda t: t):
        found = space.cdist(x, y)
    kept = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held}
    assert sum(kept.values()) <= 2 * found.nbytes
    grad = normal(3, *found.shape, dtype=torch.float64)
    made = torch.autograd.grad(found, (x, y, c), grad)
    expected = torch.autograd.grad(space.cdist(x, y, mode="broadcast"), (x, y, c), grad)
    for got, wanted in zip(made, expected, strict=True):
        torch.testing.assert_close(got, wanted, rtol=1e-7, atol=1e-7)
