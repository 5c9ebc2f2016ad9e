"""GPU deep learning for hyperbolic federated models."""

import importlib
from typing import Any

__version__ = "0.1.0"

_LAZY = {"load": "fedbolic.trained"}
"""Functions of this package by module; a module is imported when its function is first used."""


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY})
