"""YAML before and after it is loaded: unclear text, other words for null, options by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedbolic.core.imports import extra
from fedbolic.core.reading import read_text

with extra("run", "a configuration"):
    import yaml

DEPTH = 100
"""Maximum nesting depth, far above any real configuration; recursive parsers fail on more."""

SIZE = 100_000
"""Maximum number of values, with aliased values counted at every use."""

SETTINGS_SIZE = 2**18
"""Maximum length of a configuration in bytes, of which one second reads about as many."""

NONE = "None"
"""Python's word for null."""


@dataclass
class _Open:
    """A list or table that is still being parsed."""

    anchor: str | None
    is_table: bool
    num_values: int = 0
    size: int = 1
    keys: set[str] = field(default_factory=set)

    def add(self, key: str | None, size: int, mark: yaml.Mark) -> None:
        """Count one more value or key; ``key`` is ``None`` for a list or table."""
        if self.is_table and self.num_values % 2 == 0 and key is not None:
            if key in self.keys:
                raise _refused(f"the key {key!r} stands here for the second time", mark)
            self.keys.add(key)
        self.num_values += 1
        self.size += size
        if self.size > SIZE:
            raise _refused(f"more than {SIZE} values with aliases expanded", mark)


def refuse_unclear(text: str) -> None:
    """Refuse YAML with repeated keys, or too large to parse once aliases are expanded.

    Raises:
        YAMLError: If the text is refused or is not YAML; the message gives the line.

    Example:
        >>> refuse_unclear("{lr: 0.1, rounds: 3, lr: 0.2}")
        Traceback (most recent call last):
        yaml.constructor.ConstructorError: the key 'lr' stands here for the second time
          in "<unicode string>", line 1, column 22:
            {lr: 0.1, rounds: 3, lr: 0.2}
                                 ^
    """
    if len(text) > SETTINGS_SIZE:
        raise yaml.YAMLError(f"{len(text)} characters of YAML, but {SETTINGS_SIZE} are the maximum")
    open_now = [_Open(None, is_table=False)]
    sizes: dict[str, int] = {}
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            if len(open_now) > DEPTH:
                raise _refused(f"nested more than {DEPTH} deep", event.start_mark)
            open_now.append(_Open(event.anchor, isinstance(event, yaml.MappingStartEvent)))
        elif isinstance(event, yaml.CollectionEndEvent):
            done = open_now.pop()
            if done.anchor:
                sizes[done.anchor] = done.size
            open_now[-1].add(None, done.size, event.start_mark)
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor in [one.anchor for one in open_now]:
                raise _refused(f"&{event.anchor} holds itself", event.start_mark)
            open_now[-1].add(None, sizes.get(event.anchor, 1), event.start_mark)
        elif isinstance(event, yaml.ScalarEvent):
            open_now[-1].add(event.value, 1, event.start_mark)


def null_for_none(text: str) -> str:
    """Replace the unquoted word ``None`` by null, wherever it is a value.

    Args:
        text: YAML that :func:`refuse_unclear` accepts.

    Example:
        >>> null_for_none("{clip_norm: None, name: 'None', None: None of them}")
        "{clip_norm: null, name: 'None', None: None of them}"
    """
    if NONE not in text:
        return text
    nodes, places = [yaml.compose(text, Loader=yaml.SafeLoader)], set()
    seen: set[yaml.Node | None] = set()
    while nodes:
        node = nodes.pop()
        if node in seen:  # an alias
            continue
        seen.add(node)
        if isinstance(node, yaml.MappingNode):
            nodes += [value for _, value in node.value]
        elif isinstance(node, yaml.SequenceNode):
            nodes += node.value
        elif isinstance(node, yaml.ScalarNode) and (node.value, node.style) == (NONE, None):
            places.add((node.start_mark.index, node.end_mark.index))
    for start, end in sorted(places, reverse=True):
        text = f"{text[:start]}null{text[end:]}"
    return text


def read_settings(file: Path) -> dict[str, Any]:
    """The settings in a YAML file, without building what they describe.

    Raises:
        OSError: If the file is missing or cannot be opened.
        ValueError: If the file is no regular file or too large, or is not YAML with settings.
    """
    text = read_text(file, SETTINGS_SIZE)
    try:
        refuse_unclear(text)
        found = yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{file} is not clear YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file} holds no settings by name")
    return found


def flat_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Settings by dotted option, as on the command line; a class stands at its own option.

    Example:
        >>> flat_settings({"method": {"class_path": "m.A", "init_args": {"lr": 0.1}}})
        {'method': 'm.A', 'method.lr': 0.1}
    """
    flat: dict[str, Any] = {}
    for key, value in settings.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) and "class_path" in value:
            flat[name] = value["class_path"]
            value = value.get("init_args", {})
        if isinstance(value, Mapping) and value and all(str(k).isidentifier() for k in value):
            flat |= flat_settings(value, f"{name}.")
        elif name not in flat:
            flat[name] = value
    return flat


def yaml_line(value: Any) -> str:
    """A value as YAML in one line; a string as it is.

    Example:
        >>> yaml_line([1, None]), yaml_line("a")
        ('[1, null]', 'a')
    """
    if isinstance(value, str):
        return value
    text = yaml.safe_dump(value, default_flow_style=True, width=1000)
    return text.removesuffix("\n").removesuffix("...").strip()


def _refused(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
