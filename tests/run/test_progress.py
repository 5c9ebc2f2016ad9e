"""Progress of a run in the terminal."""

import io
import re

import pytest
from rich.console import Console

from fedbolic.core.rows import Row
from fedbolic.run import progress
from fedbolic.run.progress import ProgressBar, SweepBars


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


CONTROL = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]")


def drawn(text):
    """The lines that were drawn, in order, without control sequences."""
    return [line.rstrip() for line in re.split(r"[\r\n]", CONTROL.sub("", text)) if line.strip()]


@pytest.mark.parametrize("name", ["ours", "a name that is far too long for any line seed3"])
@pytest.mark.parametrize("width", [80, 60, 120])
def test_the_time_left_is_seen_whatever_the_width(name, width):
    """After one of four rounds, of 30 s, 90 s are left; the time must be visible at any width."""
    text, now = io.StringIO(), [0.0]
    bar = ProgressBar(name, Console(file=text, force_terminal=True, width=width))
    bar.bar.get_time = lambda: now[0]
    bar.on_run_start(round=0, rounds=4)
    now[0] = 30.0
    bar.on_round_end(round=1, rounds=4, rows=rows(1, 0.1))
    bar.bar.refresh()
    bar.on_run_end()
    lines = drawn(text.getvalue())
    assert all(len(line) <= width for line in lines)
    assert "left -:--:--" in lines[0]
    assert lines[-1].endswith("left 0:01:30")
    assert "round 1/4" in lines[-1]
    assert "accuracy 0.1000" in lines[-1] or width < 80
    assert lines[-1].startswith(name) or lines[-1].split("…")[0] in name
    assert name.endswith(lines[-1].partition("…")[2].partition(" ━")[0].rstrip()[-5:])


def test_bars_of_runs_at_the_same_time_have_a_line_each():
    text = io.StringIO()
    console = Console(file=text, force_terminal=True, width=80)
    with SweepBars(3, console) as bars:
        one, other = bars.new("one"), bars.new("other")
        one.on_run_start(round=0, rounds=2)
        other.on_run_start(round=1, rounds=2)
        one.on_round_end(round=1, rounds=2, rows=rows(1, 0.1))
        bars.bars.refresh()
        frame = drawn(text.getvalue())[-3:]
        other.on_run_end()
        other.close()
        bars.on_sweep_step()
        bars.bars.refresh()
        lines = drawn(text.getvalue())
    assert [line.split()[0] for line in frame] == ["all", "one", "other"]
    assert "runs 0/3" in frame[0]
    assert "round 1/2" in frame[1]
    assert [line.split()[0] for line in lines[-2:]] == ["all", "one"]
    assert "runs 1/3" in lines[-2]
    assert lines.count("other") == 1  # a line above the bars, drawn only once


def test_a_log_of_runs_at_the_same_time_holds_lines_of_both():
    text = io.StringIO()
    with SweepBars(2, Console(file=text, force_terminal=False, width=80)) as bars:
        both = [bars.new("one"), bars.new("other")]
        for bar in both:
            bar.on_run_start(round=0, rounds=1)
        for bar in both:
            bar.on_round_end(round=1, rounds=1, rows=rows(1, 0.1))
            bar.close()
    scores = "round 1/1  loss 1.2500  accuracy 0.1000"
    assert text.getvalue().splitlines() == [f"one  {scores}", f"other  {scores}"]
