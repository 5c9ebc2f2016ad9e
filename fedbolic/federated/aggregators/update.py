"""Client updates, alone or stacked, their aggregate, and bounds that every honest update keeps."""

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from weakref import WeakSet

import torch
from torch import Tensor

from fedbolic.core import tree
from fedbolic.core.types import Params, Tree

LONGEST_PART = 1e6
"""Longest part of a payload, in units of 1 plus the Euclidean norm of the message."""

OUTLYING = 1e3
"""The same for a client that is suspected once the server's state is not finite."""

MOST_COUNTS = 4096
"""Most integers of a part of a payload that are copied to the host in order to be examined."""

MOST_WEIGHT = 1e9
"""Maximum weight of an update, usually a number of examples."""


@dataclass(frozen=True, eq=False)
class Update:
    """Update of one client: everything that leaves the client in an exchange.

    Args:
        payload: Tree that the server aggregates.
        weight: Weight of the client in a mean, usually its number of training examples, in
            0 .. 1e9.
        metrics: Numbers to record, such as the training loss; under ``train/...`` if a score or a
            count of the server has the name. One that is computed on an accelerator may stay there,
            as a tensor without axes: the server reads the numbers of several clients at once.
        row: Place in stacked tensors; ``None`` if there are none. It never leaves the process.
    """

    payload: Tree
    weight: float = 1.0
    metrics: Mapping[str, float | Tensor] = field(default_factory=dict)
    row: "StackedRow | None" = None

    @property
    def stack(self) -> "StackedPayload | None":
        """Stacked tensors of which the payload is a row, unless it has been replaced since."""
        return self.row.stack if self.row and self.row.payload is self.payload else None


@dataclass(frozen=True, eq=False)
class StackedPayload:
    """Payloads of several clients as one tree, whose tensors have a leading axis of clients.

    Args:
        payload: The stacked payloads.
        clients: Ids of the clients, ascending.
    """

    payload: Tree
    clients: tuple[int, ...]


@dataclass(frozen=True, eq=False)
class StackedRow:
    """Place of a client's results in stacked tensors.

    Args:
        stack: Payloads of this client and of others; ``None`` if the payload is a copy.
        index: Row of the client.
        payload: The payload in this row; whoever replaces the payload of an update leaves the row.
        client_state: The client state that was computed with it.
        numbers: Numbers of all rows; ``None`` if none are known.
    """

    stack: StackedPayload | None
    index: int
    payload: Tree
    client_state: Tree
    numbers: "StackNumbers | None" = None


@dataclass(frozen=True, eq=False)
class StackedUpdates:
    """Results of several clients, whose tensors have a leading axis of clients.

    Args:
        payload: The stacked payloads.
        client_states: The stacked client states. A leaf that is no tensor is common to all clients;
            a :class:`~fedbolic.federated.contract.jagged.Jagged` leaf holds one tree per client
            that was part of an earlier client state, and is neither copied nor examined again.
        weights: Weight of every client.
        metrics: Metrics of every client, as in :class:`Update`; empty if there are none.
    """

    payload: Tree
    client_states: Tree
    weights: Sequence[float]
    metrics: Sequence[Mapping[str, float | Tensor]] = ()


@dataclass(frozen=True, eq=False)
class AggregatedUpdate:
    """Aggregate of the client updates of one exchange.

    Args:
        payload: Aggregate of the payloads.
        weight: Sum of the weights.
        clients: Ids of the clients in the aggregate, ascending.
        metrics: Numbers that describe the aggregation itself.
    """

    payload: Tree
    weight: float
    clients: tuple[int, ...]
    metrics: dict[str, float] = field(default_factory=dict)


def split_columns(
    columns: Mapping[str, Tensor], num_clients: int
) -> list[dict[str, float | Tensor]]:
    """Metrics of every client, on an accelerator as views of the columns.

    Args:
        columns: Metrics by name, each with one number per client.
        num_clients: Number of clients.

    Example:
        >>> import torch
        >>> split_columns({"a": torch.tensor([1.0, 2.0])}, 2)
        [{'a': 1.0}, {'a': 2.0}]
    """
    values = [x.tolist() if x.device.type == "cpu" else x.unbind() for x in columns.values()]
    rows = zip(*values, strict=True) if values else [()] * num_clients
    return [dict(zip(columns, row, strict=True)) for row in rows]


def counts_of(payload: Tree, *, num_axes: int = 0) -> Params:
    """Parts of a payload that are integers or single numbers, which bounds compare on the host.

    Parts of many integers are left out.

    Args:
        payload: Payload of one client, or a stack.
        num_axes: Leading axes of clients.
    """
    return {
        name: x
        for name, x in payload.items()
        if isinstance(x, Tensor)
        and not x.is_complex()
        and (x.ndim == num_axes or not x.is_floating_point())
        and x.shape[num_axes:].numel() <= MOST_COUNTS
    }


class Unread:
    """Real numbers of one device that the host reads later: in float64, integers in int64.

    One transfer, for which the host waits, brings all that is unread on the device, whoever asks.

    Args:
        values: Tensors of any shapes, which are not written to any more.

    Example:
        >>> Unread([torch.tensor([1.5]), torch.tensor(3)]).read()
        [tensor([1.5000], dtype=torch.float64), tensor(3)]
    """

    def __init__(self, values: Sequence[Tensor]) -> None:
        self._values = [x.double() if x.is_floating_point() else x.long() for x in values]
        self.is_read = not self._values or self._values[0].device.type == "cpu"
        if not self.is_read:
            _UNREAD.setdefault(self._values[0].device, WeakSet()).add(self)

    def read(self) -> list[Tensor]:
        """The numbers on the host."""
        if self.is_read:
            return self._values
        device = self._values[0].device
        together = [*_UNREAD[device]]
        wide = [x for each in together for x in each._values]
        bits = torch.cat([x.flatten().view(torch.float64) for x in wide]).cpu()
        parts = iter(bits.split([x.numel() for x in wide]))
        for each in together:
            each._values = [next(parts).view(x.dtype).view(x.shape) for x in each._values]
            each.is_read = True
        del _UNREAD[device]  # not before: where a transfer fails, another one is tried
        return self._values


_UNREAD: dict[torch.device, "WeakSet[Unread]"] = {}
"""Numbers of each device that somebody may still read; one thread uses a device at a time."""


def on_host(values: Sequence[Tensor]) -> list[Tensor]:
    """Numbers that the host needs now: see :class:`Unread`.

    Args:
        values: Tensors of any shapes on one device.
    """
    return Unread(values).read()


class RowNumbers(NamedTuple):
    """Numbers of a row of a stack, on the host.

    Args:
        norm: Upper bound of the Euclidean norm of all floating numbers of payload and client state;
            NaN or infinite if none is known.
        counts: The :func:`counts_of` of the payload.
        metrics: Metrics of the update.
    """

    norm: float
    counts: Params
    metrics: Mapping[str, float]


class StackNumbers:
    """Numbers of all rows of a stack, which are read when the first of them is needed.

    Args:
        unread: The numbers.
        of_rows: Function that returns those of every row from their values on the host.
    """

    def __init__(
        self, unread: Unread, of_rows: Callable[[list[Tensor]], Sequence[RowNumbers]]
    ) -> None:
        self.unread, self._of_rows = unread, of_rows

    @functools.cached_property
    def rows(self) -> Sequence[RowNumbers]:
        """Numbers of every row."""
        return self._of_rows(self.unread.read())

    def metrics(self, index: int) -> Mapping[str, float]:
        """Metrics of a row; on an accelerator they are read with the first that is needed.

        Args:
            index: The row.
        """
        return self.rows[index].metrics if self.unread.is_read else _UnreadMetrics(self, index)


class _UnreadMetrics(Mapping[str, float]):
    """Metrics of a row that are read when one of them is needed."""

    def __init__(self, numbers: StackNumbers, index: int) -> None:
        self._numbers, self._index = numbers, index

    def __getitem__(self, name: str) -> float:
        return self._numbers.rows[self._index].metrics[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers.rows[self._index].metrics)

    def __len__(self) -> int:
        return len(self._numbers.rows[self._index].metrics)


def host_or_scalar(x: Tensor | float) -> Tensor | float:
    """A metric in double precision: on an accelerator a tensor, for which the host need not wait.

    Args:
        x: A number, or a tensor without axes.
    """
    if isinstance(x, Tensor) and x.device.type != "cpu":
        return x.double()
    return float(x)


def norm_of(x: Tree) -> float:
    """Euclidean norm of all floating numbers of a tree, in float64, on the host."""
    numbers = [leaf for leaf in tree.values(x) if isinstance(leaf, float)]
    return math.hypot(float(tree.norm(x)), *numbers)


def rough_norm_of(x: Tree) -> float:
    """The same in the precision of the tensors, by one pass; NaN or infinite if it overflows."""
    numbers: list[float] = []
    of_device: dict[torch.device, list[Tensor]] = {}
    for leaf in tree.values(x):
        if isinstance(leaf, float):
            numbers.append(leaf)
        elif isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex()):
            of_device.setdefault(leaf.device, []).append(leaf)
    for device, of in of_device.items():
        if device.type == "cpu":  # nothing is launched, and nothing waited for
            norms = torch._foreach_norm(of)  # pyright: ignore[reportPrivateImportUsage]
            numbers += map(float, norms)
        else:
            numbers.append(float(tree.rough_norm(of)))
    return math.hypot(*numbers)


def find_long_part(message: Tree, payload: Tree, *, longest: float = LONGEST_PART) -> str | None:
    r"""The part of a payload that is too long for its message, in words; ``None`` if none is.

    .. math:: \|\Delta_k\| \le L \, (1 + \|m\|)

    and likewise for every other part but ``buffers``, the bound of which is squared: they hold
    variances of inputs that nobody has scaled.

    Args:
        message: Message to the client.
        payload: Payload of its update, a tree.
        longest: Bound L, in units of 1 plus the norm of the message.

    Example:
        >>> message = {"parameters": {"w": torch.tensor([3.0, 4.0])}}
        >>> find_long_part(message, {"delta": {"w": torch.tensor([5.9e6, 0.0])}})
        >>> find_long_part(message, {"delta": {"w": torch.tensor([6.1e6, 0.0])}})
        'its delta has the norm 6.1e+06, and the largest allowed is 6e+06'
    """
    bound = longest * (1 + norm_of(message))
    for name, part in payload.items():
        most = bound**2 if name == "buffers" else bound
        if not (norm := norm_of({name: part})) <= most:
            return f"its {name} has the norm {norm:.3g}, and the largest allowed is {most:.3g}"
    return None


def find_outside(payload: Tree, name: str, low: int | float, high: int | float) -> str | None:
    """Words on a part of a payload that has numbers outside of a range; ``None`` if all are inside.

    Args:
        payload: Payload of an update.
        name: Name of a tensor in it.
        low: Least number that is allowed.
        high: Largest number that is allowed.

    Example:
        >>> find_outside({"votes": torch.tensor([0, 2])}, "votes", 0, 1)
        'its votes must lie in 0 .. 1, got 0 .. 2'
    """
    values = payload[name]
    if not values.numel():
        return None
    least, most = (x.item() for x in values.aminmax())
    if low <= least and most <= high:
        return None
    return f"its {name} must lie in {low:g} .. {high:g}, got {least:g} .. {most:g}"
