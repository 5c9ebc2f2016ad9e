"""Progress on the terminal: round, loss, accuracy, time left."""

import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from fedbolic.record import Row

SECONDS_BETWEEN_LINES = 10.0
"""Where the output is no terminal, a bar would only fill the log; a line now and then does."""

SHOWN = {"loss": "train/loss", "accuracy": "holdout/accuracy", "at clients": "test/accuracy"}


class ProgressBar:
    """Called by a run at its start, after every round and at its end.

    Args:
        name: What the bar is called.
        console: Where it appears; by default standard error.
    """

    def __init__(self, name: str, console: Console | None = None) -> None:
        self.name, self.console = name, console or Console(stderr=True)
        self.last_line = 0.0
        self.bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TextColumn("round {task.completed:.0f}/{task.total:.0f}"),
            TextColumn("{task.fields[scores]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )

    def on_run_start(self, round: int, rounds: int) -> None:
        """A run of ``rounds`` begins or goes on after ``round``."""
        self.task = self.bar.add_task(self.name, total=rounds, completed=round, scores="")
        self.bar.start()

    def on_round_end(self, round: int, rounds: int, rows: Sequence[Row]) -> None:
        """``round`` has ended with the measurements ``rows``."""
        values = {row.name: row.value for row in rows if row.client is None}
        scores = "  ".join(
            f"{label} {values[name]:.4f}" for label, name in SHOWN.items() if name in values
        )
        self.bar.update(self.task, completed=round, scores=scores)
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES
        if not self.console.is_terminal and (due or round == rounds):
            self.last_line = time.monotonic()
            line = f"{self.name}  round {round}/{rounds}  {scores}"
            self.console.print(line, highlight=False, markup=False)

    def on_run_end(self) -> None:
        """The run is over, whether well or not."""
        self.bar.stop()
