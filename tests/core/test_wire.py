"""Wire messages: every tree survives to the last bit, and nothing else is decoded."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedbolic.core.tree_bytes import (
    WIRE_DTYPES,
    WireMessage,
    decode_message,
    encode_message,
    tree_digest,
)
from tests.federated.simple_method import assert_same, flat

names = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
shapes = st.lists(st.integers(0, 3), max_size=3)
tensors = st.tuples(st.sampled_from(sorted(WIRE_DTYPES)), shapes, st.integers(0, 2**32)).map(
    lambda drawn: tensor(*drawn)
)
leaves = st.integers() | st.floats(allow_nan=False) | st.booleans() | names | tensors
branches = st.dictionaries(names, leaves, max_size=3)
trees = st.dictionaries(names, leaves | branches | st.dictionaries(names, branches, max_size=2),
                        max_size=3)  # fmt: skip
few = settings(max_examples=30)


def tensor(dtype, shape, seed):
    """A tensor of random bits without NaN, which does not equal itself."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == "bool":
        return torch.rand(shape, generator=generator) < 0.5
    bits = torch.randint(256, (*shape, WIRE_DTYPES[dtype].itemsize), generator=generator)
    x = bits.to(torch.uint8).flatten().view(WIRE_DTYPES[dtype]).reshape(shape)
    return x.nan_to_num() if x.is_floating_point() or x.is_complex() else x


@few
@given(trees)
def test_a_tree_comes_back_to_the_last_bit_and_in_its_order(content):
    again = decode_message(encode_message(content))
    assert_same(again, content)
    assert list(flat(again)) == list(flat(content))
    assert encode_message(again) == encode_message(content)


def test_not_a_number_and_infinity_come_back_as_well():
    again = decode_message(
        encode_message({"x": torch.tensor([math.nan, -math.inf]), "y": math.nan, "z": -math.inf})
    )
    assert again["x"].isnan().tolist() == [True, False]
    assert math.isnan(again["y"])
    assert again["z"] == -math.inf


def test_strides_survive_the_wire():
    """Operations may round differently with other strides."""
    for x in (
        torch.arange(6.0).reshape(2, 3).T,
        torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.rand(2, 3, 1, 1).to(memory_format=torch.channels_last),
    ):
        again = decode_message(encode_message({"x": x}))["x"]
        assert torch.equal(again, x)
        assert again.stride() == x.stride()


def test_a_single_number_of_any_stride_is_sent():
    for x in (torch.arange(4.0)[1::3], torch.arange(4.0).reshape(2, 2)[:1, 1:].T):
        assert torch.equal(decode_message(encode_message({"x": x}))["x"], x)


def test_what_arrived_can_be_written_to():
    decode_message(encode_message({"x": torch.zeros(3)}))["x"].add_(1)


def in_order(content):
    """The tree with its names in order."""
    return {
        name: in_order(leaf) if isinstance(leaf, dict) else leaf
        for name, leaf in sorted(content.items())
    }


@few
@given(trees, trees)
def test_trees_have_the_same_digest_only_if_they_are_the_same(one, other):
    same = encode_message(in_order(one)) == encode_message(in_order(other))
    assert (tree_digest(one) == tree_digest(other)) == same


@few
@given(trees)
def test_a_digest_survives_the_wire_and_another_order_of_names(content):
    backwards = {name: content[name] for name in reversed(content)}
    assert tree_digest(decode_message(encode_message(backwards))) == tree_digest(content)


FOREIGN = (None, [1], torch.zeros(2).to_sparse(), {1: 2.0}, torch.ones(2).to(torch.float8_e5m2))


@pytest.mark.parametrize("leaf", FOREIGN)
def test_what_is_no_tree_is_not_sent(leaf):
    with pytest.raises(ValueError, match=r"tree|sent"):
        encode_message({"x": leaf})


@pytest.mark.parametrize(
    ("text", "buffers"),
    [
        ("", ()),
        ("[]", ()),
        ("3", ()),
        ('{"x": null}', ()),
        ('{"x": []}', ()),
        ('{"x": ["float32", [2], [1]]}', ()),
        ('{"x": ["float32", [0], [1]]}', ()),
        ('{"x": ["float32", [2], [1]]}', (b"1234",)),
        ('{"x": ["float32", [2], [1]]}', (b"123456789",)),
        ('{"x": ["float32", [-1], [1]]}', (b"",)),
        ('{"x": ["float32", [true], [1]]}', (b"1234",)),
        ('{"x": ["float32", [1.0], [1]]}', (b"1234",)),
        ('{"x": ["float32", 1, 1]}', (b"1234",)),
        ('{"x": ["object", [1], [1]]}', (b"12345678",)),
        ('{"x": [["float32"], [1], [1]]}', (b"1234",)),
        ('{"x": ["quint8", [1], [1]]}', (b"1",)),
        ('{"x": ["float32", [2], [0]]}', (b"12345678",)),
        ('{"x": ["float32", [2], [2]]}', (b"12345678",)),
        ('{"x": ["float32", [2, 2], [1, 1]]}', (bytes(16),)),
        ('{"x": ["float32", [2], [1, 2]]}', (b"12345678",)),
        ('{"x": ["float32", [1], [100000000000000000000]]}', (b"1234",)),
        ('{"x": ["float32", [1], [-1]]}', (b"1234",)),
        ('{"x": ["float32", [1], [1], "cpu", 1]}', (b"1234",)),
        ('{"x": 1}', (b"1234",)),
        ('{"x": ["float32", [0, 100000000000000000000], [1, 1]]}', (b"",)),
        ('{"x": ["float32", [100000000000000000000], [1]]}', (b"",)),
        ("{" * 100000, ()),
        ('{"x": ' * 100000, ()),
    ],
)
def test_what_nobody_wrote_is_not_read(text, buffers):
    with pytest.raises(ValueError, match=r"message|Expecting"):
        decode_message(WireMessage(text, buffers))


def test_a_device_that_a_message_names_is_not_used():
    text = '{"x": ["float32", [1], [1], "cuda:7"]}'
    assert decode_message(WireMessage(text, (bytes(4),)))["x"].device.type == "cpu"
