import json

import pytest

from benchmarks.peers import __main__ as peers


@pytest.fixture
def harness(tmp_path, monkeypatch, capsys):
    """The command with parts whose figures are given, and what it prints and writes."""
    file = tmp_path / "peers.json"

    def run(figures, *, processor="A"):
        monkeypatch.setattr(peers, "PARTS", {p: lambda of=of: of for p, of in figures.items()})
        monkeypatch.setattr(peers, "machine", lambda: {"processor": processor})
        monkeypatch.setattr("sys.argv", ["peers", "--results", str(file)])
        with pytest.raises(SystemExit) as ended:
            peers.main()
        return ended.value.code, capsys.readouterr().out, json.loads(file.read_text())

    return run


def test_what_has_grown_by_a_tenth_is_named_the_worst_first(harness):
    code, _, kept = harness({"a": {"x": 1.0, "y": 2.0, "z": 3.0}, "b": {"u": 1.0}})
    assert not code
    assert kept["figures"] == {"a": {"x": 1.0, "y": 2.0, "z": 3.0}, "b": {"u": 1.0}}
    code, printed, kept = harness({"a": {"x": 1.2, "y": 3.0, "z": 3.2, "new": 9.0}})
    assert code
    assert printed.splitlines()[-2:] == ["a, y: 2 before, 3 now", "a, x: 1 before, 1.2 now"]
    assert kept["figures"]["b"] == {"u": 1.0}  # a part that was not measured keeps its figures
    assert kept["figures"]["a"]["y"] == 3.0


def test_another_machine_is_named(harness):
    harness({"a": {"x": 1.0}})
    _, printed, kept = harness({"a": {"x": 0.5}}, processor="B")
    assert "measured on {'processor': 'A'}" in printed
    assert kept["machine"] == {"processor": "B"}


def test_a_secure_sum_has_a_figure():
    (figure,) = peers.of_secure(10).values()
    assert 0 < figure < float("inf")


def test_a_loop_by_hand_has_a_figure():
    assert 0 < peers.of_methods(["FedAvg"])["FedAvg"] < float("inf")
