"""Completion of commands, options and names in bash and zsh."""

from collections.abc import Mapping, Sequence
from typing import Any

from fedbolic import __version__
from fedbolic.cli.parser import command_line
from fedbolic.run.packaged_configs import config_names
from fedbolic.run.public_classes import heirs

CLASS_OPTIONS = {
    "--method": ("Method",),
    "--data": ("Source", "Dataset", "GraphSet", "HierarchySet", "TripleSet"),
    "--data.dataset": ("Dataset",),
    "--data.graph": ("GraphSet", "TripleSet"),
    "--data.hierarchy": ("HierarchySet",),
    "--data.partition": ("Partition", "GraphPartition", "HierarchyPartition", "TriplePartition"),
    "--engine": ("Engine",),
}
"""Options that are followed by the name of a class, and the kinds of these classes."""

SCRIPT = """\
# Completion of fedbolic {version} in bash and zsh: source <(fedbolic completion)
if [ -n "$ZSH_VERSION" ]; then autoload -U compinit bashcompinit; compinit; bashcompinit; fi
_fedbolic() {{
    local words=""
    case "${{COMP_WORDS[COMP_CWORD-1]}}" in
{values}
    "${{COMP_WORDS[0]}}") words="{commands}" ;;
    *) case "${{COMP_WORDS[1]}}" in
{options}
    esac ;;
    esac
    COMPREPLY=($(compgen -W "$words" -- "${{COMP_WORDS[COMP_CWORD]}}"))
}}
complete -o default -F _fedbolic fedbolic
"""


def completion() -> str:
    """Script for a shell, made from the parser and the index of public classes.

    Where no word fits, such as the path of a configuration, the shell completes files.
    """
    commands = _commands(command_line())
    values = {"--config": config_names()}
    values |= {
        option: [x for kind in kinds for x in heirs(kind)]
        for option, kinds in CLASS_OPTIONS.items()
    }
    return SCRIPT.format(
        version=__version__,
        values=_cases(values),
        commands=" ".join(commands),
        options=_cases({name: _options(command) for name, command in commands.items()}),
    )


def _commands(parser: Any) -> dict[str, Any]:
    """Parsers of the subcommands of a parser, by name; empty if it has none."""
    found = (action.choices for action in parser._actions if isinstance(action.choices, dict))
    return next(found, {})


def _options(parser: Any) -> list[str]:
    """Subcommands and long options of a parser, without the help of single options."""
    options = [name for action in parser._actions for name in action.option_strings]
    long = [name for name in options if name.startswith("--") and not name.endswith(".help")]
    inner = _commands(parser)
    return [*inner, *dict.fromkeys([*long, *(x for one in inner.values() for x in _options(one))])]


def _cases(words: Mapping[str, Sequence[str]]) -> str:
    return "\n".join(f'    {name}) words="{" ".join(each)}" ;;' for name, each in words.items())
