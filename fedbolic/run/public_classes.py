"""Public classes by name, read from the files of the packages without importing them."""

import ast
import dataclasses
import difflib
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from fedbolic.core.imports import SYSTEMS

METHODS = ("fedbolic.methods", "fedbolic.hierarchies", "fedbolic.knowledge", *SYSTEMS)
"""Packages of federated methods."""

EXPORTING = (
    *METHODS,
    *("fedbolic.data", "fedbolic.federated", "fedbolic.nn", "fedbolic.nn.graph.convolution"),
    *(f"fedbolic.nn.network.{name}" for name in ("backbone", "resnet", "hyperbolic_resnet")),
    *("fedbolic.nn.network.own_network", "fedbolic.optim", "fedbolic.manifolds"),
)
"""Packages and modules whose public classes have short names."""


ROOT = Path(__file__).parents[2]
"""Folder of the packages, in a checkout and where they are installed."""


@dataclass(frozen=True)
class PublicClass:
    """A class as its file describes it.

    Args:
        path: Import path, by which a configuration names the class.
        about: First line of its docstring.
        bases: Names of the classes that it inherits from, directly or not.
        defined: Names of the functions and values that it or a base defines.
        abstract: Names of the functions that it leaves to its heirs.
    """

    path: str
    about: str
    bases: frozenset[str]
    defined: frozenset[str] = frozenset()
    abstract: frozenset[str] = frozenset()


def public_classes(*packages: str) -> dict[str, PublicClass]:
    """The classes that some packages export, by name.

    Args:
        *packages: Packages in which to look; all :data:`EXPORTING` by default.

    Example:
        >>> found = public_classes()["HyperFed"]
        >>> found.path, "Method" in found.bases
        ('hyperfed.HyperFed', True)
    """
    found: dict[str, PublicClass] = {}
    for package in packages or EXPORTING:
        found |= {x: one for x, one in _exported_classes(package).items() if x not in found}
    return found


def heirs(base: str, *packages: str) -> dict[str, PublicClass]:
    """Public classes of a kind that can be created, by name.

    Args:
        base: Name of the class from which they inherit, such as ``Method``.
        *packages: As for :func:`public_classes`.

    Example:
        >>> list(heirs("Aggregator", "fedbolic.federated"))[:3]
        ['CenteredClipping', 'Gather', 'GeometricMedian']
    """
    found = public_classes(*packages).items()
    return {name: one for name, one in found if base in one.bases and not one.abstract}


def nearest(name: str, known: Iterable[str]) -> str:
    """The nearest of some known names, in brackets at the end of a message; empty if none is near.

    Example:
        >>> nearest("HyperFd", ["HyperFed", "FedAvg"])
        ' (the nearest are HyperFed)'
    """
    near = difflib.get_close_matches(name, list(known), n=3)
    return f" (the nearest are {', '.join(near)})" if near else ""


@functools.cache
def _tree(module: str) -> ast.Module | None:
    """The syntax tree of one of our modules; ``None`` for a module of another project."""
    place = ROOT.joinpath(*module.split("."))
    file = next((f for f in (place / "__init__.py", place.with_suffix(".py")) if f.exists()), None)
    return ast.parse(file.read_text(encoding="utf-8")) if file else None


@functools.cache
def _exported_classes(package: str) -> dict[str, PublicClass]:
    described = {name: _described(package, name) for name in _exported(package)}
    return {
        name: dataclasses.replace(one, path=f"{package}.{name}")
        for name, one in described.items()
        if one is not None
    }


def _exported(package: str) -> list[str]:
    """The names in ``__all__`` of a package or, without one, of the classes defined in it."""
    tree = _tree(package)
    body = tree.body if tree else []
    for node in body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return ast.literal_eval(node.value)
    return [x.name for x in body if isinstance(x, ast.ClassDef) and not x.name.startswith("_")]


@functools.cache
def _named(module: str) -> dict[str, ast.ClassDef | tuple[str, str]]:
    """Classes that a module defines, and module and name of what it imports, by their names."""
    found: dict[str, ast.ClassDef | tuple[str, str]] = {}
    ahead: list[ast.AST] = [_tree(module) or ast.Module([], [])]
    while ahead:
        node = ahead.pop()
        if isinstance(node, ast.ClassDef):
            found[node.name] = node
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {x.asname or x.name: (node.module, x.name) for x in node.names}
        elif isinstance(node, ast.Module | ast.If | ast.With | ast.Try):
            ahead += ast.iter_child_nodes(node)
    return found


@functools.cache
def _described(module: str, name: str) -> PublicClass | None:
    """Description of a class where a module defines or imports it; ``None`` if it is no class."""
    if _tree(module) is None:
        return PublicClass(f"{module}.{name}", "", frozenset({name}))
    found = _named(module).get(name)
    return (
        _class(module, found) if isinstance(found, ast.ClassDef) else found and _described(*found)
    )


def _class(module: str, node: ast.ClassDef) -> PublicClass:
    bases, defined, abstract = {node.name}, set[str](), set[str]()
    for base in node.bases:
        base = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(base, ast.Attribute):  # of another project, such as nn.Module
            bases.add(base.attr)
        elif found := _described(module, ast.unparse(base)):
            bases |= found.bases
            defined |= found.defined
            abstract |= found.abstract
    for inner in node.body:
        if isinstance(inner, ast.FunctionDef):
            left = "abstractmethod" in map(ast.unparse, inner.decorator_list)
            (abstract if left else defined).add(inner.name)
        elif isinstance(inner, ast.Assign | ast.AnnAssign):
            targets = inner.targets if isinstance(inner, ast.Assign) else [inner.target]
            defined |= set(map(ast.unparse, targets))
    about = (ast.get_docstring(node) or "").partition("\n")[0]
    path = f"{module}.{node.name}"
    return PublicClass(path, about, *map(frozenset, (bases, defined, abstract - defined)))
