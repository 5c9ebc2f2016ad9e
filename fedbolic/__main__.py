"""The command line: ``fedbolic run | resume | sweep | report | flower``."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser
from rich.console import Console
from rich.logging import RichHandler

from fedbolic import __version__
from fedbolic.configuration import SetupError, given, one_line, parse, parser_of
from fedbolic.deploy import loopback
from fedbolic.experiment import resume, run
from fedbolic.federated import RunStoppedError
from fedbolic.progress import ProgressBar
from fedbolic.report import report
from fedbolic.sweep import sweep


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 if training stopped, 2 if it could not begin."""
    handler = RichHandler(console=Console(stderr=True), show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        settings = parse(command_line(), sys.argv[1:] if arguments is None else arguments)
        return COMMANDS[settings["command"]](vars(settings[settings["command"]]))
    except (SetupError, FileNotFoundError) as error:
        sys.stderr.write(f"fedbolic: {one_line(error)}\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("fedbolic: interrupted; `fedbolic resume RUN` goes on where it was\n")
        return 130
    except RunStoppedError as error:
        sys.stderr.write(f"fedbolic: stopped: {one_line(error)}\n")
        return 1


def _run(settings: dict[str, Any]) -> int:
    name = _name(settings)
    bar = ProgressBar(name or "run")
    path = run(**given(run, {**settings, "name": name}), callbacks=[bar])
    return _report([path], path)


def _resume(settings: dict[str, Any]) -> int:
    path = settings["run"]
    if loopback.is_deployed(path):
        loopback.go_on(path)
    elif not resume(path, callbacks=[ProgressBar(str(path))]):
        sys.stdout.write(f"{path} is finished: nothing is left to do\n")
    return _report([path], path)


def _flower(settings: dict[str, Any]) -> int:
    own = {"name": _name(settings)}
    terms, app, overwrite = (settings[name] for name in ("terms", "app", "overwrite"))
    asked = {n: v for n, v in settings.items() if n not in ("terms", "app", "overwrite")}
    asked = given(run, {**asked, **own})
    if app is not None:
        loopback.prepare(app, asked, terms)
        sys.stdout.write(f"{app}\n")
        return 0
    path = loopback.flower(asked, terms, overwrite=overwrite)
    return _report([path], path)


def _sweep(settings: dict[str, Any]) -> int:
    configs = settings["config"]
    files = {
        "base": _seen_from(configs, settings["base"]),
        "published": tuple(_seen_from(configs, file) for file in settings["published"]),
    }
    path, stopped = sweep(**given(sweep, {**settings, **files, "name": _name(settings)}))
    _report([path], path)
    sys.stderr.writelines(f"fedbolic: stopped: {one_line(reason)}\n" for reason in stopped)
    return 1 if stopped else 0


def _report(paths: Sequence[Path], path: Path | None = None) -> int:
    sys.stdout.write(report(paths) + (f"\n{path}\n" if path else ""))
    return 0


COMMANDS: dict[str, Callable[[dict[str, Any]], int]] = {
    "run": _run,
    "resume": _resume,
    "sweep": _sweep,
    "flower": _flower,
    "report": lambda settings: _report(settings["runs"]),
}


def _name(settings: dict[str, Any]) -> str | None:
    configs = settings["config"]
    return settings["name"] or (Path(str(configs[-1])).stem if configs else None)


def _seen_from(configs: Sequence[object] | None, path: Path) -> Path:
    """A path as a configuration names it: from the file's own folder, or from the current one."""
    beside = Path(str(configs[-1])).parent / path if configs else path
    return beside if beside.exists() else path


def command_line() -> ArgumentParser:
    """The parser of the whole command line."""
    parser = ArgumentParser(
        prog="fedbolic", exit_on_error=False, version=__version__, description=__doc__
    )
    commands = parser.add_subcommands(dest="command")
    for function in (run, sweep):
        command = parser_of(function)
        command.add_argument("--overwrite", action="store_true", help="replace what is there")
        commands.add_subcommand(function.__name__, command, help=_first_line(function))
    command = parser_of(run)
    command.add_class_arguments(loopback.Terms, "terms")
    command.add_argument(
        "--app", type=Path, help="only write the app for `flwr run` to this folder"
    )
    command.add_argument("--overwrite", action="store_true", help="replace what is there")
    commands.add_subcommand("flower", command, help=_first_line(loopback.flower))
    command = ArgumentParser(exit_on_error=False)
    command.add_argument("run", type=Path, help="the folder of the run")
    commands.add_subcommand("resume", command, help=_first_line(resume))
    command = ArgumentParser(exit_on_error=False)
    command.add_argument("runs", type=Path, nargs="+", help="folders of runs, or holding some")
    commands.add_subcommand("report", command, help=_first_line(report))
    return parser


def _first_line(function: Callable) -> str:
    return (function.__doc__ or "").partition("\n")[0]


if __name__ == "__main__":
    sys.exit(main())
