"""YAML and flags to objects, and objects back to YAML."""

import contextlib
import dataclasses
import importlib
import inspect
import re
import types
import typing
from abc import ABC
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeGuard

import yaml
from jsonargparse import (
    ArgumentError,
    ArgumentParser,
    Namespace,
    get_loader,
    set_loader,
    set_parsing_settings,
)

from fedbolic.imports import STANDARD
from fedbolic.renamed import renamed
from fedbolic.yaml_text import refuse_unclear

INVISIBLE = ("overwrite", "callbacks", "nodes")
"""Parameters that say how to call, not what to run: they stand in no configuration."""

# A configuration may be somebody else's. What it names is imported before its type is seen.
set_parsing_settings(import_path_denylist=STANDARD, instantiate_subclass_spec_in_any=False)


class SetupError(ValueError):
    """A run cannot begin as it was asked for; nothing was written."""


@contextlib.contextmanager
def setting_up() -> Iterator[None]:
    """Report errors of values, files and arguments as one-line set-up errors.

    Raises:
        SetupError: In place of any error about values, files or arguments.
    """
    try:
        yield
    except (ArgumentError, ValueError, TypeError, OSError) as error:
        hint = renamed(text := one_line(error))
        raise SetupError(f"{text} ({hint})" if hint else text) from error


def _load_yaml(text: str) -> Any:
    refuse_unclear(text)
    return get_loader("yaml")(text)


MODE = "clear yaml"
"""The name under which jsonargparse knows YAML that leaves nothing to guess."""

set_loader(MODE, _load_yaml, exceptions=(yaml.YAMLError,))


def new_parser(**settings: Any) -> ArgumentParser:
    """A parser of words and YAML that raises an error where it refuses something.

    Args:
        **settings: Passed on to jsonargparse.
    """
    return ArgumentParser(exit_on_error=False, parser_mode=MODE, **settings)


def parser_of(function: Callable, **settings: Any) -> ArgumentParser:
    """A parser whose options are the parameters of ``function``, and ``--config`` for a YAML file.

    Args:
        function: Its signature is the schema, its docstring the help.
        **settings: Passed on to the parser.
    """
    parser = new_parser(**settings)
    parser.add_argument("--config", action="config", help="a YAML file of the options below")
    parser.add_function_arguments(function, as_positional=False, skip=set(INVISIBLE))
    # A class named in place of a default would inherit the default's settings of the same name.
    parser.set_defaults(dict.fromkeys(_replaceable(function)))
    return parser


def _replaceable(function: Callable) -> list[str]:
    """The parameters whose default is one implementation of an abstract class."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if _is_chosen(p.default)]


def _is_chosen(value: Any) -> bool:
    """True if a value is one implementation of an abstract class."""
    return ABC in type(value).__mro__  # isinstance would take a number or a path for one as well


def given(function: Callable, settings: dict[str, Any]) -> dict[str, Any]:
    """The parsed settings without those for which the function's own default stands."""
    own = _replaceable(function)
    return {n: v for n, v in settings.items() if n != "config" and not (n in own and v is None)}


def parse(
    parser: ArgumentParser,
    arguments: Sequence[str],
    functions: Mapping[str, Callable] = types.MappingProxyType({}),
) -> Namespace:
    """The objects that command-line words ask for.

    Args:
        parser: Of the words.
        arguments: The words.
        functions: By the name of a subcommand, whose parameters its options are.

    Raises:
        SetupError: In one line, if a key or class is unknown or a value is refused.
    """
    with setting_up():
        asked = parser.parse_args(list(arguments))
        if function := functions.get(asked.get("command", "")):
            _refuse_null(function, asked[asked.command])
        return parser.instantiate(asked)


def build(function: Callable, arguments: Sequence[str]) -> dict[str, Any]:
    """The arguments of ``function`` from command-line words.

    Raises:
        SetupError: As :func:`parse`.
    """
    with setting_up():
        parser = parser_of(function)
        asked = parser.parse_args(list(arguments))
        _refuse_null(function, asked)
        return given(function, vars(parser.instantiate(asked)))


def read_words(function: Callable, arguments: Sequence[str]) -> dict[str, Any]:
    """The settings of ``function`` that words ask for; classes by their paths, nothing is made.

    Raises:
        SetupError: As :func:`parse`, as far as it can be seen without making anything.
    """
    with setting_up():
        return parser_of(function).parse_args(list(arguments)).as_dict()


def _refuse_null(function: Callable, asked: Namespace) -> None:
    """Refuse the null that jsonargparse takes for a value of any type."""
    chosen = _replaceable(function)  # null stands for what they are by default
    for name, (kind, _) in parameters(function).items():
        if name in asked and not (name in chosen and asked[name] is None):
            _refuse_null_in(asked[name], kind, name)


def _refuse_null_in(value: Any, kind: Any, key: str) -> None:
    kinds = kinds_of(kind)
    if value is None and not {types.NoneType, Any, object} & set(kinds):
        raise SetupError(f"{key} is null: give it a value, or leave it out for its default")
    if isinstance(value, list | tuple):
        item = (*typing.get_args(kinds[0]), Any)[0]
        for number, one in enumerate(value):
            _refuse_null_in(one, item, f"{key}[{number}]")
    if not isinstance(value, Namespace):
        return
    if "class_path" in value:
        owner, value = import_class(value.class_path), value.get("init_args") or Namespace()
    else:
        owner = next((one for one in kinds if is_record(one)), None)
    for name, (inner, _) in parameters(owner).items() if owner else ():
        if name in value:
            _refuse_null_in(value[name], inner, f"{key}.{name}")


def is_record(kind: Any) -> TypeGuard[type]:
    """True for a dataclass, whose fields are options."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """The types of a union, or the one type."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def parameters(function: Callable) -> dict[str, tuple[Any, Any]]:
    """The types and defaults of the parameters of a function or class, as far as they are known.

    Example:
        >>> def call(times: int, name: str | None = None): ...
        >>> parameters(call)["name"]
        (str | None, None)
    """
    try:
        kinds = typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError):  # a name that only a type checker sees
        kinds = {}
    given = inspect.signature(function).parameters
    return {name: (kinds.get(name, Any), given[name].default) for name in given}


def import_class(path: str) -> type:
    """The class of a dotted path, which has been checked to be one.

    Args:
        path: Such as ``fedbolic.methods.FedAvg``.
    """
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def one_line(error: Exception | str) -> str:
    """A message without line breaks."""
    return " ".join(str(error).split())


def describe(function: Callable, settings: dict[str, Any]) -> str:
    """The YAML text of a call of ``function``, defaults written out; :func:`build` reads it back.

    Raises:
        SetupError: If a value is not made of frozen dataclasses and plain values.

    Example:
        >>> from fedbolic.federated import Aggregator, Median
        >>> def call(aggregator: Aggregator = Median(), times: int = 1): ...
        >>> print(describe(call, {"times": 2}), end="")
        aggregator:
          class_path: fedbolic.federated.aggregators.median.Median
        times: 2
    """
    call = inspect.signature(function).bind(**settings)
    call.apply_defaults()
    written = {name: plain(v) for name, v in call.arguments.items() if name not in INVISIBLE}
    return yaml.dump(written, Dumper=_Dumper, sort_keys=False)


class _Dumper(yaml.SafeDumper):
    """Quotes texts such as 1e3 too: a number for jsonargparse, though not for YAML 1.1."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def plain(value: Any) -> Any:
    """An object as a configuration names it: dicts, lists, texts and numbers.

    Args:
        value: A frozen dataclass, a path, or what is plain already, also within dicts and lists.

    Raises:
        SetupError: If a value is anything else.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [f.name for f in dataclasses.fields(value) if f.init]
        fields = {name: plain(getattr(value, name)) for name in given}
        kind = type(value)
        if not _is_chosen(value):  # no choice of class, so no need to name it
            return fields
        path = {"class_path": f"{kind.__module__}.{kind.__qualname__}"}
        return path | ({"init_args": fields} if fields else {})
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise SetupError(
        f"{value!r} cannot be written to a configuration: use frozen dataclasses of plain values"
    )
