"""State dicts record the curvature, and loading checks that parameters mean the same points."""

import copy
import math

import pytest
import torch
from torch import nn
from torch.func import functional_call

from fedbolic.manifolds import Curvature, Lorentz, Poincare
from fedbolic.nn import MLR, ChangeCurvature, Linear, LorentzAttention
from fedbolic.nn.network.model import Model
from tests.nn.cases import CASES
from tests.nn.process_group import group

every_layer = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def network(first=1.0, second=None):
    """A network of two layers whose curvatures may be numbers or modules."""
    return nn.Sequential(
        Linear(Poincare(c=first), 3, 4),
        MLR(Poincare(c=first if second is None else second), 4, 2),
    )


def extra(module):
    return {name for name in module.state_dict() if name.endswith("_extra_state")}


@every_layer
def test_another_fixed_curvature_is_refused_and_both_are_named(case):
    one, same, two = case.make(1.25), case.make(1.25, seed=1), case.make(2.5)
    x = case.inputs(1.25)
    same.load_state_dict(one.state_dict())
    assert torch.equal(same.eval()(x), one.eval()(x))
    with pytest.raises(ValueError, match=r"1\.25.*2\.5|2\.5.*1\.25"):
        two.load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="curvature"):
        two.load_state_dict(one.state_dict(), strict=False)


@every_layer
def test_learnt_and_fixed_are_two_things_and_a_learnt_one_is_loaded(case):
    fixed, learnt, other = case.make(1.25), case.make(Curvature(1.25)), case.make(Curvature(2.5))
    for one, into in ((fixed, learnt), (learnt, fixed)):
        with pytest.raises(ValueError, match=r"learnt|old 1\.0, curvature 1\.25"):
            into.load_state_dict(one.state_dict(), strict=False)
    other.load_state_dict(learnt.state_dict())
    x = case.inputs(1.25)
    torch.testing.assert_close(other.eval()(x), learnt.eval()(x))


def test_bounds_of_a_learnt_curvature_are_part_of_it():
    one, two = Curvature(0.5, bounds=(0.1, 2.0)), Curvature(0.5)
    with pytest.raises(ValueError, match=r"\(0\.1, 2\.0\).*\(0\.0, inf\)"):
        two.load_state_dict(one.state_dict())
    assert two.c.item() != Curvature(0.5, bounds=(0.1, 2.0)).raw  # raw is not c
    Curvature(1.0, bounds=(0.1, 2.0)).load_state_dict(one.state_dict())


def test_both_curvatures_of_a_change_count():
    layer = ChangeCurvature(Lorentz(1.0), Lorentz(0.25))
    ChangeCurvature(Lorentz(1.0), Lorentz(0.25)).load_state_dict(layer.state_dict())
    for old, new in ((2.0, 0.25), (1.0, 0.5), (Curvature(1.0), 0.25)):
        with pytest.raises(ValueError, match="curvature"):
            ChangeCurvature(Lorentz(old), Lorentz(new)).load_state_dict(
                layer.state_dict(), strict=False
            )


@pytest.mark.parametrize("c", [2.0, Curvature(2.0)], ids=["fixed", "learnt"])
def test_attention_of_tangents_with_scores_of_another_factor_is_refused(c):
    make = lambda c: LorentzAttention(Lorentz(c), 4, 2, stream="tangents")  # noqa: E731
    saved, other = make(c).state_dict(), make(0.5)
    make(copy.deepcopy(c)).load_state_dict(saved)
    with pytest.raises(ValueError, match=r"of a layer with (the fixed|a learnt) curvature"):
        other.load_state_dict(saved)
    saved["_extra_state"] = Linear(Lorentz(c), 4, 4).state_dict()["_extra_state"]  # as it was
    with pytest.raises(ValueError, match=r"which was c / sqrt\(d\) and is sqrt\(d\) / 2 now"):
        make(copy.deepcopy(c)).load_state_dict(saved)
    del saved["_extra_state"]
    make(copy.deepcopy(c)).load_state_dict(saved)


def test_a_dict_that_says_nothing_is_taken_at_its_word():
    """Such dicts are made by hand or by tools that know parameters only; other keys stay strict."""
    layer = MLR(Lorentz(c=2.0), 3, 2)
    named = {name: value.detach() for name, value in layer.named_parameters()}
    assert not any(layer.load_state_dict(named))
    with pytest.raises(RuntimeError, match="Missing key"):
        layer.load_state_dict({"weight": named["weight"]})


@pytest.mark.parametrize("curvature", [0.3, 1e-4, 7.1])
def test_a_mean_of_state_dicts_is_one(curvature):
    """Tools that read ``state_dict().values()`` as tensors compute such means."""
    dicts = [network(curvature).state_dict() for _ in range(3)]
    assert all(isinstance(value, torch.Tensor) for value in dicts[0].values())
    mean = {n: torch.stack([d[n].cpu().float() for d in dicts]).mean(0) for n in dicts[0]}
    model = network(curvature)
    model.load_state_dict(mean)
    torch.testing.assert_close(model[0].weight, mean["0.weight"])


@every_layer
def test_a_federation_neither_sends_nor_averages_it(case):
    for curvature in (1.25, Curvature(1.25)):
        layer = case.make(curvature)
        parameters, buffers = Model(lambda layer=layer: copy.deepcopy(layer)).init(seed=0)
        sent = parameters.keys() | buffers.keys()
        assert sent <= layer.state_dict().keys() - extra(layer)  # a shared curvature is sent once
        assert not extra(layer) & dict(layer.named_buffers()).keys()


@pytest.mark.parametrize("curvature", [2.0, None], ids=["fixed", "learnt"])
def test_what_torch_does_with_modules_goes_on(curvature, tmp_path):
    make = lambda: network(Curvature(2.0) if curvature is None else curvature)  # noqa: E731
    model, x = make(), torch.rand(5, 3) / 4
    expected = model(x)
    file = tmp_path / "model.pt"
    torch.save(model.state_dict(), file)
    other = make()
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(x), expected)
    assert torch.equal(copy.deepcopy(model)(x), expected)
    assert torch.equal(functional_call(make(), dict(model.named_parameters()), (x,)), expected)
    other = make()
    other.load_state_dict(model.state_dict(), assign=True)
    assert torch.equal(other(x), expected)
    with torch.device("meta"):
        assert not model.state_dict()["0._extra_state"].is_meta


def test_torch_export_keeps_the_numbers():
    model, x = network(2.0), torch.rand(5, 3) / 4
    program = torch.export.export(model, (x,))
    torch.testing.assert_close(program.module()(x), model(x))


def test_distributed_data_parallel_wraps_it():
    from torch.nn.parallel import DistributedDataParallel

    with group():
        model, x = network(2.0), torch.rand(5, 3) / 4
        wrapped = DistributedDataParallel(model)
        wrapped(x).sum().backward()
        assert model[0].weight.grad is not None
        other = DistributedDataParallel(network(2.0))
        other.load_state_dict(wrapped.state_dict())
        assert torch.equal(other(x), wrapped(x))


def test_a_checkpoint_of_lightning_is_loaded_strictly_and_refused_elsewhere(tmp_path):
    from lightning.fabric import Fabric

    fabric = Fabric(accelerator="cpu", devices=1)
    model = network(2.0)
    fabric.save(tmp_path / "model.ckpt", {"model": model})
    same = network(2.0)
    fabric.load(tmp_path / "model.ckpt", {"model": same}, strict=True)
    assert torch.equal(same[0].weight, model[0].weight)
    with pytest.raises(ValueError, match=r"2\.0.*3\.0"):
        fabric.load(tmp_path / "model.ckpt", {"model": network(3.0)}, strict=True)


def test_a_graph_network_of_pyg_refuses_another_curvature():
    conv = pytest.importorskip("fedbolic.nn.graph.convolution")
    layer = conv.HGCNConv(Lorentz(), 3, 2, out_manifold=Lorentz(c=0.5))
    conv.HGCNConv(Lorentz(), 3, 2, out_manifold=Lorentz(c=0.5)).load_state_dict(layer.state_dict())
    for c, out in ((2.0, 0.5), (1.0, 2.0)):
        with pytest.raises(ValueError, match="curvature"):
            conv.HGCNConv(Lorentz(c=c), 3, 2, out_manifold=Lorentz(c=out)).load_state_dict(
                layer.state_dict()
            )


def test_flat_space_is_a_curvature_like_others():
    flat = Linear(Poincare(c=0.0), 3, 2)
    Linear(Poincare(c=0.0), 3, 2).load_state_dict(flat.state_dict())
    with pytest.raises(ValueError, match=r"0\.0.*1e-05"):
        Linear(Poincare(c=1e-5), 3, 2).load_state_dict(flat.state_dict())
    assert math.isfinite(Linear(Lorentz(), 2, 2).state_dict()["_extra_state"].item())
