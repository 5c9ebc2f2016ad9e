"""The benchmark of layers: correct counts, and a run without other libraries."""

import pytest
import torch

from benchmarks.layers import __main__ as layers
from benchmarks.timing import Operators, interleaved, peak_mebibytes, ratio

PRESENT = [c for c in layers.CANDIDATES if layers.installed(c.library) and c.library != "geoopt"]


def test_operators_that_write_are_counted_and_views_are_not():
    x = torch.ones(3, 4)
    with Operators() as cost:
        y = x.T.reshape(12)  # a copy of 48 bytes: after a transposition the axes cannot be joined
        y.view(2, 6)[0].mul_(2)  # in place: 24 bytes
        (x + 1).sum()  # 48 and 4
    assert (cost.count, cost.bytes) == (4, 48 + 24 + 48 + 4)


def test_the_peak_is_what_was_held_at_once():
    def case():
        for _ in range(3):
            both = torch.empty(2**18), torch.empty(2**18)  # one MiB each
            del both

    assert peak_mebibytes(case, "cpu") == pytest.approx(2, abs=0.01)


def test_a_ratio_is_the_median_of_rounds():
    assert ratio([2.0, 30.0, 8.0], [1.0, 10.0, 2.0]) == 3.0


def test_cases_are_run_in_turn():
    order = []
    cases = {name: lambda name=name: order.append(name) for name in "ab"}
    taken = interleaved(cases, "cpu", rounds=3, least=0)
    assert order[-6:] == ["a", "b"] * 3
    assert [len(times) for times in taken.values()] == [3, 3]


@pytest.mark.parametrize("candidate", PRESENT, ids=lambda c: c.key)
def test_a_candidate_gives_finite_gradients_of_everything(candidate):
    gradients = layers.step(candidate, "cpu")()
    assert gradients
    assert all(g.isfinite().all() and g.abs().sum() > 0 for g in gradients)


def test_no_block_takes_more_than_one_and_a_half_times_the_memory_of_torchs():
    blocks = {c.key: c for c in PRESENT if c.group == "block" and "HyperCore" not in c.key}
    peaks = {key: peak_mebibytes(layers.step(c, "cpu"), "cpu") for key, c in blocks.items()}
    assert len(peaks) == 4
    assert max(peaks.values()) <= 1.5 * peaks["block: torch TransformerEncoderLayer"]


def test_every_group_has_its_floor_and_every_goal_its_rows():
    keys = {c.key for c in layers.CANDIDATES}
    assert set(layers.FLOORS) == {c.group for c in layers.CANDIDATES}
    assert set(layers.FLOORS.values()) <= keys
    assert {
        key for above, below, _ in layers.G14 for key in (above.removesuffix(", compiled"), below)
    } <= keys


def test_what_is_not_installed_is_said(monkeypatch, capsys):
    monkeypatch.setattr(layers, "installed", lambda library: library in ("torch", "fedbolic"))
    monkeypatch.setattr(layers, "CANDIDATES", [c for c in layers.CANDIDATES if c.group == "linear"])
    monkeypatch.setattr(layers, "ROUNDS", 1)
    layers.report("cpu", ["linear"])
    printed = capsys.readouterr().out
    assert "| linear: hypll HLinear | hypll is not installed |  |  |  |  |  |" in printed
    pair = "linear: fedbolic Linear, ball / linear: hypll HLinear"
    assert f"| G14 | {pair} | <= 0.85 |  | not measured |" in printed
    assert "| linear: torch Linear | 1.00 | 10 (1.0x) | 1.0x |" in printed
