"""One curvature per sample, vmap, forward derivatives and Hessians (G13, for manifolds)."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, jvp, vmap

from tests.manifolds.cases import ALL, CURVED, IDS, KINDS, arguments, call, make, points

C = (0.3, 1.0, 2.5)


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_g13_one_curvature_per_sample(kind, name):
    """vmap, broadcasting and a loop agree."""
    each = [arguments(kind, name, c, seed=i, batch=()) for i, c in enumerate(C)]
    together = [torch.stack(rows) for rows in zip(*each, strict=True)]
    c = torch.tensor(C, dtype=torch.float64)
    loop = torch.stack([call(kind, name, c, *t) for c, t in zip(C, each, strict=True)])
    mapped = vmap(lambda c, *t: call(kind, name, c, *t))(c, *together)
    torch.testing.assert_close(mapped, loop, rtol=1e-12, atol=1e-12)
    if name.startswith("cdist"):
        c = c.reshape(3, 1, 1)
    broadcast = call(kind, name, c, *together)
    torch.testing.assert_close(broadcast, loop, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_g13_jvp_and_hessian(kind, name):
    x, *rest = arguments(kind, name, batch=())
    c = torch.tensor(1.0, dtype=torch.float64)

    def f(c, x):
        return call(kind, name, c, x, *rest)

    def both(c, x):
        return f(c, x).sum()

    direction = (torch.ones_like(c), torch.ones_like(x))
    along = jvp(f, (c, x), direction)[1]
    by_c, by_x = jacrev(f, (0, 1))(c, x)
    torch.testing.assert_close(along, by_c + by_x.flatten(-x.ndim).sum(-1), rtol=1e-9, atol=1e-9)
    forward, backward = hessian(both, (0, 1))(c, x), jacrev(jacrev(both, (0, 1)), (0, 1))(c, x)
    for i, j in ((0, 0), (0, 1), (1, 1)):
        torch.testing.assert_close(forward[i][j], backward[i][j], rtol=1e-8, atol=1e-8)
        assert forward[i][j].isfinite().all()


@pytest.mark.parametrize("kind", CURVED)
def test_per_sample_gradients_in_the_curvature(kind):
    c = torch.tensor(C, dtype=torch.float64)
    x, y = points(kind, 0.1, 0, 3, 4), points(kind, 0.1, 1, 3, 4)
    each = vmap(jacfwd(lambda c, x, y: kind(c).dist(x, y)))(c, x, y)
    (together,) = torch.autograd.grad(kind(c.requires_grad_()).dist(x, y).sum(), c)
    torch.testing.assert_close(each, together, rtol=1e-12, atol=0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_under_vmap_and_grad(kind, dtype):
    x, y = (points(kind, 1.0, s, 5, 3, dtype=dtype) for s in (0, 1))
    got = vmap(torch.func.grad(make(kind, 1.0).dist))(x, y)
    x.requires_grad_()
    make(kind, 1.0).dist(x, y).sum().backward()
    assert torch.equal(got, x.grad)


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
def test_values_without_a_graph_are_those_of_a_graph_to_the_bit(kind, name):
    given = arguments(kind, name, 0.7)
    recorded = call(kind, name, 0.7, *[t.detach().clone().requires_grad_() for t in given])
    assert torch.equal(call(kind, name, 0.7, *given), recorded.detach())
