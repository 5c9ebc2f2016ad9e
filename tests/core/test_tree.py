import copy
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core import tree
from fedbolic.federated import Update
from tests.federated.lies import LIES
from tests.federated.simple_method import assert_same, flat

names = st.text("abc", min_size=1, max_size=2)
floats = st.floats(-1e6, 1e6)


def tensors(dtype=torch.float64):
    return st.lists(floats, max_size=4).map(
        lambda v: torch.tensor(v, dtype=torch.float64).to(dtype)
    )


def trees(leaves):
    return st.recursive(
        st.dictionaries(names, leaves, max_size=3),
        lambda inner: st.dictionaries(names, leaves | inner, max_size=3),
        max_leaves=6,
    )


numeric = trees(st.one_of(floats, tensors(), tensors(torch.float32)))
whole = trees(
    st.one_of(floats, st.integers(0, 2**62), st.text(max_size=4), tensors(), tensors(torch.int64))
)


def close(x, y):
    x, y = flat(x), flat(y)
    assert x.keys() == y.keys()
    for path in x:
        torch.testing.assert_close(x[path], y[path], rtol=1e-5, atol=1e-3)


@given(whole)
def test_leaves_go_through_every_path_in_order(x):
    assert [f"/{path}" for path, _ in tree.leaves(x)] == list(flat(x))
    assert all(leaf is flat(x)[f"/{path}"] for path, leaf in tree.leaves(x))


@given(whole)
def test_mapping_the_identity_gives_the_same_leaves_in_a_new_tree(x):
    y = tree.map(lambda leaf: leaf, x)
    assert y is not x
    assert all(a is b for a, b in zip(flat(x).values(), flat(y).values(), strict=True))


@given(numeric, floats)
def test_scaling_is_repeated_addition_undone_by_subtraction(x, factor):
    close(tree.add(x, x), tree.scale(x, 2.0))
    close(tree.subtract(tree.add(x, x), x), x)
    close(tree.scale(tree.scale(x, 2.0), 0.5), x)
    assert all(bool((torch.as_tensor(v) == 0).all()) for v in flat(tree.subtract(x, x)).values())
    for path, leaf in flat(tree.scale(x, factor)).items():
        torch.testing.assert_close(leaf, flat(x)[path] * factor)


tensors_alone = trees(st.one_of(tensors(), tensors(torch.float32)))


@given(tensors_alone, st.floats(-9, 9))
def test_what_is_written_into_a_tree_is_the_same(x, factor):
    other, number = tree.scale(x, 3.0), torch.tensor(factor, dtype=torch.float64)
    for function, second, expected in (
        (tree.subtract_, other, tree.subtract(x, other)),
        (tree.add_, other, tree.add(x, other)),
        (tree.scale_, number, tree.map(lambda a: a * number, x)),
    ):
        written = tree.clone(x)
        assert_same(function(written, second), expected)
        assert_same(written, expected)


def test_trees_are_written_under_vmap():
    x, y = torch.arange(6.0).reshape(3, 2), torch.ones(3, 2)
    factors = torch.tensor([1.0, 2.0, 3.0])

    def written(x, y, factor):
        return tree.scale_(tree.subtract_({"a": x.clone()}, {"a": y}), factor)

    found = torch.func.vmap(written)(x, y, factors)
    assert torch.equal(found["a"], (x - y) * factors.unsqueeze(1))


@given(numeric, numeric)
def test_arithmetic_leaves_its_arguments_untouched(x, y):
    before = copy.deepcopy((x, y))
    tree.add(x, x), tree.subtract(x, x), tree.scale(x, 3.0), tree.zeros_like(x), tree.clone(x)
    tree.to(x, "cpu", torch.float16), tree.norm(x), tree.is_finite(x), tree.num_bytes(x)
    assert_same(x, before[0])
    assert_same(y, before[1])


@given(whole)
def test_trees_of_other_names_are_refused(x):
    for other in ({**x, "new": 1}, {"new": x}):
        with pytest.raises(ValueError, match="trees differ"):
            tree.map(lambda a, b: a, x, other)


@pytest.mark.parametrize("leaf", [1.0, "s", torch.ones(2)])
def test_a_leaf_against_a_branch_is_refused(leaf):
    for x, y in (({"a": leaf}, {"a": {"b": 1}}), ({"a": {"b": 1}}, {"a": leaf})):
        with pytest.raises(ValueError, match="trees differ"):
            tree.map(lambda a, b: a, x, y)


@given(whole)
def test_a_clone_is_equal_and_shares_no_storage(x):
    y = tree.clone(x)
    assert_same(x, y)
    for a, b in zip(tree.tensors(x).values(), tree.tensors(y).values(), strict=True):
        assert not a.numel() or a.data_ptr() != b.data_ptr()


def test_a_clone_has_no_gradient_history():
    x = torch.ones(2, requires_grad=True)
    assert not tree.clone({"a": x * 2, "b": x})["a"].requires_grad
    assert not tree.clone({"b": x})["b"].requires_grad


@given(whole)
def test_zeros_keep_the_form_and_all_that_is_no_tensor(x):
    y = tree.zeros_like(x)
    assert tree.signature(x) == tree.signature(y)
    for path, leaf in flat(y).items():
        if isinstance(leaf, torch.Tensor):
            assert not leaf.any()
        else:
            assert leaf == flat(x)[path]


def test_only_floating_tensors_change_their_dtype():
    x = {"f": torch.ones(2), "i": torch.ones(2, dtype=torch.int32), "n": 1, "s": "text"}
    y = tree.to(x, "cpu", torch.float64)
    assert (y["f"].dtype, y["i"].dtype, y["n"], y["s"]) == (torch.float64, torch.int32, 1, "text")
    assert_same(tree.to(x, "cpu"), x)
    assert_same(tree.to(x, "cpu", torch.int64), x)


@given(whole, st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_bad_number_anywhere_is_found(x, bad):
    assert tree.is_finite(x)
    assert not tree.is_finite({**x, "bad": bad})
    assert not tree.is_finite({"in": {"deep": torch.tensor([0.0, bad])}, **x})
    assert not tree.is_finite({"half": torch.tensor([bad], dtype=torch.float16)})


@pytest.mark.parametrize("number", [1e300, -1e300, 2**80, True, 2**63 - 1])
def test_large_numbers_are_finite(number):
    assert tree.is_finite({"a": number})


@given(st.lists(floats, min_size=1, max_size=6))
def test_the_norm_is_that_of_all_numbers_together(numbers):
    x = {str(i): {"a": torch.tensor([v], dtype=torch.float64)} for i, v in enumerate(numbers)}
    norm = tree.norm({**x, "ignored": torch.tensor([7]), "also": "text", "number": 3.0})
    assert norm.dtype == torch.float64
    assert float(norm) == pytest.approx(math.hypot(*numbers), rel=1e-12)


def test_the_norm_of_nothing_is_zero():
    assert tree.norm({"n": 1}).item() == tree.norm({}).item() == 0


def test_the_norm_does_not_overflow_in_single_precision():
    assert float(tree.norm({"a": torch.full((4,), 1e30)})) == pytest.approx(2e30)


def test_bytes_are_counted_by_hand():
    x = {
        "f32": torch.zeros(3, 5),  # 60
        "f64": {"deep": torch.zeros(2, dtype=torch.float64)},  # 16
        "u8": torch.zeros(7, dtype=torch.uint8),  # 7
        "b": torch.zeros(3, dtype=torch.bool),  # 3
        "scalar": torch.zeros((), dtype=torch.float16),  # 2
        "n": 1,  # 8
        "v": 1.5,  # 8
        "s": "Poincaré",  # 9 in UTF-8
        "empty": {},
    }
    assert tree.num_bytes(x) == 60 + 16 + 7 + 3 + 2 + 8 + 8 + 9


@given(whole, whole)
def test_signatures_are_equal_just_when_names_dtypes_and_shapes_are(x, y):
    def form(z):
        return {
            path: (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf)
            for path, leaf in flat(z).items()
        }

    assert (tree.signature(x) == tree.signature(y)) == (form(x) == form(y))


@given(whole, whole)
def test_trees_of_one_kind_have_one_signature_and_one_size(x, y):
    assert tree.is_of_kind(tree.map(lambda leaf: leaf, x), tree.kind(x)) == all(
        type(leaf) is not str for leaf in flat(x).values()
    )
    if tree.is_of_kind(y, tree.kind(x)):
        assert tree.signature(y) == tree.signature(x)
        assert tree.num_bytes(y) == tree.num_bytes(x)


@pytest.mark.parametrize("lie", LIES.values(), ids=LIES)
@pytest.mark.parametrize("large", [False, True])
def test_what_is_of_a_known_kind_has_no_fault(lie, large):
    size = tree.MOST_REPEATED + 1 if large else 3
    payload = {"w": torch.ones(size), "more": {"n": torch.tensor(2), "at": 0.5, "on": True, "i": 3}}
    known, known_state = tree.kind(payload), tree.kind({"c": 1.0})
    assert tree.is_of_kind(tree.clone(payload), known)
    try:
        update, client_state = lie(Update(payload), {"c": 1.0})
    except BaseException:  # a client that sends nothing
        return
    sent = getattr(update, "payload", update)
    if tree.is_of_kind(sent, known):
        assert tree.find_tree_fault(sent) is None
        assert tree.signature(sent) == tree.signature(payload)
    assert not tree.is_of_kind(client_state, known_state) or client_state == {"c": 1.0}


def test_a_tensor_whose_storage_was_freed_is_of_no_kind():
    x, known = torch.ones(4), tree.kind({"x": torch.ones(4)})
    assert tree.is_of_kind({"x": x}, known)
    x.untyped_storage().resize_(0)
    assert not tree.is_of_kind({"x": x}, known)


@given(trees(floats), st.sampled_from(["", "a", "ab", "d"]))
def test_a_part_and_the_rest_are_the_whole(x, prefix):
    part = {prefix + name: value for name, value in tree.part(x, prefix).items()}
    rest = {name: value for name, value in x.items() if name[: len(prefix)] != prefix}
    assert part | rest == x
    assert not part.keys() & rest.keys()
