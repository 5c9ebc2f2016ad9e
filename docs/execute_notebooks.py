"""Execute the notebooks and store them with their outputs, from which the site is built.

``python docs/execute_notebooks.py [NAME ...]`` turns ``docs/notebooks/NAME.md`` into ``NAME.ipynb``
next to it, all of them if no name is given. A cell that raises an error stops it with exit code 1.
"""

import os
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import nbformat
from myst_nb.core.read import read_myst_markdown_notebook
from nbclient import NotebookClient

FOLDER = Path(__file__).parent / "notebooks"
SECONDS = 300
"""Longest time of a cell, on a busy machine too."""


def execute(name: str) -> str:
    """Store one notebook with its outputs; its name."""
    notebook = read_myst_markdown_notebook((FOLDER / f"{name}.md").read_text())
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(
            notebook,
            timeout=SECONDS,
            resources={"metadata": {"path": folder}},
            record_timing=False,
            coalesce_streams=True,
        ).execute()
    # what differs between two executions, or between machines, and is not shown
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python", "pygments_lexer": "ipython3"},
    }
    for number, cell in enumerate(notebook.cells):
        cell["id"], cell.metadata = str(number), {}
    nbformat.write(notebook, FOLDER / f"{name}.ipynb")
    return name


def main(names: list[str]) -> None:
    """Execute notebooks side by side, each with one thread."""
    os.environ["OMP_NUM_THREADS"] = "1"
    names = names or sorted(file.stem for file in FOLDER.glob("[0-9]*.md"))
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for name in pool.map(execute, names):
            print(name)


if __name__ == "__main__":
    main(sys.argv[1:])
