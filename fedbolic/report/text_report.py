"""Tables and plots of finished runs, next to published numbers."""

import textwrap
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fedbolic.core.published import PUBLISHED, PublishedNumber, read_published
from fedbolic.core.rows import Row
from fedbolic.report.client_table import client_cells
from fedbolic.report.comparison import (
    PairedScores,
    critical_difference,
    mean_ranks,
    paired_differences,
)
from fedbolic.report.plots import draw_figures, image_links, plot, plot_ranks
from fedbolic.report.run_scores import AT_CLIENTS, mean, nan_as_worst, spread, with_personal
from fedbolic.report.table_rows import TableRow, by_folder, distinct, find
from fedbolic.run.run_files import Folders, listed

G_FL, P_FL, MEAN, WORST = "G-FL %", "P-FL %", "P-FL client mean %", "P-FL worst client %"
RIDGE_G, RIDGE_P = "ridge head G-FL %", "ridge head P-FL %"
VALIDATION, CHOSEN = "validation %", "G-FL % chosen on validation"
MAP, RANK, OWN_MAP = "MAP %", "mean rank", "own MAP %"
INFERRED_MAP, INFERRED_RANK = "inferred MAP %", "inferred mean rank"
SAMPLED_MAP, SAMPLED_ERROR = "sampled MAP %", "± MAP %"
MRR, HITS, OWN_MRR, OWN_HITS = "MRR %", "hits@10 %", "own MRR %", "own hits@10 %"
UP, DOWN, ROUNDS = "MB up", "MB down", "rounds"
LEGENDS = {
    G_FL: "accuracy of the server's model on the server's test set",
    P_FL: "accuracy at the clients on their own test examples, weighted by their number, after "
    "fine-tuning if the run uses it; then its unweighted mean over clients and its minimum",
    **{MEAN: "", WORST: ""},
    RIDGE_G: "accuracy on the server's test set with a head in closed form, the ridge "
    "regression of all clients' training examples on the model's unit-length features; its one "
    "exchange is not counted in the megabytes",
    RIDGE_P: "the same head at the clients on their own test examples, weighted by their "
    "number, without fine-tuning",
    VALIDATION: "accuracy at the clients on their own validation examples",
    CHOSEN: "accuracy of the server's model of the round with the best validation accuracy",
    MAP: "mean average precision of the ancestors of every node, over all pairs of a hierarchy",
    RANK: "their mean rank among the nodes that are no ancestors",
    SAMPLED_MAP: "mean average precision of a sample of nodes, then half of its 95 % interval",
    SAMPLED_ERROR: "",
    INFERRED_MAP: "the same over the pairs that no client holds, then their mean rank",
    INFERRED_RANK: "",
    OWN_MAP: "the same at the clients over their own pairs, among the nodes in them, weighted by "
    "their number",
    MRR: "mean reciprocal rank of the tails and heads of all test triples among all entities but "
    "those known to be true, then the share with a rank of at most 10",
    HITS: "",
    OWN_MRR: "the same at the clients over their own test triples, weighted by their number",
    OWN_HITS: "",
    UP: "megabytes (10^6 bytes) from all clients in all rounds, then to them",
    **{DOWN: "", ROUNDS: ""},
}
"""Columns of a table in order, with their meanings; an earlier column explains one without."""

SHARES = {
    **{G_FL: "holdout/accuracy", P_FL: AT_CLIENTS, VALIDATION: "validation/accuracy"},
    **{RIDGE_G: "ridge_head/holdout/accuracy", RIDGE_P: "ridge_head/accuracy"},
    **{SAMPLED_MAP: "holdout/sampled/map", SAMPLED_ERROR: "holdout/sampled/map_error"},
    **{MRR: "holdout/mrr", HITS: "holdout/hits_at_10"},
    **{OWN_MRR: "test/mrr", OWN_HITS: "test/hits_at_10"},
    **{MAP: "holdout/map", INFERRED_MAP: "holdout/inferred/map", OWN_MAP: "test/own/map"},
}
"""Columns in % and the measurements of the last round that they show."""

COMPARED = {G_FL: "ranks_g-fl.png", P_FL: "ranks_p-fl.png", MAP: "ranks_map.png"}
"""Columns of which rows are compared, with the file of their ranks; larger numbers are better."""

SPREAD = "Last round; mean ± standard deviation over seeds where they differ."
UNFINISHED = "Numbers are those of finished runs alone."
CLIENTS = "Accuracy at the clients in %: quantiles over clients."


@dataclass(frozen=True)
class Report:
    """Tables of runs and the rows to plot.

    Args:
        folder: Folder of the text file.
        text: Tables in Markdown, with their legend.
        groups: Rows of each table, by the folder of its plot.
        ranks: Mean ranks of rows and their critical difference, by the name of the plot.
        comparison: The part of the text that compares rows; empty without a reference.
    """

    folder: Path
    text: str
    groups: dict[Path, list[TableRow]]
    ranks: dict[str, tuple[dict[str, float], float]] = field(default_factory=dict)
    comparison: str = ""


def report(paths: Folders, *, reference: str | None = None) -> str:
    """Summarize runs in a Markdown table, and plot their accuracy by round and their figures.

    Saved figures of the runs are drawn as ``figures/NAME.png`` in the folder of every run.

    Args:
        paths: Folder or folders of runs, or that contain runs. Table and plot are saved in the
            first one as ``report.md`` and ``accuracy.png``. A single folder with several settings
            or sweeps gives one table for each, with its plot in the folder of its rows.
        reference: Row to which all others are compared, over the runs of all tables with the same
            seed; ``None`` for no comparison. Mean ranks are plotted in the first folder.

    Raises:
        FileNotFoundError: If a folder contains no run.
        ValueError: If a file of a run is damaged, or there is no such row.
        OSError: If a folder cannot be written.
    """
    composed = compose(paths, reference=reference)
    keep(composed)
    return composed.text


def compose(paths: Folders, *, reference: str | None = None) -> Report:
    """Compose the report of runs without writing files.

    Args:
        paths: As for :func:`report`.
        reference: Likewise.

    Raises:
        FileNotFoundError: If a folder contains no run.
        ValueError: If a file of a run is damaged, or there is no such row.
    """
    paths = listed(paths)
    rows = [row for path in paths for row in find(path)]
    groups = {paths[0]: rows} if len(paths) > 1 else by_folder(paths[0], rows)
    groups = {folder: distinct(group) for folder, group in groups.items()}
    text = "\n\n".join(
        (f"## {folder.relative_to(paths[0])}\n\n" if len(groups) > 1 else "")
        + table(group, read_published(folder / PUBLISHED) if (folder / PUBLISHED).exists() else ())
        + _clients(group)
        for folder, group in groups.items()
    )
    text += "\n\n" + textwrap.fill(legend_of(text), width=100) + "\n"
    compared, ranks = ("", {}) if reference is None else _compared(groups, reference)
    return Report(paths[0], text + compared, groups, ranks, compared)


def legend_of(text: str) -> str:
    """Meanings of the columns that a table names.

    Args:
        text: A table, or the names of its columns.
    """
    meanings = [
        f"{column}: {legend}." for column, legend in LEGENDS.items() if legend and column in text
    ]
    return " ".join([SPREAD, *([UNFINISHED] if "unfinished" in text else []), *meanings])


def _clients(rows: Sequence[TableRow]) -> str:
    """Quantiles of the clients' accuracies as text; empty if no run has any."""
    measured = {row.name: [with_personal(run.rows()) for run in row.finished] for row in rows}
    lines = client_cells(measured, AT_CLIENTS)
    return f"\n\n{CLIENTS}\n\n{_markdown(lines)}" if lines else ""


def _compared(
    groups: Mapping[Path, Sequence[TableRow]], reference: str
) -> tuple[str, dict[str, tuple[dict[str, float], float]]]:
    """Comparisons of all columns as text, and the ranks to plot, as in :class:`Report`."""
    names = dict.fromkeys(row.name for rows in groups.values() for row in rows)
    if reference not in names:
        raise ValueError(f"there is no row {reference!r}, only {', '.join(names)}")
    text, ranks, found = "", {}, paired_scores(groups)
    for column, file in COMPARED.items():
        scores = found.get(column, {})
        if reference in scores:  # such as local training, which has no score of a global model
            text += f"\n{compare_rows(scores, reference, column)}\n"
            means, num_blocks = mean_ranks(scores)
            if len(means) > 1:
                ranks[file] = means, critical_difference(len(means), num_blocks)
    return text, ranks


def paired_scores(groups: Mapping[Path, Sequence[TableRow]]) -> Mapping[str, PairedScores]:
    """Numbers of every column by row, and by the table and the seed of every run.

    Args:
        groups: Rows of each table, by its folder; a column leaves out rows without it.
    """
    scores: dict[str, dict[str, dict[Hashable, float]]] = {}
    for folder, rows in groups.items():
        for row in rows:
            for run in row.finished:
                for column, number in summary(run.rows()).items():
                    numbers = scores.setdefault(column, {}).setdefault(row.name, {})
                    numbers[str(folder), run.path.name] = number
    return scores


def compare_rows(scores: PairedScores, reference: str, column: str) -> str:
    """Format paired differences to a row and mean ranks as a Markdown table with its legend.

    Args:
        scores: Scores of every row.
        reference: Row to compare with.
        column: Name of the scores.

    Raises:
        ValueError: If there is no such row.
    """
    ranks, num_blocks = mean_ranks(scores)
    lines = [[column, "difference", "95 % interval", "pairs", "mean rank"]]
    cells = {reference: ["", "", str(len(scores.get(reference, ())))]}
    for found in paired_differences(scores, reference):
        ends = "" if found.interval is None else "{:+.2f} to {:+.2f}".format(*found.interval)
        cells[found.row] = [f"{found.mean:+.2f}", ends, str(found.num_pairs)]
    for row in scores:
        place = f"{ranks[row]:.2f}" if row in ranks else ""
        lines.append([row, *cells.get(row, ["", "", "0"]), place])
    legend = (
        f"Differences to {reference} over pairs of runs of one table and seed, with BCa bootstrap "
        "intervals, which are too narrow for few pairs."
    )
    if len(ranks) > 1:
        critical = critical_difference(len(ranks), num_blocks)
        legend += (
            f" Mean rank over the {num_blocks} pairs of table and seed that every row has; ranks "
            f"that differ by less than {critical:.2f} are not distinct by Nemenyi's test at .05, "
            "which takes the pairs as independent."
        )
    return f"{_markdown(lines)}\n\n{textwrap.fill(legend, width=100)}"


def keep(composed: Report) -> None:
    """Save a report with its plots and the figures of its runs.

    Raises:
        OSError: If a folder cannot be written.
    """
    folder = composed.folder
    images = [path / "accuracy.png" for path in composed.groups]
    try:
        for file, rows in zip(images, composed.groups.values(), strict=True):
            plot({row.name: [run.rows() for run in row.plotted] for row in rows}, file)
        for file, (ranks, critical) in composed.ranks.items():
            plot_ranks(ranks, critical, folder / file)
            images.append(folder / file)
        (folder / "report.md").write_text(composed.text)
        rows = [row for group in composed.groups.values() for row in group]
        draw_figures({f"{row.name} {run.path.name}": run for row in rows for run in row.folders})
        drawings = [f.with_suffix(".png") for row in rows for f in row.folders[0].figures()]
        (folder / "report.md").write_text(composed.text + image_links(images + drawings, folder))
    except OSError as error:
        raise OSError(f"the report cannot be saved in {folder}: {error}") from error


def summary(rows: Sequence[Row]) -> dict[str, float]:
    """The numbers of one run for a table, by column; columns without a number are left out.

    Args:
        rows: All measurements of the run.
    """
    if not rows:
        return {}
    last = max(row.round for row in rows)
    rows = with_personal(rows)
    common = {(r.round, r.name): r.value for r in rows if r.client is None}
    final = (row for row in rows if row.client is not None and row.round == last)
    clients = [row.value for row in final if row.name == AT_CLIENTS]
    shares = {column: common.get((last, name)) for column, name in SHARES.items()}
    shares[CHOSEN] = _chosen(common)
    if clients:
        shares |= {MEAN: mean(clients), WORST: min(clients, key=nan_as_worst)}
    ranks = {RANK: "holdout/mean_rank", INFERRED_RANK: "holdout/inferred/mean_rank"}
    sums = {
        column: sum(value for (_, n), value in common.items() if n == name) / 1e6
        for column, name in ((UP, "bytes/up"), (DOWN, "bytes/down"))
    }
    return {
        **{column: 100 * value for column, value in shares.items() if value is not None},
        **{column: common[last, n] for column, n in ranks.items() if (last, n) in common},
        **sums,
        ROUNDS: float(last),
    }


def _chosen(common: Mapping[tuple[int, str], float]) -> float | None:
    validation = {r: v for (r, name), v in common.items() if name == "validation/accuracy"}
    # the first round in case of a tie
    best = max(validation, key=lambda r: (nan_as_worst(validation[r]), -r), default=0)
    return common.get((best, "holdout/accuracy")) if validation else None


def table(rows: Sequence[TableRow], known: Sequence[PublishedNumber] = ()) -> str:
    """Format rows as a Markdown table; columns without any number are left out.

    Args:
        rows: Rows of the table.
        known: Published numbers. Those of the table's rows are shown in columns next to the
            measured ones, with their sources below the table.
    """
    lines, sources = table_cells(rows, known)
    return _markdown(lines) + (f"\n\n{sources}" if sources else "")


def table_cells(
    rows: Sequence[TableRow], known: Sequence[PublishedNumber] = ()
) -> tuple[list[list[str]], str]:
    """Cells of :func:`table`, whose first line is the header, and a sentence with the sources.

    Args:
        rows: As for :func:`table`.
        known: Likewise.
    """
    names = [row.name for row in rows]
    known = [number for number in known if number.row in names]
    found = [_summaries(row) for row in rows]
    columns = [["", *names]]
    for column in LEGENDS:
        values = [[numbers[column] for numbers in runs if column in numbers] for runs in found]
        if any(values):
            columns.append([column, *map(_spread, values)])
            published = {n.row: n.value for n in known if n.column == column}
            if published:
                columns.append(["published", *(published.get(name, "") for name in names)])
    unfinished = [f" ({row.num_unfinished} unfinished)" * (row.num_unfinished > 0) for row in rows]
    counts = [sum(map(bool, runs)) for runs in found]
    columns.append(["seeds", *(f"{n}{more}" for n, more in zip(counts, unfinished, strict=True))])
    sources = sorted({number.source for number in known})
    lines = [list(line) for line in zip(*columns, strict=True)]
    return lines, f"Published: {'; '.join(sources)}." if sources else ""


def _summaries(row: TableRow) -> list[dict[str, float]]:
    """The numbers of the finished runs; all runs are read, so that damage is found in any."""
    found = [(run, summary(run.rows())) for run in row.folders]
    return [numbers for run, numbers in found if run in row.finished]


def _spread(values: Sequence[float]) -> str:
    if len(set(values)) == 1:  # one seed, or a number that does not depend on the seed
        return f"{values[0]:.4g}"
    return spread(values) if values else ""


def _markdown(lines: Sequence[Sequence[str]]) -> str:
    widths = [max(len(line[i]) for line in lines) for i in range(len(lines[0]))]
    texts = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)) + " |"
        for line in lines
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([texts[0], rule, *texts[1:]])
