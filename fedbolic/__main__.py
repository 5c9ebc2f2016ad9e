"""The command line: ``fedbolic run | resume | sweep | report``."""

import logging
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from jsonargparse import ArgumentError, ArgumentParser
from rich.console import Console
from rich.logging import RichHandler

from fedbolic import __version__
from fedbolic.configuration import SetupError, one_line, parser_of
from fedbolic.experiment import resume, run
from fedbolic.federated import RunStoppedError
from fedbolic.progress import ProgressBar
from fedbolic.report import report
from fedbolic.sweep import sweep

CONSOLE = Console(stderr=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; the exit code is 0, 1 if training stopped, or 2 if it could not begin."""
    handler = RichHandler(console=CONSOLE, show_path=False, show_time=False)
    logging.basicConfig(level=logging.WARNING, format="%(message)s", handlers=[handler])
    try:
        return _command(sys.argv[1:] if arguments is None else list(arguments))
    except (SetupError, ArgumentError) as error:
        sys.stderr.write(f"fedbolic: {one_line(error)}\n")
        return 2
    except RunStoppedError as error:
        sys.stderr.write(f"fedbolic: stopped: {one_line(error)}\n")
        return 1


def _command(arguments: Sequence[str]) -> int:
    parser = command_line()
    settings = parser.instantiate(parser.parse_args(list(arguments)))
    command = settings["command"]
    chosen = settings[command]
    overwrite = chosen.pop("overwrite", False)
    configs = chosen.pop("config", None)
    if command in ("run", "sweep") and configs and chosen["name"] is None:
        chosen["name"] = Path(str(configs[-1])).stem
    if command == "run":
        bar = ProgressBar(chosen["name"] or "run")
        path = run(**chosen, overwrite=overwrite, callbacks=[bar])
        sys.stdout.write(f"{report([path])}\n{path}\n")
    elif command == "resume":
        bar = ProgressBar(str(chosen["run"]))
        if not resume(chosen["run"], callbacks=[bar]):
            sys.stdout.write(f"{chosen['run']} is finished: nothing is left to do\n")
        sys.stdout.write(f"{report([chosen['run']])}\n")
    elif command == "sweep":
        path = sweep(**chosen, overwrite=overwrite)
        sys.stdout.write(f"{report([path])}\n{path}\n")
    else:
        sys.stdout.write(f"{report(chosen['runs'])}\n")
    return 0


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
