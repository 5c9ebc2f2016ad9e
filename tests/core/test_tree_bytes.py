"""Digests of trees: equal for equal trees, and different where anything differs that counts."""

import itertools

import pytest
import torch

from fedbolic.core.tree_bytes import tree_digest

DIFFERENT = (
    {},
    {"a": {}},
    {"a": {"b": 1}},
    {"a/b": 1},
    {"a": 1, "b": 1},
    {"a": 1},
    {"a": 1.0},
    {"a": True},
    {"a": "1"},
    {"a": 0.0},
    {"a": -0.0},
    {"a": '["torch.float32", 1]'},
    *({"a": torch.zeros(2, dtype=dtype)} for dtype in (torch.float32, torch.int32, torch.bool)),
    *({"a": torch.zeros(shape)} for shape in ((), (0,), (0, 2), (1,), (2, 1), (1, 2))),
    {"a": -torch.zeros(2)},
    {"a": torch.zeros(2, dtype=torch.float64)},
    {"a": torch.zeros(2, dtype=torch.complex64)},
    {"a": torch.zeros(1), "b": torch.ones(1)},
    {"a": torch.ones(1), "b": torch.zeros(1)},
)


def test_what_differs_in_a_name_a_type_or_a_bit_has_another_digest():
    for one, other in itertools.combinations(DIFFERENT, 2):
        assert tree_digest(one) != tree_digest(other), (one, other)


def test_the_order_of_names_and_strides_do_not_count():
    x = torch.arange(6.0).reshape(2, 3)
    for y in (x.T.contiguous().T, x.repeat(1, 2)[:, :3], x.clone(), x.requires_grad_()):
        assert tree_digest({"x": y, "n": 1}) == tree_digest({"n": 1, "x": x})
    z = torch.tensor([1 + 2j])
    assert tree_digest({"z": z.conj()}) == tree_digest({"z": torch.tensor([1 - 2j])})
    assert tree_digest({"z": z.conj().imag}) == tree_digest({"z": torch.tensor([-2.0])})


def test_a_changed_tensor_has_another_digest():
    x = torch.zeros(4)
    before = tree_digest({"x": x})
    x[1:][0] = 1.0
    assert tree_digest({"x": x}) != before
    x[1] = 0.0
    assert tree_digest({"x": x}) == before
    with torch.inference_mode():
        y = torch.zeros(4)
        assert tree_digest({"x": y}) == before
        y += 1
        assert tree_digest({"x": y}) != before


@pytest.mark.parametrize("leaf", [None, [1], torch.zeros(2).to_sparse(), torch.zeros(2).to("meta")])
def test_what_is_no_tree_has_no_digest(leaf):
    with pytest.raises(ValueError, match=r"a tree holds|has no digest"):
        tree_digest({"x": {"y": leaf}})
