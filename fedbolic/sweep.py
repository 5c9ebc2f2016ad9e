"""Many runs of one configuration: the rows of a table, each with several seeds."""

import json
import multiprocessing
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, at_the_door, build, describe
from fedbolic.experiment import resume, run
from fedbolic.federated import RunStoppedError
from fedbolic.progress import ProgressBar

TAKEN = {"seed", "name", "runs"}
"""Settings of a run that follow from its place in the sweep."""


def sweep(
    base: Path,
    rows: dict[str, dict[str, Any] | None],
    *,
    seeds: tuple[int, ...] = (0,),
    published: Path | None = None,
    name: str | None = None,
    runs: Path = Path("runs"),
    jobs: int = 1,
    overwrite: bool = False,
) -> Path:
    """Run every row with every seed; what is finished stays, what was stopped goes on.

    Args:
        base: The configuration that all rows share. On the command line, this file and
            ``published`` may be named as seen from the sweep's own file.
        rows: By the name of the row, the settings in which it differs: dotted option to value. A
            row that names another class keeps the base's settings that the new class has too.
        seeds: Each row runs once with each.
        published: A table of published numbers: row, column, value, source.
        name: Of the sweep; its folder is RUNS/NAME, with RUNS/NAME/ROW/seedSEED in it. By default
            the stem of the configuration file, or "sweep".
        runs: The folder of all runs.
        jobs: Runs at the same time, each in a process of its own.
        overwrite: Begin again with every run.

    Returns:
        The sweep's folder.

    Raises:
        SetupError: If a row is no configuration, which is said before anything is written; or if
            an unlike run stands in its folder.
        RunStoppedError: If runs stopped; the others have gone on to their end.
    """
    name = name or "sweep"
    folder = runs / name
    with at_the_door():
        check.at_least(1, jobs=jobs, num_seeds=len(seeds), num_rows=len(rows))
        _refuse_unclear(rows, seeds)
        if published is not None and not published.is_file():
            raise FileNotFoundError(f"there is no table of published numbers in {published}")
        tasks = list(_tasks(str(base), rows, seeds, name, runs))
        for arguments, _ in tasks:
            build(run, arguments)  # every row is checked before the first one runs
    folder.mkdir(parents=True, exist_ok=True)
    if published is not None:
        shutil.copyfile(str(published), folder / "published.csv")
    for place, row in enumerate(rows):
        (folder / row).mkdir(exist_ok=True)
        (folder / row / "place").write_text(str(place))
    stopped = [error for error in _run_all(tasks, jobs, overwrite) if error]
    if stopped:
        raise RunStoppedError("; ".join(stopped))
    return folder


def _refuse_unclear(rows: dict[str, dict[str, Any] | None], seeds: Sequence[int]) -> None:
    """Refuse what would give one folder to two runs, or another folder than the row's."""
    if len(set(seeds)) < len(seeds):
        raise ValueError(f"seeds must differ from one another, got {list(seeds)}")
    for row, settings in rows.items():
        if not isinstance(row, str) or row == ".." or Path(row).name != row:
            raise ValueError(f"row {row!r} must be named by a text that can name a folder")
        if taken := sorted(TAKEN & (settings or {}).keys()):
            raise ValueError(f"row {row!r} sets {', '.join(taken)}, which only the sweep may set")


def _tasks(
    base: str,
    rows: dict[str, dict[str, Any] | None],
    seeds: Sequence[int],
    name: str,
    runs: Path,
) -> Iterator[tuple[list[str], Path]]:
    """The command-line words and the folder of every run."""
    for seed in seeds:
        for row, settings in rows.items():
            words = [f"--{option}={_word(value)}" for option, value in (settings or {}).items()]
            place = [f"--seed={seed}", f"--name={name}/{row}", f"--runs={runs}"]
            yield ["--config", base, *words, *place], runs / name / row / f"seed{seed}"


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


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
        elif (path / "config.yaml").read_text() != describe(settings):
            raise SetupError(
                f"{path} holds a run of another configuration: replace it with --overwrite, or "
                "give the sweep another --name"
            )
        else:
            resume(path, callbacks=callbacks)
    except RunStoppedError as error:
        return f"{path}: {error}"
    return None
