"""The parser of the whole command line."""

import functools
from pathlib import Path
from typing import Any

from fedbolic import __version__
from fedbolic.cli.overview import ABOUT, FIRST_LINES, LISTS
from fedbolic.cli.views import WAYS
from fedbolic.core.imports import extra
from fedbolic.hierarchies.ready_tables import READY
from fedbolic.remote import loopback
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.run.configuration import new_parser, parser_of
from fedbolic.run.experiment import run
from fedbolic.run.exports import WRITERS
from fedbolic.run.sweeps import sweep

with extra("run", "the command line"):
    from jsonargparse import ArgumentParser


@functools.cache
def command_line() -> ArgumentParser:
    """The parser of the whole command line, made once: it takes a tenth of a second."""
    parser = new_parser(prog="fedbolic", version=__version__, description=ABOUT)
    commands, about = parser.add_subcommands(dest="command"), FIRST_LINES
    for function in (run, sweep):
        command = parser_of(function)
        command.add_argument("--overwrite", action="store_true", help="Replace existing runs.")
        if function is run:
            about_dry = "Check the settings, and show what every client holds; train nothing."
            command.add_argument("--dry-run", "--dry_run", action="store_true", help=about_dry)
        name = function.__name__
        commands.add_subcommand(name, command, help=about[name])
    command = parser_of(run)
    command.add_class_arguments(loopback.DeploymentConfig, "deployment")
    command.add_argument(
        "--app", type=Path, help="Only write the app for `flwr run` to this folder."
    )
    command.add_argument("--overwrite", action="store_true", help="Replace an existing run.")
    commands.add_subcommand("flower", command, help=about["flower"])
    command = new_parser()
    command.add_argument("run", type=Path, help="Folder of the run.")
    commands.add_subcommand("resume", command, help=about["resume"])
    _add_reports(commands)
    for name in (*LISTS, "completion"):
        commands.add_subcommand(name, new_parser(), help=about[name])
    command = new_parser()
    command.add_argument("run", type=Path, help="Folder of the run.")
    command.add_argument(
        "--to", type=Path, required=True, help=f"New file, which ends in {', '.join(WRITERS)}."
    )
    command.add_argument("--client", type=int, help="Client whose personal result is saved.")
    commands.add_subcommand("export", command, help=about["export"])
    _add_hierarchies(commands)
    command = new_parser()
    commands.add_subcommand("account", command, help=about["account"])
    _add_account_actions(command)
    command = new_parser()
    command.add_argument("run", type=Path, help="Folder of a run with privacy.")
    command.add_argument("--planted", type=int, default=1000, help="Least number of canaries.")
    command.add_argument(
        "--sites", type=Path, nargs="+", default=[], help="Folders of sites, with transcripts."
    )
    commands.add_subcommand("audit", command, help=about["audit"])
    return parser


def _add_reports(commands: Any) -> None:
    """The commands about finished and unfinished runs.

    Args:
        commands: Subcommands of the parser.
    """
    command = new_parser()
    command.add_argument("runs", type=Path, nargs="+", help="Folders of runs, or containing runs.")
    command.add_argument(
        "--reference", type=str, help="Row to which all others are compared, seed by seed."
    )
    command.add_argument(
        "--html", type=Path, help="Write one self-contained page to this file, instead of tables."
    )
    command.add_argument(
        "--watch", type=float, metavar="SECONDS",
        help="Look again after this time, and report anew when a run has gone on, until Ctrl-C.",
    )  # fmt: skip
    commands.add_subcommand("report", command, help=FIRST_LINES["report"])
    command = new_parser()
    command.add_argument(
        "folders", type=Path, nargs="*", default=[Path("runs")], help="Folders of runs."
    )
    commands.add_subcommand("runs", command, help=FIRST_LINES["runs"])


def _add_hierarchies(commands: Any) -> None:
    """The commands about hierarchies.

    Args:
        commands: Subcommands of the parser.
    """
    command = new_parser()
    command.add_argument("files", type=Path, nargs="+", help="Hierarchies, or files of names.")
    command.add_argument("--to", type=Path, required=True, help="New file: .names.")
    command.add_argument(
        "--relations", type=Path, help="New file for names of relations: files hold triples then."
    )
    command.add_argument("--key", type=Path, help="File of the holders' key, to hash names with.")
    commands.add_subcommand("names", command, help=FIRST_LINES["names"])
    command = new_parser()
    command.add_argument("table", type=str, help=f"Name: {' or '.join(READY)}.")
    command.add_argument("--to", type=Path, required=True, help="File: .npz or .safetensors.")
    commands.add_subcommand("ready", command, help=FIRST_LINES["ready"])
    command = new_parser()
    command.add_argument("source", type=Path, help="Run, taxonomy file, or file of an embedding.")
    command.add_argument(
        "--to", type=Path, help="New HTML file; by default named after the source."
    )
    command.add_argument(
        "--way", choices=WAYS, default="sectors", help="Layout of a taxonomy in the plane."
    )
    command.add_argument(
        "--relation", type=str, help="Relation of a knowledge graph, with tails as parents."
    )
    command.add_argument("--title", type=str, help="Heading of the page.")
    commands.add_subcommand("view", command, help=FIRST_LINES["view"])


def _add_account_actions(command: ArgumentParser) -> None:
    actions = command.add_subcommands(dest="action")
    for name, about in (("create", "Create an account."), ("show", "Print what was spent.")):
        action = new_parser()
        action.add_argument("folder", type=Path, help="Folder of the accounts.")
        action.add_argument("data", type=str, help="Owner's name of the data.")
        if name == "create":
            action.add_method_arguments(PrivacyAccounts, "create", as_positional=False)
        actions.add_subcommand(name, action, help=about)
    action = new_parser()
    action.add_argument("folder", type=Path, help="Folder of the site.")
    action.add_argument(
        "--limits", type=dict[str, int], help="Largest number of requests by kind, as JSON."
    )
    actions.add_subcommand("site", action, help="Create keys and limits of a node's transcript.")
