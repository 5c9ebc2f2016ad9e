"""Layers with a learnt curvature under FSDP, on the meta device, in ensembles, and with decay."""

import copy

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, stack_module_state, vmap
from torch.testing import assert_close

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import FermiDirac, Linear, parameter_groups
from fedbolic.nn.loss.contrastive import LogitScale
from tests.nn.layers.test_layers import every_layer
from tests.nn.process_group import group

C = 0.7


def learnt(case, c=C):
    return case.make(Curvature(c).double())


def curvatures(layer):
    return [module for module in layer.modules() if isinstance(module, Curvature)]


@pytest.fixture(scope="module")
def mesh():
    with group():
        yield init_device_mesh("cpu", (1,))


@every_layer
@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module")  # of outputs that are views
def test_fsdp_shards_the_layer_and_changes_nothing(case, mesh):
    layer, x = learnt(case), case.inputs(C)
    sharded = copy.deepcopy(layer)
    fully_shard(sharded, mesh=mesh)
    for one in (layer, sharded):
        out = one(x)
        if out.requires_grad:
            out.square().sum().backward()
    sharded.reshard()
    for ours, plain in zip(sharded.parameters(), layer.parameters(), strict=True):
        if plain.grad is not None:
            assert_close(ours.grad.full_tensor(), plain.grad)
    assert_close(sharded.eval()(x), layer.eval()(x))


@every_layer
@pytest.mark.filterwarnings("ignore:DTensor random operators")  # on the CPU
def test_a_layer_is_built_on_the_meta_device_and_filled_later(case, mesh):
    with torch.device("meta"):
        layer = case.build(case.model(Curvature(C)))
    fully_shard(layer, mesh=mesh)
    layer.to_empty(device="cpu")
    for module in layer.modules():
        if hasattr(module, "reset_parameters"):
            module.reset_parameters()
    assert [c.raw.full_tensor().shape for c in curvatures(layer)] == [(1,)]
    for c in curvatures(layer):
        assert_close(c.c_of(c.raw.full_tensor()), torch.tensor([C]))
    for module in layer.modules():
        assert not any(x.is_meta for x in (*module.parameters(), *module.buffers()))


@every_layer
def test_an_ensemble_of_curvatures_is_a_loop(case):
    layers = [learnt(case, c) for c in (0.5, 1.0, 2.0)]
    x = case.inputs(2.0)  # in the ball of each
    values = stack_module_state(layers)
    base = copy.deepcopy(layers[0]).to("meta")
    got = vmap(lambda given: functional_call(base, given, (x,)), randomness="same")(
        {**values[0], **values[1]}
    )
    assert_close(got, torch.stack([layer(x) for layer in layers]), rtol=1e-9, atol=1e-9)


def test_a_call_with_other_values_leaves_a_shared_curvature_as_it_was():
    made = [Lorentz(Curvature(c)) for c in (0.5, 2.0)]
    first, other = (nn.Sequential(Linear(s, 3, 4), Linear(s, 4, 2)) for s in made)
    x, raw = Lorentz(0.5).origin(5, 4), first[0].curvature.raw
    found = functional_call(first, dict(other.named_parameters()), (x,), tie_weights=False)
    assert torch.equal(found, other(x))
    assert first[0].curvature.raw is raw


@every_layer
def test_a_state_dict_with_a_number_without_an_axis_is_loaded(case):
    layer, other = learnt(case), learnt(case, 3.0)
    numbers = {
        f"{n}.raw".removeprefix(".") for n, x in layer.named_modules() if x in curvatures(layer)
    }
    numbers |= {"log_weight", "weight"}  # of a residual connection, and of a norm with one scale
    old = {
        name: value.squeeze() if name in numbers and value.shape == (1,) else value
        for name, value in layer.state_dict().items()
    }
    assert any(value.ndim == 0 for value in old.values())
    other.load_state_dict(old)
    assert_close(other(case.inputs(C)), layer(case.inputs(C)))


@every_layer
def test_groups_keep_decay_from_curvatures(case):
    layer = learnt(case, 5.0)
    decayed, kept = parameter_groups(layer, weight_decay=0.1)
    assert [id(x) for x in kept["params"]] == [id(c.raw) for c in curvatures(layer)]
    assert len(decayed["params"]) + len(kept["params"]) == len(list(layer.parameters()))
    optimiser = torch.optim.SGD([decayed, kept], lr=1.0)
    for parameter in layer.parameters():
        parameter.grad = torch.zeros_like(parameter)
    before = [c.c.item() for c in curvatures(layer)]
    for _ in range(300):
        optimiser.step()
    assert [c.c.item() for c in curvatures(layer)] == before
    assert all(x.abs().sum() <= 1e-9 for x in decayed["params"])


def test_learnt_numbers_of_losses_have_an_axis_and_load_those_without():
    for make in (lambda: LogitScale(0.5), lambda: FermiDirac(learnable=True)):
        module: nn.Module = make()
        assert [x.shape for x in module.parameters()] == [(1,)] * len(list(module.parameters()))
        old = {name: value.squeeze() + 1 for name, value in module.state_dict().items()}
        module.load_state_dict(old)
        for name, value in module.named_parameters():
            assert_close(value.detach().squeeze(), old[name])


def test_a_curvature_without_a_value_is_refused():
    with pytest.raises(ValueError, match="got a tensor on the meta device: give a number"):
        Curvature(torch.empty((), device="meta"))


def test_several_curvatures_are_set_again():
    with torch.device("meta"):
        several = Curvature(torch.tensor([0.5, 2.0], device="cpu"))
    with torch.no_grad():
        several.raw.zero_()
    several.reset_parameters()
    assert_close(several.c, torch.tensor([0.5, 2.0]))
