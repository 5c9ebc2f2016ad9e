"""Tables and plots of finished runs, ours beside the published numbers."""

import csv
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from fedbolic.record import Row, RunFolder

G_FL, P_FL, MEAN, WORST = "G-FL %", "P-FL %", "P-FL client mean %", "P-FL worst client %"
CHOSEN, UP, DOWN, ROUNDS = "G-FL % chosen on validation", "MB up", "MB down", "rounds"
COLUMNS = (G_FL, P_FL, MEAN, WORST, CHOSEN, UP, DOWN, ROUNDS)

LEGEND = f"""\
Mean ± standard deviation over seeds, of the last round. {G_FL}: accuracy of the server's model on
the server's test set. {P_FL}: accuracy at the clients on their own test examples, after fine-tuning
where the run asks for it; by examples, as mean over clients, and of the worst client.
{CHOSEN}: the server's model of the round with the best accuracy
on the clients' validation examples. MB: bytes of all rounds and clients together, in 10^6."""


@dataclass(frozen=True)
class TableRow:
    """One row of a table: a name and the runs behind it, one for each seed."""

    name: str
    folders: tuple[RunFolder, ...]


def report(paths: Sequence[Path]) -> str:
    """A table of runs in Markdown; a plot of accuracy by round is written beside it.

    Args:
        paths: Folders of runs, or folders that hold some. The plot and the table go to the first,
            as ``accuracy.png`` and ``report.md``.

    Raises:
        FileNotFoundError: If a folder holds no run.
    """
    rows = _distinct([row for path in paths for row in find(path)])
    text = f"{table(rows, published(paths[0]))}\n\n{LEGEND}\n"
    (paths[0] / "report.md").write_text(text)
    plot(rows, paths[0] / "accuracy.png")
    return text


def find(path: Path) -> list[TableRow]:
    """The rows below a folder, by path; those of a sweep in its own order.

    Runs of one name, differing in their seeds, are one row.

    Raises:
        FileNotFoundError: If there is no run.
    """
    configs = [
        config
        for config in sorted(path.rglob("config.yaml"))
        # a killed process may leave a draft of its folder, whose name begins with a dot
        if not any(part.startswith(".") for part in config.relative_to(path).parts)
    ]
    if not configs:
        raise FileNotFoundError(f"there is no run in {path}")
    by_name: dict[Path, list[RunFolder]] = {}
    for config in configs:
        by_name.setdefault(config.parent.parent, []).append(RunFolder(config.parent))
    return [TableRow(name.name, tuple(by_name[name])) for name in sorted(by_name, key=_place)]


def _place(name: Path) -> tuple[str, int, str]:
    place = name / "place"  # a sweep writes there which of its rows this is
    return (str(name.parent), int(place.read_text()) if place.exists() else 0, name.name)


def _distinct(rows: Sequence[TableRow]) -> list[TableRow]:
    """The rows, those of one name called by their paths."""
    names = [row.name for row in rows]
    return [
        row
        if names.count(row.name) == 1
        else TableRow(str(row.folders[0].path.parent), row.folders)
        for row in rows
    ]


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers of one run that stand in a table, as far as it has them.

    Args:
        rows: All that the run measured.
    """
    if not rows:
        return {}
    last = max(row.round for row in rows)
    common = {(r.round, r.name): r.value for r in rows if r.client is None}
    tuned = any(row.name == "tuned/accuracy" for row in rows)
    personal = "tuned/accuracy" if tuned else "test/accuracy"
    final = (row for row in rows if row.client is not None and row.round == last)
    clients = [row.value for row in final if row.name == personal]
    found = {
        G_FL: common.get((last, "holdout/accuracy")),
        P_FL: common.get((last, personal)),
        MEAN: statistics.fmean(clients) if clients else None,
        WORST: min(clients, default=None),
        CHOSEN: _chosen(common),
    }
    percent = {name: 100 * value for name, value in found.items() if value is not None}
    sums = {
        column: sum(value for (_, n), value in common.items() if n == name) / 1e6
        for column, name in ((UP, "bytes/up"), (DOWN, "bytes/down"))
    }
    return {**percent, **sums, ROUNDS: float(last)}


def _chosen(common: dict[tuple[int, str], float]) -> float | None:
    validation = {r: v for (r, name), v in common.items() if name == "validation/accuracy"}
    if not validation:
        return None
    best = max(validation, key=lambda r: (validation[r], -r))  # of equal rounds, the first
    return common.get((best, "holdout/accuracy"))


def published(path: Path) -> dict[tuple[str, str], tuple[str, str]]:
    """Published numbers by row and column, each with its source; from ``published.csv``.

    The columns of the file are ``row, column, value, source``.
    """
    file = path / "published.csv"
    if not file.exists():
        return {}
    with file.open(newline="") as stream:
        return {(r["row"], r["column"]): (r["value"], r["source"]) for r in csv.DictReader(stream)}


def table(
    rows: Sequence[TableRow], known: dict[tuple[str, str], tuple[str, str]] | None = None
) -> str:
    """A Markdown table; columns in which no row has a number are left out.

    Args:
        rows: What stands in it.
        known: The published numbers, as :func:`published` gives them.
    """
    known = known or {}
    summaries = {row.name: [summary(folder.rows()) for folder in row.folders] for row in rows}
    columns = [c for c in COLUMNS if any(c in s for found in summaries.values() for s in found)]
    lines = [["", *columns, "seeds"]]
    for name, found in summaries.items():
        lines.append([name, *(_spread([s[c] for s in found if c in s]) for c in columns)])
        lines[-1].append(str(sum(bool(s) for s in found)))
    for column in reversed(columns):
        _put_beside(lines, column, {n: v for (n, c), (v, _) in known.items() if c == column})
    sources = sorted({source for name, (_, source) in known.items() if name[0] in summaries})
    text = _markdown(lines)
    return text + (f"\n\nPublished: {'; '.join(sources)}." if sources else "")


def _put_beside(lines: list[list[str]], column: str, values: dict[str, str]) -> None:
    if any(line[0] in values for line in lines[1:]):
        place = lines[0].index(column) + 1
        for line in lines:
            line.insert(place, values.get(line[0], ""))
        lines[0][place] = "published"


def _spread(values: Sequence[float]) -> str:
    if not values:
        return ""
    if len(values) == 1:
        return f"{values[0]:.4g}"
    return f"{statistics.fmean(values):.2f} ± {statistics.stdev(values):.2f}"


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])


def plot(rows: Sequence[TableRow], file: Path) -> None:
    """Accuracy by round, a line for each row and a band over its seeds, as a PNG.

    Does nothing where matplotlib, the extra ``plots``, is not installed.
    """
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    FigureCanvasAgg(figure)
    panels = {"holdout/accuracy": "the server's test set", "test/accuracy": "at the clients"}
    for axes, (name, title) in zip(figure.subplots(1, 2), panels.items(), strict=True):
        for row in rows:
            curves = [_curve(folder.rows(), name) for folder in row.folders]
            rounds = sorted(set.intersection(*(set(curve) for curve in curves)))
            if not rounds:
                continue
            values = [[100 * curve[r] for curve in curves] for r in rounds]
            means = [statistics.fmean(v) for v in values]
            marker = "o" if len(rounds) == 1 else ""
            (line,) = axes.plot(rounds, means, marker=marker, label=row.name)
            low, high = [min(v) for v in values], [max(v) for v in values]
            axes.fill_between(rounds, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
        axes.set(title=title, xlabel="round", ylabel="accuracy %")
        axes.grid(alpha=0.3)
        if axes.lines:
            axes.legend(fontsize="small")
    figure.savefig(file, dpi=120)


def _curve(rows: Iterable[Row], name: str) -> dict[int, float]:
    return {row.round: row.value for row in rows if row.client is None and row.name == name}
