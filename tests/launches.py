"""Launches of a step of all clients on a CUDA device, counted without one.

    python -m tests.launches [METHOD ...] [--csv FILE] [--rounds | --replays]

The columns are torch's operators, on the shadow device; what a graph of ``Graphed`` holds, with our
kernels, on the rehearsal device; and what one of ``Graphed(compiled=True)`` holds: Inductor's
kernels for an H100, as its code launches them, and calls of libraries, each as one. The last needs
``pip install triton``, but neither compiles nor runs the code. With ``--rounds`` they are the parts
of a whole round of 8 clients with evaluation, and the waits of all; a replay of a graph is one
launch. The share of begin, load and evaluation is modelled as by ``benchmarks.gpu --model``, with
the microseconds that this CPU takes to begin a client. With ``--replays`` they are the graphs that
are captured in 30 rounds of a quick setting, with half of its clients sampled and all scored in
each, and the share of the calls of steps and scores that are replays.
"""

import argparse
import contextlib
import csv
import dataclasses
import logging
import re
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import pytest
import torch
from torch.fx.passes.fake_tensor_prop import FakeTensorProp

from benchmarks.gpu.model import EAGER, GRAPH, KERNEL, PER_LAUNCH
from benchmarks.table import head, line
from benchmarks.timing import Clock
from fedbolic.core import tree
from fedbolic.core.log import logger
from fedbolic.federated import (
    Batched,
    Cohort,
    Evaluation,
    Graphed,
    LocalTraining,
    Sequential,
    Trainer,
)
from fedbolic.federated.batched import compiled
from fedbolic.federated.batched.client_task import ClientTask
from fedbolic.federated.batched.replay import Replay
from fedbolic.federated.batched.static_steps import StaticSteps
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.engines import batched, graphed
from tests.budgets import BATCH, METHODS, RNG, _federation, _with_local, spent
from tests.rehearsal import CUDA, rehearsal
from tests.subjects import QUICK, settings, subject

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


PARTS = {
    "begin": [(ClientTask, "begin"), (graphed, "waves")],
    "load": [(StaticSteps, "_load"), (StaticSteps, "_load_window")],
    "steps": [(StaticSteps, "_take")],
    "results": [(batched, "results_of"), (StaticSteps, "_results")],
    "evaluate": [(Evaluation, "rows")],
}
"""Functions of each part of a round; the rest is the server's."""

ROUNDS, EPOCHS = 6, 5
"""Rounds of a run, of which the last is counted, and local epochs."""


def of_round(name, num_clients):
    """Launches of a round by part, its waits, and kernels of replayed graphs by part."""
    (method, shape), data = METHODS[name], _federation(name, num_clients)
    local = LocalTraining(EPOCHS, BATCH if isinstance(shape, tuple) else None)
    method = dataclasses.replace(_with_local(method, local), rounds=ROUNDS)
    spent, parts, last, kernels = Counter(), ["server"], [0, 0], Counter()

    def lap():
        now = device.work.total()["launches"] + device.replayed, device.kernels
        spent[parts[-1]] += now[0] - last[0]
        kernels[parts[-1]] += now[1] - last[1]
        last[:] = now

    def noted(function, part):
        def run(*given, **settings):
            lap()
            parts.append(part)
            try:
                return function(*given, **settings)
            finally:
                lap()
                parts.pop()

        return run

    with rehearsal() as device, pytest.MonkeyPatch.context() as patch:
        for part, functions in PARTS.items():
            for owner, function in functions:
                patch.setattr(owner, function, noted(getattr(owner, function), part))
        for _ in Trainer(Graphed(memory=1e6)).run(method, data.to(CUDA, torch.float32), RNG):
            lap()
            found = {part: spent[part] for part in (*PARTS, "server")}
            found["waits"] = device.work.total()["waits"]
            of_graphs = dict(kernels)
            spent.clear()
            kernels.clear()
            device.work.clear()
            last[0] = device.replayed
    return found, of_graphs


def begin_microseconds(name, num_clients=100):
    """The least of five times of this CPU to begin a client: its batches, in the order drawn."""
    (method, shape), data = METHODS[name], _federation(name, num_clients)
    method = _with_local(method, LocalTraining(EPOCHS, BATCH if isinstance(shape, tuple) else None))
    start, times = method.init(data.meta, RNG), []
    messages = {client.id: method.broadcast(start, client.id) for client in data.clients}
    first = Exchange(method, messages, data.clients, {}, RNG)
    kept = {client.id: own for client, _, own in Batched().run(first)}  # as in all later rounds
    exchange = dataclasses.replace(first, client_states=kept)
    for _ in range(5):
        clock = Clock()
        tasks = [task for some in Graphed()._together(method, exchange) for task in some.values()]
        given = {"size": None, "most": len(tasks), "batch_size": method.local.batch_size}
        assert graphed.waves(tasks, 1, **given)
        times.append(clock.lap())
    return 1e6 * min(times) / len(data.clients)


def round_row(name, num_clients=8):
    """A row of ``--rounds``, and the modelled share of everything but steps and the mean."""
    (found, kernels), begin = of_round(name, num_clients), begin_microseconds(name)
    num_clients = len(_federation(name, num_clients).clients)  # some data are of fewer
    took = {part: EAGER * found[part] for part in (*PARTS, "server")}
    took["begin"] += num_clients * begin
    took["steps"] = found["steps"] * GRAPH
    for part, number in kernels.items():
        took[part] += number * PER_LAUNCH * KERNEL
    share = sum(took[part] for part in ("begin", "load", "evaluate")) / sum(took.values())
    return {
        "round": name,
        "clients": num_clients,
        **found,
        "begin_us": round(begin),
        "share": f"{share:.2f}",
    }


MOST_GRAPHS, LEAST_REPLAYED = 12, 0.95
"""Bounds on the graphs of a run, and on the share of replays among its calls."""


def replays_row(name, engine):
    """A row of ``--replays``: what 30 rounds of a quick setting capture, replay and run instead."""
    short, data = subject(name, num_clients=10)
    method = _lasting(short, settings(name)["method"])
    calls, called, texts = [], Replay.__call__, []
    noted = logging.Handler()
    noted.emit = lambda record: texts.append(record.getMessage())
    with rehearsal() as device, pytest.MonkeyPatch.context() as patch:
        patch.setattr(logger, "level", logging.INFO)
        patch.setattr(Replay, "__call__", lambda self: calls.append(1) or called(self))
        logger.addHandler(noted)
        try:
            trainer = Trainer(engine, Cohort(0.5))
            rounds = len([*trainer.run(method, data.to(CUDA, torch.float32), RNG)])
        finally:
            logger.removeHandler(noted)
    graphs = max(0, len(device.graphs) - 1)  # the first one is a pool's
    row = {"setting": name, "exchanges": rounds, "graphs": graphs, "calls": len(calls)}
    row["replayed"] = f"{device.replayed / len(calls):.3f}" if calls else ""
    fallbacks = [text for text in texts if "not captured" in text or "one by one" in text]
    return {**row, "instead": "; ".join(fallbacks)}


def _lasting(short, method):
    """A shortened method with 30 rounds and the epochs of its setting."""
    fields, changes = {field.name for field in dataclasses.fields(short) if field.init}, {}
    if "rounds" in fields:
        changes["rounds"] = 30
    if "local" in fields:
        size = method.local.batch_size and short.local.batch_size
        changes["local"] = dataclasses.replace(method.local, batch_size=size)
    if "method" in fields:
        changes["method"] = _lasting(short.method, method.method)
    return dataclasses.replace(short, **changes)


def exceeds(row):
    """True if a row of ``--replays`` has too many graphs, or too few replays."""
    return row["graphs"] > MOST_GRAPHS or float(row["replayed"] or 1) < LEAST_REPLAYED


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


def write(rows, file):
    """Write rows to a CSV file, if there is one."""
    if file is None:
        return
    columns = {column: None for row in rows for column in row}
    with file.open("w", newline="") as lines:
        table = csv.DictWriter(lines, columns, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def main():
    """Print the table, and exit with the number of goals that are missed."""
    args = argparse.ArgumentParser()
    args.add_argument("names", nargs="*", help="methods of tests/budgets.py")
    args.add_argument("--csv", type=Path, help="file for all counts")
    args.add_argument("--rounds", action="store_true", help="count whole rounds of 8 clients")
    args.add_argument("--together", type=int, help="most clients of a step in --replays")
    args.add_argument("--replays", action="store_true", help="count graphs of quick settings")
    options = args.parse_args()
    if options.replays:
        rows, together = [], options.together
        for name in options.names or QUICK:
            rows.append(replays_row(name, Graphed(together=together)))
            print(head(*rows[0]) if len(rows) == 1 else "", end="\n" if len(rows) == 1 else "")
            print(line(*rows[-1].values(), "exceeds" if exceeds(rows[-1]) else ""), flush=True)
        write(rows, options.csv)
        sys.exit(sum(map(exceeds, rows)))
    if options.rounds:
        rows = [round_row(name) for name in options.names or NAMES]
        print(head(*rows[0]))
        print("\n".join(line(*row.values()) for row in rows))
        write(rows, options.csv)
        return
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
    write(rows, options.csv)
    sys.exit(missed)


if __name__ == "__main__":
    main()
