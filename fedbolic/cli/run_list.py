"""The runs below a folder: how far each one is, and its last scores."""

import contextlib
from collections.abc import Sequence
from pathlib import Path

from fedbolic.core.checksums import DamagedError
from fedbolic.report.table_rows import find
from fedbolic.run.run_files import RunFiles

LISTED_SCORES = ("holdout/accuracy", "test/accuracy", "holdout/map", "train/loss")
"""Scores in the order of preference: a run is listed with the first one that it has."""


def run_list(folders: Sequence[Path]) -> str:
    """A line for each run below some folders: its rounds, its last score and its seconds.

    Args:
        folders: Folders of runs, or containing runs.

    Raises:
        FileNotFoundError: If a folder contains no run.
    """
    runs = [run for folder in folders for row in find(folder) for run in row.folders]
    width = max(len(str(run.path)) for run in runs)
    return "".join(f"{run.path!s:{width}}  {_state(run)}\n" for run in runs)


def _state(run: RunFiles) -> str:
    try:
        times, rows = run.times(), run.rows()
    except (OSError, DamagedError) as error:
        return str(error)
    total = None
    with contextlib.suppress(OSError, DamagedError):
        total = run.environment.get("rounds")
    done = max((time.round for time in times if time.exchange == 0), default=0)
    state = "finished" if done == total else f"round {done} of {total or 'an unknown number'}"
    last = {row.name: row.value for row in rows if row.client is None}
    score = next((f"  {name} {last[name]:.4f}" for name in LISTED_SCORES if name in last), "")
    return f"{state}{score}  {sum(time.seconds for time in times):.1f} s"
