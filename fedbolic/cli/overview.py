"""Answers of the command line that need neither torch nor the packages of a run."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

from fedbolic import __version__
from fedbolic.run.packaged_configs import config_names, description
from fedbolic.run.public_classes import METHODS, heirs

ABOUT = "Train and evaluate hyperbolic federated models."

FIRST_LINES = {
    "run": "Train a federated method and save its configuration, metrics and checkpoints in a "
    "folder.",
    "sweep": "Run every row of a table with every seed; finished runs are kept, stopped runs "
    "resumed.",
    "flower": "Run a federation whose clients are SuperNodes on this machine, each in separate "
    "processes.",
    "resume": "Resume a stopped run, with results bit for bit equal to those of an uninterrupted "
    "run.",
    "report": "Summarize runs in a Markdown table, and plot their accuracy by round and their "
    "figures.",
    "runs": "List the runs below a folder: their rounds, last scores and seconds.",
    "configs": "List the package's configurations.",
    "methods": "List the federated methods.",
    "data": "List the sources of clients, the data sets that they share out, and the partitions.",
    "layers": "List the hyperbolic layers.",
    "completion": "Print a script that completes commands, options and names in bash and zsh.",
    "export": "Save the result of a run in the format of a file's extension, and its card.",
    "names": "Write the file of all names in some files: one of each holder, then one of all "
    "holders.",
    "ready": "Make a ready table from the public file and write it, as it would be published.",
    "view": "Write a page to look at a hierarchy: of a run, a taxonomy file, or an embedding.",
    "account": "Create or show the privacy accounts of a node's data.",
    "audit": "Attack the privacy of a run's settings by planted clients, and check its parts.",
}
"""Commands in the order of the help, each with its first line."""


def overview(words: Sequence[str]) -> str | None:
    """The version, the whole command line's help, a list, or a finished run's report.

    Args:
        words: Command-line arguments.

    Returns:
        The text to print; ``None`` if something else is asked for.

    Raises:
        OSError: If the package was installed without its configurations, or a file of a run cannot
            be read or written.
        ValueError: If a file of a run is damaged.
    """
    match list(words):
        case ["--version"]:
            return f"fedbolic {__version__}\n"
        case [] | ["-h" | "--help"]:
            return _help()
        case [name] if name in LISTS:
            return LISTS[name]()
        case ["runs", *folders] if not any(folder.startswith("-") for folder in folders):
            return _run_list(folders)
        case ["resume", run] if not run.startswith("-"):
            return _finished(Path(run))
    return None


def _configs() -> str:
    return _lines({name: description(name) for name in config_names()})


def _methods() -> str:
    end = "Options of a method: fedbolic run --help --method NAME\n"
    return f"{_classes('Method', *METHODS)}\n{end}"


def _data() -> str:
    kinds = {
        "Sources of clients, for --data": "Source",
        "Data sets, for --data or --data.dataset": "Dataset",
        "Graphs, for --data or --data.graph": "GraphSet",
        "Hierarchies, for --data or --data.hierarchy": "HierarchySet",
        "Knowledge graphs, for --data or --data.graph": "TripleSet",
        "Partitions of data sets, for --data.partition": "Partition",
        "Partitions of graphs, for --data.partition": "GraphPartition",
        "Partitions of hierarchies, for --data.partition": "HierarchyPartition",
        "Partitions of knowledge graphs, for --data.partition": "TriplePartition",
    }
    return "\n".join(
        f"{title}:\n{_classes(kind, 'fedbolic.data')}" for title, kind in kinds.items()
    )


def _layers() -> str:
    graph = _classes("MessagePassing", "fedbolic.nn.graph.convolution")
    return f"{_classes('Module', 'fedbolic.nn', 'fedbolic.nn.graph.convolution')}{graph}"


LISTS: dict[str, Callable[[], str]] = {
    **{"configs": _configs, "methods": _methods, "data": _data, "layers": _layers},
}
"""Commands that list something, and the functions that give their text."""


def _classes(kind: str, *packages: str) -> str:
    about = {name: found.about for name, found in heirs(kind, *packages).items()}
    return _lines({name: re.sub(r":\w+:`+|`+", "", line) for name, line in about.items()})


def _lines(about: dict[str, str]) -> str:
    width = max(map(len, about), default=0)
    return "".join(f"{name:{width}}  {line}\n" for name, line in about.items())


def _run_list(folders: Sequence[str]) -> str:
    from fedbolic.cli.run_list import run_list  # the other answers read no runs

    return run_list([Path(folder) for folder in folders or ["runs"]])


def _finished(path: Path) -> str | None:
    """The report of a run, which is saved with its plots; ``None`` if something is left to do."""
    from fedbolic.report.text_report import report
    from fedbolic.run.run_files import RunFiles

    if not RunFiles(path).is_complete():
        return None
    return f"{path} is finished: nothing is left to do\n{report(path)}\n{path}\n"


def _help() -> str:
    from fedbolic.run.configuration import new_parser  # the other answers need no parser

    parser = new_parser(prog="fedbolic", version=__version__, description=ABOUT)
    commands = parser.add_subcommands(dest="command")
    for name, about in FIRST_LINES.items():
        commands.add_subcommand(name, new_parser(), help=about)
    return parser.format_help()
