"""Many runs of one configuration: the rows of a table, each with several seeds."""

import difflib
import itertools
import json
import multiprocessing
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, build, describe, plain, setting_up
from fedbolic.experiment import resume, run
from fedbolic.federated import RunStoppedError
from fedbolic.progress import ProgressBar
from fedbolic.published import read, write_published

TAKEN = {"seed", "name", "runs"}
"""Settings of a run that follow from its place in the sweep."""


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
        check.at_least(1, jobs=jobs, num_seeds=len(seeds), num_rows=len(rows))
        tables = {
            setting: _crossed(rows, {**(common or {}), **shared}, grid or {})
            for setting, shared in (settings or {"": {}}).items()
        }
        _refuse_names("setting", settings or {})
        for table in tables.values():
            _refuse_unclear(table, seeds)
        numbers = {
            setting: [number for file in published for number in read(file, setting or None)]
            for setting in tables
        }
        tasks = list(_tasks(str(base), tables, seeds, name, runs))
        for arguments, path in tasks:  # every row is checked before the first one runs
            built = build(run, arguments)
            if path.exists() and not overwrite:
                _refuse_unlike(path / "config.yaml", describe(run, built))
        for rank, (setting, table) in enumerate(tables.items()):
            for place, row in enumerate(table):
                (folder / setting / row).mkdir(exist_ok=True, parents=True)
                (folder / setting / row / "place").write_text(str(place))
            if setting:
                (folder / setting / "place").write_text(str(rank))
            write_published(numbers[setting], folder / setting)
    return folder, [reason for reason in _run_all(tasks, jobs, overwrite) if reason]


def _crossed(
    rows: dict[str, dict[str, Any] | None], common: dict[str, Any], grid: dict[str, list[Any]]
) -> dict[str, dict[str, Any] | None]:
    """All rows with all combinations of the grid's values."""
    crossed: dict[str, dict[str, Any] | None] = {}
    for row, settings in rows.items():
        for values in itertools.product(*grid.values()):
            point = dict(zip(grid, values, strict=True))
            names = [f"{option.rpartition('.')[2]}={value}" for option, value in point.items()]
            own = settings or {}  # first, as a class must be named before its settings
            others = {option: value for option, value in common.items() if option not in own}
            crossed[" ".join([row, *names]) if names else row] = {**own, **others, **point}
    return crossed


def _refuse_unclear(rows: dict[str, dict[str, Any] | None], seeds: Sequence[int]) -> None:
    """Refuse what would give one folder to two runs, or another folder than the row's."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from one another, got {list(seeds)}")
    _refuse_names("row", rows)
    for row, settings in rows.items():
        if taken := sorted(TAKEN & (settings or {}).keys()):
            raise ValueError(f"row {row!r} sets {', '.join(taken)}, which only the sweep may set")


def _refuse_names(kind: str, names: Iterable[object]) -> None:
    for name in names:
        if not isinstance(name, str) or name == ".." or Path(name).name != name:
            raise ValueError(f"{kind} {name!r} must be named by a text that can name a folder")


def _tasks(
    base: str,
    tables: dict[str, dict[str, dict[str, Any] | None]],
    seeds: Sequence[int],
    name: str,
    runs: Path,
) -> Iterator[tuple[list[str], Path]]:
    """The command-line words and the folder of every run."""
    for seed in seeds:
        for setting, rows in tables.items():
            for row, settings in rows.items():
                words = [f"--{option}={_word(value)}" for option, value in (settings or {}).items()]
                folder = Path(name) / setting / row
                place = [f"--seed={seed}", f"--name={folder}", f"--runs={runs}"]
                yield ["--config", base, *words, *place], runs / folder / f"seed{seed}"


def _word(value: Any) -> str:
    # a class that is named by its path has been built by now
    return value if isinstance(value, str) else json.dumps(plain(value))


def _run_all(
    tasks: Sequence[tuple[list[str], Path]], jobs: int, overwrite: bool
) -> Iterator[str | None]:
    if jobs == 1:
        yield from (_run_one(arguments, path, overwrite) for arguments, path in tasks)
        return
    # spawned processes start clean: a forked one would inherit torch's thread pools
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context) as pool:
        futures = [pool.submit(_run_one, words, path, overwrite) for words, path in tasks]
        yield from (future.result() for future in futures)


def _run_one(arguments: list[str], path: Path, overwrite: bool) -> str | None:
    """Run one row with one seed; why it stopped, if it did."""
    settings = build(run, arguments)
    callbacks = [ProgressBar(f"{path.parent.name} {path.name}")]
    try:
        if overwrite or not path.exists():
            run(**settings, overwrite=overwrite, callbacks=callbacks)
        else:
            resume(path, callbacks=callbacks)
    except (RunStoppedError, SetupError) as error:  # the other rows go on
        return f"{path}: {error}"
    return None


def _refuse_unlike(file: Path, config: str) -> None:
    before, now = file.read_text().splitlines(), config.splitlines()
    changed = [line for line in difflib.ndiff(before, now) if line[0] in "-+"]
    if changed:
        raise SetupError(
            f"{file.parent} holds a run of another configuration ({' '.join(changed[:4])}): "
            "replace it with --overwrite, or give the sweep another --name"
        )
