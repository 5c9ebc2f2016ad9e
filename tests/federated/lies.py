"""Lies of clients: what a client may send, keep or raise in place of an honest result."""

import asyncio
import collections
import copy
import dataclasses
import fractions
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from fedbolic.core import tree
from fedbolic.federated import Engine, Sequential
from fedbolic.federated.aggregators.update import RowNumbers, StackedRow, StackNumbers, Unread
from tests.hashes import digest


class Own(dict):
    """A dict of another class."""


class Subclass(torch.Tensor):
    """A tensor of another class."""


class Mute:
    """An object that ends the program when it is printed."""

    def __repr__(self):
        raise SystemExit("printed")


class Quiet(BaseException):
    """An error that is no ``Exception``, and cannot be printed."""

    def __str__(self):
        raise GeneratorExit


def sent(function):
    """The lie that replaces the payload."""

    def lie(update, client_state):
        return dataclasses.replace(update, payload=function(update.payload)), client_state

    return lie


def leaves(function):
    """The lie that replaces every leaf of the payload."""
    return sent(lambda payload: tree.map(function, payload))


def floats(function):
    """The lie that changes all floating tensors of the payload, and fills the integers."""

    def changed(leaf):
        if not isinstance(leaf, Tensor):
            return leaf
        if leaf.is_floating_point():
            return function(leaf)
        return torch.full_like(leaf, torch.iinfo(leaf.dtype).max)

    return leaves(changed)


def told(**parts):
    """The lie that replaces other parts of the update."""
    return lambda update, client_state: (dataclasses.replace(update, **parts), client_state)


def kept(leaf):
    """The lie that adds a leaf to the client state."""
    return lambda update, client_state: (update, {**client_state, "more": leaf})


def raised(error):
    """The lie of a client that raises an error."""

    def lie(update, client_state):
        raise error

    return lie


def tensor(function):
    """A function of leaves that changes tensors and keeps numbers."""
    return lambda leaf: function(leaf) if isinstance(leaf, Tensor) else leaf


def quantised(x):
    return torch.quantize_per_tensor(x.float(), 0.1, 0, torch.qint8)


def deep(payload, depth=5000):
    for _ in range(depth):
        payload = {"d": payload}
    return payload


def endless(payload):
    own: dict[str, Any] = dict(payload)
    own["own"] = own
    return own


def forged(update, client_state):
    """NaN in an update that claims to be the examined row of a stack."""
    payload = tree.map(lambda x: x * math.nan if isinstance(x, Tensor) else x, update.payload)
    numbers = StackNumbers(Unread([]), lambda _: [RowNumbers(1.0, {}, {})])
    row = StackedRow(None, 0, payload, client_state, numbers)
    return dataclasses.replace(update, payload=payload, row=row), client_state


def repeated(x):
    return x.reshape(-1)[:1].expand(x.numel()).reshape(x.shape) if x.numel() else x


def least(x):
    """The least number of the type; the largest where that is 0."""
    if x.is_floating_point():
        return torch.full_like(x, torch.finfo(x.dtype).min)
    return torch.full_like(x, torch.iinfo(x.dtype).min or torch.iinfo(x.dtype).max)


LIES = {
    "SystemExit": raised(SystemExit("over")),
    "GeneratorExit": raised(GeneratorExit()),
    "CancelledError": raised(asyncio.CancelledError()),
    "RecursionError": raised(RecursionError()),
    "an error that cannot be printed": raised(Quiet()),
    "nothing": lambda update, client_state: None,
    "a list": lambda update, client_state: [1, 2],
    "no update": lambda update, client_state: (None, client_state),
    "an update as a dict": lambda update, client_state: (vars(update), client_state),
    "no payload": told(payload=None),
    "an empty payload": told(payload={}),
    "one tensor more": sent(lambda x: {**x, "more": torch.zeros(3)}),
    "one part less": sent(lambda x: dict(list(x.items())[1:])),
    "a part of another name": sent(lambda x: {f"{name}2": of for name, of in x.items()}),
    "a dict of another class": sent(Own),
    "a deep payload": sent(deep),
    "an endless payload": sent(endless),
    "other dtypes": leaves(tensor(lambda x: x.half())),
    "complex": leaves(tensor(lambda x: x.to(torch.complex64))),
    "other shapes": leaves(tensor(lambda x: x[None])),
    "sparse": leaves(tensor(lambda x: x.to_sparse())),
    "meta": leaves(tensor(lambda x: x.to("meta"))),
    "quantised": leaves(tensor(quantised)),
    "nested": leaves(tensor(lambda x: torch.nested.as_nested_tensor([x]))),
    "a subclass": leaves(tensor(lambda x: x.as_subclass(Subclass))),
    "requires_grad": floats(lambda x: x.clone().requires_grad_()),
    "repeated numbers": leaves(tensor(repeated)),
    "arrays": leaves(tensor(lambda x: x.numpy())),
    "texts": leaves(lambda x: "x"),
    "None": leaves(lambda x: None),
    "an integer of 3000 bits": leaves(lambda x: 2**3000),
    "NaN": floats(lambda x: x * math.nan),
    "infinity": floats(lambda x: torch.full_like(x, -math.inf)),
    "1e30": floats(lambda x: torch.full_like(x, 1e30)),
    "the largest number": floats(lambda x: torch.full_like(x, torch.finfo(x.dtype).max)),
    "the least numbers": leaves(tensor(least)),
    "a small part of 1e30": floats(
        lambda x: torch.where(torch.arange(x.numel()).view(x.shape) == 0, 1e30, x)
    ),
    "zeros": leaves(tensor(torch.zeros_like)),
    "ones": leaves(tensor(torch.ones_like)),
    "the opposite": leaves(tensor(torch.neg)),
    "a weight of NaN": told(weight=math.nan),
    "a negative weight": told(weight=-1.0),
    "a weight of 1e300": told(weight=1e300),
    "a weight of zero": told(weight=0.0),
    "a weight of text": told(weight="7"),
    "no weight": told(weight=None),
    "a fraction as a weight": told(weight=fractions.Fraction(7, 3)),
    "no metrics": told(metrics=None),
    "a metric on meta": told(metrics={"train/loss": torch.zeros((), device="meta")}),
    "a sparse metric": told(metrics={"train/loss": torch.tensor(1.0).to_sparse()}),
    "a metric that ends the program": told(metrics={"train/loss": Mute()}),
    "a metric of infinity": told(metrics={"train/loss": math.inf, "holdout/accuracy": math.nan}),
    "a state of its own class": kept(Own(a=1)),
    "a sparse state": kept(torch.eye(2).to_sparse()),
    "a state on meta": kept(torch.zeros(2, device="meta")),
    "a state of 2 ** 40 numbers": kept(torch.zeros(1).expand(2**40)),
    "a state of NaN": kept(math.nan),
    "a state that counts": kept(collections.Counter("aa")),
    "a state of numpy's": kept(np.float64(1)),
    "a forged row": forged,
}
"""Lies by name, each made from the honest update and client state of a client."""

ACCEPTED = {
    *("zeros", "ones", "the opposite", "repeated numbers", "requires_grad", "a weight of zero"),
    *("a fraction as a weight", "a metric of infinity"),
}
"""Lies that may pass: no form, bound or number gives them away in every method."""


RECALLED: dict[str, Any] = {}
"""Honest results by all that they depend on: most lies leave the others' work as it is."""


def lying(method, lies):
    """The method, some of whose clients lie.

    Args:
        method: Any method, or a phase of one.
        lies: Name of the lie of each liar, by client id.
    """

    def local_update(self, message, client, client_state, rng):
        given = {"message": message, "state": client_state}
        key = f"{method!r} {client.id} {rng} {digest(given)}"
        if key not in RECALLED:
            RECALLED[key] = kind.local_update(self, message, client, client_state, rng)
        lie = lies.get(client.id)
        return RECALLED[key] if lie is None else LIES[lie](*RECALLED[key])

    kind = type(method)
    liar = copy.copy(method)
    changed = type(f"Lying{kind.__name__}", (kind,), {"local_update": local_update})
    object.__setattr__(liar, "__class__", changed)
    return liar


@dataclasses.dataclass(frozen=True)
class Lying(Engine):
    """The reference engine, some of whose clients lie in every exchange."""

    lies: dict[int, str]
    inner: Engine = Sequential()

    @override
    def run(self, exchange):
        return self.inner.run(
            dataclasses.replace(exchange, method=lying(exchange.method, self.lies))
        )
