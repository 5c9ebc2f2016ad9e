"""Conversion of YAML and command-line options to objects, and back to YAML."""

import argparse
import contextlib
import dataclasses
import functools
import importlib
import inspect
import re
import types
import typing
from abc import ABC
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from fedbolic.core.imports import STANDARD, MissingExtraError, extra, namesake
from fedbolic.core.reading import read_text
from fedbolic.core.yaml_text import SETTINGS_SIZE, null_for_none, refuse_unclear
from fedbolic.run.mistakes import explained, with_known_classes
from fedbolic.run.packaged_configs import find_config

with extra("run", "fedbolic.run"):
    import yaml
    from jsonargparse import (
        ActionConfigFile,  # pyright: ignore[reportPrivateImportUsage]
        ArgumentError,
        ArgumentParser,
        DefaultHelpFormatter,
        Namespace,
        get_loader,
        set_loader,
        set_parsing_settings,
    )

INVISIBLE = ("overwrite", "callbacks", "nodes")
"""Parameters of the call that do not describe the run and are left out of configurations."""

# A configuration may be untrusted, and a class that it names is imported before it is checked.
set_parsing_settings(import_path_denylist=STANDARD, instantiate_subclass_spec_in_any=False)


class SetupError(ValueError):
    """Error in the settings of a run, raised before anything is written."""


@contextlib.contextmanager
def setting_up() -> Iterator[None]:
    """Convert errors about values, files, arguments and extras to one-line set-up errors.

    Raises:
        SetupError: If the block raises an error about values, files, arguments or a missing extra.
    """
    try:
        yield
    except (ArgumentError, ValueError, TypeError, OSError, MissingExtraError) as error:
        hint = namesake(text := one_line(error))
        raise SetupError(f"{text} ({hint})" if hint else text) from error


def _load_yaml(text: str) -> Any:
    refuse_unclear(text)
    # jsonargparse parses the value of a nested option twice, and prints it in between: None
    return get_loader("yaml")(null_for_none(text))


MODE = "clear yaml"
"""Name of the jsonargparse loader that refuses ambiguous YAML."""

set_loader(MODE, _load_yaml, exceptions=(yaml.YAMLError,))


def new_parser(**settings: Any) -> ArgumentParser:
    """A parser of command-line options and YAML that raises errors instead of exiting.

    Args:
        **settings: Keyword arguments of jsonargparse's ``ArgumentParser``.
    """
    settings = {"formatter_class": HelpFormatter, **settings}
    return ArgumentParser(exit_on_error=False, parser_mode=MODE, **settings)


class HelpFormatter(DefaultHelpFormatter):
    """Help with short names, and without lists of classes, which have separate commands."""

    def add_argument(self, action: argparse.Action) -> None:
        """Add an option, unless it prints the help of a class, as ``--help`` does, too."""
        if not action.dest.endswith(".help"):
            super().add_argument(action)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        text = re.sub(r", known subclasses: [^)]*\)$", ")", text)
        text = re.sub(r"default: \{'class_path': '[\w.]*?(\w+)'.*\}", r"default: \1", text)
        text = re.sub(r"<class '(\w+)'>", r"\1", text)
        return re.sub(r"(\(type: \w+), default: null", r"\1", text)  # the function's own applies


class _ConfigFile(ActionConfigFile):
    """Option for a YAML file, or the name of a configuration of the package."""

    def __call__(self, parser: Any, cfg: Any, values: Any, option_string: Any = None) -> None:
        file = find_config(str(values))
        _refuse_wrong_file(str(file), {action.dest for action in parser._actions})
        super().__call__(parser, cfg, file, option_string)


def _refuse_wrong_file(file: str, options: Collection[str]) -> None:
    """Refuse a file that is no configuration, or is that of another command."""
    try:
        text = read_text(Path(file), SETTINGS_SIZE)
    except (OSError, UnicodeDecodeError):  # or YAML itself: the parser reports these
        return
    try:
        settings = _load_yaml(text)
    except yaml.YAMLError as error:
        place = one_line(error).replace('in "<unicode string>", ', "at ")
        raise ValueError(f"{file} is not clear YAML: {place}") from error
    if settings is None:
        raise ValueError(
            f"{file} is empty: it needs options, such as method: {{class_path: FedAvg}}"
        )
    if not isinstance(settings, dict):
        return
    for name, value in settings.items():
        beside = value.keys() - {"class_path", "init_args"} if isinstance(value, dict) else ()
        if beside and "class_path" in value:
            raise ValueError(
                f"{file}: {name} has {', '.join(sorted(map(str, beside)))} next to class_path: "
                "options belong in init_args"
            )
    unknown = settings.keys() - set(options)
    if "rows" in unknown:
        raise ValueError(f"{file} has several rows; run it by: fedbolic sweep --config {file}")
    if "method" in unknown and "rows" in options:
        raise ValueError(f"{file} describes one run; run it by: fedbolic run --config {file}")


def parser_of(function: Callable, **settings: Any) -> ArgumentParser:
    """A parser with the parameters of ``function`` as options, and ``--config`` for a YAML file.

    Args:
        function: Function whose signature is the schema and whose docstring is the help.
        **settings: Keyword arguments of the parser.
    """
    parser = new_parser(**settings)
    about = "YAML file with any of the options, or a name that `fedbolic configs` lists."
    parser.add_argument("--config", action=_ConfigFile, help=about)
    parser.add_function_arguments(function, as_positional=False, skip=set(INVISIBLE))
    # Otherwise a class that replaces a default would inherit the default's settings of equal name.
    parser.set_defaults(dict.fromkeys(_replaceable(function)))
    return parser


# a sweep reads hundreds of rows, and to make a parser takes a fifth of the time to read one
_read_only_parser = functools.cache(parser_of)


def _replaceable(function: Callable) -> list[str]:
    """The parameters whose default is an implementation of an abstract class."""
    parameters = inspect.signature(function).parameters
    return [name for name, p in parameters.items() if _is_chosen(p.default)]


def _is_chosen(value: Any) -> bool:
    """True if a value is an implementation of an abstract class."""
    return ABC in type(value).__mro__  # isinstance(value, ABC) would accept numbers and paths


def given(function: Callable, settings: dict[str, Any]) -> dict[str, Any]:
    """The parsed settings without unset ones, for which the function's own default applies."""
    own = _replaceable(function)
    return {n: v for n, v in settings.items() if n != "config" and not (n in own and v is None)}


def parse(
    parser: ArgumentParser,
    arguments: Sequence[str],
    functions: Mapping[str, Callable] = types.MappingProxyType({}),
) -> Namespace:
    """Parse command-line arguments and build the objects they describe.

    Args:
        parser: Parser of the command line.
        arguments: Command-line arguments.
        functions: Functions by name of the subcommand whose options are their parameters.

    Raises:
        SetupError: If an option or class is unknown, or a value is invalid.
    """
    with setting_up():
        asked = _parse_words(parser, arguments, functions.get("".join(arguments[:1])))
        if function := functions.get(asked.get("command", "")):
            _refuse_null(function, asked[asked.command])
        return parser.instantiate(asked)


def build(function: Callable, arguments: Sequence[str]) -> dict[str, Any]:
    """Build the arguments of ``function`` from command-line arguments.

    Raises:
        SetupError: As in :func:`parse`.
    """
    with setting_up():
        parser = _read_only_parser(function)
        asked = _parse_words(parser, arguments, function)
        _refuse_null(function, asked)
        return given(function, vars(parser.instantiate(asked)))


def read_words(function: Callable, arguments: Sequence[str]) -> dict[str, Any]:
    """Parse command-line arguments of ``function`` to nested dicts without building objects.

    Raises:
        SetupError: As in :func:`parse`, except for errors found only when objects are built.
    """
    with setting_up():
        return _parse_words(_read_only_parser(function), arguments, function).as_dict()


def _parse_words(
    parser: ArgumentParser, arguments: Sequence[str], function: Callable | None
) -> Namespace:
    """Parse arguments, in which public classes have short names, and explain mistakes."""
    try:
        return parser.parse_args(list(arguments))
    except ArgumentError as error:
        text = one_line(error)
        if (again := with_known_classes(arguments, text)) is not None:
            return _parse_words(parser, again, function)
        found = re.fullmatch(rf'Parser key "(\w+)": {_NO_CLASS}.*', text)
        if function is None or found is None or found[1] not in _replaceable(function):
            raise SetupError(explained(text, partial(_options, parser, function))) from error
        default = plain(inspect.signature(function).parameters[found[1]].default)["class_path"]
        name = default.rpartition(".")[2]
        raise SetupError(
            f"{found[1]} must name a class that can be created, such as --{found[1]}={name}, even "
            f"if only its options are given; in a file, class_path: {name} names it, and init_args "
            "has its options"
        ) from error


_NO_CLASS = r"(Expected .* is abstract|Not a valid subclass of \w+\. Got value: NestedArg)"


def _options(parser: ArgumentParser, function: Callable | None) -> Iterator[str]:
    """Names of the options of a command, with those of the classes that it uses by default."""
    yield from (action.dest for action in parser._actions)
    for name, (_, default) in parameters(function).items() if function else ():
        yield name
        if dataclasses.is_dataclass(default):
            yield from _fields(default, name)


def _fields(record: Any, prefix: str) -> Iterator[str]:
    for field in dataclasses.fields(record):
        yield (name := f"{prefix}.{field.name}")
        if dataclasses.is_dataclass(value := getattr(record, field.name)):
            yield from _fields(value, name)


def _refuse_null(function: Callable, asked: Namespace) -> None:
    """Refuse null for types that exclude it, since jsonargparse accepts it for any type."""
    chosen = _replaceable(function)  # null means the default here
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
    """True if ``kind`` is a dataclass, whose fields are options."""
    return isinstance(kind, type) and dataclasses.is_dataclass(kind)


def kinds_of(kind: Any) -> tuple[Any, ...]:
    """The members of a union type, or the single type."""
    is_union = typing.get_origin(kind) in (typing.Union, types.UnionType)
    return typing.get_args(kind) if is_union else (kind,)


def parameters(function: Callable) -> dict[str, tuple[Any, Any]]:
    """Types and defaults of the parameters of a function or class; ``Any`` for unknown types.

    Example:
        >>> def call(times: int, name: str | None = None): ...
        >>> parameters(call)["name"]
        (str | None, None)
    """
    try:
        kinds = typing.get_type_hints(function.__init__ if isinstance(function, type) else function)
    except (NameError, TypeError):  # annotated with a name imported for type checkers only
        kinds = {}
    given = inspect.signature(function).parameters
    return {name: (kinds.get(name, Any), given[name].default) for name in given}


def import_class(path: str) -> type:
    """Import a class by its path, which must have been validated before.

    Args:
        path: Import path, such as ``fedbolic.methods.FedAvg``.
    """
    module, _, name = path.rpartition(".")
    return getattr(importlib.import_module(module), name)


def one_line(error: Exception | str) -> str:
    """A message without line breaks and without the number of a system's error about a file."""
    if isinstance(error, OSError) and error.strerror and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split())


def describe(function: Callable, settings: dict[str, Any]) -> str:
    """Write a call of ``function`` with its defaults as YAML, which :func:`build` reads back.

    Raises:
        SetupError: If a value consists of anything but dataclasses and values of basic types.

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
    """YAML dumper that also quotes strings such as 1e3, a number for jsonargparse only."""


_Dumper.add_implicit_resolver(
    "tag:yaml.org,2002:float",
    re.compile(r"[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+$"),
    list("-+0123456789"),
)


def plain(value: Any) -> Any:
    """Convert an object to dicts, lists, strings and numbers for a configuration.

    Args:
        value: A dataclass, a class, a path or a value of a basic type, or dicts and lists of these.

    Raises:
        SetupError: If a value is of any other type.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        given = [f.name for f in dataclasses.fields(value) if f.init]
        fields = {name: plain(getattr(value, name)) for name in given}
        kind = type(value)
        if not _is_chosen(value):  # the type of the parameter determines the class
            return fields
        path = {"class_path": f"{kind.__module__}.{kind.__qualname__}"}
        return path | ({"init_args": fields} if fields else {})
    if isinstance(value, Namespace):  # a description of a class that the parser has not built
        value = value.as_dict()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, Path):
        return str(value)
    if isinstance(value, type):
        return f"{value.__module__}.{value.__qualname__}"
    if value is None or isinstance(value, str | int | float | bool):
        return value
    raise SetupError(
        f"{one_line(repr(value)):.80} cannot be written to a configuration: use frozen dataclasses "
        "of plain values, and for arrays of your own numpy.savez(file, x=x, y=y) and Arrays(file)"
    )
