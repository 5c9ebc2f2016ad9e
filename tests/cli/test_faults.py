"""An invalid update costs its client the place in the exchange and affects no other client."""

import collections
import dataclasses
import io
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core import tree
from fedbolic.federated import Batched, Update, Workers
from fedbolic.federated.rounds.update_filter import find_update_fault
from tests.federated.simple_method import SIZES, Averaged, assert_near, federation, point, train

DEEP: dict[str, Any] = {}
for _ in range(5000):
    DEEP = {"d": DEEP}
ENDLESS: dict[str, Any] = {}
ENDLESS |= {"a": ENDLESS, "b": ENDLESS}
WIDE: dict[str, Any] = {}
for _ in range(40):
    WIDE = {"a": WIDE, "b": WIDE}


class Own:
    """An object of a class that is defined here only."""


class Unspeakable(Own):
    """An object whose ``repr`` fails."""

    def __repr__(self):
        raise RuntimeError


@dataclasses.dataclass(frozen=True)
class Returning(Averaged):
    """Client 2 returns something invalid from its second turn on."""

    returned: str = ""

    def local_update(self, message, client, client_state, rng):
        update, kept = super().local_update(message, client, client_state, rng)
        if client.id == 2 and client_state:
            return RETURNED[self.returned](update, kept)
        return update, kept


def told(**parts):
    return lambda update, client_state: (dataclasses.replace(update, **parts), client_state)


def kept(leaf, name="bad"):
    return lambda update, client_state: (update, {**client_state, name: leaf})


RETURNED = {
    "nothing": lambda update, client_state: None,
    "a list": lambda update, client_state: [1, 2],
    "three": lambda update, client_state: (update, client_state, client_state),
    "no memory": lambda update, client_state: (update, None),
    "no update": lambda update, client_state: (None, client_state),
    "a payload of nothing": told(payload=None),
    "a payload of a list": told(payload=[1.0]),
    "a payload with a path": told(payload={"change/x": torch.zeros(5).double()}),
    "a payload with a number for a name": told(payload={1: torch.zeros(5)}),
    "a payload of numpy's": told(payload={"delta": {"x": np.zeros(5)}}),
    "a payload without end": told(payload=ENDLESS),
    "a deep payload": told(payload=DEEP),
    "metrics of nothing": told(metrics=None),
    "metrics of a list": told(metrics=[1.0]),
    "metrics of text": told(metrics={"loss": "low"}),
    "metrics of tensors": told(metrics={"loss": torch.ones(2)}),
    "metrics without names": told(metrics={3: 1.0}),
    "metrics that are too large": told(metrics={"loss": 10**400}),
    "metrics that cannot be written": told(metrics={"\ud800": 1.0}),
    "metrics that cannot be shown": told(metrics={"loss": Unspeakable()}),
    "a weight that is too large": told(weight=10**400),
    "a weight that cannot be printed": told(weight=10**5000),
    "a weight of nothing": told(weight=None),
    "a weight of text": told(weight="7"),
    "a weight of a tensor": told(weight=torch.ones(2)),
    "a complex weight": told(weight=1j),
    "a memory of its own class": kept(Own()),
    "a memory of a set": kept({1, 2}),
    "a memory of a list": kept([1]),
    "a memory of numpy's": kept(np.float64(1)),
    "a memory of bytes": kept(b"secret"),
    "a memory of nothing": kept(None),
    "a memory of code": kept(print),
    "a memory of a huge number": kept(10**700),
    "a memory of half a character": kept("\udfff"),
    "a memory with a path": kept(1.0, name="a/b"),
    "a memory with a number for a name": kept(1.0, name=3),
    "a memory without end": kept(ENDLESS),
    "a deep memory": kept(DEEP),
    "a memory of 2 ** 40 parts": kept(WIDE),
    "a memory that counts": kept(collections.Counter("aa")),
}


@pytest.mark.parametrize("name", RETURNED)
def test_what_a_client_returns_costs_it_its_place_alone(name, caplog):
    data = federation(SIZES)
    positions, rows = train(Returning(returned=name), data)
    assert_near(positions[-1].server_state["x"], point(data, without=(2,)), 1e-12)
    assert [row.value for row in rows if row.name == "clients/failed"] == [0, 1, 1]
    assert positions[-1].client_states[2]["turns"] == 1
    assert caplog.text.count("client 2 is left out") == 2


@pytest.mark.parametrize("engine", [Batched(), Workers(1)], ids=["batched", "workers"])
def test_so_it_is_with_every_engine(engine):
    method, data = Returning(returned="a memory of its own class"), federation(SIZES)
    (*_, last), _ = train(method, data, engine=engine)
    assert_near(last.server_state["x"], point(data, without=(2,)), 1e-12)


names = st.text(max_size=4) | st.sampled_from(["a/b", "\ud800"])
numbers = st.integers() | st.integers(1000, 3000).map(lambda n: 2**n) | st.floats()
texts = st.text(max_size=4) | st.just("\udc00")
others = st.sampled_from([None, b"x", [1], np.float32(2.0), np.int64(3), {1}, Own(), 1j])
arrays = st.sampled_from([torch.ones(2), torch.nn.Parameter(torch.zeros(1)), torch.ones(1).half()])
leaves = numbers | texts | others | arrays | st.booleans()
anything = st.recursive(leaves, lambda inner: st.dictionaries(names, inner, max_size=3))


@given(st.dictionaries(names, anything, max_size=3))
def test_a_memory_without_fault_can_be_loaded_again(client_state):
    """torch's loader of weights must accept it: a fault would end the run when it is resumed."""
    file = io.BytesIO()
    if tree.find_tree_fault(client_state) is None:
        torch.save(client_state, file)
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        assert tree.signature(loaded) == tree.signature(client_state)
        paths = [path for path, _ in tree.leaves(client_state)]
        assert len(set(paths)) == len(paths)


def test_an_honest_update_has_no_fault():
    update = Update({"x": torch.ones(2), "deep": {"n": 2**1000, "t": "ü"}}, np.float32(3.0),
                    {"train/loss": float("nan"), "n": np.float64(2)})  # fmt: skip
    assert find_update_fault(update, {"server_state": {}, "on": True}, None) is None
