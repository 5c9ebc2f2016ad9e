"""CPU seconds until a command has answered, next to an import of torch.

Every command runs in a process of its own with one thread, all of them in turn in every round. The
first is a run of one round, of which the next two resume and report what is there.
"""

import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.script import FOLDER

TORCH = "import torch"
RUN = ("run", "--config", "fedavg/quick", "--method.rounds", "1", "--overwrite")
SEED = "runs/fedavg_quick/seed0"

COMMANDS: dict[str, tuple[str, ...]] = {
    TORCH: ("-c", "import torch"),
    "fedbolic --version": ("-m", "fedbolic", "--version"),
    "fedbolic --help": ("-m", "fedbolic", "--help"),
    "fedbolic configs": ("-m", "fedbolic", "configs"),
    "fedbolic run --help": ("-m", "fedbolic", "run", "--help"),
    "fedbolic run, one round of fedavg/quick": ("-m", "fedbolic", *RUN),
    "fedbolic resume, a finished run": ("-m", "fedbolic", "resume", SEED),
    "fedbolic report": ("-m", "fedbolic", "report", "runs"),
}
"""Arguments of Python by name, in the order in which they run."""


def seconds(words: tuple[str, ...], folder: Path) -> float:
    """CPU seconds of a Python process with all that it starts.

    Args:
        words: Arguments of Python.
        folder: Folder in which it runs.
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    place = {"PYTHONPATH": str(FOLDER.parent), "OMP_NUM_THREADS": "1"}
    subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env={**os.environ, **place},
        check=True,
        capture_output=True,
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(rounds: int) -> dict[str, float]:
    """Median CPU seconds of every command.

    Args:
        rounds: Runs of each.
    """
    with tempfile.TemporaryDirectory() as folder:
        taken = [
            {name: seconds(words, Path(folder)) for name, words in COMMANDS.items()}
            for _ in range(rounds)
        ]
    return {name: statistics.median(each[name] for each in taken) for name in COMMANDS}
