"""The engine benchmark: its plain loop is the same training, and its goals can be missed."""

import math
import os
import signal
import subprocess
import sys
import time

import pytest
import torch

from benchmarks.engines import plain_loop
from benchmarks.engines.candidates import PlainLoop, Trained, federation, method, seeds
from benchmarks.engines.goals import goals
from benchmarks.engines.plain_loop import Workload
from benchmarks.engines.processes import cpu_seconds, tree
from benchmarks.engines.rounds import Cost, Found, difference, first_values
from benchmarks.table import Goal, goal_table
from fedbolic.federated import Sequential

WORKLOADS = (
    Workload("rows", 3, 10, 4, input_shape=(5,), num_classes=3, widths=(6,)),
    Workload("images", 2, 5, 3, input_shape=(2, 12, 13), num_classes=4, channels=(3,), widths=(7,)),
    Workload("linear", 2, 4, 9, input_shape=(1, 3, 2), num_classes=2),
)


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_the_plain_loop_and_sequential_agree_to_the_last_bit(work):
    data, values = plain_loop.examples(work), first_values(work, torch.float32)
    plain, trained = PlainLoop(work, data, values), Trained(work, data, Sequential())
    for index in (1, 2, 3):
        plain.round(seeds(work, index))
        trained.round(seeds(work, index))
        assert plain.values().keys() == trained.values().keys()
        assert all(torch.equal(x, trained.values()[name]) for name, x in plain.values().items())
    assert difference(values, plain.values()) > 1e-3


@pytest.mark.parametrize("work", WORKLOADS, ids=lambda work: work.name)
def test_the_networks_have_the_same_parameters(work):
    data = plain_loop.examples(work)
    meta = federation(work, data).meta
    inside = method(work).model(meta).init(0)[0]
    alone = dict(plain_loop.network(work).named_parameters())
    assert {n: x.shape for n, x in inside.items()} == {n: x.shape for n, x in alone.items()}
    assert plain_loop.network(work)(data[0][0]).shape == (work.size, work.num_classes)


@pytest.mark.parametrize(
    ("sense", "figure", "verdict"),
    [
        (">=", 1.0, "met"),
        (">=", 0.99, "not met"),
        ("<=", 1.0, "met"),
        ("<=", 1.01, "not met"),
        (">=", None, "not measured"),
        (">=", math.nan, "not met"),
        ("<=", math.nan, "not met"),
    ],
)
def test_a_goal_is_met_only_on_the_right_side_of_its_bound(sense, figure, verdict):
    goal = Goal("G0", "speed", sense, 1.0, figure)
    assert goal.verdict == verdict
    assert goal_table([goal]).splitlines()[-1].endswith(f"| {verdict} |")


def test_speeds_are_medians_of_rounds_side_by_side():
    costs = {
        "slow": [Cost(4.0, 8.0, 1.0), Cost(1.0, 1.0, 1.0), Cost(6.0, 2.0, 1.0)],
        "fast": [Cost(2.0, 2.0, 1.0), Cost(1.0, 4.0, 1.0), Cost(1.0, 1.0, 1.0)],
    }
    found = Found(costs)
    assert found.speeds("fast", "slow") == [4.0, 0.25, 2.0]
    assert found.speed("fast", "slow") == 2.0
    assert found.speed("fast", "slow", kind="wall") == 2.0
    assert found.speed("fast", "nobody") is None


def test_a_slow_engine_meets_no_goal(monkeypatch):
    monkeypatch.setattr("benchmarks.engines.goals.memory_goals", list)
    slow, quick = Cost(9.0, 9.0, 9.0), Cost(1.0, 1.0, 1.0)
    names = ("Sequential", "Batched", "Workers(2)")
    costs = {"plain loop": [quick], "pfl": [quick], **{name: [slow] for name in names}}
    gaps = {name: [1e-3] for name in names}
    found = {w: Found(costs, gaps) for w in ("MLP", "tiny", "CNN-L")}
    verdicts = [goal.verdict for goal in goals(found)]
    assert set(verdicts) == {"not met", "not measured"}
    assert verdicts.count("not met") == 7


linux = pytest.mark.skipif(sys.platform != "linux", reason="reads the kernel's /proc")


@linux
def test_cpu_time_is_that_of_the_process_and_of_ended_children():
    code = "import time\nwhile time.process_time() < 0.2:\n    pass"
    before = cpu_seconds([os.getpid()])[os.getpid()]
    begin = time.process_time()
    subprocess.run([sys.executable, "-c", code], check=True)
    own = time.process_time() - begin
    spent = cpu_seconds([os.getpid()])[os.getpid()] - before
    assert spent - own > 0.2 - 0.05  # the kernel counts in hundredths of a second
    assert cpu_seconds([2**22 + 1]) == {}


@linux
def test_a_tree_holds_the_descendants_that_still_run():
    inner = "import time; time.sleep(60)"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    with subprocess.Popen([sys.executable, "-c", code]) as child:
        found = tree(child.pid)
        while len(found) < 2 and child.poll() is None:
            time.sleep(0.02)
            found = tree(child.pid)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
    assert found[0] == child.pid
    assert len(found) == 2
    assert tree(child.pid) == [child.pid]
