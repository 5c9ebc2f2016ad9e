"""Riemannian SGD and Adam as torch optimisers, against torch, geoopt and steps in mpmath."""

import geoopt
import mpmath
import pytest
import torch
from torch import nn

from fedbolic.manifolds import Curvature, Euclidean, Lorentz, Poincare
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD
from tests.manifolds.cases import normal, points
from tests.optim.torch_twins import (
    HEIGHT,
    OURS,
    advance,
    close,
    every_method,
    every_twin,
    parameters,
    set_gradients,
    sparse_gradient,
    start,
)


@every_twin
@pytest.mark.parametrize("lr", [0.05, torch.tensor(0.05)], ids=["number", "tensor"])
def test_without_a_space_the_steps_are_torchs(kind, twin, options, lr):
    ours, theirs = parameters(), parameters()
    advance(kind(ours, lr, **options), ours, range(50))
    advance(twin(theirs, lr=float(lr), **options), theirs, range(50))
    close(ours, theirs, 1e-9 if isinstance(lr, float) else 1e-7)  # 0.05 in float32 is rounded


@every_twin
def test_the_default_options_are_torchs(kind, twin, options):
    theirs = twin(parameters()).defaults
    ours = kind(parameters()).defaults
    assert {name: theirs[name] for name in ours if name != "space"} == {
        name: value for name, value in ours.items() if name != "space"
    }


@every_twin
def test_a_parameter_that_sometimes_has_no_gradient_is_skipped_as_torch_does(kind, twin, options):
    ours, theirs = parameters(), parameters()
    for optimizer, given in (
        (kind(ours, 0.05, **options), ours),
        (twin(theirs, lr=0.05, **options), theirs),
    ):
        for seed in range(6):
            set_gradients(given, seed)
            given[seed % 3].grad = None
            before = given[seed % 3].detach().clone()
            optimizer.step()
            assert torch.equal(given[seed % 3], before)
    close(ours, theirs)


@every_method
def test_half_precision_stays(kind, options):
    given = parameters(dtype=torch.bfloat16)
    advance(kind(given, 0.05, **options), given, range(2))
    assert all(p.dtype == torch.bfloat16 and p.isfinite().all() for p in given)


def geoopt_manifold(space):
    """The same space with geoopt's formulas; its steps follow geodesics, too."""
    c = torch.tensor(space.c, dtype=torch.float64)
    return geoopt.PoincareBallExact(c) if isinstance(space, Poincare) else geoopt.Lorentz(1 / c)


@pytest.mark.parametrize("space", [Poincare(0.7), Lorentz(0.7)], ids=str)
@pytest.mark.parametrize(
    ("kind", "options"), [*OURS, (RiemannianAdam, {"betas": (0.0, 0.5)})], ids=str
)
def test_on_a_manifold_the_steps_are_geoopts(kind, options, space):
    """The first gradient is 0, as geoopt begins the momentum with the *Euclidean* gradient."""
    ours = nn.Parameter(start(space))
    theirs = geoopt.ManifoldParameter(start(space), manifold=geoopt_manifold(space))
    optimizer = kind([{"params": [ours], "space": space}], lr=0.05, **options)
    twin = getattr(geoopt.optim, kind.__name__)([theirs], lr=0.05, **options)
    for seed in range(10):
        ours.grad = normal(seed, *ours.shape) * (seed > 0)
        theirs.grad = ours.grad.clone()
        optimizer.step()
        twin.step()
    close(ours.detach(), theirs.detach().as_subclass(torch.Tensor), 1e-6)


def test_amsgrad_of_geoopt_is_where_adam_differs():
    """Adam forgets a large gradient, the maximum of AMSGrad (Becigneul and Ganea) does not."""
    space = Poincare(1.0)
    moved = {}
    for amsgrad in (False, True):
        x = geoopt.ManifoldParameter(start(space), manifold=geoopt_manifold(space))
        twin = geoopt.optim.RiemannianAdam([x], lr=0.05, betas=(0.9, 0.5), amsgrad=amsgrad)
        for seed in range(5):
            x.grad = normal(seed, *x.shape) * 0.1**seed
            twin.step()
        moved[amsgrad] = x.detach().as_subclass(torch.Tensor)
    ours = nn.Parameter(start(space))
    optimizer = RiemannianAdam([ours], lr=0.05, betas=(0.9, 0.5), space=space)
    for seed in range(5):
        ours.grad = normal(seed, *ours.shape) * 0.1**seed
        optimizer.step()
    close(ours.detach(), moved[False], 1e-9)
    assert (ours - moved[True]).abs().max() > 1e-3


def lorentz_inner(u, v):
    return mpmath.fsum(a * b for a, b in zip(u[1:], v[1:], strict=True)) - u[0] * v[0]


def hyperboloid_adam(x, gradients, lr, beta1, beta2, eps):
    """Adam on the hyperboloid of curvature -1 with the textbook formulas, in 50 digits."""
    mean, square = [mpmath.mpf(0)] * len(x), mpmath.mpf(0)
    for t, g in enumerate(gradients, 1):
        g = [-g[0], *g[1:]]
        along = lorentz_inner(x, g)
        g = [a + along * b for a, b in zip(g, x, strict=True)]
        mean = [beta1 * m + (1 - beta1) * a for m, a in zip(mean, g, strict=True)]
        square = beta2 * square + (1 - beta2) * lorentz_inner(g, g)
        scale = -lr / (1 - beta1**t) / (mpmath.sqrt(square / (1 - beta2**t)) + eps)
        u = [scale * m for m in mean]
        length = mpmath.sqrt(lorentz_inner(u, u))
        ratio = mpmath.sinh(length) / length
        y = [mpmath.cosh(length) * a + ratio * b for a, b in zip(x, u, strict=True)]
        push = lorentz_inner(y, mean) / (1 - lorentz_inner(x, y))
        mean = [m + push * (a + b) for m, a, b in zip(mean, x, y, strict=True)]
        x = y
    return x


def test_adam_on_the_hyperboloid_is_the_textbooks():
    x, gradients = points(Lorentz, 1.0, 0, 1, 3)[0], normal(1, 3, 4)
    with mpmath.workdps(50):
        exact = [mpmath.mpf(v) for v in x[1:].tolist()]
        exact = [mpmath.sqrt(1 + mpmath.fsum(v * v for v in exact)), *exact]
        rows = [[mpmath.mpf(v) for v in g] for g in gradients.tolist()]
        rates = (mpmath.mpf(v) for v in (0.3, 0.9, 0.99, 1e-8))
        expected = [float(v) for v in hyperboloid_adam(exact, rows, *rates)]
    ours = nn.Parameter(x.clone())
    optimizer = RiemannianAdam([ours], 0.3, space=Lorentz(1.0), betas=(0.9, 0.99))
    for g in gradients:
        ours.grad = g
        optimizer.step()
    close(ours.detach(), torch.tensor(expected, dtype=torch.float64), 1e-12)


def test_the_first_step_of_adam_in_the_ball_by_hand():
    """From the origin of the ball against (g, 0): the length is lr whatever g, so 2 atanh |x|."""
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = RiemannianAdam([x], lr=0.4, space=Poincare(1.0))
    x.grad = torch.tensor([5.0, 0.0], dtype=torch.float64)
    optimizer.step()
    # the Riemannian gradient is (5/4, 0), of length 2.5; half a unit of coordinate per length
    expected = torch.tensor([-0.2, 0.0], dtype=torch.float64).tanh()
    close(x.detach(), expected, 1e-8)


@every_method
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("space", [Poincare(0.7), Lorentz(0.7)], ids=str)
def test_points_stay_on_the_manifold(kind, options, space, dtype):
    whole, rows = (nn.Parameter(start(space).to(dtype)) for _ in range(2))
    optimizer = kind([whole, rows], lr=0.5, space=space, **options)
    for seed in range(10):
        whole.grad = 100 * normal(seed, *whole.shape, dtype=dtype)
        sparse_gradient(
            rows, [seed % HEIGHT, 0], 100 * normal(seed, 2, whole.shape[1], dtype=dtype)
        )
        optimizer.step()
        assert space.contains(whole.detach()).all()
        assert space.contains(rows.detach()).all()


@every_method
def test_a_closure_is_called_with_gradients_and_its_loss_returned(kind, options):
    space, goal = Poincare(0.7), points(Poincare, 0.7, 1, HEIGHT, 3)
    x = nn.Parameter(start(space))
    optimizer = kind([x], lr=0.05, space=space, **options)

    def closure():
        optimizer.zero_grad()
        loss = space.dist(x, goal).square().sum()
        loss.backward()
        return loss

    losses = [float(optimizer.step(closure).detach()) for _ in range(10)]
    assert losses[0] == pytest.approx(float(space.dist(start(space), goal).square().sum()))
    assert losses[-1] < losses[0]
    assert optimizer.step() is None


@every_method
def test_group_options_overrule_the_defaults(kind, options):
    given = parameters()
    optimizer = kind(given[:1], lr=0.1, **options)
    optimizer.add_param_group({"params": given[1:2], "lr": 0.0})
    before = [p.detach().clone() for p in given]
    advance(optimizer, given, range(2))
    moved = [not torch.equal(p, x) for p, x in zip(given, before, strict=True)]
    assert moved == [True, False, False, False]


learnt = Curvature(1.0)
BAD = [
    ({"space": Poincare}, TypeError, "space must be a manifold such as Poincare"),
    ({"space": "ball"}, TypeError, "got 'ball'"),
    ({"space": Poincare(learnt.c)}, ValueError, "must not require a gradient"),
    ({"lr": -1.0}, ValueError, "lr must be 0 or more"),
    ({"lr": torch.ones(2)}, ValueError, "lr must have one element"),
    ({"weight_decay": -1.0}, ValueError, "weight_decay must be 0 or more"),
    ({"params": [nn.Parameter(torch.ones(()))], "space": Lorentz()}, ValueError, "got a number"),
]


@pytest.mark.parametrize("kind", [RiemannianSGD, RiemannianAdam])
@pytest.mark.parametrize(("group", "error", "words"), BAD, ids=str)
def test_a_bad_group_is_refused_and_not_added(kind, group, error, words):
    group = {"params": [nn.Parameter(torch.ones(2))]} | group
    with pytest.raises(error, match=words):
        kind([group])
    optimizer = kind(parameters())
    with pytest.raises(error, match=words):
        optimizer.add_param_group(group)
    assert len(optimizer.param_groups) == 1


def test_bad_options_are_refused():
    for kind, options, words in (
        (RiemannianSGD, {"nesterov": True}, "nesterov needs momentum"),
        (RiemannianSGD, {"momentum": 1.0}, "momentum must lie in"),
        (RiemannianAdam, {"betas": (0.9, 1.0)}, "beta2 must lie in"),
        (RiemannianAdam, {"eps": 0.0}, "eps must be a positive number"),
    ):
        with pytest.raises(ValueError, match=words):
            kind(parameters(), **options)


def test_flat_space_as_a_manifold_has_one_second_moment_per_point():
    x = nn.Parameter(torch.zeros(2, dtype=torch.float64))
    optimizer = RiemannianAdam([x], lr=0.5, space=Euclidean())
    x.grad = torch.tensor([3.0, 4.0], dtype=torch.float64)
    optimizer.step()
    close(x.detach(), torch.tensor([-0.3, -0.4], dtype=torch.float64), 1e-8)
