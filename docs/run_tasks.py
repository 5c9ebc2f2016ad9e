"""Lines and CPU seconds of the scripts of the page on ten tasks.

``python docs/run_tasks.py`` runs every script of ``docs/tasks`` in a process of its own with one
thread, import of torch included, and writes ``benchmarks/measured/tasks/tasks.csv``. The script of
five clients needs the extra ``flower``.
"""

import csv
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image

DOCS = Path(__file__).parent
SCRIPTS = sorted((DOCS / "tasks").iterdir())
TABLE = DOCS.parent / "benchmarks" / "measured" / "tasks" / "tasks.csv"


def summary(script: Path) -> str:
    """First line of a script without its quotation marks: the task."""
    return script.read_text().partition("\n")[0].strip('"# ')


def num_lines(script: Path) -> int:
    """Number of lines of code, imports included, without blank lines, comments and the summary."""
    lines = script.read_text().splitlines()[1:]
    return sum(bool(line.strip()) and not line.strip().startswith("#") for line in lines)


def write_files(folder: Path) -> None:
    """Write the files that the scripts read: images, tables and two taxonomies."""
    draws = np.random.default_rng(0).random((90, 2))
    for kind, colour in {"cats": (200, 50, 50), "dogs": (50, 50, 200)}.items():
        (folder / "pets" / kind).mkdir(parents=True)
        for i in range(20):
            Image.new("RGB", (40, 30 + i), colour).save(folder / "pets" / kind / f"{i}.png")
    rows = [f"{a},{b},{'ill' if a > b else 'well'},h{i % 3}" for i, (a, b) in enumerate(draws)]
    (folder / "patients.csv").write_text("\n".join(["age,dose,outcome,hospital", *rows]))
    for city in ("bath", "ely", "leeds", "wells", "york"):
        own = [row.rpartition(",")[0] for row in rows]
        (folder / f"{city}.csv").write_text("\n".join(["age,dose,outcome", *own]))
    (folder / "shops").mkdir()
    (folder / "shops/north.csv").write_text("MacBook,laptops\nlaptops,computers\n")
    (folder / "shops/south.csv").write_text("ThinkPad,laptops\nlaptops,computers\n")


def seconds(script: Path, folder: Path) -> float:
    """CPU seconds of a script with all processes that it starts."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    place = {"PYTHONPATH": str(DOCS.parent), "OMP_NUM_THREADS": "1", "PATH": path}
    program = sys.executable if script.suffix == ".py" else "sh"
    words = [program, str(script)]
    subprocess.run(words, cwd=folder, env={**os.environ, **place}, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def rows(scripts: list[Path]) -> Iterator[tuple[str, str, int, str]]:
    """Name, task, lines and CPU seconds of scripts."""
    with tempfile.TemporaryDirectory() as folder:
        write_files(Path(folder))
        for script in scripts:
            taken = seconds(script, Path(folder))
            yield script.name, summary(script), num_lines(script), f"{taken:.1f}"


def main() -> None:
    """Measure all scripts, and write the table."""
    TABLE.parent.mkdir(exist_ok=True)
    with TABLE.open("w", newline="") as file:
        table = csv.writer(file, lineterminator="\n")
        table.writerow(["script", "task", "lines", "CPU s"])
        for row in rows(SCRIPTS):
            print(*row)
            table.writerow(row)


if __name__ == "__main__":
    main()
