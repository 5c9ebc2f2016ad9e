"""Launches of a step of all clients on a CUDA device, counted without one.

    python -m tests.launches [METHOD ...] [--csv FILE]

The columns are torch's operators, on the shadow device; what a graph of ``Graphed`` holds, with our
kernels, on the rehearsal device; and what one of ``Graphed(compiled=True)`` holds: Inductor's
kernels for an H100, as its code launches them, and calls of libraries, each as one. The last needs
``pip install triton``, but neither compiles nor runs the code.
"""

import argparse
import contextlib
import csv
import re
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from benchmarks.table import head, line
from fedbolic.core import tree
from fedbolic.federated import Batched, Graphed, LocalTraining, Sequential
from fedbolic.federated.batched import compiled
from fedbolic.federated.contract.engine import Exchange
from tests.budgets import BATCH, METHODS, RNG, _federation, _with_local, spent
from tests.rehearsal import CUDA, rehearsal

GOALS = {"fedavg mlp": 15, "fedavg convnet": 36, "hyperfed": 60, "flatland": 80}
"""Most launches of a compiled step."""

NAMES = (*GOALS, "gcn", "resnet batch norm")

H100 = SimpleNamespace(
    name="NVIDIA H100",
    major=9,
    minor=0,
    total_memory=80 * 2**30,
    multi_processor_count=132,
    max_threads_per_multi_processor=2048,
    regs_per_multiprocessor=65536,
    warp_size=32,
    shared_memory_per_block=49152,
    shared_memory_per_block_optin=232448,
    L2_cache_size=50 * 2**20,
    gcnArchName="",
)
"""Properties of the device for which code is generated."""

LAUNCH = re.compile(r"^\s+triton_\w+\.run\(", re.MULTILINE)
LIBRARY = re.compile(r"^\s+(?:\w+ = )?(?:extern_kernels|torch\.ops\.aten)\.\w+", re.MULTILINE)


class Generated(BaseException):
    """Carries the code of Inductor out of it."""


def exchange_on(engine, name, device):
    """Run the first exchange of a method of :data:`~tests.budgets.METHODS`, on a device."""
    (method, shape), data = METHODS[name], _federation(name)
    method = _with_local(method, LocalTraining(3, BATCH if isinstance(shape, tuple) else None))
    start = tree.to(method.init(data.meta, RNG), "cpu", torch.float32)
    there, start = data.to(device, torch.float32), tree.to(start, device)
    messages = {c.id: method.broadcast(start, c.id) for c in there.clients}
    with engine.open(there.clients) as opened:
        list(opened.run(Exchange(method, messages, there.clients, {}, RNG)))


def operators(name, engine):
    """Launches of a step by torch's operators."""
    with pytest.MonkeyPatch.context() as patch:
        return round(spent(name, engine, patch).launches)


def captured(name):
    """Launches in the graph of a step of all clients, with our kernels."""
    with rehearsal() as device:
        exchange_on(Graphed(memory=1e6), name, CUDA)
    return max(len(graph.operations) for graph in device.graphs[1:])  # the first one is a pool's


def inductor_code(name):
    """Inductor's code of the first form of a step, for an H100."""
    given = []

    def noted(function, tensors):
        given.append((function, tensors))
        return lambda: function(*tensors)

    with mock.patch.object(compiled, "compiled", noted):
        exchange_on(Graphed(memory=1e6, compiled=True), name, "cpu")
    function, tensors = given[0]
    with mock.patch.object(torch.Tensor, "is_cuda", True):
        graph = compiled.traced(function, tensors)
    return _generated(graph, tensors)


def _generated(graph, tensors):
    """Code for a CUDA device from a graph that was traced on the CPU."""
    from torch._inductor import compile_fx, config
    from torch._inductor.fx_passes import reinplace
    from torch._inductor.graph import GraphLowering

    def moved(graph, inputs, **settings):
        """The graph on a device; its gradients were traced before, for these need a real one."""
        for node in graph.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": CUDA}
        graph.recompile()
        with (mode := inputs[0].fake_mode):
            there = [
                torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=CUDA) for x in inputs
            ]
        FakeTensorProp(graph, mode).propagate_dont_convert_inputs(*there)
        with _pretended():
            return compile_fx.compile_fx_inner(graph, there, **settings)

    def stop(lowering):
        raise Generated(lowering.codegen()[0].value)

    # its only effect on tensors without values is an error where torch has no CUDA
    same = (lambda inp, src, view_ops: inp).__code__
    with pytest.MonkeyPatch.context() as patch, config.patch(compiled.OPTIONS):
        patch.setattr(GraphLowering, "compile_to_module", stop)
        patch.setattr(reinplace._inplace_generalized_scatter, "__code__", same)
        with pytest.raises(Generated) as found:
            compile_fx.compile_fx(graph, [*tensors], inner_compile=moved)
    return str(found.value)


@contextlib.contextmanager
def _pretended():
    """Context manager in which torch finds an H100 where it looks for one to write code for."""
    state = torch.zeros(16, dtype=torch.uint8)
    found = {
        "get_device_properties": lambda device=None: H100,
        "_get_device_properties": lambda device=None: H100,
        "get_device_capability": lambda device=None: (H100.major, H100.minor),
        "is_available": lambda: True,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "_lazy_init": lambda: None,
        "_exchange_device": lambda index: 0,
        "_maybe_exchange_device": lambda index: 0,
        "synchronize": lambda device=None: None,
        "get_rng_state": lambda device=None: state,
        "set_rng_state": lambda state, device=None: None,
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.utils._triton, "triton_hash_with_backend", lambda: "")
        for name, value in found.items():
            patch.setattr(torch.cuda, name, value, raising=False)
        yield


def compiled_launches(name):
    """Launches of a compiled step: kernels of Inductor, and calls of libraries."""
    code = inductor_code(name)
    return len(LAUNCH.findall(code)), len(LIBRARY.findall(code))


def counts(name):
    """All counts of a method by name; a step of one client has only the first."""
    found = {"sequential": operators(name, Sequential())}
    if name.startswith("resnet"):
        return found
    kernels, libraries = compiled_launches(name)
    return {
        **found,
        "batched": operators(name, Batched(memory=1e6)),
        "graphed": operators(name, Graphed(memory=1e6)),
        "captured": captured(name),
        "kernels": kernels,
        "libraries": libraries,
    }


def main():
    """Print the table, and exit with the number of goals that are missed."""
    args = argparse.ArgumentParser()
    args.add_argument("names", nargs="*", help="methods of tests/budgets.py")
    args.add_argument("--csv", type=Path, help="file for all counts")
    options = args.parse_args()
    rows, missed = [], 0
    print(head("step of 4 clients", "operators", "captured", "compiled", "goal", ""))
    for name in options.names or NAMES:
        found, goal = counts(name), GOALS.get(name)
        rows.append({"step": name, **found})
        total = found.get("kernels", 0) + found.get("libraries", 0)
        missed += goal is not None and total > goal
        verdict = "" if goal is None else "met" if total <= goal else "not met"
        whole = f"{total} ({found['kernels']} + {found['libraries']})" if total else ""
        shown = (found.get(column, "") for column in ("graphed", "captured"))
        print(line(name, *shown, whole, goal or "", verdict), flush=True)
    if options.csv:
        columns = {column: None for row in rows for column in row}
        with options.csv.open("w", newline="") as file:
            table = csv.DictWriter(file, columns, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)
    sys.exit(missed)


if __name__ == "__main__":
    main()
