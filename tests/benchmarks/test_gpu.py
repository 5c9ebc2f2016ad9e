"""The benchmark of the GPU, as far as a CPU shows: equal work everywhere, and every part runs."""

import json

import pytest
import torch

from benchmarks.gpu import __main__ as gpu
from benchmarks.gpu.report import Report
from benchmarks.gpu.resnet import ARITHMETICS, DEFAULT, arithmetic
from benchmarks.gpu.rivals import rivals
from benchmarks.gpu.workloads import RNG, SMALL, GpuPlainLoop, resnet, workloads
from benchmarks.timing import waits
from fedbolic.federated import Sequential
from fedbolic.federated.batched.replay import Replay
from fedbolic.federated.contract.engine import Exchange

CPU = torch.device("cpu")
WORKLOADS = {work.name: work for work in [*workloads(CPU, SMALL), resnet(CPU, SMALL)]}


@pytest.mark.parametrize("name", WORKLOADS)
def test_the_plain_loop_does_the_work_of_the_engines(name):
    work = WORKLOADS[name]
    data = work.data(2).to(CPU, torch.float64)
    method, loop = work.visiting(2, epochs=2), GpuPlainLoop(work, data)
    plain = loop.run(method, data.clients)
    results = Sequential().run(Exchange(method, loop.messages, data.clients, {}, RNG))
    for (client, update, kept), expected in zip(results, plain, strict=True):
        sent, delta = loop.messages[client.id]["parameters"], update.payload["delta"]
        ours = {name: sent[name] + x for name, x in delta.items()} | kept.get("parameters", {})
        torch.testing.assert_close(ours, expected, rtol=0, atol=1e-11)
        assert any((expected[name] != sent[name]).any() for name in delta)


RIVALS = [
    (work, name)
    for work in WORKLOADS.values()
    for name in rivals(work, work.data(2))
    if not work.name.startswith("ResNet")
]


@pytest.mark.parametrize(("work", "name"), RIVALS, ids=lambda x: getattr(x, "name", x))
def test_loops_by_hand_do_the_work_of_the_plain_loop(work, name):
    dtype = torch.float32 if name.startswith("JAX") else torch.float64
    data = work.data(2).to(CPU, dtype)
    method, loop = work.visiting(2, epochs=2), rivals(work, data)[name]()
    found, plain = loop(method, data.clients), GpuPlainLoop(work, data).run(method, data.clients)
    for some, others in zip(found, plain, strict=True):
        torch.testing.assert_close(some, others, rtol=0, atol=1e-5 if name[0] == "J" else 1e-11)


def test_every_part_runs(tmp_path, capsys):
    file = tmp_path / "gpu.json"
    gpu.main(["--device", "cpu", "--small", "--out", str(file)])
    found = json.loads(file.read_text())
    assert {row["part"] for row in found["rows"]} == {
        *(
            "captures",
            "roofline",
            "geometry",
            "convolution",
            "equality",
            "round",
            "ResNet-18",
            "steps",
        )
    }
    assert [row for row in found["rows"] if "error" in row] == []
    rows = {row["name"]: row for row in found["rows"] if row["part"] == "geometry"}
    assert all(row["relative_error"] < 1e-3 for name, row in rows.items() if "auto" in name)
    assert [r["hashes_that_differ"] for n, r in rows.items() if n.startswith("FlyHash")] == [0]
    verdicts = {goal["what"]: goal["verdict"] for goal in found["goals"]}
    assert verdicts["float64, difference from the CPU"] == "met"
    assert verdicts["rows that failed or were left out"] == "met"
    lines = [json.loads(text) for text in file.with_suffix(".jsonl").read_text().splitlines()]
    assert lines == found["rows"]
    printed = capsys.readouterr().out
    assert all(f"{row['part']} | {row['name']} | " in printed for row in found["rows"])


def test_a_fallback_is_a_failed_row(monkeypatch, tmp_path, capsys):
    def fail(self):
        raise RuntimeError("operation not permitted when stream is capturing")

    monkeypatch.setattr(Replay, "__call__", fail)
    file = tmp_path / "gpu.json"
    words = ["--device", "cpu", "--small", "--out", str(file), "--parts", "equality", "captures"]
    gpu.main(words)
    found = json.loads(file.read_text())
    errors = {row["name"]: row["error"] for row in found["rows"] if "error" in row}
    assert all("fell back: the steps of" in error for error in errors.values())
    graphed = [row["name"] for row in found["rows"] if "Graphed" in row["name"]]
    assert [*errors] == graphed
    verdicts = {goal["what"]: goal["verdict"] for goal in found["goals"]}
    assert verdicts["rows that failed or were left out"] == "not met"


@pytest.mark.processes
def test_a_part_in_a_process_leaves_its_rows_whatever_its_end(tmp_path):
    report = Report(1.0, tmp_path / "rows.jsonl")
    report.add("before", "a row", lambda: {"ms": 1.0})
    gpu.part_alone(report, "roofline", ["--device=cpu", "--small"])
    first, *rows = report.rows
    assert (first["part"], {row["part"] for row in rows}) == ("before", {"roofline"})
    assert not any("error" in row for row in rows)
    gpu.part_alone(report, "roofline", ["--unknown"])
    assert report.rows[-1]["error"].startswith("its process ended with the code 2")
    assert Report(1.0, tmp_path / "rows.jsonl").rows == report.rows


def test_without_a_device_it_is_skipped(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    gpu.main([])
    assert capsys.readouterr().out == "skipped: there is no CUDA device\n"


def test_an_arithmetic_ends_with_its_block():
    before = torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision()
    for name in (*ARITHMETICS, DEFAULT):
        with arithmetic(name, CPU):
            assert torch.is_autocast_enabled("cpu") == (name == "bf16")
            assert torch.backends.cudnn.allow_tf32 == (name != "float32")
        assert before == (torch.backends.cudnn.allow_tf32, torch.get_float32_matmul_precision())


def test_a_cpu_has_no_waits_to_count():
    with pytest.raises(ValueError, match="only a CUDA device has waits, got cpu"):
        waits(fails, CPU)


def fails():
    raise ArithmeticError("out of luck")


def test_a_failure_costs_its_own_row_only(tmp_path):
    report = Report(minutes=1.0)
    assert report.add("part", "bad", fails) is None
    report.attempt("other", fails)
    assert report.add("part", "good", lambda: {"ms": 2.0, "waits": float("nan")})["ms"] == 2.0
    bad, whole, good = report.rows
    assert "ArithmeticError('out of luck') at test_gpu.py" in bad["error"] == whole["error"]
    assert good["ms"] == 2.0
    report.save(tmp_path / "rows.json")
    assert json.loads((tmp_path / "rows.json").read_text())["rows"][2]["waits"] is None


def test_after_the_deadline_no_row_begins():
    report = Report(minutes=0.0)
    assert report.add("part", "late", fails) is None
    assert report.rows == [{"part": "part", "name": "late", "error": "left out: no time"}]
    assert Report(minutes=1.0).add("part", "long", fails, needs=61.0) is None


def test_the_best_engine_meets_a_goal_and_the_worst_misses_it():
    report = Report(minutes=1.0)
    rows = {
        "MLP x 2: Sequential": {"times_plain": 1.0, "waits": 4.0},
        "MLP x 2: Batched": {"times_plain": 31.0, "waits": 1.0},
        "GCN x 2: Batched": {"times_plain": float("nan"), "waits": 0.0},
    }
    for name, row in rows.items():
        report.add("steps", name, lambda row=row: row)
    found = {(goal.id, goal.what): goal.verdict for goal in gpu.goals(report, SMALL)}
    assert found["step", "MLP x 2: times the plain loop"] == "met"
    assert found["waits", "MLP x 2: waits a step"] == "not met"
    assert found["step", "GCN x 2: times the plain loop"] == "not met"
    assert found["waits", "GCN x 2: waits a step"] == "met"
    assert found["step", "FlatLand x 2: times the plain loop"] == "not measured"
