"""Differences between every method and its paper's algorithm: python -m tests.conformance.table."""

import importlib
import logging
from pathlib import Path

NOT_LOOPS = "loop", "norms", "table"

LOOPS = {
    name: loop
    for file in sorted(Path(__file__).parent.glob("*.py"))
    if file.stem not in NOT_LOOPS
    for name, loop in importlib.import_module(f"tests.conformance.{file.stem}").LOOPS.items()
}


def main():
    """Print a row for every loop: all clients in each round, and half of them."""
    logging.disable()
    print("| method | algorithm | server | clients | scores | server, half | clients | scores |")
    print("|---|---|---|---|---|---|---|---|")
    for name, loop in LOOPS.items():
        gaps = [gap for rate in (1.0, 0.5) for gap in loop.gaps(rate).values()]
        print("| " + " | ".join([name, loop.source, *(f"{gap:.0e}" for gap in gaps)]) + " |")


if __name__ == "__main__":
    main()
