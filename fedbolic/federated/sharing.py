"""Sharing tables: shared, personal and fixed parameters by name."""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch

from fedbolic import tree
from fedbolic.data.client import Client
from fedbolic.nn.model import Model
from fedbolic.types import Params, Tree

SharingKind = Literal["shared", "personal", "fixed"]
"""Shared: averaged over clients. Personal: trained, never sent. Fixed: never trained."""

Sharing = dict[str, SharingKind]
"""From shell patterns over parameter and buffer names to a kind; the first match decides."""

MOST_NAMED = 12
"""Names that an error lists at most."""


def check_sharing(sharing: Mapping[str, str]) -> None:
    """Refuse an empty table, an unknown kind, or a table by which nothing is trained.

    Raises:
        ValueError: Naming the pattern and what came.
    """
    if not sharing:
        raise ValueError('sharing has no row: {"*": "shared"} shares every parameter')
    for pattern, kind in sharing.items():
        if kind not in ("shared", "personal", "fixed"):
            raise ValueError(
                f"sharing of {pattern!r} must be shared, personal or fixed, got {kind!r}"
            )
    if set(sharing.values()) == {"fixed"}:
        raise ValueError("sharing fixes every parameter: one must be shared or personal")


def check_patterns(sharing: Mapping[str, SharingKind], names: Iterable[str]) -> None:
    """Refuse a row that decides nothing: without it the same method is trained.

    The row ``"*"`` may find all names taken: it catches what a larger network would have.

    Args:
        sharing: The table.
        names: Of all parameters and buffers.

    Raises:
        ValueError: Naming the pattern, and names that are near it or the row that takes its names.

    Example:
        >>> check_patterns({"head.*": "personal", "*": "shared"}, ["body.weight", "head.weight"])
    """
    deciding: dict[str, str] = {}  # from a name to the pattern that matches it first
    names = list(names)
    for pattern in sharing:
        matched = [name for name in names if fnmatchcase(name, pattern)]
        if not matched:
            near = _near(pattern, names)
            raise ValueError(f"sharing of {pattern!r} matches no parameter and no buffer: {near}")
        free = [name for name in matched if name not in deciding]
        if not free and pattern != "*":
            before = deciding[matched[0]]
            raise ValueError(
                f"sharing of {pattern!r} decides nothing, as {before!r} stands above it and takes "
                f"{matched[0]!r}: put the narrower pattern first"
            )
        deciding |= dict.fromkeys(free, pattern)


def _near(pattern: str, names: Sequence[str]) -> str:
    """The names, and patterns over them, that may have been meant."""
    parts = [name.split(".") for name in names]
    groups = {".".join(path[:i]) + ".*" for path in parts for i in range(1, len(path))}
    ends = {"*." + path[-1] for path in parts}
    near = difflib.get_close_matches(pattern, sorted({*groups, *ends, *names}), n=3)
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"{meant}the names are {', '.join(sorted(names)[:MOST_NAMED])}{more}"


def kinds(sharing: Mapping[str, SharingKind], names: Iterable[str]) -> dict[str, SharingKind]:
    """The kind of every name.

    Raises:
        ValueError: If a name matches no pattern.

    Example:
        >>> kinds({"head.*": "personal", "*": "shared"}, ["body.0.weight", "head.bias"])
        {'body.0.weight': 'shared', 'head.bias': 'personal'}
    """
    rows = tuple(sharing.items())
    return {name: _kind(rows, name) for name in names}


@functools.lru_cache(maxsize=4096)  # every client of every round asks for the same names
def _kind(rows: tuple[tuple[str, SharingKind], ...], name: str) -> SharingKind:
    for pattern, kind in rows:
        if fnmatchcase(name, pattern):
            return kind
    raise ValueError(
        f"no pattern of sharing {[pattern for pattern, _ in rows]} matches {name!r}: "
        'end the table with {"*": "shared"}'
    )


def select_kind(values: Params, sharing: Mapping[str, SharingKind], kind: SharingKind) -> Params:
    """The values whose names are of ``kind``."""
    table = kinds(sharing, values)
    return {name: value for name, value in values.items() if table[name] == kind}


@dataclass(frozen=True, eq=False)
class Assembly:
    """The values a client starts a round with, put together from what it got and what it kept.

    Args:
        trained: Shared and personal parameters.
        fixed: Parameters that stay as they were initialised.
        buffers: All buffers.
    """

    trained: Params
    fixed: Params
    buffers: Params


def assemble(
    model: Model,
    sharing: Mapping[str, SharingKind],
    message: Tree,
    client_state: Tree,
    client: Client,
) -> Assembly:
    """Shared values from the message, personal ones from memory, the rest from the common seed.

    Values that are never sent are initialised at the client from the seed in the message, so all
    clients begin alike and no byte is spent on them.

    Args:
        model: The architecture.
        sharing: The table.
        message: ``parameters`` and ``buffers`` that are shared, and the ``seed``.
        client_state: ``parameters`` and ``buffers`` that are personal; they are not there the first
            time, nor in the memory of another method whose model is tuned.
        client: Whose data say the device and dtype to work in.
    """
    personal = {kind: client_state.get(kind, {}) for kind in ("parameters", "buffers")}
    inputs = client.no_inputs
    parameters, buffers = _initial(model, message["seed"], inputs.device, inputs.dtype)
    parameters = {**parameters, **message["parameters"], **personal["parameters"]}
    buffers = {**buffers, **message["buffers"], **personal["buffers"]}
    table = kinds(sharing, parameters)
    return Assembly(
        trained={n: v for n, v in parameters.items() if table[n] != "fixed"},
        fixed={n: v for n, v in parameters.items() if table[n] == "fixed"},
        buffers=buffers,
    )


@functools.lru_cache(maxsize=4)  # the clients of a round ask for the same values one after another
def _initial(
    model: Model, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Params, Params]:
    parameters, buffers = model.init(seed)
    return tree.to(parameters, device, dtype), tree.to(buffers, device, dtype)
