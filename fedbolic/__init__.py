"""GPU deep learning for hyperbolic federated models.

``import fedbolic as fb`` is quick: ``fb.nn``, ``fb.manifolds`` and the other packages are imported
when they are first used.
"""

import importlib
from typing import Any

__version__ = "0.1.0"

_PACKAGES = (
    *("data", "federated", "hierarchies", "manifolds", "methods", "nn", "optim"),
    *("report", "run", "search", "testing"),
)
_LAZY = {"load": "fedbolic.run.loading"}
"""Functions of this package by module; a module is imported when its function is first used."""


def __getattr__(name: str) -> Any:
    if name in _PACKAGES:
        return importlib.import_module(f"fedbolic.{name}")
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(["__version__", *_PACKAGES, *_LAZY])
