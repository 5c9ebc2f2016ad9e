"""The list of benchmarks, from their docstrings: ``python -m benchmarks``."""

from benchmarks.script import scripts
from benchmarks.table import head, line


def main() -> None:
    """Print a line for every benchmark: its name, what it prints, and how long that takes."""
    print(head("python -m benchmarks.", "prints", "takes"))
    for script in scripts():
        print(line(*script))


if __name__ == "__main__":
    main()
