"""Validation of arguments, with errors that name the argument, its range and its value."""

import math
from collections.abc import Collection

MOST_CLASSES = 2**16
"""Maximum number of classes: every client has to train the head of a model."""

MOST_FEATURES = 2**28
"""Maximum number of values in an example."""


def positive(**values: float) -> None:
    """Refuse a value that is not a finite number above 0.

    Raises:
        ValueError: If a value is out of range.

    Example:
        >>> positive(lr=0.1)
        >>> positive(lr=-1.0)
        Traceback (most recent call last):
        ValueError: lr must be a positive number, got -1.0
    """
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} must be a positive number, got {value}")


def not_negative(**values: float) -> None:
    """Refuse a value that is not a finite number at or above 0.

    Raises:
        ValueError: If a value is out of range.
    """
    for name, value in values.items():
        if not (math.isfinite(value) and value >= 0):
            raise ValueError(f"{name} must be 0 or more, got {value}")


def at_least(bound: int, **values: int) -> None:
    """Refuse a count below ``bound``.

    Raises:
        ValueError: If a count is too small.
    """
    for name, value in values.items():
        if value < bound:
            raise ValueError(f"{name} must be at least {bound}, got {value}")


def rate(*, below_one: bool = False, **values: float) -> None:
    """Refuse a value outside [0, 1], or outside [0, 1) with ``below_one``.

    Raises:
        ValueError: If a value is out of range.
    """
    for name, value in values.items():
        if not 0 <= value <= 1 or (below_one and value == 1):
            raise ValueError(f"{name} must lie in [0, 1{')' if below_one else ']'}, got {value}")


def instance(kind: type, example: str, **values: object) -> None:
    """Refuse a value that is no instance of ``kind``, such as the class itself.

    Raises:
        TypeError: If a value is of another kind; the message gives ``example``.

    Example:
        >>> instance(complex, "2 + 1j", impedance=complex)
        Traceback (most recent call last):
        TypeError: impedance must be an instance of complex, such as 2 + 1j, got the class complex
    """
    for name, value in values.items():
        if not isinstance(value, kind):
            got = f"the class {value.__name__}" if isinstance(value, type) else repr(value)[:80]
            raise TypeError(
                f"{name} must be an instance of {kind.__name__}, such as {example}, got {got}"
            )


def one_of(known: Collection[str], **values: str) -> None:
    """Refuse a name that is not among ``known``.

    Raises:
        ValueError: If a name is unknown; the message lists the known ones.

    Example:
        >>> one_of(("hinge", "squared_hinge"), loss="huber")
        Traceback (most recent call last):
        ValueError: loss must be one of hinge, squared_hinge, got 'huber'
    """
    for name, value in values.items():
        if value not in known:
            raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}")
