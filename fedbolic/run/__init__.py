"""Runs: from settings to a folder, many of them from a table, and from a folder to a network.

A name is imported when it is first used: modules of this package that need no command line are
imported without the packages of the command line.
"""

import importlib
from typing import Any

_MODULES = {
    "LoggerSettings": "loggers",
    "ProgressBar": "progress",
    "RunFolder": "record",
    "SetupError": "configuration",
    "TrainedModel": "trained",
    "export": "exports",
    "load": "loading",
    "resume": "experiment",
    "run": "experiment",
    "sweep": "sweeps",
}
"""Modules of the public names."""

__all__ = list(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
