"""One self-contained page about finished runs: no network, images inside the file.

The only scripts are those of the maps of hierarchies, each in a separate frame, which can read
neither the page nor other files. They and the names come from this library and from arrays.
"""

import base64
import contextlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedbolic import __version__
from fedbolic.core.checksums import DamagedError, refuse_edited
from fedbolic.core.imports import extra
from fedbolic.core.published import PUBLISHED, read_published
from fedbolic.core.reading import read_text
from fedbolic.core.yaml_text import SETTINGS_SIZE, flat_settings, read_settings, yaml_line
from fedbolic.report.canvas import installed
from fedbolic.report.client_table import client_cells
from fedbolic.report.panels import (
    Measured,
    clients_panel,
    curvatures_panel,
    curves_panel,
    megabytes_panel,
    seconds_panel,
)
from fedbolic.report.plots import draw_figures
from fedbolic.report.run_scores import (
    AT_CLIENTS,
    client_values,
    differing_settings,
    with_personal,
)
from fedbolic.report.table_rows import TableRow
from fedbolic.report.text_report import compose, legend_of, table_cells
from fedbolic.report.verdict import verdict
from fedbolic.run.run_files import Folders, RunFiles, listed

with extra("run", "fedbolic.report"):
    import jinja2

SCORES = {
    "holdout/accuracy": "Accuracy of the server's model on the server's test set",
    AT_CLIENTS: "Accuracy at the clients on their own test examples, after fine-tuning if used",
    "holdout/map": "Mean average precision of the ancestors of every node",
    "test/own/map": "Mean average precision at the clients over their own pairs",
}
"""Scores between 0 and 1 that are plotted where a run has them, with their descriptions."""

CURVES = (
    "{}: lines are means over seeds, bands their range, and the legend has the values of the last "
    "round. The right plot enlarges the second half of the rounds at the height of the better half "
    "of the rows."
)
MEGABYTES = (
    "{} (mean over seeds) by the megabytes that all clients had sent and received. Rows whose "
    "clients send nothing are left out."
)
BARS = (
    "Last score of every client and seed, from the worst to the best; the line is the median. "
    "The table has quantiles over the clients of a run, mean ± standard deviation over seeds."
)
CURVATURES = "Last curvature of every client and seed, minus the sectional curvature, sorted."
SECONDS = (
    "Seconds between checkpoints. The first round includes what is done once. Runs that shared "
    "the machine slowed one another."
)
MAP = "Map of {}: drag, search a name, or click on a node twice."
COSTS = "Epsilon is what the ledger had counted after the last round, at the delta of the settings."
REPEAT = (
    "To repeat a run, give the config.yaml of its folder to fedbolic run --config, with a new "
    "--name."
)

_Block: TypeAlias = tuple[str, Any] | tuple[str, Any, str]
"""Kind, content and description of a block of the template: a table, note, panel, or the like."""


def write_page(paths: Folders, file: Path | str, *, reference: str | None = None) -> None:
    """Write a page about runs: verdict, tables, curves, traffic, clients, figures and settings.

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
    paths = listed(paths)
    composed = [compose([path], reference=reference) for path in paths]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["base64"] = lambda content: base64.b64encode(content).decode()
    return environment.get_template("page.html").render(
        title="Runs of " + ", ".join(str(path) for path in paths),
        plots=installed(),
        parts=[
            (str(at), verdict(rows), _sections(at, rows))
            for each in composed
            for at, rows in each.groups.items()
        ],
        reference=reference,
        compared=[each.comparison for each in composed],
        version=__version__,
        marks=_marks,
    )


def _sections(folder: Path, rows: Sequence[TableRow]) -> dict[str, list[_Block]]:
    """Blocks of the sections about one table, in the order of the page."""
    measured = {row.name: [with_personal(run.rows()) for run in row.plotted] for row in rows}
    times = {row.name: [run.times() for run in row.plotted] for row in rows}
    configs = {row.name: _config(row.folders[0]) for row in rows}
    curves, sent = (
        [
            panel
            for name, score in SCORES.items()
            for panel in _panel(about.format(score), draw, measured, name)
        ]
        for about, draw in ((CURVES, curves_panel), (MEGABYTES, megabytes_panel))
    )
    return {
        "Results": _results(folder, rows),
        "Score by round": curves,
        "Score by megabytes": sent,
        "Clients": [*_clients(measured, AT_CLIENTS), *_clients(measured, "test/own/map")],
        "Curvatures": _panel(CURVATURES, curvatures_panel, measured, "train/curvature"),
        "Time": _panel(SECONDS, seconds_panel, measured, times),
        "Figures": _figures(rows),
        "Maps": _maps(rows),
        "What was asked": _asked(rows, configs, measured),
        "Differences of the configurations": _differences(configs),
    }


def _panel(about: str, draw: Callable[..., bytes | None], *given: object) -> list[_Block]:
    svg = draw(*given) if installed() else None
    return [] if svg is None else [("panel", svg, about)]


def _config(run: RunFiles) -> dict[str, Any]:
    file = run.config
    try:
        settings = read_settings(file)
    except ValueError as error:
        raise DamagedError(file, f"is damaged: {error}") from error
    with contextlib.suppress(OSError, DamagedError):  # a page needs no environment
        refuse_edited(file, run.environment.get("config"))
    return settings


_SHARED_OUT = ("data.dataset", "data.graph", "data.hierarchy")
"""Settings whose classes say more of the data than the source around them."""


def _asked(
    rows: Sequence[TableRow], configs: Mapping[str, Mapping[str, Any]], measured: Measured
) -> list[_Block]:
    """Method, data and privacy cost of every row, and the complete configuration of the first."""
    costs = _privacy_costs(measured)
    words = (name.removeprefix("privacy/").replace("_", " ") for name in costs)
    lines = [["row", "method", "data", "rounds", "seeds", *words]]
    for row in rows:
        flat = flat_settings(configs[row.name])
        seeds = ", ".join(run.path.name.removeprefix("seed") for run in row.folders)
        data = next(key for key in (*_SHARED_OUT, "data") if key in flat or key == "data")
        names = (str(flat.get(key, "")).rpartition(".")[2] for key in ("method", data))
        rounds = yaml_line(flat.get("method.rounds", ""))
        lines.append(
            [row.name, *names, rounds, seeds, *(c.get(row.name, "") for c in costs.values())]
        )
    settings = read_text(rows[0].folders[0].config, SETTINGS_SIZE)
    about = f"Complete configuration of {rows[0].name}"
    notes = [("note", COSTS)] if costs else []
    return [("table", lines), *notes, ("settings", settings, about), ("note", REPEAT)]


def _privacy_costs(measured: Measured) -> dict[str, dict[str, str]]:
    """Largest epsilon of any kind that the runs of a row had spent, by kind and row."""
    largest: dict[str, dict[str, float]] = {}
    for title, runs in measured.items():
        for name, value in ((row.name, row.value) for rows in runs for row in rows):
            if name.startswith("privacy/") and "epsilon" in name:
                found = largest.setdefault(name, {})
                found[title] = max(found.get(title, 0.0), value)
    return {
        name: {title: f"{value:.4g}" for title, value in found.items()}
        for name, found in sorted(largest.items())
    }


def _results(folder: Path, rows: Sequence[TableRow]) -> list[_Block]:
    file = folder / PUBLISHED
    lines, sources = table_cells(rows, read_published(file) if file.exists() else ())
    legend = legend_of(" ".join(cell for line in lines for cell in line))
    return [("table", lines), ("note", f"{sources} {legend}".strip())]


def _clients(measured: Measured, metric: str) -> list[_Block]:
    """Bars and quantiles of one score of the clients in its last round."""
    scores = {
        name: [value for rows in runs for value in client_values(rows, metric).values()]
        for name, runs in measured.items()
    }
    scores = {name: values for name, values in scores.items() if values}
    if not scores:
        return []
    return [*_panel(BARS, clients_panel, scores), ("table", client_cells(measured, metric))]


def _figures(rows: Sequence[TableRow]) -> list[_Block]:
    """Figures of the first seed of every row, drawn unless they are there."""
    first = {f"{row.name} {row.folders[0].path.name}": row.folders[0] for row in rows}
    draw_figures(first)
    images = {
        f"{title}: {file.stem}": file.with_suffix(".png").read_bytes()
        for title, run in first.items()
        for file in run.figures()
        if file.with_suffix(".png").exists()
    }
    return [("figures", images)] if images else []


def _maps(rows: Sequence[TableRow]) -> list[_Block]:
    """Maps of the first seed of every row whose method embeds the nodes of a hierarchy."""
    embedded = {row.name: row.folders[0].embedding for row in rows}
    embedded = {name: file for name, file in embedded.items() if file.exists()}
    if not embedded:
        return []
    from fedbolic.hierarchies.embedding import Embedding  # needs torch
    from fedbolic.hierarchies.view import view_page

    blocks: list[_Block] = []
    for name, file in embedded.items():
        try:
            embedding = Embedding.load(file)
        except ValueError as error:
            raise DamagedError(file, f"is damaged: {error}") from error
        try:
            blocks.append(("map", view_page(embedding, title=name), MAP.format(name)))
        except ValueError as error:
            blocks.append(("note", f"{name} has no map: {error}"))
    return blocks


def _differences(configs: Mapping[str, Mapping[str, Any]]) -> list[_Block]:
    """Options in which the rows differ, one column for each row."""
    found = differing_settings(configs)
    if not found:
        return []
    lines = [["option", *configs]]
    for option, values in found.items():
        lines.append(
            [option, *(_short(yaml_line(values[n])) if n in values else "" for n in configs)]
        )
    note = "An empty cell: the classes of that row have no such option."
    return [("table", lines), ("note", note)]


def _short(value: str) -> str:
    """A class path's own name; the complete configuration has the path."""
    name = value.rpartition(".")[2]
    return name if name[:1].isupper() else value


def _marks(lines: Sequence[Sequence[str]]) -> list[str]:
    """The class of every column: text stands to the left, numbers to the right."""
    return [
        "published"
        if head.startswith("published")
        else "text" * any(cell[:1].isalpha() for cell in cells)
        for head, *cells in zip(*lines, strict=True)
    ]
