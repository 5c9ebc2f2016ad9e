"""One self-contained page about finished runs: no network, no scripts, images inside the file."""

import base64
import contextlib
import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbolic import __version__
from fedbolic.core.checksums import DamagedError, refuse_edited
from fedbolic.core.imports import extra
from fedbolic.core.published import PUBLISHED, read_published
from fedbolic.core.reading import read_text
from fedbolic.core.rows import Row
from fedbolic.core.yaml_text import SETTINGS_SIZE, read_settings
from fedbolic.report.client_table import client_cells
from fedbolic.report.panels import (
    clients_panel,
    curvatures_panel,
    curves_panel,
    megabytes_panel,
    seconds_panel,
)
from fedbolic.report.plots import draw_figures, installed
from fedbolic.report.run_scores import (
    AT_CLIENTS,
    client_values,
    differing_settings,
    flat_settings,
    with_personal,
)
from fedbolic.report.table_rows import TableRow
from fedbolic.report.text_report import compose, legend_of, table_cells
from fedbolic.run.record import ExchangeTime, Folders, RunFolder, listed

with extra("run", "fedbolic.report"):
    import yaml

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #222; max-width: 70rem; margin: 2rem auto;
       padding: 0 1rem }
h1, h2, h3 { line-height: 1.2 } h2 { border-top: 1px solid #ccc; padding-top: 1.5rem }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem }
th, td { padding: .25rem .5rem; border-bottom: 1px solid #ddd; text-align: right;
         white-space: nowrap }
th:first-child, td:first-child, .text { text-align: left } .published { color: #777 }
figure { margin: 1.5rem 0 } figcaption, .note { color: #555; font-size: .9rem; max-width: 46rem }
img { max-width: 100%; height: auto } .wide { overflow-x: auto }
.figures { display: grid; grid-template-columns: repeat(auto-fill, minmax(26rem, 1fr)) }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: .85rem }
"""

CLIENT_CURVATURE = "train/curvature"
"""Metric of the methods whose clients have curvatures of their own."""


SCORES = {
    "holdout/accuracy": "Accuracy of the server's model on the server's test set",
    AT_CLIENTS: "Accuracy at the clients on their own test examples, after fine-tuning if used",
    "holdout/map": "Mean average precision of the ancestors of every node",
    "test/own/map": "Mean average precision at the clients over their own pairs",
}
"""Scores between 0 and 1 that are plotted where a run has them, with their descriptions."""


@dataclass(frozen=True)
class _Part:
    """The rows of one table with all that their runs recorded.

    Args:
        title: Heading of the part.
        folder: Folder of the table.
        rows: Rows of the table.
        measured: Measurements by row, one sequence for each seed: of the finished runs, or of all
            runs of a row without a finished one.
        times: Seconds of the exchanges of the same runs.
        configs: Configuration of the first seed of every row.
    """

    title: str
    folder: Path
    rows: Sequence[TableRow]
    measured: dict[str, list[list[Row]]]
    times: dict[str, list[list[ExchangeTime]]]
    configs: dict[str, dict[str, Any]]


def write_page(paths: Folders, file: Path | str, *, reference: str | None = None) -> None:
    """Write a page about runs: settings, tables, curves, traffic, clients, seconds and figures.

    The figures of the first seed of every row are drawn next to their arrays, too.

    Args:
        paths: Folder or folders of runs, or that contain runs; each gives one part of the page, and
            one for each setting if it is a sweep with several.
        file: HTML file to write.
        reference: Row to which all others of its path are compared, seed by seed; ``None`` for no
            comparison.

    Raises:
        FileNotFoundError: If a folder contains no run.
        ValueError: If a file of a run is damaged, a configuration that is shown was edited, or a
            path lacks the row ``reference``.
        OSError: If the page cannot be written.
    """
    text = page(paths, reference=reference)
    file = Path(file)
    draft = file.with_name(f"{file.name}.draft")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(file)  # atomic, so that an existing page is always complete
    except OSError as error:
        draft.unlink(missing_ok=True)
        raise OSError(f"the page cannot be written to {file}: {error}") from error


def page(paths: Folders, *, reference: str | None = None) -> str:
    """The page of :func:`write_page` as text.

    Args:
        paths: As for :func:`write_page`.
        reference: Likewise.

    Raises:
        FileNotFoundError: If a folder contains no run.
        ValueError: As for :func:`write_page`.
    """
    parts, compared, paths = [], [], listed(paths)
    for path in paths:
        composed = compose([path], reference=reference)
        for folder, rows in composed.groups.items():
            parts.append(_read(str(folder), folder, rows))
        compared.append(composed.comparison)
    title = "Runs of " + ", ".join(str(path) for path in paths)
    links = "".join(
        f'<li><a href="#part{i}">{_text(p.title)}</a></li>' for i, p in enumerate(parts)
    )
    body = [
        f"<h1>{_text(title)}</h1>",
        f"<ul>{links}</ul>" if len(parts) > 1 else "",
        "" if installed() else _note("Plots need matplotlib: pip install 'fedbolic[plots]'."),
        *(_part(part, f"part{i}") for i, part in enumerate(parts)),
        *(
            f"<h2>Compared with {_text(str(reference))}</h2><pre>{_text(t)}</pre>"
            for t in compared
            if t
        ),
        _note(
            f"Written by fedbolic {__version__}. The numbers are those of the runs' metrics.csv."
        ),
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8"/>\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def _read(title: str, folder: Path, rows: Sequence[TableRow]) -> _Part:
    return _Part(
        title,
        folder,
        rows,
        {row.name: [with_personal(run.rows()) for run in row.plotted] for row in rows},
        {row.name: [run.times() for run in row.plotted] for row in rows},
        {row.name: _config(row.folders[0]) for row in rows},
    )


def _config(run: RunFolder) -> dict[str, Any]:
    file = run.config
    try:
        settings = read_settings(file)
    except ValueError as error:
        raise DamagedError(file, f"is damaged: {error}") from error
    with contextlib.suppress(OSError, DamagedError):  # a page needs no environment
        refuse_edited(file, run.environment.get("config"))
    return settings


def _part(part: _Part, anchor: str) -> str:
    sections = {
        "What was asked": _asked(part),
        "Results": _results(part),
        "Score by round": _curves(part),
        "Score by megabytes": _traffic(part),
        "Clients": _clients(part),
        "Curvatures": _curvatures(part),
        "Time": _seconds(part),
        "Figures": _figures(part),
        "Differences of the configurations": _differences(part),
    }
    shown = (
        f"<section><h3>{name}</h3>\n{text}</section>" for name, text in sections.items() if text
    )
    return f'<h2 id="{anchor}">{_text(part.title)}</h2>\n' + "\n".join(shown)


def _asked(part: _Part) -> str:
    """Method and data of every row, and the complete configuration of the first."""
    lines = [["row", "method", "data", "rounds", "seeds"]]
    for row in part.rows:
        flat = flat_settings(part.configs[row.name])
        seeds = ", ".join(run.path.name.removeprefix("seed") for run in row.folders)
        names = (str(flat.get(key, "")).rpartition(".")[2] for key in ("method", "data"))
        lines.append([row.name, *names, _value(flat.get("method.rounds", "")), seeds])
    first = part.rows[0]
    config = _text(read_text(first.folders[0].config, SETTINGS_SIZE))
    return (
        _table(lines) + f"<details><summary>Complete configuration of {_text(first.name)}</summary>"
        f"<pre>{config}</pre></details>"
        + _note(
            "To repeat a run, give the config.yaml of its folder to fedbolic run --config, with a "
            "new --name."
        )
    )


def _results(part: _Part) -> str:
    file = part.folder / PUBLISHED
    lines, sources = table_cells(part.rows, read_published(file) if file.exists() else ())
    return _table(lines) + _note(
        f"{sources} {legend_of(' '.join(cell for line in lines for cell in line))}".strip()
    )


def _curves(part: _Part) -> str:
    return "".join(
        _panel(
            curves_panel(part.measured, name) if installed() else None,
            f"{about}: lines are means over seeds, bands their range, and the legend has the "
            "values of the last round. The right plot enlarges the second half of the rounds at "
            "the height of the better half of the rows.",
        )
        for name, about in SCORES.items()
    )


def _traffic(part: _Part) -> str:
    return "".join(
        _panel(
            megabytes_panel(part.measured, name) if installed() else None,
            f"{about} (mean over seeds) by the megabytes that all clients had sent and received. "
            "Rows whose clients send nothing are left out.",
        )
        for name, about in SCORES.items()
    )


def _clients(part: _Part) -> str:
    return "".join(_clients_by(part, name) for name in (AT_CLIENTS, "test/own/map"))


def _clients_by(part: _Part, metric: str) -> str:
    """Bars and quantiles of one score of the clients in its last round."""
    scores = {
        name: [value for rows in runs for value in client_values(rows, metric).values()]
        for name, runs in part.measured.items()
    }
    scores = {name: values for name, values in scores.items() if values}
    if not scores:
        return ""
    bars = (
        "Last score of every client and seed, from the worst to the best; the line is the median. "
        "The table has quantiles over the clients of a run, mean ± standard deviation over seeds."
    )
    lines = client_cells(part.measured, metric)
    return _panel(clients_panel(scores) if installed() else None, bars) + _table(lines)


def _curvatures(part: _Part) -> str:
    about = "Last curvature of every client and seed, minus the sectional curvature, sorted."
    return _panel(curvatures_panel(part.measured, CLIENT_CURVATURE) if installed() else None, about)


def _seconds(part: _Part) -> str:
    about = (
        "Seconds between checkpoints. The first round includes what is done once. Runs that shared "
        "the machine slowed one another."
    )
    return _panel(seconds_panel(part.measured, part.times) if installed() else None, about)


def _figures(part: _Part) -> str:
    """Figures of the first seed of every row, drawn anew unless they are there."""
    first = {f"{row.name} {row.folders[0].path.name}": row.folders[0] for row in part.rows}
    draw_figures(first)
    images = [
        _image(file.with_suffix(".png").read_bytes(), "png", f"{title}: {file.stem}")
        for title, run in first.items()
        for file in run.figures()
        if file.with_suffix(".png").exists()
    ]
    return f'<div class="figures">{"".join(images)}</div>' if images else ""


def _differences(part: _Part) -> str:
    """Options in which the rows differ, one column for each row."""
    found = differing_settings(part.configs)
    if not found:
        return ""
    names = list(part.configs)
    lines = [["option", *names]]
    for option, values in found.items():
        lines.append([option, *(_short(_value(values[n])) if n in values else "" for n in names)])
    return _table(lines) + _note("An empty cell: the classes of that row have no such option.")


def _short(value: str) -> str:
    """A class path's own name; the complete configuration has the path."""
    name = value.rpartition(".")[2]
    return name if name[:1].isupper() else value


def _value(value: Any) -> str:
    return (
        value
        if isinstance(value, str)
        else yaml.safe_dump(value, default_flow_style=True, width=1000)
        .removesuffix("\n")
        .removesuffix("...")
        .strip()
    )


def _table(lines: Sequence[Sequence[str]]) -> str:
    head, *rows = lines
    marks = [_mark(*column) for column in zip(*lines, strict=True)]
    text = _cells("th", head, marks) + "".join(_cells("td", row, marks) for row in rows)
    return f'<div class="wide"><table>\n{text}</table></div>\n'


def _mark(head: str, *cells: str) -> str:
    """The class of a column: text stands to the left, numbers to the right."""
    if head.startswith("published"):
        return ' class="published"'
    return ' class="text"' if any(cell[:1].isalpha() for cell in cells) else ""


def _cells(tag: str, cells: Iterable[str], marks: Iterable[str]) -> str:
    line = "".join(
        f"<{tag}{mark}>{_text(cell)}</{tag}>" for cell, mark in zip(cells, marks, strict=True)
    )
    return f"<tr>{line}</tr>\n"


def _panel(svg: bytes | None, about: str) -> str:
    if svg is None:
        return ""
    return (
        f"<figure>{_image(svg, 'svg+xml', about)}<figcaption>{_text(about)}</figcaption></figure>\n"
    )


def _image(content: bytes, kind: str, about: str) -> str:
    encoded = base64.b64encode(content).decode()
    return f'<img alt="{_text(about)}" src="data:image/{kind};base64,{encoded}"/>'


def _note(text: str) -> str:
    return f'<p class="note">{_text(text)}</p>\n'


def _text(text: str) -> str:
    return html.escape(text)
