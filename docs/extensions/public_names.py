"""Names of the public API: what one imports from ``fedbolic`` and from each of its packages.

Nothing here imports Sphinx, so that a test can compare the names without it.
"""

import inspect
from types import ModuleType
from typing import Any

import fedbolic


def packages() -> list[ModuleType]:
    """The packages that ``import fedbolic`` gives when they are used, by name."""
    values = [getattr(fedbolic, name) for name in dir(fedbolic)]
    return [value for value in values if inspect.ismodule(value)]


def summary(value: Any) -> str:
    """First sentence of the docstring of a class or function; empty for a constant or an alias."""
    if not (inspect.isclass(value) or inspect.isfunction(value)):
        return ""
    return (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")


def table(package: ModuleType) -> list[str]:
    """Table in reStructuredText of the names of a package, each with a link and its summary."""
    lines = []
    for name in getattr(package, "__all__", ()):
        value = getattr(package, name)
        about = summary(value)
        full = f"{value.__module__}.{value.__qualname__}" if about else ""
        lines += [f"   * - :py:obj:`{name} <{full}>`" if full else f"   * - ``{name}``"]
        lines += [f"     - {about}".rstrip()]
    head = [f"Import from ``{package.__name__}``:", "", ".. list-table::", "   :widths: 1 3", ""]
    return [*head, *lines, ""] if lines else []


def page() -> list[str]:
    """Lines of the page in reStructuredText: a section for each package, in the order of names."""
    lines = []
    for package in packages():
        head = package.__name__
        about = (package.__doc__ or "").partition("\n\n")[0].replace("\n", " ")
        lines += [head, "-" * len(head), "", about, "", *table(package)]
    return lines
