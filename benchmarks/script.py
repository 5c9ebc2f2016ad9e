"""Options of the benchmarks, and the list of them."""

import argparse
import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import torch

FOLDER = Path(__file__).parent


def parser(about: str | None, results: str | None = None) -> argparse.ArgumentParser:
    """Parser of a benchmark's options, whose help is its docstring; sets torch to one thread.

    Args:
        about: The docstring of the benchmark.
        results: Name of the CSV file in which figures are kept, for the option ``--results``.
    """
    torch.set_num_threads(1)
    made = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    if results is not None:
        made.add_argument(
            "--results", type=Path, default=Path(results), help="file of figures, to continue"
        )
    return made


def alone(name: str, *words: object) -> str:
    """The last line that a benchmark prints in a process of its own, with one thread.

    Args:
        name: Name of the benchmark.
        words: Its options.
    """
    done = subprocess.run(
        [sys.executable, "-m", f"benchmarks.{name}", *map(str, words)],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
        cwd=FOLDER.parent,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    return done.stdout.splitlines()[-1]


class Script(NamedTuple):
    """A benchmark as its docstring describes it.

    Args:
        name: Name after ``python -m benchmarks.``.
        prints: First sentence of the docstring.
        takes: Duration, the paragraph that begins with *Takes*; empty if there is none.
    """

    name: str
    prints: str
    takes: str


def scripts() -> Iterator[Script]:
    """Every module of this folder that runs, by name."""
    for file in sorted(FOLDER.rglob("*.py")):
        path = file.relative_to(FOLDER).with_suffix("")
        if path.name == "__main__":
            path = path.parent
        elif '\nif __name__ == "__main__":' not in file.read_text():
            continue
        if path.parts:
            text = ast.get_docstring(ast.parse(file.read_text())) or ""
            takes = re.search(r"^Takes (.+?)\.$", text, re.S | re.M)
            first = " ".join(text.split("\n\n")[0].split())
            yield Script(".".join(path.parts), first, " ".join(takes[1].split()) if takes else "")
