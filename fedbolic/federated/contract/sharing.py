"""Sharing tables: shared, personal and fixed parameters by name."""

import difflib
import functools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Literal

import torch

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree
from fedbolic.data.contract.client import Client
from fedbolic.nn.network.model import Model

SharingKind = Literal["shared", "personal", "fixed"]
"""Shared: aggregated over clients. Personal: trained, never sent. Fixed: never trained."""

Sharing = dict[str, SharingKind]
"""Kinds by shell pattern over parameter and buffer names; the first matching pattern decides."""

MOST_NAMED = 12
"""Largest number of names that an error message lists."""


def check_sharing(sharing: Mapping[str, str]) -> None:
    """Refuse an empty table, an unknown kind, or a table that trains no parameter.

    Raises:
        ValueError: If the table is empty, a kind is unknown, or every row is ``fixed``.
    """
    if not sharing:
        raise ValueError('sharing has no row: use {"*": "shared"} to share every parameter')
    for pattern, kind in sharing.items():
        if kind not in ("shared", "personal", "fixed"):
            raise ValueError(
                f"sharing of {pattern!r} must be shared, personal or fixed, got {kind!r}"
            )
    if set(sharing.values()) == {"fixed"}:
        raise ValueError("sharing fixes every parameter: at least one must be shared or personal")


def check_patterns(sharing: Mapping[str, SharingKind], names: Iterable[str]) -> None:
    """Refuse a row that has no effect.

    The row ``"*"`` is an exception: every name may already match an earlier row, because ``"*"``
    covers the names that a larger network would have.

    Args:
        sharing: The sharing table.
        names: Names of all parameters and buffers.

    Raises:
        ValueError: If a row matches no name, or only names that earlier rows match.

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
                f"sharing of {pattern!r} has no effect: the earlier row {before!r} already matches "
                f"{matched[0]!r}; put the narrower pattern first"
            )
        deciding |= dict.fromkeys(free, pattern)


def _near(pattern: str, names: Sequence[str]) -> str:
    """Names and patterns that may have been meant, as a hint for an error message."""
    parts = [name.split(".") for name in names]
    groups = {".".join(path[:i]) + ".*" for path in parts for i in range(1, len(path))}
    ends = {"*." + path[-1] for path in parts}
    near = difflib.get_close_matches(pattern, sorted({*groups, *ends, *names}), n=3)
    meant = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
    more = ", ..." if len(names) > MOST_NAMED else ""
    return f"{meant}the names are {', '.join(sorted(names)[:MOST_NAMED])}{more}"


def kinds(sharing: Mapping[str, SharingKind], names: Iterable[str]) -> dict[str, SharingKind]:
    """Kind of every name.

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
    """Values with names of one kind."""
    table = kinds(sharing, values)
    return {name: value for name, value in values.items() if table[name] == kind}


@dataclass(frozen=True, eq=False)
class Assembly:
    """Values with which a client starts a round: those it received and those it kept.

    Args:
        trained: Shared and personal parameters.
        fixed: Parameters that keep their initial values.
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
    """Combine shared values of the message, personal values of the client state and initial values.

    A client initialises values that are never sent from the seed in the message. All clients
    therefore start with the same values, and these values cost no communication.

    Args:
        model: Architecture.
        sharing: The sharing table.
        message: Shared ``parameters`` and ``buffers``, and the ``seed``.
        client_state: Personal ``parameters`` and ``buffers``. They are missing the first time, and
            in the client state of another method whose model is fine-tuned.
        client: The client; its data determine the device and dtype.
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


def own_model(model: Model, message: Tree, client_state: Tree, client: Client) -> Assembly:
    """Values of a client whose whole model is personal: those that it kept, or the initial ones.

    Args:
        model: Architecture.
        message: The ``seed``.
        client_state: ``parameters`` and ``buffers``, missing the first time.
        client: The client.
    """
    received = {"parameters": {}, "buffers": {}, "seed": message["seed"]}
    return assemble(model, {"*": "personal"}, received, client_state, client)


@functools.lru_cache(maxsize=4)  # the clients of a round need the same values one after another
def _initial(
    model: Model, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[Params, Params]:
    parameters, buffers = model.init(seed)
    return tree.to(parameters, device, dtype), tree.to(buffers, device, dtype)
