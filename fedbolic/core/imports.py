"""Import of packages that an extra installs, and of classes named in untrusted configurations."""

import contextlib
import importlib
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path

STANDARD = sorted(sys.stdlib_module_names)
"""Modules of the standard library, which contain no class that a configuration may name."""

SYSTEMS = ("flatland", "hyperfed", "fedhull", "flynn")
"""Top-level packages of this project; other projects use some of these names, too."""

DISTRIBUTIONS = {
    **{"PIL": "Pillow", "flint": "python-flint", "sklearn": "scikit-learn", "umap": "umap-learn"},
    **{"dp_accounting": "dp-accounting", "yaml": "PyYAML"},
    **{"faiss": "faiss-cpu", "qdrant_client": "qdrant-client"},
    **{"sentence_transformers": "sentence-transformers"},
}
"""Names of packages for pip, where they are imported by another name."""


class MissingExtraError(ImportError):
    """A package that this project or one of its extras installs is not there, or is too old."""


@contextlib.contextmanager
def extra(name: str, user: str, instead: str = "") -> Iterator[None]:
    """Name the extra to install when a package is not found by an import in the block.

    Args:
        name: Extra of this project that installs the packages.
        user: Part that needs them, to begin the message with.
        instead: Alternative without them, to end the message with.

    Raises:
        MissingExtraError: If a package of another project is not found.

    Example:
        >>> with extra("graphs", "Metis", "use another partition"):
        ...     import absent
        Traceback (most recent call last):
        fedbolic.core.imports.MissingExtraError: Metis needs absent: pip install 'fedbolic[graphs]', or use another partition
    """  # noqa: E501
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("fedbolic", *SYSTEMS):
            raise
        needed = f"{DISTRIBUTIONS.get(package, package)}: pip install 'fedbolic[{name}]'"
        message = f"{user} needs {needed}{instead and f', or {instead}'}"
        raise MissingExtraError(message, name=package) from error


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


def namesake(text: str) -> str:
    """Hint that another project's package hides one of ours named in an error; empty if none does.

    Args:
        text: Message of an error.

    Example:
        >>> namesake("module 'flatland' has no attribute 'FlatLand'")  # ours is the one found
        ''
    """
    for name in SYSTEMS:
        if not re.search(rf"(?<![\w./]){name}(?![\w/])", text):
            continue
        spec = importlib.util.find_spec(name)
        if spec is None:
            continue  # Python's own message says so
        # not by its folder: packages of one name share a folder and overwrite each other's files
        if spec.origin is None or f"from {name}.method import" not in Path(spec.origin).read_text():
            (place, *_) = spec.submodule_search_locations or [str(spec.origin)]
            return (
                f"another package called {name} hides that of fedbolic: Python finds {place}; "
                "use an environment without it"
            )
    return ""
