"""FlatLand's tables of scores, best tries and client graphs, and the speed of its rounds.

    python -m benchmarks.flatland partition CONFIG | table SWEEP | choose SWEEP
    python -m benchmarks.flatland figure SWEEP [--clients] | python -m benchmarks keep hyperfed
    python -m benchmarks.flatland speed [--only loop arxiv]

Takes seconds, and 2 minutes for the speed.
"""

import itertools
import json
import re
import statistics
from collections.abc import Callable, Hashable, Mapping, Sequence
from pathlib import Path

import yaml

from benchmarks.flatland.made_arxiv import METHODS, MadeCitations, cost
from benchmarks.flatland.partition_report import (
    PartitionReport,
    class_counts,
    heterogeneity,
    partition_report,
)
from benchmarks.flatland.protocol import LOCAL, Chosen, choose, tuned
from benchmarks.flatland.speed import compare_loop, compare_methods
from benchmarks.script import parser
from benchmarks.table import head, interval, line, spread
from fedbolic.core.published import PUBLISHED, read_published
from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.data import GraphSplit
from fedbolic.report.comparison import paired_differences
from fedbolic.report.run_scores import AT_CLIENTS, mean_curve, with_personal
from fedbolic.report.table_rows import TableRow, find
from fedbolic.run import experiment
from fedbolic.run.configuration import build

COLUMN = "P-FL client mean %"
"""Column of the published numbers."""


def partition(
    config: Path, seeds: Sequence[int], options: Sequence[str], plot: Path | None
) -> None:
    """Print the partition report of a configuration for each seed, and the spread over seeds."""
    settings = build(experiment.run, ["--config", str(config), *options])
    data = [settings["data"].load(Rng(seed).at("data")) for seed in seeds]
    if not isinstance(data[0].clients[0].train, GraphSplit):
        counts = [class_counts(of_seed) for of_seed in data]
        print(head("parts", "seeds", "heterogeneity"))
        print(line(config.stem, len(seeds), ends([heterogeneity(of_seed) for of_seed in counts])))
        if plot is not None:
            draw([of_client.tolist() for of_client in counts[0]], plot)
        return
    reports = [partition_report(of_seed) for of_seed in data]
    for seed, report in zip(seeds, reports, strict=True):
        print(f"seed {seed}\n\n{report.table()}\n")
    cells = [ends([of(report) for report in reports]) for of in MEANS.values()]
    print(f"{head('parts', 'seeds', *MEANS)}\n{line(config.stem, len(seeds), *cells)}")
    if plot is not None:
        parts = reports[0].parts
        draw([part.counts for part in parts], plot, [part.ricci for part in parts])


def ends(values: Sequence[float]) -> str:
    """Mean of some values, and the least and the largest of several."""
    mean = f"{statistics.fmean(values):.3f}"
    return f"{mean}, {min(values):.3f} to {max(values):.3f}" if len(values) > 1 else mean


MEANS: dict[str, Callable[[PartitionReport], float]] = {
    "nodes": lambda report: statistics.fmean(part.num_nodes for part in report.parts),
    "edges, both directions": lambda report: statistics.fmean(
        2 * part.num_edges for part in report.parts
    ),
    "clustering": lambda report: statistics.fmean(part.clustering for part in report.parts),
    "heterogeneity": lambda report: report.heterogeneity,
    "Forman-Ricci": lambda report: statistics.fmean(part.ricci for part in report.parts),
}
"""Quantities of Table 2 of the paper, and of its Figure 5 the mean over clients."""


def draw(counts: Sequence[Sequence[int]], file: Path, ricci: Sequence[float] = ()) -> None:
    """Draw the clients' classes and, if they are given, the curvatures of their graphs."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    canvas = Figure(figsize=(9.0 if ricci else 7.0, 3.5), layout="constrained")
    FigureCanvasAgg(canvas)
    (left, *others) = canvas.subplots(1, 2 if ricci else 1, squeeze=False)[0]
    places, bottom = range(len(counts)), [0] * len(counts)
    for k, of_class in enumerate(zip(*counts, strict=True)):
        left.bar(places, of_class, bottom=bottom, label=str(k), color=f"C{k % 10}")
        bottom = [b + count for b, count in zip(bottom, of_class, strict=True)]
    kind = "nodes" if ricci else "examples"
    left.set(title=f"{kind} of every class", xlabel="client", xticks=places)
    for right in others:
        right.bar(places, ricci, color="grey")
        right.set(title="mean Forman-Ricci curvature of the edges", xlabel="client", xticks=places)
    canvas.legend(loc="outside lower center", fontsize="small", ncols=10, title="class")
    canvas.savefig(file, dpi=80)


COPIED = " †"
"""Mark of a published number that the paper copied from elsewhere, according to its source."""

Runs = dict[str, list[Row]]
"""Rows of metrics by seed."""


def ended(row: TableRow) -> Runs:
    """The completed runs of a row."""
    found = {}
    for folder in row.folders:
        settings = yaml.safe_load(folder.config.read_text())["method"].get("init_args", {})
        measured = folder.rows()
        if max((one.round for one in measured), default=0) >= settings.get("rounds", 1):
            found[folder.path.name] = measured
    return found


def scores(runs: Runs, score: str = "accuracy") -> dict[str, Chosen]:
    """Scores of the clients' own models, for every seed.

    Without local models, the scores are those after fine-tuning or, failing that, the server's.
    """
    found = {}
    for seed, rows in runs.items():
        chosen = (
            choose(rows, of=LOCAL, score=score)
            or (tuned(rows) if score == "accuracy" else None)
            or choose(rows, of="", score=score)
        )
        if chosen is not None:
            found[seed] = chosen
    return found


def table(path: Path, references: Sequence[str], score: str = "accuracy") -> None:
    """Print a sweep's table: every score at the round chosen on validation.

    Raises:
        ValueError: If the sweep lacks one of the references.
    """
    rows = find(path)
    file = path / PUBLISHED
    numbers = read_published(file) if file.exists() else []
    known = {
        n.row: n.value + COPIED * ("copied" in n.source) for n in numbers if n.column == COLUMN
    }
    runs = {row.name: ended(row) for row in rows}
    local = {name: scores(of, score) for name, of in runs.items()}
    gaps = [_differences(local, reference) for reference in references]
    heads = [
        "local model %",
        "weighted %",
        "worst client %",
        "server's model %",
        *(f"minus {reference} [95 %]" for reference in references),
        "published %",
        "rising",
        "seeds",
    ]
    print(head("", *heads))
    for row in rows:
        own = local[row.name]
        sent = [c for of in runs[row.name].values() if (c := choose(of, of="", score=score))]
        cells = [
            *(spread(100 * getattr(c, name) for c in own.values())
              for name in ("mean", "weighted", "worst")),
            spread(100 * c.mean for c in sent),
            *(of_reference.get(row.name, "") for of_reference in gaps),
            known.get(row.name, ""),
            f"{sum(c.rising for c in own.values())} of {len(own)}",
            str(len(own)),
        ]  # fmt: skip
        print(line(row.name, *cells))
    if any(value.endswith(COPIED) for value in known.values()):
        print("\n†: copied from elsewhere, not run by the authors.")
    unfinished = sum(len(row.folders) - len(runs[row.name]) for row in rows)
    if unfinished:
        print(f"\n{unfinished} runs that have not come to their end are left out.")


def _differences(local: Mapping[str, dict[str, Chosen]], reference: str) -> dict[str, str]:
    means: dict[str, dict[Hashable, float]] = {
        row: {seed: 100 * chosen.mean for seed, chosen in of.items()} for row, of in local.items()
    }
    return {
        gap.row: f"{gap.mean:+.2f}"
        + (" [{:+.2f}, {:+.2f}]".format(*gap.interval) if gap.interval else "")
        for gap in paired_differences(means, reference)
    }


def figure(path: Path, *, clients: bool) -> None:
    """Print a sweep's last accuracies: a line for each row, a column for each setting, as ``K 20``.

    Mean and half the 95 % interval over seeds, of the server's model or at the clients; nothing for
    a row that has no such score or no finished run.
    """
    score, quantity = AT_CLIENTS if clients else "holdout/accuracy", ""
    cells: dict[str, dict[str, str]] = {}
    for row in find(path):
        quantity, _, value = row.folders[0].path.parent.parent.name.rpartition(" ")
        curves = [mean_curve([with_personal(run.rows())], score) for run in row.finished]
        found = [100 * curve[max(curve)][0] for curve in curves if curve]
        cells.setdefault(row.name, {})[value] = interval(found) if found else ""
    print(f"**{path.name}{' at clients' * clients}**\n")
    settings = list(dict.fromkeys(itertools.chain(*cells.values())))
    print(head(quantity, *settings))
    for name, of_row in cells.items():
        print(line(name, *(of_row.get(value, "") for value in settings)))


def choose_tries(path: Path) -> None:
    """Print every row's tries with their validation accuracy, and mark the best one.

    The name of a row begins with the name of the method; the settings of the try, each with an
    equals sign, follow. Test scores are not printed, so they cannot be chosen by.
    """
    tries: dict[str, list[tuple[float, float, str]]] = {}
    for row in find(path):
        method, *settings = re.split(r" (?=[^ ]*=)", row.name)
        runs = ended(row)
        local, sent = (
            [c.validation for of in runs.values() if (c := choose(of, of=kind))]
            for kind in (LOCAL, "")
        )
        if local:
            mean = statistics.fmean(local)
            tries.setdefault(method, []).append((mean, statistics.fmean(sent), " ".join(settings)))
    print(head("row", "try", "local validation %", "server's validation %", "chosen"))
    for method, found in tries.items():
        for scored in found:
            mean, sent, settings = scored
            mark = "chosen" if scored == max(found) else ""
            cells = f"{100 * mean:.2f}", f"{100 * sent:.2f}"
            print(line(method, settings, *cells, mark))


def speed(only: Sequence[str], rounds: int | None, alone: str | None) -> None:
    """Print the times of rounds beside a loop in PyG, and the cost of rounds on a made graph."""
    if alone is not None:
        print(json.dumps(cost(alone, MadeCitations(), rounds=rounds or 3)))
        return
    if "loop" in only:
        compare_loop(rounds or 7)
    if "arxiv" in only:
        compare_methods(rounds or 3)


def main() -> None:
    """Run one of the commands."""
    args = parser(__doc__)
    commands = args.add_subparsers(dest="command", required=True)
    parts = commands.add_parser(
        "partition", help="report on the clients' graphs or classes; also accepts options of a run"
    )
    parts.add_argument("config", type=Path)
    parts.add_argument("--seeds", type=int, nargs="+", default=[0])
    parts.add_argument("--plot", type=Path, help="file for a figure of the first seed's clients")
    scored = commands.add_parser("table", help="a sweep's scores, chosen on validation")
    scored.add_argument("sweep", type=Path)
    scored.add_argument(
        "--reference", nargs="+", default=["Local(E)"], help="the rows to compare with"
    )
    scored.add_argument("--score", default="accuracy", help="accuracy, or a metric of the runs")
    tried = commands.add_parser("choose", help="the best try of every row on validation")
    tried.add_argument("sweep", type=Path)
    drawn = commands.add_parser("figure", help="a sweep's last accuracies, a column a setting")
    drawn.add_argument("sweep", type=Path)
    drawn.add_argument("--clients", action="store_true", help="those at the clients")
    timed, names = (
        commands.add_parser("speed", help="rounds beside a loop in PyG"),
        ("loop", "arxiv"),
    )
    timed.add_argument("--only", nargs="+", choices=names, default=names)
    timed.add_argument("--rounds", type=int, help="timed rounds; 7 beside the loop, 3 on arxiv")
    timed.add_argument("--alone", choices=METHODS, help="measure one method in this process")
    given, options = args.parse_known_args()
    if given.command == "partition":
        partition(given.config, given.seeds, options, given.plot)
    elif options:
        args.error(f"unknown arguments: {' '.join(options)}")
    elif given.command == "speed":
        speed(given.only, given.rounds, given.alone)
    elif given.command == "figure":
        figure(given.sweep, clients=given.clients)
    elif given.command == "choose":
        choose_tries(given.sweep)
    else:
        table(given.sweep, given.reference, given.score)


if __name__ == "__main__":
    main()
