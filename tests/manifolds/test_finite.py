"""G5: finite values and gradients for every finite input of every floating dtype."""

import itertools
import math

import pytest
import torch

from fedbolic.manifolds import Euclidean, Lorentz
from tests.manifolds.cases import ALL, IDS, KINDS, OWN, ROLES, call, lifted, make, normal

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
NO_FLAT = ("to_lorentz", "push_to_lorentz", "change_curvature")  # flat space has no hyperboloid


def curvatures(kind, name):
    if kind is Euclidean:
        return (0.0,)
    return (1e-12, 1e-3, 1.0, 100.0) + (() if kind is Lorentz or name in NO_FLAT else (0.0,))


def extremes(kind, c, dtype):
    """Points and vectors at 0, tiny, on and off the manifold, and as long as float32 can square."""
    longest = 5e4 if dtype == torch.float16 else 1e18
    v = normal(3, 3)
    v = v / v.norm()
    edge = min(1 / math.sqrt(c) if c else 1.0, longest)
    rows = [v * 0, v * 1e-30, v / 2 * edge, v * edge, torch.tensor([edge, 0, 0])]
    rows += [v * max(-7 * edge, -longest), v * min(1e9, longest), -v * longest, normal(4, 3)]
    made = [row.to(dtype) for row in rows]
    if kind is not Lorentz:
        return made
    there = [(v * min(r / math.sqrt(c), longest)).to(dtype) for r in (5, 30)]
    return (
        [lifted(kind, row) for row in made]
        + [torch.cat((row[:1].abs() * 1.1, row)) for row in made[:-1]]
        + [make(kind, c).expmap0(lifted(kind, u)) for u in there]
    )


def every_pair(kind, name, c, dtype):
    """Arguments that combine each extreme as the first with each extreme as all others."""
    rows, roles = extremes(kind, c, dtype), (ROLES | OWN[kind])[name]
    pairs = list(itertools.product(rows, repeat=min(2, len(roles))))
    made = []
    for place, role in enumerate(roles):
        if role in "XY":
            made.append(torch.stack([torch.stack((p[0], p[-1], p[0])) for p in pairs]))
        elif role == "w":
            made.append(torch.ones(len(pairs), 3, dtype=dtype))
        else:
            made.append(torch.stack([p[min(place, 1)] for p in pairs]))
    return made


@pytest.mark.parametrize(("kind", "name"), ALL, ids=IDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_g5_every_finite_input_has_a_finite_value_and_gradient(kind, name, dtype):
    for value in curvatures(kind, name):
        given = [t.requires_grad_() for t in every_pair(kind, name, value, dtype)]
        assert all(t.isfinite().all() for t in given)
        shape = (len(given[0]), 1, 1) if name.startswith("cdist") else (len(given[0]),)
        c = torch.full(shape, value, dtype=torch.promote_types(dtype, torch.float32))
        out = call(kind, name, c.requires_grad_(), *given)
        assert out.isfinite().all(), f"value at c = {value}"
        assert out.dtype == dtype
        total = out.float().sum() if dtype in (torch.float16, torch.bfloat16) else out.sum()
        for what, g in zip(
            ["c", *(ROLES | OWN[kind])[name]],
            torch.autograd.grad(total, (c, *given), allow_unused=True),
            strict=True,
        ):
            assert g is None or g.isfinite().all(), f"gradient in {what} at c = {value}"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_types_are_float32_rounded_once(kind, dtype):
    space = make(kind, 1.0)
    x, y = (space.expmap0(lifted(kind, normal(s, 50, 4).to(dtype) / 4)) for s in (0, 1))
    assert torch.equal(space.dist(x, y), space.dist(x.float(), y.float()).to(dtype))
    assert torch.equal(space.logmap(x, y), space.logmap(x.float(), y.float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("c", [1e-3, 1.0, 10.0])
@pytest.mark.parametrize("kind", KINDS)
def test_every_point_that_is_given_lies_on_the_space(kind, c, dtype):
    space = make(kind, c)
    rows = torch.stack(extremes(kind, c, dtype))
    x = space.projx(rows)
    assert space.contains(x).all()
    assert space.contains(space.expmap0(rows)).all()
    assert space.contains(space.expmap(x, rows.flip(0))).all()
    assert space.contains(space.centroid(torch.stack((x, x.flip(0)), -2))).all()
    space.require(x)
