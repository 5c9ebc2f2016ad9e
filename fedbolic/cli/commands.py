"""Train and evaluate hyperbolic federated models."""

import contextlib
import functools
import logging
import os
import shlex
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedbolic.cli.client_list import ClientList, client_list
from fedbolic.cli.completion import completion
from fedbolic.cli.help import options_in_full
from fedbolic.cli.overview import LISTS
from fedbolic.cli.parser import command_line
from fedbolic.cli.run_list import run_list
from fedbolic.cli.views import view
from fedbolic.core import check
from fedbolic.core.imports import extra
from fedbolic.data import agree_names, write_triple_names
from fedbolic.federated import RunStoppedError
from fedbolic.hierarchies.ready_tables import make_ready
from fedbolic.remote import loopback
from fedbolic.remote.accounts import UNITS, PrivacyAccounts
from fedbolic.remote.site import Site, different_messages, unshared_exchanges
from fedbolic.report.html_report import write_page
from fedbolic.report.text_report import compose, keep
from fedbolic.run.configuration import (
    SetupError,
    given,
    one_line,
    parse,
    setting_up,
)
from fedbolic.run.experiment import dry_run, resume, run
from fedbolic.run.exports import export
from fedbolic.run.progress import ProgressBar, terminal
from fedbolic.run.record import RunFolder
from fedbolic.run.sweeps import sweep

with extra("run", "the command line"):
    from rich.logging import RichHandler

INTERRUPTED, STOPPED, REFUSED = 130, 1, 2
"""Exit codes: ended by Ctrl-C, failed after the start, refused before the start."""


def execute(words: Sequence[str]) -> int:
    """Run one command and report expected errors in one line instead of a traceback.

    Args:
        words: Command-line arguments, without the name of the program.

    Returns:
        The exit code, as in :func:`fedbolic.__main__.main`.
    """
    handler = RichHandler(console=terminal(), show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    _find_classes_here()
    try:
        code = _execute(words)
        sys.stdout.flush()  # inside the try block, so that a full disk is reported
        return code
    except (SetupError, FileNotFoundError) as error:
        return _say(REFUSED, one_line(error))
    except KeyboardInterrupt as error:
        return _say(INTERRUPTED, "; ".join(["interrupted", *map(str, error.args)]))
    except RunStoppedError as error:
        return _say(STOPPED, f"stopped: {one_line(error)}")
    except BrokenPipeError:  # the reader of the output, such as head, has closed it
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return STOPPED
    except OSError as error:
        return _say(STOPPED, f"stopped: {one_line(error)}")


def _execute(words: Sequence[str]) -> int:
    if words[:1] in (["run"], ["flower"]) and {"-h", "--help"} & set(words):
        sys.stdout.write(options_in_full(command_line(), run, words))
        return 0
    functions = {"run": run, "sweep": sweep, "flower": run}
    settings = parse(command_line(), words, functions)
    command = settings["command"]
    asked = vars(settings[command])
    if command in ("run", "flower") and not (asked["config"] or asked["method"] or asked["data"]):
        raise SetupError(
            f"{command} needs a configuration, a method or data: fedbolic {command} --config "
            f"fedavg/quick, or fedbolic {command} --method HyperFed --data Digits; `fedbolic "
            "configs`, `fedbolic methods` and `fedbolic data` list them"
        )
    with _saying_how_to_go_on(command, words):
        return COMMANDS[command](asked)


def _say(code: int, line: str) -> int:
    sys.stderr.write(f"fedbolic: {line}\n")
    return code


def _find_classes_here() -> None:
    """Make classes in the working directory importable, with lower priority than packages."""
    here = str(Path.cwd())
    if not {"", here} & set(sys.path):
        sys.path.append(here)


@contextlib.contextmanager
def _saying_how_to_go_on(command: str, words: Sequence[str]) -> Iterator[None]:
    """Name the command that continues in the message of an interrupt that lacks one."""
    try:
        yield
    except KeyboardInterrupt as error:
        if error.args or command not in ("sweep", "resume"):
            raise
        again = shlex.join(["fedbolic", *(word for word in words if word != "--overwrite")])
        raise KeyboardInterrupt(f"continue with `{again}`") from error


@contextlib.contextmanager
def _naming_the_run(settings: dict[str, Any], bar: ProgressBar | None = None) -> Iterator[None]:
    """Name the command that resumes the run in the message of an interrupt."""
    path = Path(settings["runs"]) / (settings["name"] or "run") / f"seed{settings['seed']}"
    mine = not (path.exists() and settings["overwrite"])
    try:
        yield
    except KeyboardInterrupt as error:
        began = path.exists() and (mine or (bar is not None and bar.task is not None))
        way = f"continue with `fedbolic resume {shlex.quote(str(path))}`"
        raise KeyboardInterrupt(way if began else "the run had not started") from error


def _run(settings: dict[str, Any]) -> int:
    settings = {**settings, "name": _name(settings)}
    if settings.pop("dry_run"):
        return _dry_run(settings)
    bar = ProgressBar(settings["name"] or "run")
    with _naming_the_run(settings, bar):
        path = run(**given(run, settings), callbacks=[ClientList(), bar])
        return _report([path], path)


def _dry_run(settings: dict[str, Any]) -> int:
    data = dry_run(**given(run, settings))
    held = "the clients of a private run are shown to nobody" if data is None else client_list(data)
    sys.stdout.write(f"{held}\nthe run can start: nothing was trained or written\n")
    return 0


def _resume(settings: dict[str, Any]) -> int:
    path = settings["run"]
    with setting_up():
        deployed = loopback.is_deployed(path)
    if deployed:
        loopback.go_on(path)
    elif not resume(path, callbacks=[ProgressBar(str(path))]):
        sys.stdout.write(f"{path} is finished: nothing is left to do\n")
    return _report([path], path)


def _flower(settings: dict[str, Any]) -> int:
    settings = {**settings, "name": _name(settings)}
    deployment, app, overwrite = (settings[name] for name in ("deployment", "app", "overwrite"))
    asked = {n: v for n, v in settings.items() if n not in ("deployment", "app", "overwrite")}
    asked = given(run, asked)
    if app is not None:
        loopback.prepare(app, asked, deployment)
        sys.stdout.write(f"{app}\n")
        return 0
    with _naming_the_run(settings):
        path = loopback.flower(asked, deployment, overwrite=overwrite)
        return _report([path], path)


def _sweep(settings: dict[str, Any]) -> int:
    configs = settings["config"]
    files = {
        "base": _seen_from(configs, settings["base"]),
        "published": tuple(_seen_from(configs, file) for file in settings["published"]),
    }
    path, stopped = sweep(**given(sweep, {**settings, **files, "name": _name(settings)}))
    try:
        _report([path], path)
    finally:  # if no run was saved there is no table, and the reasons say why
        for reason in stopped:
            _say(STOPPED, f"stopped: {one_line(reason)}")
    return STOPPED if stopped else 0


def _report(
    paths: Sequence[Path], path: Path | None = None, *, reference: str | None = None
) -> int:
    """Print the table of runs, then save it: it is shown even if saving fails."""
    with setting_up():
        composed = compose(paths, reference=reference)
    sys.stdout.write(composed.text + (f"\n{path}\n" if path else ""))
    keep(composed)
    return 0


def _report_or_page(settings: dict[str, Any]) -> int:
    paths, reference, file = (settings[name] for name in ("runs", "reference", "html"))
    if settings["watch"] is not None:
        with setting_up():
            check.positive(watch=settings["watch"])
    watched = _once_and_when_runs_go_on(paths, settings["watch"])
    for _ in watched:
        if file is None:
            _report(paths, reference=reference)
            continue
        with setting_up():
            write_page(paths, file, reference=reference)
        sys.stdout.write(f"open {file} in a browser\n")
    return 0


def _once_and_when_runs_go_on(paths: Sequence[Path], seconds: float | None) -> Iterator[None]:
    """Yield once and, if there are seconds to wait, after every look at which a run has grown."""
    yield
    if seconds is None:
        return
    before = _sizes(paths)
    while True:
        sys.stdout.flush()
        time.sleep(seconds)
        if (now := _sizes(paths)) != before:
            before = now
            yield


def _sizes(paths: Sequence[Path]) -> dict[Path, int]:
    return {f: f.stat().st_size for path in paths for f in path.rglob("metrics.csv")}


def _runs(settings: dict[str, Any]) -> int:
    with setting_up():
        listed = run_list(settings["folders"])
    sys.stdout.write(listed)
    return 0


def _list(name: str, _: dict[str, Any]) -> int:
    sys.stdout.write(LISTS[name]())
    return 0


def _completion(_: dict[str, Any]) -> int:
    sys.stdout.write(completion())
    return 0


def _export(settings: dict[str, Any]) -> int:
    files = export(settings["run"], settings["to"], client=settings["client"])
    sys.stdout.write("".join(f"{file}\n" for file in files))
    return 0


def _names(settings: dict[str, Any]) -> int:
    """Write the names in some files, those of relations to another file; hashed with a key."""
    files, to, relations, key = (settings[x] for x in ("files", "to", "relations", "key"))
    with setting_up():
        if relations is None:
            found = {to: agree_names(files, to, key=key)}
        else:
            both = write_triple_names(files, to, relations, key=key)
            found = dict(zip((to, relations), both, strict=True))
    for file, names in found.items():
        sys.stdout.write(f"{file}: {len(names.entries)} names\n")
    return 0


def _ready(settings: dict[str, Any]) -> int:
    with setting_up():
        checksum = make_ready(settings["table"], settings["to"])
    sys.stdout.write(f"{checksum}  {settings['to']}\n")
    return 0


def _view(settings: dict[str, Any]) -> int:
    """Write the page about a hierarchy, next to the working directory's files by default."""
    source = settings["source"]
    file = settings["to"] or Path(f"{source.resolve().name.partition('.')[0]}.html")
    if file.exists():
        raise SetupError(f"{file} exists: remove it, or give another file with --to")
    with setting_up():
        view(source, file, **{name: settings[name] for name in ("way", "relation", "title")})
    sys.stdout.write(f"open {file} in a browser\n")
    return 0


def _account(settings: dict[str, Any]) -> int:
    """Create an account, or print what the accounts of some data have spent."""
    asked = settings[settings["action"]]
    with setting_up():
        if settings["action"] == "site":
            sys.stdout.write(f"{Site.create(**asked).folder}\n")
            return 0
        accounts = PrivacyAccounts(asked["folder"], asked["data"])
        if settings["action"] == "create":
            names = ("unit", "epsilon", "dp_delta", "neighbours")
            sys.stdout.write(f"{accounts.create(**{name: asked[name] for name in names})}\n")
            return 0
        for unit in UNITS:
            if accounts.file(unit).exists():
                b = accounts.balance(unit)
                sys.stdout.write(
                    f"{unit}: epsilon {b.epsilon:.4g} of {b.budget:g} at delta {b.dp_delta:g} of "
                    f"{b.budget_delta:g}, {b.num_charges} charges\n"
                )
    return 0


def _audit(settings: dict[str, Any]) -> int:
    """Print an audit of a run's settings; a fault is an error."""
    from fedbolic.testing.run_audit import audit_run  # few need it

    with setting_up():
        received = _names_of_states(settings["run"]) if settings["sites"] else []
        reports = [Site(folder).check(received) for folder in settings["sites"]]
        found = audit_run(settings["run"], planted=settings["planted"])
    sys.stdout.write("".join(map(str, [found, *reports])))
    for path in different_messages(reports):
        sys.stdout.write(f"sites received different messages in {path}\n")
    if number := unshared_exchanges(reports):
        sys.stdout.write(f"{number} exchanges reached only some sites, and are not compared\n")
    if reports and not received:
        sys.stdout.write(
            "the run names no client states, so the ends of transcripts are not checked\n"
        )
    return STOPPED if any(each.faults for each in [found, *reports]) else 0


def _names_of_states(path: Path) -> list[str]:
    """Names of client states that a run's server has; none if its clients were no nodes."""
    states = RunFolder.open(path).read_checkpoint()["client_states"]
    return [own["name"] for own in states.values() if own.keys() == {"name"}]


COMMANDS: dict[str, Callable[[dict[str, Any]], int]] = {
    "run": _run,
    "resume": _resume,
    "sweep": _sweep,
    "flower": _flower,
    **{name: functools.partial(_list, name) for name in LISTS},
    "completion": _completion,
    "export": _export,
    "account": _account,
    "audit": _audit,
    "names": _names,
    "ready": _ready,
    "report": _report_or_page,
    "runs": _runs,
    "view": _view,
}


def _name(settings: dict[str, Any]) -> str | None:
    configs = settings["config"]
    return settings["name"] or (Path(str(configs[-1])).stem if configs else None)


def _seen_from(configs: Sequence[object] | None, path: Path) -> Path:
    """Resolve a path in a configuration file: relative to that file, else to the current folder."""
    relative = Path(str(configs[-1])).parent / path if configs else path
    return relative if relative.exists() else path
