"""Every operation compiles to one graph, and the compiled operation equals the eager one."""

import pytest
import torch

from fedbolic.formulas.sinh_ratio import asinh_ratio, sinh_ratio_and_cosh
from fedbolic.manifolds import Lorentz, Poincare
from tests.manifolds.cases import ALL, IDS, arguments, call, points


def is_slow(operation, name):
    """True for means, which unroll eight Newton steps, and for most operations of a series."""
    series = name.startswith(("Stereographic", "spherical"))
    return operation == "frechet_mean" or (series and operation not in ("dist", "expmap"))


def is_quick(case, backend):
    """True for what runs by default: tracing, and compilation of two operations of two spaces."""
    return backend == "eager" or (case[0] in (Lorentz, Poincare) and case[1] in ("dist", "expmap"))


CASES = [
    pytest.param(
        *(*case, backend),
        id=f"{name}-{backend}",
        marks=[] if is_quick(case, backend) and not is_slow(case[1], name) else [pytest.mark.slow],
    )
    for case, name in zip(ALL, IDS, strict=True)
    for backend in ("eager", "aot_eager")
]


@pytest.mark.parametrize(("kind", "name", "backend"), CASES)
def test_g13_every_operation_compiles_without_a_graph_break(kind, name, backend):
    torch._dynamo.reset()
    c = torch.tensor(0.7, dtype=torch.float64, requires_grad=True)
    given = [t.requires_grad_() for t in arguments(kind, name, 0.7)]
    # when traced, "auto" takes the mode that does not depend on the data
    eager_name = "cdist broadcast" if name == "cdist" else name
    eager = call(kind, eager_name, c, *given)
    compiled = torch.compile(
        lambda c, *t: call(kind, name, c, *t), fullgraph=True, backend=backend
    )(c, *given)
    torch.testing.assert_close(compiled, eager, rtol=1e-12, atol=1e-12)
    options = {"allow_unused": True, "materialize_grads": True}
    expected = torch.autograd.grad(eager.square().sum(), (c, *given), **options)
    got = torch.autograd.grad(compiled.square().sum(), (c, *given), **options)
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Lorentz, Poincare])
def test_g13_inductor_keeps_the_value(kind):
    torch._dynamo.reset()
    space = kind(1.0)
    x, y = (points(kind, 1.0, s, 64, 8, dtype=torch.float32) for s in (0, 1))

    def together(x, y):
        return space.dist(space.expmap(x, space.logmap(x, y) / 2), y)

    compiled = torch.compile(together, fullgraph=True)(x, y)
    torch.testing.assert_close(compiled, together(x, y), rtol=1e-5, atol=1e-6)


def test_a_part_of_a_formula_that_is_changed_in_place_keeps_its_gradient():
    """Values of asinh, and the cosine beside sinh, end with an operation in place."""

    def function(c, t):
        return asinh_ratio(t, c) + sinh_ratio_and_cosh(t, c)[1]

    torch._dynamo.reset()
    given = torch.tensor(0.7, requires_grad=True), torch.rand(5, requires_grad=True)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    got, expected = (
        torch.autograd.grad(f(*given).square().sum(), given) for f in (compiled, function)
    )
    torch.testing.assert_close(got, expected)
