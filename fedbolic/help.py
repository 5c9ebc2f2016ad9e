"""The help of a command with every option of the classes that its words name."""

import argparse
import contextlib
import dataclasses
import io
import types
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from jsonargparse import ArgumentParser

from fedbolic.configuration import import_class, is_record, kinds_of, parameters, plain, read_words


def options_in_full(parser: ArgumentParser, function: Callable, words: Sequence[str]) -> str:
    """The help of a command, then the options of each class that it would use.

    Args:
        parser: Of the whole command line.
        function: Whose parameters the command's options are.
        words: Of the command line, first the command; a question for help among them is passed by.

    Raises:
        SetupError: If the words name what is not there.
    """
    command, *others = (word for word in words if word not in ("-h", "--help"))
    text = _printed(parser, [command, "--help"])
    # what only this command has is no parameter of the function
    known = [
        word for word in others if not word.startswith(("--overwrite", "--deployment", "--app"))
    ]
    for key, owner in dict(_classes(function, read_words(function, known), "")).items():
        section = ArgumentParser(usage=argparse.SUPPRESS, add_help=False)
        section.add_class_arguments(owner, key)
        text += f"\n--{key} {owner.__module__}.{owner.__qualname__}\n\n{section.format_help()}"
    return text


def _classes(function: Callable, asked: dict[str, Any], prefix: str) -> Iterator[tuple[str, type]]:
    """Every class below a function or class, by the key of its options."""
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
            if types.NoneType in kinds:  # else the options stand in the help of what holds it
                yield key, owner
            yield from _classes(owner, value if isinstance(value, dict) else {}, f"{key}.")


def _printed(parser: ArgumentParser, words: Sequence[str]) -> str:
    with io.StringIO() as text, contextlib.redirect_stdout(text):
        with contextlib.suppress(SystemExit):
            parser.parse_args(list(words))
        return text.getvalue()
