"""YAML in which nothing is said twice, refers to itself or grows without bound."""

from dataclasses import dataclass, field

import yaml

DEPTH = 100
"""Of what is nested; no configuration comes near, and a parser that recurses would break."""

SIZE = 100_000
"""Values of a text, those that it repeats by an alias counted every time."""


@dataclass
class _Open:
    """A list or table whose end has not been read yet."""

    anchor: str | None
    is_table: bool
    num_values: int = 0
    size: int = 1
    keys: set[str] = field(default_factory=set)

    def add(self, key: str | None, size: int, mark: yaml.Mark) -> None:
        """One more value or key; ``None`` is a key that is no plain text."""
        if self.is_table and self.num_values % 2 == 0 and key is not None:
            if key in self.keys:
                raise _refused(f"the key {key!r} stands here for the second time", mark)
            self.keys.add(key)
        self.num_values += 1
        self.size += size
        if self.size > SIZE:
            raise _refused(f"more than {SIZE} values, those of aliases counted every time", mark)


def refuse_unclear(text: str) -> None:
    """Refuse a key that stands twice in a table, and what a parser would never finish.

    Raises:
        YAMLError: Naming it with its line; also if the text is no YAML.

    Example:
        >>> refuse_unclear("{lr: 0.1, rounds: 3, lr: 0.2}")
        Traceback (most recent call last):
        yaml.constructor.ConstructorError: the key 'lr' stands here for the second time
          in "<unicode string>", line 1, column 22:
            {lr: 0.1, rounds: 3, lr: 0.2}
                                 ^
    """
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


def _refused(problem: str, mark: yaml.Mark) -> yaml.YAMLError:
    return yaml.constructor.ConstructorError(None, None, problem, mark)
