"""Messages about mistakes in settings: what was wrong, what came, and what to do."""

import dataclasses
import importlib
import inspect
import re
import sys
from collections.abc import Callable, Iterable, Sequence

from fedbolic.core.imports import load_class
from fedbolic.run.packaged_configs import config_names
from fedbolic.run.public_classes import nearest, public_classes

AROUND = {
    "Dataset": ("Partitioned", "dataset"),
    "GraphSet": ("Graphs", "graph"),
    "HierarchySet": ("PartitionedHierarchy", "hierarchy"),
    "TripleSet": ("PartitionedTriples", "graph"),
}
"""Source of clients that shares out a data set of a kind, and its option for the data set."""

_KEY = r"Parser key \"([\w.]+)\": "
_OWNER = r"Problem with given class_path '([\w.]+)': "
_UNKNOWN_CLASS = r"Expected a dot import path string: (\S+)"


def with_known_classes(words: Sequence[str], text: str) -> list[str] | None:
    """Arguments that can be read where the parser met the short name of a class.

    The package of the class is imported, so that the parser finds it. A data set in the place of a
    source, such as ``--data Digits``, becomes ``--data=Partitioned --data.dataset=Digits``.

    Args:
        words: Command-line arguments.
        text: The parser's error.

    Returns:
        The arguments to try again; ``None`` if there is nothing more to try.
    """
    met = re.search(_UNKNOWN_CLASS, text)
    found = public_classes().get(met[1]) if met else None
    if met is None or found is None:
        return None
    package = found.path.rpartition(".")[0]
    if package not in sys.modules:
        importlib.import_module(package)
        return list(words)
    kind = next((kind for kind in AROUND if kind in found.bases), None)
    return None if kind is None else _shared_out(words, met[1], *AROUND[kind])


def _shared_out(words: Sequence[str], name: str, source: str, option: str) -> list[str] | None:
    """Arguments with a source around the data set that was named in its place."""
    instead = [f"--data={source}", f"--data.{option}={name}"]
    for at, word in enumerate(words):
        if word == f"--data={name}":
            return [*words[:at], *instead, *words[at + 1 :]]
        if [word, *words[at + 1 : at + 2]] == ["--data", name]:
            return [*words[:at], *instead, *words[at + 2 :]]
    return None


def explained(text: str, options: Callable[[], Iterable[str]]) -> str:
    """The parser's error in words of the settings, with a cure.

    Args:
        text: The parser's error in one line, given back as it is if nothing is known about it.
        options: Function that gives all options which the settings could have.

    Example:
        >>> explained('Parser key "engine": Expected a dot import path string: Batchd', list)
        'engine: there is no class Batchd (the nearest are Batched)'
        >>> explained("unrecognized arguments: --lr 1", lambda: ["method.lr", "seed"])
        '--lr is no option (the nearest are --method.lr)'
    """
    # of several types, such as a class and null, the first error is the one about the class
    text = re.sub(r"Does not validate against .*? Errors: - (.*?) - Expected a .*", r"\1", text)
    key = ".".join(re.findall(_KEY, text))
    owner = (re.findall(_OWNER, text) or [""])[-1]
    inner = re.sub(rf".*({_KEY}|{_OWNER})", "", text)
    for pattern, answer in _ANSWERS.items():
        if met := re.match(pattern, inner):
            said = answer(met, owner, options)
            return f"{key}: {said}" if key else said
    return text


_LISTS = "; `fedbolic methods` and `fedbolic data` list short names, others need their import path"


def _unknown_class(met: re.Match, *_: object) -> str:
    if found := public_classes().get(met[1]):
        return f"{found.path} is not of the kind of class that belongs here"
    settings = [name for name in config_names() if name.startswith(f"{met[1].lower()}/")]
    if settings and met[1].lower() not in map(str.lower, public_classes()):
        # a setting of another method, such as FedProx
        return f"there is no class {met[1]}: did you mean --config {settings[0]}?"
    return f"there is no class {met[1]}{nearest(met[1], public_classes()) or _LISTS}"


def _unknown_option_of_class(met: re.Match, owner: str, _: object) -> str:
    kind = load_class(owner, object)
    known = list(inspect.signature(kind).parameters)
    if met[1] in known:
        return f"{owner}: its option {met[1]} takes no such value"
    inner = [
        f"{field.name}.{met[1]}"
        for field in (dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ())
        for record in (field.default, field.default_factory)
        if dataclasses.is_dataclass(record)
        and met[1] in {each.name for each in dataclasses.fields(record)}
    ]
    near = f" (the nearest are {', '.join(inner)})" if inner else nearest(met[1], known)
    near = near or f"; it has {', '.join(known) or 'none'}"
    inside = dict(AROUND.values()).get(owner.rpartition(".")[2])
    if inside:
        near += f"; options of what it shares out begin with --data.{inside}, those of the "
        near += "partition with --data.partition"
    return f"{owner} has no option {met[1]}{near}"


def _unknown_option(met: re.Match, _: str, options: Callable[[], Iterable[str]]) -> str:
    word = given = met[1].partition("=")[0].partition(" ")[0]
    if not word.startswith("-"):
        hint = f": did you mean --config {word}?" if word in config_names() else ""
        return f"{word} belongs to no option{hint}"
    word = f"--{word.strip('-').replace('-', '_')}"
    name = re.escape(word.strip("-").rpartition(".")[2])
    known = [f"--{option}" for option in options()]
    same = [option for option in known if re.search(rf"[._]{name}$", option)][:3]
    near = f" (the nearest are {', '.join(same)})" if same else nearest(word, known)
    return f"{given} is no option{near or '; a command lists its options with --help'}"


def _unknown_key(met: re.Match, _: str, options: Callable[[], Iterable[str]]) -> str:
    near = nearest(met[1], options()) or "; a command lists its options with --help"
    return f"{met[1]} is no option{near}"


def _list(met: re.Match, *_: object) -> str:
    value = met[1] or "8"
    item = f"{value},{value}" if value.isdecimal() else value
    return f"it must be a list, such as [{item}]"


def _unknown_command(met: re.Match, *_: object) -> str:
    if met[1] in config_names():
        return f"there is no command {met[1]}: did you mean `fedbolic run --config {met[1]}`?"
    known = re.findall(r"'([\w-]+)'", met[2])
    near = nearest(met[1], known) or f"; the commands are {', '.join(known)}"
    return f"there is no command {met[1]}{near}"


def _missing(met: re.Match, owner: str, _: object) -> str:
    command = re.match(r"(\w+)\.", met[1])
    names = re.sub(r"\w+\.", "", met[1])
    if owner or command is None:
        return f"{owner or 'the command'} needs {names}"
    return f"{command[1]} needs {names}: see `fedbolic {command[1]} --help`"


_ANSWERS: dict[str, Callable[[re.Match, str, Callable[[], Iterable[str]]], str]] = {
    _UNKNOWN_CLASS: _unknown_class,
    r"Option '(\w+)' is not accepted": _unknown_option_of_class,
    r"unrecognized arguments: (.*)": _unknown_option,
    r"Subcommand '\w+' does not accept option '([\w.]+)'": _unknown_key,
    r"Import path (\S+) does not correspond to a subclass of (\w+)": lambda met, *_: (
        f"{met[1]} is no class of the kind {met[2]}{_LISTS}"
    ),
    r"Unexpected import path format: (\S+)": lambda met, *_: f"{met[1]} is no class{_LISTS}",
    r"argument command: invalid choice: '(.*?)' \((.*)\)": _unknown_command,
    r"the following arguments are required: (.*)": _missing,
    r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)": lambda met, *_: (
        f"it must be one of {met[1]}, but is {met[2]}"
    ),
    r"Expected a <class '(?:list|tuple|collections\.abc\.\w+)'>(?:\. Got value: (\S+))?": _list,
    r"Expected a <class '(\w+)'>\. Got value: (.*)": lambda met, *_: (
        f"it must be of type {met[1]}, but is {met[2]}"
    ),
    r"Unexpected config: (.*)": lambda met, *_: (
        f"a configuration is a YAML table of options, but this begins with {met[1]:.40}"
    ),
}
