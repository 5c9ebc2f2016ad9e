"""Safe import of classes named in configurations, which may be untrusted."""

import importlib
import sys

STANDARD = sorted(sys.stdlib_module_names)
"""Modules of the standard library, which contain no class that a configuration may name."""


def load_class(path: str, kind: type) -> type:
    """Import the class at a path and check its base class, without calling it.

    Args:
        path: Import path, such as ``package.module.Class``.
        kind: Required base class.

    Raises:
        ImportError: If there is no such module.
        AttributeError: If the module has no such name.
        ValueError: If the path is malformed, or leads to the standard library or to a program;
            nothing is imported then.
        TypeError: If the object is not a subclass of ``kind``.
    """
    _check(path)
    module, _, name = path.rpartition(".")
    found = getattr(importlib.import_module(module), name)
    if not (isinstance(found, type) and issubclass(found, kind)):
        raise TypeError(f"it is not a subclass of {kind.__module__}.{kind.__qualname__}")
    return found


def _check(path: str) -> None:
    parts = path.split(".")
    if len(parts) < 2 or not all(part.isidentifier() for part in parts):
        raise ValueError("it is not an import path of a class, such as package.module.Class")
    if parts[0] in STANDARD:
        raise ValueError(f"{parts[0]} is a module of Python itself, which cannot be used here")
    if "__main__" in parts:
        raise ValueError("importing it would run a program")
