"""Many runs of one configuration: the rows of a table, each with several seeds."""

import difflib
import itertools
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, build, describe, plain, read_words, setting_up
from fedbolic.experiment import refuse_unclear_name, resume, run
from fedbolic.federated import RunStoppedError
from fedbolic.jobs import Job, run_jobs
from fedbolic.progress import ProgressBar
from fedbolic.published import PublishedNumber, read_published, write_published

TAKEN = {"seed", "name", "runs"}
"""Settings of a run that follow from its place in the sweep."""

OUTDATED = "outdated"
"""An empty file in the folder of a run that the sweep has yet to begin again: an interrupted
``--overwrite`` goes on without it."""


def sweep(
    base: Path,
    rows: dict[str, dict[str, Any] | None],
    *,
    common: dict[str, Any] | None = None,
    grid: dict[str, list[Any]] | None = None,
    seeds: tuple[int, ...] = (0,),
    published: tuple[Path, ...] = (),
    settings: dict[str, dict[str, Any]] | None = None,
    name: str | None = None,
    runs: Path = Path("runs"),
    jobs: int = 1,
    overwrite: bool = False,
) -> tuple[Path, list[str]]:
    """Run every row with every seed; what is finished stays, what was stopped goes on.

    Args:
        base: The configuration that all rows share. On the command line, this file and
            those of ``published`` may be named as seen from the sweep's own file.
        rows: By the name of the row, the settings in which it differs: dotted option to value. A
            row that names another class keeps the base's settings that the new class has too.
        common: Settings in which all rows differ from the base; a row's own go before them.
        grid: By option, the values that every row is run with, as a row for each combination: row
            ``A`` becomes ``A lr=0.1``, ``A lr=0.3`` for the values of ``method.lr``.
        seeds: Each row runs once with each.
        published: Tables of published numbers: CSV files of row, setting, column, value, source.
        settings: By its name in those files, what a setting has in common: every row runs in each,
            in a folder RUNS/NAME/SETTING, with a table of its own.
        name: Of the sweep; its folder is RUNS/NAME, with RUNS/NAME/ROW/seedSEED in it. By default
            the stem of the configuration file, or "sweep".
        runs: The folder of all runs.
        jobs: Runs at the same time, each in a process of its own.
        overwrite: Begin again with every run.

    Returns:
        The sweep's folder, and why runs stopped, if any did; the others went on to their end.

    Raises:
        SetupError: If a row is no configuration, which is said before anything is written; or if
            an unlike run stands in its folder.
    """
    name = name or "sweep"
    folder = runs / name
    with setting_up():
        refuse_unclear_name(name, runs)
        check.at_least(1, jobs=jobs, num_seeds=len(seeds), num_rows=len(rows))
        _refuse_names("row", rows)
        _refuse_names("setting", settings or {})
        tables = {
            setting: _crossed(_completed(str(base), rows, {**(common or {}), **shared}), grid or {})
            for setting, shared in (settings or {"": {}}).items()
        }
        for table in tables.values():
            _refuse_unclear(table, seeds)
        numbers = {
            setting: [
                number for file in published for number in read_published(file, setting or None)
            ]
            for setting in tables
        }
        tasks = list(_tasks(str(base), tables, seeds, name, runs))
        _check(tasks, overwrite=overwrite)
        _lay_out(folder, tables, numbers)
    return folder, _run_all(tasks, jobs)


def _check(tasks: Iterable[tuple[list[str], Path]], *, overwrite: bool) -> None:
    """Refuse a wrong row before the first one runs, then mark all that will be run again."""
    there = []
    for arguments, path in tasks:
        built = build(run, arguments)
        if path.exists():
            there.append(path)
            if not overwrite and not (path / OUTDATED).exists():
                _refuse_unlike(path / "config.yaml", describe(run, built))
    for path in there if overwrite else ():
        (path / OUTDATED).touch()


def _lay_out(
    folder: Path,
    tables: Mapping[str, Iterable[str]],
    numbers: Mapping[str, Sequence[PublishedNumber]],
) -> None:
    """Make the folders of settings and rows, with their places in the table."""
    for rank, (setting, table) in enumerate(tables.items()):
        for place, row in enumerate(table):
            (folder / setting / row).mkdir(exist_ok=True, parents=True)
            (folder / setting / row / "place").write_text(str(place))
        if setting:
            (folder / setting / "place").write_text(str(rank))
        write_published(numbers[setting], folder / setting)


def _completed(
    base: str, rows: Mapping[str, dict[str, Any] | None], common: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Every row with what is common to all, unless it has its own word for it.

    A row that names another class takes of the common settings those that the class has, too, as it
    does of the base's. What no class has is kept, to be refused.
    """
    own = {row: settings or {} for row, settings in rows.items()}
    of_another_class = {
        row: {option for option in common if any(option.startswith(f"{key}.") for key in settings)}
        for row, settings in own.items()
    }
    lost: dict[str, set[str]] = {row: set() for row in own}
    if any(of_another_class.values()):
        taken = {row: _taken(base, settings, common) for row, settings in own.items()}
        known = _taken(base, {}, common).union(*taken.values())
        lost = {row: of_another_class[row] & (known - taken[row]) for row in own}
    return {
        # own words first, as a class must be named before its settings
        row: settings | {k: v for k, v in common.items() if k not in {*settings, *lost[row]}}
        for row, settings in own.items()
    }


def _taken(base: str, settings: Mapping[str, Any], options: Iterable[str]) -> set[str]:
    """The options that the classes named in a configuration have; all, if that is a wrong one."""
    try:
        asked = read_words(run, ["--config", base, *_words(settings)])
    except SetupError:
        return set(options)  # it will be refused as a whole
    return {option for option in options if _has(asked, option.split("."))}


def _has(asked: Any, path: Sequence[str]) -> bool:
    if not path or not isinstance(asked, dict):  # a choice that is open still may have it
        return True
    inner = asked.get("init_args", {}) if "class_path" in asked else asked
    return path[0] in inner and _has(inner[path[0]], path[1:])


def _crossed(
    rows: Mapping[str, dict[str, Any]], grid: dict[str, list[Any]]
) -> dict[str, dict[str, Any]]:
    """All rows with all combinations of the grid's values."""
    crossed: dict[str, dict[str, Any]] = {}
    for row, settings in rows.items():
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            names = [f"{option.rpartition('.')[2]}={value}" for option, value in point.items()]
            crossed[" ".join([row, *names]) if names else row] = {**settings, **point}
    return crossed


def _refuse_unclear(rows: Mapping[str, dict[str, Any]], seeds: Sequence[int]) -> None:
    """Refuse what would give one folder to two runs, or another folder than the row's."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from one another, got {list(seeds)}")
    _refuse_names("row", rows)
    for row, settings in rows.items():
        if taken := sorted(TAKEN & settings.keys()):
            raise ValueError(f"row {row!r} sets {', '.join(taken)}, which only the sweep may set")


def _refuse_names(kind: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or name == ".." or Path(name).name != name:
            raise ValueError(f"{kind} {name!r} must be named by a text that can name a folder")


def _tasks(
    base: str,
    tables: Mapping[str, Mapping[str, dict[str, Any]]],
    seeds: Sequence[int],
    name: str,
    runs: Path,
) -> Iterator[tuple[list[str], Path]]:
    """The command-line words and the folder of every run."""
    for seed in seeds:
        for setting, rows in tables.items():
            for row, settings in rows.items():
                folder = Path(name) / setting / row
                place = [f"--seed={seed}", f"--name={folder}", f"--runs={runs}"]
                yield ["--config", base, *_words(settings), *place], runs / folder / f"seed{seed}"


def _words(settings: Mapping[str, Any]) -> list[str]:
    # a class that is named by its path has been built by now
    texts = {k: v if isinstance(v, str) else json.dumps(plain(v)) for k, v in settings.items()}
    return [f"--{option}={text}" for option, text in texts.items()]


def _run_all(tasks: Sequence[tuple[list[str], Path]], jobs: int) -> list[str]:
    """Do all runs; why some stopped, if they did."""
    if jobs == 1:
        reasons = [_run_one(arguments, path) for arguments, path in tasks]
    else:
        given = [Job(_title(path), (arguments, path)) for arguments, path in tasks]
        run_jobs(_run_one, given, jobs)
        reasons = [job.reason for job in given]
    return [reason for reason in reasons if reason]


def _run_one(
    arguments: list[str], path: Path, callbacks: Sequence[object] | None = None
) -> str | None:
    """Run one row with one seed; why it stopped, if it did."""
    settings = build(run, arguments)
    callbacks = [ProgressBar(_title(path))] if callbacks is None else callbacks
    outdated = (path / OUTDATED).exists()
    try:
        if outdated or not path.exists():
            run(**settings, overwrite=outdated, callbacks=callbacks)
        else:
            resume(path, callbacks=callbacks)
    except (RunStoppedError, SetupError) as error:  # the other rows go on
        return f"{path}: {error}"
    return None


def _title(path: Path) -> str:
    return f"{path.parent.name} {path.name}"


def _refuse_unlike(file: Path, config: str) -> None:
    before, now = file.read_text().splitlines(), config.splitlines()
    changed = [line for line in difflib.ndiff(before, now) if line[0] in "-+"]
    if changed:
        raise SetupError(
            f"{file.parent} holds a run of another configuration ({' '.join(changed[:4])}): "
            "replace it with --overwrite, or give the sweep another --name"
        )
