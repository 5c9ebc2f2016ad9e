"""Help of a command, including the options of all classes selected on the command line."""

import argparse
import contextlib
import dataclasses
import io
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from fedbolic.core.imports import extra
from fedbolic.run.configuration import (
    import_class,
    is_record,
    kinds_of,
    parameters,
    plain,
    read_words,
)

with extra("run", "the command line"):
    from jsonargparse import ArgumentParser


def options_in_full(parser: ArgumentParser, function: Callable, words: Sequence[str]) -> str:
    """Help of a command; with more words, followed by the options of each class that it would use.

    Args:
        parser: Parser of the whole command line.
        function: Function whose parameters are the options of the command.
        words: Command-line arguments, beginning with the command; ``-h`` and ``--help`` are
            ignored.

    Raises:
        SetupError: If an argument names an option, class or file that does not exist.
    """
    command, *others = (word for word in words if word not in ("-h", "--help"))
    text = _printed(parser, [command, "--help"])
    if not others:
        return f"{text}\n{_MORE.format(command)}"
    own = ("--overwrite", "--dry", "--deployment", "--app")  # no parameters of the function
    known = [word for word in others if not word.startswith(own)]
    for key, owner in dict(_classes(function, read_words(function, known), "")).items():
        section = ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
        section.add_class_arguments(owner, key)
        text += f"\n--{key} {owner.__module__}.{owner.__qualname__}\n\n{section.format_help()}"
    return text


_MORE = """\
Options of a method and of its data:  fedbolic {0} --help --method HyperFed --data Digits
Options that a configuration uses:    fedbolic {0} --help --config fedavg/quick
Methods, data and configurations:     fedbolic methods, fedbolic data, fedbolic configs
"""


def _classes(function: Callable, asked: dict[str, Any], prefix: str) -> Iterator[tuple[str, type]]:
    """All classes among the parameters of a function or class, by the prefix of their options."""
    for name, (kind, default) in parameters(function).items():
        value = asked.get(name)
        if value is None and dataclasses.is_dataclass(default):
            value = plain(default)
        yield from _classes_in(value, kind, f"{prefix}{name}")


def _classes_in(value: Any, kind: Any, key: str) -> Iterator[tuple[str, type]]:
    if isinstance(value, list | tuple):
        for item in value:
            yield from _classes_in(item, Any, key)
    elif isinstance(value, dict) and "class_path" in value:
        owner = import_class(value["class_path"])
        yield key, owner
        yield from _classes(owner, value.get("init_args", {}), f"{key}.")
    else:
        kinds = kinds_of(kind)
        for owner in filter(is_record, kinds):
            if types.NoneType in kinds:  # otherwise the enclosing help lists the options
                yield key, owner
            yield from _classes(owner, value if isinstance(value, dict) else {}, f"{key}.")


def _printed(parser: ArgumentParser, words: Sequence[str]) -> str:
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        with contextlib.suppress(SystemExit):
            parser.parse_args(list(words))
        return text.getvalue()
