"""Checks by torch's own tools of every layer: ``python -m tests.nn.plug_in``.

The table has a row for each layer and a column for each check;
``python -m benchmarks keep plug_in`` keeps it. Takes 5 minutes.
"""

import copy
import io
import logging
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.func import functional_call, grad, hessian, jacrev, jvp, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from benchmarks.table import head, line
from fedbolic.nn.graph.convolution import HGCN, CentroidConv, HGCNConv
from tests.nn.every_layer import Layer, layers
from tests.nn.process_group import group

GRAPH = CentroidConv, HGCNConv, HGCN


def state_dict(of: Layer) -> None:
    layer, other, file = of.make(), of.make(), io.BytesIO()
    for value in other.parameters():
        nn.init.zeros_(value)
    torch.save(layer.state_dict(), file)
    file.seek(0)
    other.load_state_dict(torch.load(file, weights_only=True), strict=True)
    assert_close(other(*of.inputs), layer(*of.inputs))


def copied(of: Layer) -> None:
    layer = of.make()
    assert_close(copy.deepcopy(layer)(*of.inputs), layer(*of.inputs))


def pickled(of: Layer) -> None:
    layer = of.make()
    layer._forward_pre_hooks.clear()  # the tests' own
    pickle.loads(pickle.dumps(layer))


def double(of: Layer) -> None:
    layer, wide = of.make(), tuple(x.double() if of.floats else x for x in of.inputs)
    found = copy.deepcopy(layer).double()(*wide)
    assert found.dtype == torch.float64
    assert_close(found.float(), layer(*of.inputs), rtol=1e-3, atol=1e-4)


def half(dtype: torch.dtype) -> Callable[[Layer], None]:
    def checked(of: Layer) -> None:
        layer = of.make().to(dtype)
        narrow = tuple(x.to(dtype) if of.floats else x for x in of.inputs)
        wide = copy.deepcopy(layer).float()(*(x.float() if of.floats else x for x in narrow))
        out = layer(*narrow)
        assert out.dtype == dtype
        assert_close(out.float(), wide, rtol=0.1, atol=0.1)

    return checked


def autocast(of: Layer) -> None:
    layer = of.make()
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(*of.inputs)
    assert_close(out.float(), layer(*of.inputs), rtol=0.1, atol=0.1)


def meta(of: Layer) -> None:
    layer, other = of.make(), of.make().to("meta")
    other.to_empty(device="cpu").load_state_dict(layer.state_dict())
    assert_close(other.eval()(*of.inputs), layer(*of.inputs))


def called(of: Layer) -> None:
    layer = of.make()
    values = {name: value.detach() for name, value in layer.named_parameters()}
    assert_close(functional_call(of.make(), values, of.inputs), layer(*of.inputs))


def mapped(of: Layer) -> None:
    layer, twice = of.make(), tuple(torch.stack((x, x)) for x in of.inputs)
    if twice:
        out, other = vmap(layer)(*twice), of.make()
        assert_close(out[1], other(*of.inputs), rtol=1e-4, atol=1e-5)
        if out.requires_grad:  # the backward pass runs outside the transform
            out[1].square().sum().backward()
            of.trained(other)
        for a, b in zip(layer.parameters(), other.parameters(), strict=True):
            assert_close(a.grad, b.grad, rtol=1e-3, atol=1e-4)


def ensemble(of: Layer) -> None:
    made = [of.make() for _ in range(2)]
    base = copy.deepcopy(made[0]).to("meta")
    if not [*base.parameters(), *base.buffers()]:
        return
    values = stack_module_state(made)
    run = lambda given: functional_call(base, given, of.inputs)  # noqa: E731
    found = vmap(run, randomness="same")({**values[0], **values[1]})
    assert_close(found[1], made[1](*of.inputs), rtol=1e-4, atol=1e-5)


def of_parameters(of: Layer) -> tuple[Callable[[dict], torch.Tensor], dict]:
    layer = of.make()
    values = {n: v.detach() for n, v in layer.named_parameters() if v.requires_grad}
    return lambda given: functional_call(layer, given, of.inputs).square().sum(), values


def gradients(of: Layer) -> None:
    loss, values = of_parameters(of)
    layer = of.make()
    of.trained(layer)
    plain = [value.grad for value in layer.parameters() if value.requires_grad]
    for a, b in zip(grad(loss)(values).values() if values else (), plain, strict=True):
        assert_close(a, torch.zeros_like(a) if b is None else b, rtol=1e-3, atol=1e-4)


def per_example(of: Layer) -> None:
    layer = of.make()
    values = {n: v.detach() for n, v in layer.named_parameters()}
    twice = tuple(torch.stack((x, x)) for x in of.inputs)
    if values and twice:
        loss = lambda given, *x: functional_call(layer, given, x).square().sum()  # noqa: E731
        vmap(grad(loss), (None, *(0 for _ in twice)))(values, *twice)


def forwards(of: Layer) -> None:
    loss, values = of_parameters(of)
    if values:
        along = {n: torch.ones_like(v) for n, v in values.items()}
        slope = sum((g * along[n]).sum() for n, g in grad(loss)(values).items())
        moved = jvp(loss, (values,), (along,))[1].float()  # torch widens some
        assert_close(moved, slope, rtol=1e-2, atol=1e-2)


def second(of: Layer) -> None:
    loss, values = of_parameters(of)
    if values:
        name = min(values, key=lambda n: values[n].numel())
        one = lambda x: loss({**values, name: x})  # noqa: E731
        found = hessian(one)(values[name]).float()  # torch widens forward over reverse derivatives
        assert_close(found, jacrev(grad(one))(values[name]), rtol=1e-2, atol=1e-2)


def recomputed(reentrant: bool) -> Callable[[Layer], None]:
    def checked(of: Layer) -> None:
        if reentrant and not of.floats:
            raise TypeError("no input requires a gradient")
        one, other = of.make().train(), of.make().train()
        other.load_state_dict(one.state_dict())
        given = [tuple(x.clone().requires_grad_(of.floats) for x in of.inputs) for _ in range(2)]
        of.trained(one, *given[0]) if of.inputs else of.trained(one)
        out = checkpoint(other, *given[1], use_reentrant=reentrant)
        if out.requires_grad:
            out.square().sum().backward()
        both = zip((*one.parameters(), *given[0]), (*other.parameters(), *given[1]), strict=True)
        for a, b in both:
            if a.grad is not None:
                assert_close(b.grad, a.grad)

    return checked


def compiled(of: Layer) -> None:
    torch._dynamo.reset()
    layer = of.make()
    with torch.no_grad():
        found = torch.compile(layer, fullgraph=True, backend="aot_eager")(*of.inputs)
        assert_close(found, layer(*of.inputs), rtol=1e-4, atol=1e-5)


def exported(of: Layer) -> None:
    layer = of.make()
    inputs = of.inputs
    for hook in layer._forward_pre_hooks.values():  # the tests' own, of edges or memories
        inputs = hook(layer, inputs)
    layer._forward_pre_hooks.clear()
    found = torch.export.export(layer, inputs).module()(*inputs)
    assert_close(found, layer(*inputs), rtol=1e-4, atol=1e-5)


def recorded(of: Layer) -> None:
    layer = of.make()
    graph = make_fx(lambda *x: layer(*x))(*of.inputs)
    assert_close(graph(*of.inputs), layer(*of.inputs), rtol=1e-4, atol=1e-5)


def sharded(of: Layer) -> None:
    layer, other = of.make(), of.make()
    with group(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of outputs that are views
        fully_shard(other, mesh=init_device_mesh("cpu", (1,)))
        for a, b in zip(of.trained(layer), of.trained(other), strict=True):
            if a is not None:
                assert_close(b.full_tensor(), a)


def distributed_data(of: Layer) -> None:
    layer = of.make()
    if not any(value.requires_grad for value in layer.parameters()):
        return
    with group():
        wrapped = DistributedDataParallel(of.make(), find_unused_parameters=True)
        for a, b in zip(of.trained(layer), of.trained(wrapped), strict=True):
            if a is not None:
                assert_close(b, a)


def optimised(kind: Callable[..., Any]) -> Callable[[Layer], None]:
    def checked(of: Layer) -> None:
        layer = of.make()
        of.trained(layer)
        if [*layer.parameters()]:
            nn.utils.clip_grad_norm_(layer.parameters(), 1.0, error_if_nonfinite=True)
            kind(layer.parameters(), lr=1e-3).step()
        assert layer(*of.inputs).isfinite().all()

    return checked


def averaged(of: Layer) -> None:
    layer = of.make()
    mean = AveragedModel(layer)
    mean.update_parameters(layer)
    assert_close(mean(*of.inputs), layer(*of.inputs))


def hooked(of: Layer) -> None:
    layer, seen = of.make(), []
    layer.register_forward_hook(lambda *_: seen.append(1))
    layer(*of.inputs)
    assert seen


def frozen(of: Layer) -> None:
    layer = of.make().requires_grad_(requires_grad=False)
    given = tuple(x.clone().requires_grad_(of.floats) for x in of.inputs)
    out = layer(*given)
    if out.requires_grad:
        out.square().sum().backward()
        assert all(x.grad.isfinite().all() for x in given)


def lightning(of: Layer) -> None:
    from lightning.fabric import Fabric

    logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
    fabric = Fabric(accelerator="cpu", devices=1)
    layer = fabric.setup(of.make())
    out = layer(*of.inputs)
    if out.requires_grad:
        fabric.backward(out.square().sum())


def hetero(of: Layer) -> None:
    from torch_geometric.nn import to_hetero

    layer = of.make()
    if not isinstance(layer, GRAPH):
        raise TypeError("takes no graph")
    layer._forward_pre_hooks.clear()

    class Network(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor, edge_index: torch.Tensor) -> torch.Tensor:
            return self.layer(x, edge_index)

    kind, edges = ("a", "to", "a"), torch.tensor([[0, 1, 2], [1, 2, 0]])
    made = to_hetero(Network(), (["a"], [kind])).eval()
    assert_close(made({"a": of.inputs[0]}, {kind: edges})["a"], layer(of.inputs[0], edges))


CHECKS: dict[str, Callable[[Layer], None]] = {
    "state_dict": state_dict,
    "deepcopy": copied,
    "pickle": pickled,
    "float64": double,
    "bfloat16": half(torch.bfloat16),
    "float16": half(torch.float16),
    "autocast": autocast,
    "meta": meta,
    "functional_call": called,
    "vmap": mapped,
    "ensemble": ensemble,
    "grad": gradients,
    "grad per example": per_example,
    "jvp": forwards,
    "hessian": second,
    "checkpoint": recomputed(reentrant=False),
    "checkpoint, reentrant": recomputed(reentrant=True),
    "make_fx": recorded,
    "DDP": distributed_data,
    "SGD": optimised(torch.optim.SGD),
    "AdamW": optimised(torch.optim.AdamW),
    "AveragedModel": averaged,
    "hooks": hooked,
    "frozen": frozen,
    "compile": compiled,
    "export": exported,
    "FSDP2": sharded,
    "Fabric": lightning,
    "to_hetero": hetero,
}
"""Checks by name; each raises an error if it fails."""

SLOW = "compile", "export"
"""Checks that take seconds a layer."""

NO_GRAPH, BY_LAYERS, NO_FLOATS = "takes no graph", "by its layers", "takes no numbers"
"""Explanations of failures: of layers without edges; of ``HGCN``, a network of graph layers, which
PyG rebuilds one by one; of layers without a floating input, to whose parameters torch's reentrant
checkpoint gives no gradients."""


def explanation(name: str, check: str) -> str | None:
    """Reason why a check must fail for a layer; ``None`` if it must not."""
    if check == "checkpoint, reentrant":
        tokens = "HyperbolicEmbedding", "LorentzTransformer", "LogitScale"
        return NO_FLOATS if name in tokens else None
    if check != "to_hetero" or name in ("CentroidConv", "HGCNConv"):
        return None
    return BY_LAYERS if name == "HGCN" else NO_GRAPH


def outcome(name: str, check: str, of: Layer) -> str:
    """The word of a cell: ``yes``, the explanation of a failure, or the failure itself."""
    try:
        CHECKS[check](of)
    except Exception as error:  # any error of a check is its result
        lines = str(error).strip().splitlines() or [""]
        return explanation(name, check) or f"{type(error).__name__}: {lines[0][:90]}"
    return "yes"


def main() -> None:
    """Print the table."""
    logging.disable(logging.CRITICAL)
    checks = sys.argv[1:] or list(CHECKS)
    print(head("layer", *checks))
    with group():
        for name, of in layers().items():
            print(line(name, *(outcome(name, check, of) for check in checks)), flush=True)


if __name__ == "__main__":
    main()
