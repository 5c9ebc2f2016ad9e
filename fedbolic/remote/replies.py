"""Replies of nodes, read within bounds: a lie costs the node that tells it, and nobody else."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedbolic import tree
from fedbolic.federated.update import Update
from fedbolic.types import Tree

MOST_EXAMPLES = 10**9
"""No client has more, and no update weighs more."""

MOST_CLASSES = 2**16
"""Labels are below it: every client pays for the head of a model."""

MOST_FEATURES = 2**28
"""An example has no more numbers."""

_MOST_AXES = 8
"""An example has no more axes."""

LARGEST_COUNT = 1e30
"""No number that is added to those of others is larger in absolute value."""

MOST_NAMES = 256
"""A reply has no more metrics or scores."""

NAME = re.compile(r"\w[\w.-]{0,63}(/\w[\w.-]{0,63}){0,3}", re.ASCII)
"""A name of a metric or score."""

STATE_NAME = re.compile(r"\w{1,64}", re.ASCII)
"""A name of client state, which a node gives: SHA-256 of the request, in hexadecimal."""

SCORED = frozenset({"test", "validation", "fine_tuned"})
"""Splits that a client is scored on: scores are named after them, and metrics are not."""

RESERVED = frozenset({"holdout", "bytes", "clients", "ridge_head"})
"""What the server itself measures, as the first part of a name."""

ReplyKind: TypeAlias = Literal["metrics", "scores", "fine_tuned"]


class NodeError(RuntimeError):
    """A client on another machine gave no answer that can be used."""


def check_introduction(told: Tree, *, num_clients: int, num_classes: int = MOST_CLASSES) -> None:
    """Refuse an introduction that no client of this federation could give.

    Args:
        told: As it came.
        num_clients: Ids are below it.
        num_classes: No client has more.

    Raises:
        NodeError: Saying what is wrong.
    """
    bounds = {"client": num_clients - 1, "size": MOST_EXAMPLES, "num_classes": num_classes}
    for name, most in bounds.items():
        value = told.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise NodeError(f"its {name} must be an integer in 0 .. {most}, got {value!r:.80}")
    shape = _read_shape(told.get("input_shape"))
    if shape is None or len(shape) > _MOST_AXES or math.prod(shape) > MOST_FEATURES:
        raise NodeError(
            f"its input_shape must be a list of up to {_MOST_AXES} lengths from 1 with a product "
            f"of up to {MOST_FEATURES}, got {told.get('input_shape')!r:.80}"
        )


def _read_shape(text: object) -> list[int] | None:
    try:
        shape = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(shape, list) or any(type(n) is not int or n < 1 for n in shape):
        return None
    return shape


def deviating(
    introductions: Mapping[int, Tree], own: tuple[int, ...] | None = None
) -> tuple[str, list[int]]:
    """The shape of inputs that most have, in JSON, and the ids of clients that have another.

    Args:
        introductions: By client id, at least one, each of :func:`check_introduction`.
        own: The shape of the server's own inputs, which counts as that of one client more.

    Raises:
        ValueError: If no shape is that of more clients than any other.
    """
    shapes = {i: tuple(json.loads(told["input_shape"])) for i, told in introductions.items()}
    votes = Counter([*shapes.values(), *([own] if own is not None else [])])
    (usual, most), *others = votes.most_common(2)
    if others and others[0][1] == most:
        raise ValueError(f"the clients' inputs differ in shape: {sorted(map(str, votes))}")
    return json.dumps(usual), [i for i, shape in shapes.items() if shape != usual]


def read_update(
    reply: Tree, device: torch.device, *, name: str, kind: ReplyKind = "metrics"
) -> tuple[Update, str]:
    """An update and the name of the client state beside it, from what a node said.

    Args:
        reply: As it came.
        device: Where tensors go.
        name: Of the client state that the request named, which may stay.
        kind: Of its metrics.

    Raises:
        NodeError: Saying what is wrong.
    """
    _refuse_error(reply)
    payload, weight, new = (reply.get(key) for key in ("payload", "weight", "name"))
    if not (isinstance(payload, dict) and isinstance(weight, float) and isinstance(new, str)):
        raise NodeError(f"its answer is no update: it has {sorted(map(_printable, reply))[:8]}")
    if new != name and not STATE_NAME.fullmatch(new):
        raise NodeError(f"its client state is not a name of 32 hexadecimal digits: {new!r:.80}")
    if not 0 <= weight <= MOST_EXAMPLES:
        raise NodeError(f"its weight is {weight}, and must lie in 0 .. {MOST_EXAMPLES}")
    if (fault := tree.find_tree_fault(payload)) is not None:
        raise NodeError(f"its payload is no tree: {fault}")
    if large := [path for path, leaf in tree.leaves(payload) if not _is_bounded(leaf)]:
        raise NodeError(f"its payload has numbers beyond {LARGEST_COUNT:g} at {large[:4]!r:.200}")
    metrics = read_numbers(reply, "metrics", kind=kind)
    return Update(tree.to(payload, device), weight, metrics), new


def _is_bounded(leaf: object) -> bool:
    """True for a number that may be added to others; NaN and infinity are checked elsewhere."""
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or not bool((leaf.abs() > LARGEST_COUNT).any())
    return isinstance(leaf, str) or not abs(leaf) > LARGEST_COUNT  # type: ignore[arg-type]  # a number


def read_numbers(reply: Tree, part: str, *, kind: ReplyKind) -> dict[str, float]:
    """Numbers by name, each name in the space that is the client's.

    Args:
        reply: As it came.
        part: Of it.
        kind: Scores are named after a split, and metrics are not; fine-tuning gives both.

    Raises:
        NodeError: Saying what is wrong.
    """
    _refuse_error(reply)
    numbers = reply.get(part)
    if not (isinstance(numbers, dict) and all(type(x) is float for x in numbers.values())):
        raise NodeError(f"its {part} are not numbers by name")
    if len(numbers) > MOST_NAMES:
        raise NodeError(f"it has {len(numbers)} {part}, and {MOST_NAMES} are the most")
    for name, value in numbers.items():
        if not NAME.fullmatch(name) or not _is_own(name.partition("/")[0], kind):
            raise NodeError(f"one of its {part} has a name that is not its to give: {name!r:.80}")
        if not _is_possible(name.rpartition("/")[2], value):
            raise NodeError(f"one of its {part} cannot be: {name} is {value}")
    return numbers


def _is_own(first: str, kind: ReplyKind) -> bool:
    if kind == "fine_tuned":  # the prefix under which it is recorded, so it must not be there yet
        return first not in RESERVED and first != kind
    return first not in RESERVED and (first in SCORED) == (kind == "scores")


def _is_possible(kind: str, value: float) -> bool:
    if kind == "examples":
        return 0 <= value <= MOST_EXAMPLES and value == int(value)
    return 0 <= value <= 1 if kind == "accuracy" else abs(value) <= LARGEST_COUNT


def rarely_tuned(scores: Mapping[int, Mapping[str, float]]) -> list[int]:
    """The ids of those with fine-tuned scores that fewer than half of all have.

    A method has them for every client or for none, and their mean stands for the federation.

    Args:
        scores: By client id and name.
    """
    counts = Counter(name for named in scores.values() for name in named)
    rare = {n for n, k in counts.items() if n.startswith("fine_tuned/") and 2 * k < len(scores)}
    return [i for i, named in scores.items() if rare & named.keys()]


def unusual(payloads: Mapping[int, Tree]) -> list[int]:
    """The ids of those whose payload has another form than most: what is added has one form.

    Args:
        payloads: By client id; of forms equally frequent the first counts.
    """
    forms = {i: tuple(sorted(tree.signature(x).items())) for i, x in payloads.items()}
    usual = most_common(forms.values())
    return [i for i, form in forms.items() if form != usual]


def most_common(values: Iterable[object]) -> object:
    """The most frequent value, of equally frequent ones the first; ``None`` if there is none."""
    found = Counter(values).most_common(1)
    return found[0][0] if found else None


def plain_error(reply: Tree) -> Tree:
    """The reply, its error, if it is one, as a short line that can be shown."""
    return {"error": _printable(reply["error"])} if "error" in reply else reply


def _printable(words: object) -> str:
    text = words if isinstance(words, str) else type(words).__name__
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def _refuse_error(reply: Tree) -> None:
    if "error" in reply:
        raise NodeError(reply["error"])
