"""What a run shows while it goes on."""

import io

import pytest
from rich.console import Console

from fedbolic import progress
from fedbolic.progress import ProgressBar
from fedbolic.record import Row


def rows(round, accuracy):
    return [
        Row(round, None, "train/loss", 1.25),
        Row(round, None, "holdout/accuracy", accuracy),
        Row(round, 0, "test/accuracy", 0.9),  # of one client: not shown
        Row(round, None, "bytes/up", 1e6),
    ]


def shown(*, terminal, rounds=5, seconds=0.0, monkeypatch=None, begin=0):
    text = io.StringIO()
    bar = ProgressBar("ours", Console(file=text, force_terminal=terminal, width=120))
    clock = iter(range(10**6))
    if monkeypatch:
        monkeypatch.setattr(progress.time, "monotonic", lambda: 100 + seconds * next(clock))
    bar.on_run_start(round=begin, rounds=rounds)
    for round in range(begin + 1, rounds + 1):
        bar.on_round_end(round=round, rounds=rounds, rows=rows(round, round / 10))
    bar.on_run_end()
    return text.getvalue()


def test_a_log_gets_the_first_and_the_last_round_of_a_fast_run():
    lines = shown(terminal=False).splitlines()
    assert lines == [
        "ours  round 1/5  loss 1.2500  accuracy 0.1000",
        "ours  round 5/5  loss 1.2500  accuracy 0.5000",
    ]


def test_a_log_gets_a_line_now_and_then_of_a_slow_run(monkeypatch):
    lines = shown(terminal=False, rounds=40, seconds=2.0, monkeypatch=monkeypatch).splitlines()
    assert 3 < len(lines) < 20
    assert lines[-1].startswith("ours  round 40/40")


def test_a_log_holds_no_control_characters():
    assert "\x1b" not in shown(terminal=False)


def test_a_terminal_gets_one_bar():
    text = shown(terminal=True)
    assert "\x1b" in text
    assert "round 5/5" in text
    assert "accuracy 0.5000" in text
    assert text.count("ours  round") == 0


def test_a_resumed_run_is_shown_where_it_goes_on():
    assert "round 3/5" in shown(terminal=True, begin=3)
    lines = shown(terminal=False, begin=3).splitlines()
    assert [line.split()[2] for line in lines] == ["4/5", "5/5"]


@pytest.mark.parametrize("terminal", [False, True])
def test_a_name_with_brackets_is_shown_as_it_is(terminal):
    text = io.StringIO()
    bar = ProgressBar("a[b][/i]", Console(file=text, force_terminal=terminal, width=120))
    bar.on_run_start(round=0, rounds=1)
    bar.on_round_end(round=1, rounds=1, rows=[])
    bar.on_run_end()
    assert "a[b][/i]" in text.getvalue()


@pytest.mark.parametrize("terminal", [False, True])
def test_a_run_that_stops_at_once_leaves_the_terminal_in_order(terminal):
    text = io.StringIO()
    bar = ProgressBar("ours", Console(file=text, force_terminal=terminal))
    bar.on_run_start(round=0, rounds=5)
    bar.on_run_end()
    assert not bar.bar.live.is_started
