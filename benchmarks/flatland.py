"""FlatLand's tables: ``python -m benchmarks.flatland partition CONFIG | table SWEEP``."""

import argparse
import statistics
from collections.abc import Sequence
from pathlib import Path

from fedbolic import experiment
from fedbolic.configuration import build
from fedbolic.published import PUBLISHED, read
from fedbolic.report import TableRow, find
from fedbolic.rng import Rng
from flatland.partition import partition_report
from flatland.protocol import LOCAL, Chosen, choose, paired, tuned

COLUMN = "P-FL client mean %"
"""The column of published numbers."""


def partition(config: Path, seeds: Sequence[int], options: Sequence[str]) -> None:
    """Print what the partition of a configuration gives, for each seed."""
    settings = build(experiment.run, ["--config", str(config), *options])
    for seed in seeds:
        print(f"seed {seed}\n")
        print(partition_report(settings["data"].load(Rng(seed).at("data"))).table(), end="\n\n")


def scores(row: TableRow) -> dict[str, Chosen]:
    """The scores of the clients' own models, for every seed that has been run, to its end or not.

    A method that does not train its clients' models has them after tuning, or only the server's.
    """
    found = {}
    for folder in row.folders:
        rows = folder.rows()
        chosen = choose(rows, of=LOCAL) or tuned(rows) or choose(rows, of="")
        if chosen is not None:
            found[folder.path.name] = chosen
    return found


def table(path: Path, reference: str) -> None:
    """Print a sweep's table: every score at the round chosen on validation."""
    rows = find(path)
    file = path / PUBLISHED
    known = {n.row: n.value for n in read(file) if n.column == COLUMN} if file.exists() else {}
    local = {row.name: scores(row) for row in rows}
    print("| | local model % | weighted % | worst client % | server's model % | "
          f"minus {reference} [95 %] | published % | rising | seeds |")  # fmt: skip
    print("|" + " --- |" * 9)
    for row in rows:
        own, base = local[row.name], local.get(reference, {})
        sent = [c for folder in row.folders if (c := choose(folder.rows(), of=""))]
        both = [seed for seed in own if seed in base]
        gap = ""
        if both and row.name != reference:
            gaps = paired(*([100 * of[seed].mean for seed in both] for of in (own, base)))
            gap = f"{gaps.mean:+.2f} [{gaps.low:+.2f}, {gaps.high:+.2f}]"
        cells = [
            *(_spread([getattr(c, name) for c in own.values()])
              for name in ("mean", "weighted", "worst")),
            _spread([c.mean for c in sent]),
            gap,
            known.get(row.name, ""),
            f"{sum(c.rising for c in own.values())} of {len(own)}",
            str(len(own)),
        ]  # fmt: skip
        print("| " + " | ".join([row.name, *cells]) + " |")


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = f"{100 * statistics.fmean(values):.2f}"
    return f"{mean} ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else mean


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    parts = commands.add_parser(
        "partition", help="the clients' graphs in numbers; takes options of a run, too"
    )
    parts.add_argument("config", type=Path)
    parts.add_argument("--seeds", type=int, nargs="+", default=[0])
    scored = commands.add_parser("table", help="a sweep's scores, chosen on validation")
    scored.add_argument("sweep", type=Path)
    scored.add_argument("--reference", default="Local(E)", help="the row to compare with")
    given, options = parser.parse_known_args()
    if given.command == "partition":
        partition(given.config, given.seeds, options)
    elif options:
        parser.error(f"unknown arguments: {' '.join(options)}")
    else:
        table(given.sweep, given.reference)


if __name__ == "__main__":
    main()
