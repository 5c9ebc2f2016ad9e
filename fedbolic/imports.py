"""Import paths from a configuration, which may be somebody else's: what they must not name."""

import importlib
import sys

STANDARD = sorted(sys.stdlib_module_names)
"""Modules of Python itself: none has a class that a configuration could want."""


def load_class(path: str, kind: type) -> type:
    """The class at an import path, if it is a ``kind``; it is not called.

    Args:
        path: Such as ``package.module.Class``.
        kind: What it must be a subclass of.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such name.
        ValueError: If it is no path of a class of somebody's package; nothing is imported then.
        TypeError: If it is no such class.
    """
    _check(path)
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise TypeError(f"it is no subclass of {kind.__module__}.{kind.__qualname__}")
    return found


def _check(path: str) -> None:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("it is no import path of a class, such as package.module.Class")
    if parts[0] in STANDARD:
        raise ValueError(f"{parts[0]} is a module of Python itself, which has no such class")
    if "__main__" in parts:
        raise ValueError("to import it would run a program")
