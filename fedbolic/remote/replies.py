"""Validation of replies; an invalid reply excludes the node that sent it and no other."""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.check import MOST_CLASSES, MOST_FEATURES
from fedbolic.core.types import Tree
from fedbolic.federated.aggregators.aggregator import Aggregator
from fedbolic.federated.aggregators.update import Update
from fedbolic.federated.scores.metrics import EXTRA_METRICS, is_sum

MOST_EXAMPLES = 10**9
"""Maximum number of examples of a client, and maximum weight of an update."""

_MOST_AXES = 8
"""Maximum number of axes of an example."""

LARGEST_COUNT = 1e30
"""Maximum absolute value of a number that is summed over clients."""

MOST_NAMES = 4096
"""Maximum number of metrics or scores in a reply."""

NAME = re.compile(r"\w[\w.-]{0,63}(/\w[\w.-]{0,63}){0,3}", re.ASCII)
"""Name of a metric or score."""

STATE_NAME = re.compile(r"\w{1,64}", re.ASCII)
"""Name of a client state, chosen by its node: usually SHA-256 of the request in hexadecimal."""

NUMBERING = re.compile(r"[0-9a-f]{0,64}(:[0-9a-f]{64})?")
"""Digest of what the numbers in a client's examples and its labels stand for; may be empty."""

NAME_ALIKE = (
    "give all of them one file of agreed names, and one key if the names are hashed, or the "
    "classes of all, as `classes` of a TableFile or as empty folders of an ImageFolder"
)
"""Cure of clients that name nodes or classes differently."""

ExampleForm: TypeAlias = tuple[tuple[int, ...], str]
"""Shape of one input, and :func:`~fedbolic.remote.node.names_digest`."""

SCORED = frozenset({"test", "validation", "fine_tuned"})
"""First parts of the names of scores; names of metrics begin otherwise."""

RESERVED = frozenset({"holdout", "bytes", "clients", "ridge_head"})
"""First parts of the names of the server's own measurements."""

ReplyKind: TypeAlias = Literal["metrics", "scores", "fine_tuned"]


class NodeError(RuntimeError):
    """A client on another machine sent no usable reply."""


def check_handshake(received: Tree, *, num_clients: int, num_classes: int = MOST_CLASSES) -> None:
    """Raise an error for a handshake that no client of this federation could send.

    Args:
        received: Handshake as received.
        num_clients: Exclusive upper bound of client ids.
        num_classes: Maximum number of classes of a client.

    Raises:
        NodeError: If an entry is missing, of another type or out of its range.
    """
    bounds = {"client": num_clients - 1, "size": MOST_EXAMPLES, "num_classes": num_classes}
    for name, most in bounds.items():
        value = received.get(name)
        if type(value) is not int or not 0 <= value <= most:
            raise NodeError(f"its {name} must be an integer in 0 .. {most}, got {value!r:.80}")
    shape = _read_shape(received.get("input_shape"))
    if shape is None or len(shape) > _MOST_AXES or math.prod(shape) > MOST_FEATURES:
        raise NodeError(
            f"its input_shape must list at most {_MOST_AXES} positive integers, with a product of "
            f"at most {MOST_FEATURES}, got {received.get('input_shape')!r:.80}"
        )
    numbering = received.get("numbering", "")
    if not (isinstance(numbering, str) and NUMBERING.fullmatch(numbering)):
        raise NodeError(f"its numbering must be a digest in hexadecimal, got {numbering!r:.80}")


def _read_shape(text: object) -> list[int] | None:
    try:
        shape = json.loads(text) if isinstance(text, str) else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(shape, list) or any(type(n) is not int or n < 1 for n in shape):
        return None
    return shape


def example_form(received: Tree) -> ExampleForm:
    """The form of a client's examples, by its handshake.

    Args:
        received: Handshake that passed :func:`check_handshake`.
    """
    return tuple(json.loads(received["input_shape"])), received.get("numbering", "")


def deviating(
    handshakes: Mapping[int, Tree], own: ExampleForm | None = None
) -> tuple[ExampleForm, list[int]]:
    """The most frequent form of examples, and the ids of clients with another one.

    Args:
        handshakes: Handshakes by client id, at least one, that passed
            :func:`check_handshake`.
        own: Form of the server's own examples, which counts as one more client; ``None`` if it has
            none.

    Raises:
        ValueError: If no single form is the most frequent, or the server has other names.
    """
    forms = {i: example_form(received) for i, received in handshakes.items()}
    votes: Counter[ExampleForm] = Counter(forms.values())
    if own is not None:
        own = _vote(own, votes)
        votes[own] += 1
    (usual, most), *others = votes.most_common(2)
    if others and others[0][1] == most:
        shapes = sorted({str(shape) for shape, _ in votes})
        raise ValueError(
            f"the clients' inputs differ in shape: {shapes}"
            if len(shapes) > 1
            else f"the clients number nodes or classes by different names: {NAME_ALIKE}"
        )
    if own is not None and own[1] and usual[1] and own[1] != usual[1]:  # its labels mean others
        raise ValueError(
            f"most clients number nodes or classes by other names than the server: {NAME_ALIKE}"
        )
    return usual, [i for i, form in forms.items() if form != usual]


def _vote(own: ExampleForm, votes: Counter[ExampleForm]) -> ExampleForm:
    """The server's form, or that of clients which differ only in what the server does not know."""
    shape, numbering = own
    for form, _ in votes.most_common():
        if form == own or (form[0] == shape and form[1].startswith(f"{numbering}:")):
            return form
    return own


def read_update(
    reply: Tree, device: torch.device, *, name: str, kind: ReplyKind = "metrics"
) -> tuple[Update, str]:
    """The update in a reply, and the name of the client state after it.

    Args:
        reply: Reply as received.
        device: Device of the update's tensors.
        name: Name of the client state in the request, which may stay the same.
        kind: Kind of the update's metrics.

    Raises:
        NodeError: If the reply is an error or no valid update.
    """
    _refuse_error(reply)
    payload, weight, new = (reply.get(key) for key in ("payload", "weight", "name"))
    if not (isinstance(payload, dict) and isinstance(weight, float) and isinstance(new, str)):
        raise NodeError(f"its reply is not an update: it has {sorted(map(_printable, reply))[:8]}")
    if new != name and not STATE_NAME.fullmatch(new):
        raise NodeError(f"its client state must be named by 1 to 64 letters or digits: {new!r:.80}")
    if not 0 <= weight <= MOST_EXAMPLES:
        raise NodeError(f"its weight is {weight}, but must lie in 0 .. {MOST_EXAMPLES}")
    if (fault := tree.find_tree_fault(payload)) is not None:
        raise NodeError(f"its payload is not a tree: {fault}")
    if large := [path for path, leaf in tree.leaves(payload) if not _is_bounded(leaf)]:
        raise NodeError(f"its payload has values beyond {LARGEST_COUNT:g} at {large[:4]!r:.200}")
    metrics = read_numbers(reply, "metrics", kind=kind)
    return Update(tree.to(payload, device), weight, metrics), new


def _is_bounded(leaf: object) -> bool:
    """True if values are small enough to be summed; NaN and infinity are checked elsewhere."""
    if isinstance(leaf, Tensor):
        return not leaf.is_floating_point() or not bool((leaf.abs() > LARGEST_COUNT).any())
    return isinstance(leaf, str) or not abs(leaf) > LARGEST_COUNT  # type: ignore[arg-type]  # a number


def read_numbers(reply: Tree, part: str, *, kind: ReplyKind) -> dict[str, float]:
    """Metrics or scores in a reply, by name, with names and values checked.

    Args:
        reply: Reply as received.
        part: Entry of the reply, ``metrics`` or ``scores``.
        kind: Kind of the numbers: names of scores begin with a split, names of metrics do not, and
            fine-tuning returns both.

    Raises:
        NodeError: If the reply is an error, or a name or value is not allowed.
    """
    _refuse_error(reply)
    numbers = reply.get(part)
    if not (isinstance(numbers, dict) and all(type(x) is float for x in numbers.values())):
        raise NodeError(f"its {part} must map names to floats")
    if len(numbers) > MOST_NAMES:
        raise NodeError(f"it has {len(numbers)} {part}, but {MOST_NAMES} is the maximum")
    for name, value in numbers.items():
        if not NAME.fullmatch(name) or not _is_own(name.partition("/")[0], kind):
            raise NodeError(f"one of its {part} has a name that clients may not use: {name!r:.80}")
        if not (0 <= value <= MOST_EXAMPLES if is_sum(name) else _is_possible(name, value)):
            raise NodeError(f"one of its {part} is out of range: {name} is {value}")
    return numbers


def _is_own(first: str, kind: ReplyKind) -> bool:
    if kind == "fine_tuned":  # this prefix is added when the scores are recorded
        return first not in RESERVED and first != kind
    return first not in RESERVED and (first in SCORED) == (kind == "scores")


def _is_possible(name: str, value: float) -> bool:
    kind = name.rpartition("/")[2]
    if kind == "examples":
        return 0 <= value <= MOST_EXAMPLES and value == int(value)
    return 0 <= value <= 1 if kind in ("accuracy", *EXTRA_METRICS) else abs(value) <= LARGEST_COUNT


def rarely_fine_tuned(scores: Mapping[int, Mapping[str, float]]) -> list[int]:
    """Ids of clients with fine-tuned scores that fewer than half of all clients have.

    An honest federation has such scores for every client or for none, and records their mean.

    Args:
        scores: Scores by client id and name.
    """
    counts = Counter(name for named in scores.values() for name in named)
    rare = {n for n, k in counts.items() if n.startswith("fine_tuned/") and 2 * k < len(scores)}
    return [i for i, named in scores.items() if rare & named.keys()]


def unusual(payloads: Mapping[int, Tree], aggregator: Aggregator) -> list[int]:
    """Ids of clients whose payload has another form than most: only equal forms can be summed.

    Args:
        payloads: Payloads by client id; the first of equally frequent forms counts.
        aggregator: Aggregator that gives the form of a payload; one without a form is unusual.
    """
    forms = {i: _form(payload, aggregator) for i, payload in payloads.items()}
    usual = _most_common(form for form in forms.values() if form is not None)
    return [i for i, form in forms.items() if form is None or form != usual]


def _form(payload: Tree, aggregator: Aggregator) -> object:
    try:
        return tuple(sorted(tree.signature(aggregator.form(payload)).items()))
    except Exception:  # a node may send anything
        return None


def _most_common(values: Iterable[object]) -> object:
    """The most frequent value, the first of a tie; ``None`` if there are no values."""
    found = Counter(values).most_common(1)
    return found[0][0] if found else None


def plain_error(reply: Tree) -> Tree:
    """The reply; an error is reduced to a short printable text."""
    return {"error": _printable(reply["error"])} if "error" in reply else reply


def _printable(words: object) -> str:
    text = words if isinstance(words, str) else type(words).__name__
    return "".join(c if c.isprintable() else "?" for c in text[:200])


def _refuse_error(reply: Tree) -> None:
    if "error" in reply:
        raise NodeError(reply["error"])
