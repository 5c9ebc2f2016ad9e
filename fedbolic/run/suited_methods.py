"""Methods of the packages that learn from a kind of examples."""

import importlib
import inspect
from collections.abc import Iterator

from fedbolic.data import Split
from fedbolic.federated import Method
from fedbolic.run.public_classes import METHODS


def suited_methods(kind: type[Split]) -> list[str]:
    """Import paths of the methods that, as they are by default, learn from a kind of examples.

    Args:
        kind: Kind of examples.

    Example:
        >>> from fedbolic.data import HierarchySplit
        >>> "fedbolic.hierarchies.HierarchyEmbedding" in suited_methods(HierarchySplit)
        True
    """
    return [path for path, method in _methods() if issubclass(kind, method.traits.learns_from)]


def _methods() -> Iterator[tuple[str, Method]]:
    """Public methods with their defaults, without those around another method."""
    for package in METHODS:
        for name, found in vars(importlib.import_module(package)).items():
            if inspect.isclass(found) and issubclass(found, Method) and not name.startswith("_"):
                parameters = inspect.signature(found).parameters.values()
                if all(p.default is not p.empty for p in parameters):
                    yield f"{package}.{name}", found()
