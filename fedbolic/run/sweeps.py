"""Sweeps: runs of many variants of one configuration, each with several seeds."""

import contextlib
import difflib
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from fedbolic.core import check
from fedbolic.core.published import PublishedNumber, read_published, write_published
from fedbolic.federated import RunStoppedError
from fedbolic.run.configuration import SetupError, build, describe, plain, read_words, setting_up
from fedbolic.run.experiment import resume, run
from fedbolic.run.jobs import Job, run_jobs
from fedbolic.run.progress import ProgressBar
from fedbolic.run.record import refuse_unclear_name

TAKEN = {"seed", "name", "runs"}
"""Settings of a run that the sweep determines."""

OUTDATED = "outdated"
"""Marker file in the folder of a run that ``--overwrite`` has yet to replace, so that an
interrupted sweep can continue without the option."""

_Task: TypeAlias = tuple[dict[str, Any], Path]
"""Settings and folder of a run."""


def sweep(
    base: Path, rows: dict[str, dict[str, Any] | None], *,
    common: dict[str, Any] | None = None, grid: dict[str, list[Any]] | None = None,
    seeds: tuple[int, ...] = (0,), published: tuple[Path, ...] = (),
    settings: dict[str, dict[str, Any]] | None = None, name: str | None = None,
    runs: Path = Path("runs"), jobs: int = 1, overwrite: bool = False,
) -> tuple[Path, list[str]]:  # fmt: skip
    """Run every row of a table with every seed; finished runs are kept, stopped runs resumed.

    Args:
        base: Configuration file that all rows share. On the command line, this path and those of
            published may be relative to the sweep's own file.
        rows: Settings in which each row differs from the base, by name of the row and dotted
            option. A row that selects another class keeps those settings of the base that the new
            class has, too.
        common: Settings in which all rows differ from the base, by dotted option; a row's own
            settings take precedence.
        grid: Values to run every row with, by dotted option; each combination becomes a row. Two
            values of method.lr turn the row "A" into "A lr=0.1" and "A lr=0.3".
        seeds: Seeds, all different; every row runs once with each.
        published: CSV files of published numbers, with the columns row, setting, column, value and
            source.
        settings: Common settings of each experimental setting, by its name in those files; they
            take precedence over common. Every row runs in every setting, in the folder
            RUNS/NAME/SETTING, and each setting gets its own table.
        name: Name of the sweep, whose runs are saved in RUNS/NAME/ROW/seedSEED. Defaults to the
            stem of the configuration file, or "sweep".
        runs: Folder that contains all runs.
        jobs: Number of runs at the same time, at least 1, each in its own process.
        overwrite: Whether to repeat all runs.

    Returns:
        The sweep's folder, and the reasons of the runs that stopped; all other runs are finished.

    Raises:
        SetupError: If a row is not a valid configuration, or its folder holds a run with another
            configuration; no run has been started then.
    """
    name = name or "sweep"
    with setting_up():
        refuse_unclear_name(name, runs)
        check.at_least(1, jobs=jobs, num_seeds=len(seeds), num_rows=len(rows))
        _refuse_names("row", rows)
        tables = _tables(str(base), rows, common or {}, grid or {}, settings or {"": {}})
        _refuse_unclear(tables.values(), seeds)
        numbers = _published_numbers(published, tables)
        tasks = _tasks(str(base), tables, seeds, name, runs)
        _check(tasks, overwrite=overwrite)
        _lay_out(runs / name, tables, numbers)
    return runs / name, _run_all(tasks, jobs)


def _tables(
    base: str,
    rows: Mapping[str, dict[str, Any] | None],
    common: dict[str, Any],
    grid: dict[str, list[Any]],
    settings: Mapping[str, dict[str, Any]],
) -> dict[str, dict[str, dict[str, Any]]]:
    """The complete settings of every row, by experimental setting and name of the row."""
    _refuse_names("setting", settings)
    return {
        setting: _crossed(_completed(base, rows, {**common, **shared}), grid)
        for setting, shared in settings.items()
    }


def _published_numbers(
    files: Sequence[Path], settings: Iterable[str]
) -> dict[str, list[PublishedNumber]]:
    return {
        setting: [number for file in files for number in read_published(file, setting or None)]
        for setting in settings
    }


def _check(tasks: Iterable[_Task], *, overwrite: bool) -> None:
    """Refuse runs of another configuration, or mark the runs to be replaced."""
    for settings, path in tasks:
        if path.exists() and overwrite:
            (path / OUTDATED).touch()
        elif path.exists() and not (path / OUTDATED).exists():
            _refuse_unlike(path / "config.yaml", describe(run, settings))


def _lay_out(
    folder: Path,
    tables: Mapping[str, Iterable[str]],
    numbers: Mapping[str, Sequence[PublishedNumber]],
) -> None:
    """Create the folders of settings and rows, with their positions in the table."""
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
    """Add the common settings to every row, without replacing the row's own.

    A row that selects another class takes only those common settings that the class has, as with
    the settings of the base. Settings that no class has are kept, so that they are refused later.
    """
    own = {row: settings or {} for row, settings in rows.items()}
    lost: dict[str, set[str]] = {row: set() for row in own}
    if of_another_class := {row: s for row, s in own.items() if _above(s, common)}:
        taken = {row: _taken(base, s, common) for row, s in of_another_class.items()}
        known = _taken(base, {}, common).union(*taken.values())
        lost |= {
            row: {option for option in known - taken[row] if _above(s, [option])}
            for row, s in of_another_class.items()
        }
    return {
        # the row's own settings first, because a class must be named before its settings
        row: settings | {k: v for k, v in common.items() if k not in {*settings, *lost[row]}}
        for row, settings in own.items()
    }


def _above(settings: Mapping[str, Any], options: Iterable[str]) -> dict[str, Any]:
    """The settings that choose a class which one of the options belongs to."""
    return {k: v for k, v in settings.items() if any(one.startswith(f"{k}.") for one in options)}


def _taken(base: str, settings: Mapping[str, Any], options: Iterable[str]) -> set[str]:
    """The options that the classes of a configuration have; all if the configuration is invalid."""
    # the classes alone are read several times as fast, but some need their settings
    for chosen in (_above(settings, options), settings):
        with contextlib.suppress(SetupError):  # refused later, with the full error
            asked = read_words(run, ["--config", base, *_words(chosen)])
            return {option for option in options if _has(asked, option.split("."))}
    return set(options)


def _has(asked: Any, path: Sequence[str]) -> bool:
    if not path or not isinstance(asked, dict):  # an unset option may turn out to have it
        return True
    inner = asked.get("init_args", {}) if "class_path" in asked else asked
    return path[0] in inner and _has(inner[path[0]], path[1:])


def _crossed(
    rows: Mapping[str, dict[str, Any]], grid: dict[str, list[Any]]
) -> dict[str, dict[str, Any]]:
    """Combine all rows with all combinations of the grid's values."""
    crossed: dict[str, dict[str, Any]] = {}
    for row, settings in rows.items():
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            names = [f"{option.rpartition('.')[2]}={value}" for option, value in point.items()]
            crossed[" ".join([row, *names]) if names else row] = {**settings, **point}
    return crossed


def _refuse_unclear(tables: Iterable[Mapping[str, dict[str, Any]]], seeds: Sequence[int]) -> None:
    """Refuse rows and seeds that would give two runs one folder, or a run another folder."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from one another, got {list(seeds)}")
    for rows in tables:
        _refuse_names("row", rows)
        for row, settings in rows.items():
            if taken := sorted(TAKEN & settings.keys()):
                sets = f"sets {', '.join(taken)}, which only the sweep may set"
                raise ValueError(f"row {row!r} {sets}")


def _refuse_names(kind: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or name == ".." or Path(name).name != name:
            raise ValueError(f"{kind} {name!r} must have a name that is a folder name")


def _tasks(
    base: str,
    tables: Mapping[str, Mapping[str, dict[str, Any]]],
    seeds: Sequence[int],
    name: str,
    runs: Path,
) -> list[_Task]:
    """All runs, of rows that are built once: a row differs between seeds in the seed alone.

    Raises:
        SetupError: If a row is not a valid configuration.
    """
    built = {}
    for setting, rows in tables.items():
        for row, settings in rows.items():
            folder = Path(name) / setting / row
            place = [f"--seed={seeds[0]}", f"--name={folder}", f"--runs={runs}"]
            built[folder] = build(run, ["--config", base, *_words(settings), *place])
    return [
        ({**settings, "seed": seed}, runs / folder / f"seed{seed}")
        for seed in seeds
        for folder, settings in built.items()
    ]


def _words(settings: Mapping[str, Any]) -> list[str]:
    # the parser may have built the class that a value names; plain converts the object back
    texts = {k: v if isinstance(v, str) else json.dumps(plain(v)) for k, v in settings.items()}
    return [f"--{option}={text}" for option, text in texts.items()]


def _run_all(tasks: Sequence[_Task], jobs: int) -> list[str]:
    """Execute all runs, and return the reasons of those that stopped."""
    if jobs == 1:
        reasons = [_run_one(settings, path) for settings, path in tasks]
    else:
        given = [Job(_title(path), (settings, path)) for settings, path in tasks]
        run_jobs(_run_one, given, jobs)
        reasons = [job.reason for job in given]
    return [reason for reason in reasons if reason]


def _run_one(
    settings: dict[str, Any], path: Path, callbacks: Sequence[object] | None = None
) -> str | None:
    """Run one row with one seed, and return the reason if it stopped."""
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
    """Refuse a finished run with another configuration.

    Its file is read and written again before it is compared: an option that a later version added
    is absent from it, and equals its default.
    """
    before = file.read_text()
    if before != config:
        with contextlib.suppress(SetupError):  # it names what there is no more, and so differs
            before = describe(run, build(run, ["--config", str(file)]))
    lines = difflib.ndiff(before.splitlines(), config.splitlines())
    changed = [line for line in lines if line[0] in "-+"]
    if changed:
        raise SetupError(
            f"{file.parent} holds a run with another configuration ({' '.join(changed[:4])}): "
            "replace it with --overwrite, or give the sweep another --name"
        )
