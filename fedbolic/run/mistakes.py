"""Messages about mistakes in settings: what was wrong, what came, and what to do."""

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


def _unknown_class(met: re.Match, *_: object) -> str:
    if found := public_classes().get(met[1]):
        return f"{found.path} is not of the kind of class that belongs here"
    lists = (
        "; `fedbolic methods` and `fedbolic data` list short names, others need their import path"
    )
    return f"there is no class {met[1]}{nearest(met[1], public_classes()) or lists}"


def _unknown_option_of_class(met: re.Match, owner: str, _: object) -> str:
    known = list(inspect.signature(load_class(owner, object)).parameters)
    near = nearest(met[1], known) or f"; it has {', '.join(known) or 'none'}"
    inside = dict(AROUND.values()).get(owner.rpartition(".")[2])
    near += f"; of what it shares out, options begin with --data.{inside}" if inside else ""
    return f"{owner} has no option {met[1]}{near}"


def _unknown_option(met: re.Match, _: str, options: Callable[[], Iterable[str]]) -> str:
    word = met[1].partition("=")[0].partition(" ")[0]
    if not word.startswith("-"):
        hint = f": did you mean --config {word}?" if word in config_names() else ""
        return f"{word} belongs to no option{hint}"
    name = re.escape(word.strip("-").rpartition(".")[2])
    known = [f"--{option}" for option in options()]
    same = [option for option in known if re.search(rf"[._]{name}$", option)][:3]
    near = f" (the nearest are {', '.join(same)})" if same else nearest(word, known)
    return f"{word} is no option{near}"


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
    r"argument command: invalid choice: '(.*?)' \((.*)\)": _unknown_command,
    r"the following arguments are required: (.*)": _missing,
    r"Expected a typing\.Literal\[(.*)\]\. Got value: (.*)": lambda met, *_: (
        f"it must be one of {met[1]}, but is {met[2]}"
    ),
    r"Expected a <class '(?:list|tuple)'>": lambda *_: "it must be a list, such as [8,8]",
    r"Expected a <class '(\w+)'>\. Got value: (.*)": lambda met, *_: (
        f"it must be of type {met[1]}, but is {met[2]}"
    ),
    r"Unexpected config: (.*)": lambda met, *_: (
        f"a configuration is a YAML table of options, but this begins with {met[1]:.40}"
    ),
}
