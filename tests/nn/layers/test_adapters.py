"""Adapters against the formulas in 60 digits, their flat limit, and federations that send them."""

import copy

import pytest
import torch
from mpmath import asinh, mpf, sinh, sqrt, workdps
from torch import nn
from torch.func import functional_call, vmap

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import Trainer
from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.methods import FedAvg
from fedbolic.nn import HypLoRALinear, LoRALinear, add_adapters
from fedbolic.nn.network.adapted import Adapted
from fedbolic.nn.network.backbone import MLP

KINDS = (LoRALinear, HypLoRALinear)
ADAPTERS_AND_HEAD = {"*adapter.*": "shared", "head.*": "shared", "*": "fixed"}


def normal(seed, *shape, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)


def trained(wrapper, *, dtype=torch.float64, **settings):
    """An adapted layer of 5 inputs and 4 outputs whose update is not 0."""
    layer = wrapper(nn.Linear(5, 4, dtype=dtype), rank=2, alpha=3.0, **settings)
    with torch.no_grad():
        layer.adapter.up.copy_(normal(1, 4, 2))
        layer.adapter.down.copy_(normal(2, 2, 5))
    return layer


def product(matrix, x):
    return [sum((mpf(a) * b for a, b in zip(row, x, strict=True)), mpf(0)) for row in matrix]


def length(x):
    return sqrt(sum((a * a for a in x), mpf(0)))


@pytest.mark.parametrize("c", [1e-6, 0.2, 1.0])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_hyperbolic_update_is_that_of_the_formula_in_60_digits(c, dtype):
    layer, x = trained(HypLoRALinear, dtype=dtype, c=c), normal(0, 3, 5, dtype=dtype)
    expected = []
    with workdps(60):
        r = sqrt(mpf(c))
        for row in x.tolist():
            v = [mpf(a) for a in row]
            point = [sinh(r * length(v)) / (r * length(v)) * a for a in v]
            y = product(layer.adapter.up.tolist(), product(layer.adapter.down.tolist(), point))
            back = asinh(r * length(y)) / (r * length(y))
            expected.append([float(mpf(3) / 2 * back * a) for a in y])
    tolerance = 2e-5 if dtype == torch.float32 else 1e-13
    got = layer(x) - layer.base(x)
    torch.testing.assert_close(
        got, torch.tensor(expected, dtype=dtype), rtol=tolerance, atol=tolerance
    )


def test_it_is_the_logarithm_of_a_point_whose_space_coordinates_are_mapped():
    layer, x = trained(HypLoRALinear, c=0.3), normal(0, 3, 5)
    space = Lorentz(0.3)
    point = space.expmap0(space.lift(x))[:, 1:]
    y = point @ layer.adapter.down.T @ layer.adapter.up.T
    log = space.logmap0(space.projx(space.lift(y)))[:, 1:]
    torch.testing.assert_close(layer(x) - layer.base(x), 1.5 * log)


def test_the_flat_limit_is_lora():
    flat, x = trained(LoRALinear), normal(0, 3, 5)
    curved = HypLoRALinear(copy.deepcopy(flat.base), rank=2, alpha=3.0, c=1e-12)
    curved.adapter.load_state_dict(flat.adapter.state_dict(), strict=False)
    torch.testing.assert_close(curved(x), flat(x), rtol=1e-9, atol=1e-9)
    update = 1.5 * x @ (flat.adapter.up @ flat.adapter.down).T
    torch.testing.assert_close(flat(x), flat.base(x) + update)
    torch.testing.assert_close(flat.merged()(x), flat(x))


@pytest.mark.parametrize("wrapper", KINDS)
def test_an_adapter_changes_nothing_at_first_and_trains_itself_alone(wrapper):
    layer, x = wrapper(nn.Linear(5, 4), rank=2), normal(0, 6, 5, dtype=torch.float32)
    assert torch.equal(layer(x), layer.base(x))
    before = copy.deepcopy(layer.base.state_dict())
    optimiser = torch.optim.Adam(layer.parameters(), lr=0.01)
    goal = normal(1, 6, 4, dtype=torch.float32)
    losses = []
    for _ in range(50):
        optimiser.zero_grad()
        loss = (layer(x) - goal).square().mean()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 1.5
    assert all(torch.equal(before[name], value) for name, value in layer.base.state_dict().items())


@pytest.mark.parametrize("wrapper", KINDS)
def test_derivatives_vmap_and_long_features(wrapper):
    layer, x = trained(wrapper), normal(0, 3, 5)
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def out(up, x):
        return functional_call(layer, values | {"adapter.up": up}, (x,))

    up = values["adapter.up"]
    given = [t.clone().requires_grad_() for t in (up, x)]
    assert torch.autograd.gradcheck(out, given, fast_mode=True)
    ups = torch.stack((up, 2 * up))
    loop = torch.stack([out(of, x) for of in ups])
    torch.testing.assert_close(vmap(out, in_dims=(0, None))(ups, x), loop)
    long = torch.full((5,), 1e6, dtype=torch.float32, requires_grad=True)
    far = trained(wrapper, dtype=torch.float32)(long)
    far.sum().backward()
    assert far.isfinite().all()
    assert long.grad.isfinite().all()


def test_a_learnt_curvature_belongs_to_the_adapter():
    layer = HypLoRALinear(nn.Linear(5, 4), c=Curvature(0.5))
    names = [name for name, p in layer.named_parameters() if p.requires_grad]
    assert sorted(names) == ["adapter.curvature.raw", "adapter.down", "adapter.up"]


def test_layers_are_chosen_by_pattern_and_the_rest_is_frozen():
    network = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Sequential(nn.Linear(4, 2)))
    assert add_adapters(network, ["2.*"], rank=1, kind="lora") == ["2.0"]
    assert type(network[2][0]) is LoRALinear
    assert type(network[0]) is nn.Linear
    free = {name for name, p in network.named_parameters() if p.requires_grad}
    assert free == {"2.0.adapter.down", "2.0.adapter.up"}
    assert add_adapters(nn.Sequential(nn.Linear(4, 4)), "*") == ["0"]


def test_what_cannot_be_adapted_is_refused():
    network = nn.Sequential(nn.Linear(4, 4))
    with pytest.raises(ValueError, match=r"'1' matches no linear layer.*the layers are 0"):
        add_adapters(network, ["1"])
    with pytest.raises(ValueError, match=r"matches no linear layer.*are none"):
        add_adapters(nn.Sequential(nn.MultiheadAttention(4, 2)), ["*out_proj"])
    with pytest.raises(ValueError, match="rank must be at least 1"):
        add_adapters(network, ["0"], rank=0)
    with pytest.raises(ValueError, match="alpha must be a positive number"):
        LoRALinear(nn.Linear(4, 4), alpha=0.0)


@pytest.fixture(scope="module")
def data():
    return Partitioned(Digits(), IID(3)).load(Rng(0))


@pytest.mark.parametrize("kind", ["lora", "hyplora"])
def test_a_federation_sends_adapters_and_head_alone(kind, data, tmp_path):
    inner = MLP((24, 16))
    weights = tmp_path / "body.pt"
    saved = inner.build(data.meta).state_dict()
    torch.save(saved, weights)
    method = FedAvg(
        Adapted(inner, weights, rank=2, kind=kind), rounds=2, lr=0.1, sharing=ADAPTERS_AND_HEAD
    )
    *_, (state, rows) = Trainer().run(method, data, Rng(0))
    sent = state.server_state["parameters"]
    ends = {"adapter.down", "adapter.up"}
    names = {f"body.{i}.{end}" for i in (1, 3) for end in ends} | {"head.weight", "head.bias"}
    assert sent.keys() == names
    numbers = 2 * (64 + 24) + 2 * (24 + 16) + 10 * 16 + 10  # every client sends them once a round
    (up,) = {row.value for row in rows if row.name == "bytes/up"}
    assert up == pytest.approx(3 * 4 * numbers, rel=0.2)
    message = method.broadcast(state.server_state, 0)
    local, context = method.start(message, data.clients[0], {})
    held = {**local["parameters"], **context["shared"]["fixed"]}
    for name, value in saved.items():
        index, key = name.split(".")
        assert torch.equal(held[f"body.{index}.base.{key}"], value)
    assert sent["body.3.adapter.up"].abs().sum() > 0
