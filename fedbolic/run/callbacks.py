"""Calls of the objects that watch a run."""

import inspect
from collections.abc import Sequence
from typing import Any


def notify(callbacks: Sequence[object], event: str, **facts: Any) -> None:
    """Call the method of an event of every callback that has one, with the facts that it takes.

    Args:
        callbacks: Objects with any of the methods that :func:`~fedbolic.run.experiment.run` names.
        event: Name of the method.
        facts: Keyword arguments; a method need not take all of them.
    """
    for callback in callbacks:
        method = getattr(callback, event, None)
        if method is None:
            continue
        taken = inspect.signature(method).parameters.values()
        names = {each.name for each in taken}
        every = any(each.kind is each.VAR_KEYWORD for each in taken)
        method(**{name: value for name, value in facts.items() if every or name in names})
