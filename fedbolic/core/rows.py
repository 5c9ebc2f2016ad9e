"""Measurements of a run, one a row."""

from typing import NamedTuple


class Row(NamedTuple):
    """One measurement; ``client`` is ``None`` for measurements of the whole federation."""

    round: int
    client: int | None
    name: str
    value: float
