"""Progress bars with round, loss, accuracy and remaining time."""

import functools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from typing_extensions import override

from fedbolic.core.imports import extra
from fedbolic.core.rows import Row

with extra("run", "fedbolic.run"):
    from rich.console import Console, ConsoleOptions
    from rich.measure import Measurement
    from rich.progress import (
        BarColumn,
        Progress,
        ProgressColumn,
        Task,
        TaskID,
        TextColumn,
        TimeElapsedColumn,
    )
    from rich.table import Column
    from rich.text import Text

SECONDS_BETWEEN_LINES = 10.0
"""Minimum interval of the lines that replace the bar if the output is not a terminal."""

SHOWN = {"loss": "train/loss", "accuracy": "holdout/accuracy", "at clients": "test/accuracy"}

IMPORTANCE = ("accuracy", "at clients", "loss")
"""Order in which scores are kept if the terminal is too narrow for all."""


@functools.cache
def terminal() -> Console:
    """Console on standard error, shared by bars and warnings so that they do not overwrite."""
    return Console(stderr=True)


class ProgressBar:
    """Progress bar of one run, as a callback of :func:`~fedbolic.run.experiment.run`.

    Args:
        name: Label of the bar.
        console: Console to write to; by default standard error.
        bars: Set of bars to which this one is added; by default it is displayed on its own.
    """

    def __init__(
        self, name: str, console: Console | None = None, *, bars: Progress | None = None
    ) -> None:
        self.name, self.alone = name, bars is None
        self.bar = _bars(console) if bars is None else bars
        self.console = self.bar.console
        self.last_line, self.line = 0.0, name
        self.task: TaskID | None = None

    def on_run_start(self, round: int, rounds: int) -> None:
        """Start the bar of a run of ``rounds`` rounds, of which ``round`` are done."""
        self.task = _add(self.bar, self.name, unit="round", completed=round, total=rounds)
        if self.alone:
            self.bar.start()

    def on_round_end(self, round: int, rounds: int, rows: Sequence[Row]) -> None:
        """Show the measurements ``rows`` of a finished round."""
        values = {row.name: row.value for row in rows if row.client is None}
        scores = {
            label: f"{label} {values[name]:.4f}" for label, name in SHOWN.items() if name in values
        }
        self.line = f"{self.name}  round {round}/{rounds}  {'  '.join(scores.values())}"
        assert self.task is not None  # the run has started
        _advance(self.bar, self.task, round, scores=_fitting(scores, self.console.width))
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (due or round == rounds):
            self.last_line = time.monotonic()
            self._print_line()

    def on_run_end(self) -> None:
        """Stop the bar at the end of a run, successful or not."""
        if self.alone:
            self.bar.stop()

    def close(self) -> None:
        """Replace the bar among others by a line of text above them."""
        if self.task is None:  # the run never started
            return
        self.bar.remove_task(self.task)
        if self.console.is_terminal:
            self._print_line()

    def _print_line(self) -> None:
        self.console.print(self.line, highlight=False, markup=False, soft_wrap=True)


class SweepBars:
    """Context manager with a bar for the whole sweep and one for each active run.

    Args:
        num_runs: Total number of runs.
        console: Console to write to; by default standard error.
    """

    def __init__(self, num_runs: int, console: Console | None = None) -> None:
        self.num_runs, self.num_ended = num_runs, 0
        self.bars = _bars(console)

    def __enter__(self) -> "SweepBars":
        self.all = _add(self.bars, "all", unit="runs", completed=0, total=self.num_runs)
        self.bars.start()
        return self

    def __exit__(self, *raised: object) -> None:
        self.bars.stop()

    def new(self, name: str) -> ProgressBar:
        """A bar for a run that is about to start."""
        return ProgressBar(name, bars=self.bars)

    def on_sweep_step(self) -> None:
        """Count one more finished run."""
        self.num_ended += 1
        _advance(self.bars, self.all, self.num_ended)


class _Left(ProgressColumn):
    """Column with the remaining time at the mean pace so far, known after one step."""

    max_refresh = 0.5

    @override
    def render(self, task: Task) -> Text:
        left = _seconds_left(task)
        said = "-:--:--" if left is None else timedelta(seconds=round(left))
        return Text(f"left {said}", style="progress.remaining", no_wrap=True)


@dataclass(frozen=True)
class _Name:
    """Name shortened in the middle if space is short, because its end contains the seed."""

    name: str

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Text]:
        kept = options.max_width - 1
        fits = len(self.name) <= options.max_width
        cut = f"{self.name[: kept - kept // 2]}…{self.name[len(self.name) - kept // 2 :]}"
        yield Text(self.name if fits else cut, no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(1, len(self.name))


class _NameColumn(ProgressColumn):
    """Column of the name, the only one that shrinks."""

    @override
    def render(self, task: Task) -> _Name:
        return _Name(task.description)


def _seconds_left(task: Task) -> float | None:
    done, elapsed = task.completed - task.fields["first"], task.elapsed
    if not done or not elapsed or task.total is None:
        return 0.0 if task.finished else None
    ended = task.fields["ended"]  # seconds from the start to the end of the last step
    return max(0.0, (task.total - task.completed) * ended / done - (elapsed - ended))


def _bars(console: Console | None) -> Progress:
    """An empty set of bars; narrow terminals get fewer columns, but always the remaining time."""
    console = console or terminal()
    width = console.width
    columns: list[ProgressColumn] = [
        _NameColumn(Column()),
        BarColumn(bar_width=max(6, min(40, width - 74)), table_column=Column(no_wrap=True)),
        TextColumn("{task.fields[unit]} {task.completed:.0f}/{task.total:.0f}"),
        TextColumn("{task.fields[scores]}", markup=False),
        *([TimeElapsedColumn(table_column=Column(no_wrap=True))] if width >= 100 else []),
        _Left(Column(no_wrap=True)),
        TextColumn(" "),  # space for the ^C of the terminal, which would otherwise wrap the line
    ]
    return Progress(*columns, console=console, disable=not console.is_terminal)


def _add(bars: Progress, name: str, *, unit: str, completed: int, total: int) -> TaskID:
    fields = {"unit": unit, "first": completed, "ended": 0.0, "scores": ""}
    return bars.add_task(name, total=total, completed=completed, **fields)


def _advance(bars: Progress, task: TaskID, completed: int, **fields: Any) -> None:
    elapsed = bars.tasks[bars.task_ids.index(task)].elapsed or 0.0
    bars.update(task, completed=completed, ended=elapsed, **fields)


def _fitting(scores: Mapping[str, str], width: int) -> str:
    """The most important scores that fit into a line of ``width`` columns."""
    room, kept = width - 52, set()
    for label in IMPORTANCE:
        if label in scores and len(scores[label]) <= room:
            kept.add(label)
            room -= len(scores[label]) + 2  # with the gap between two scores
    return "  ".join(text for label, text in scores.items() if label in kept)
