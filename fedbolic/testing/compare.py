"""Comparison of trees, written without the code under test."""

import io
from collections.abc import Mapping
from typing import Any

import torch


def flat(tree: Any, path: str = "") -> dict[str, Any]:
    """Leaves of a tree by path.

    Example:
        >>> flat({"a": {"b": 1}})
        {'/a/b': 1}
    """
    if not isinstance(tree, Mapping):
        return {path: tree}
    return {k: v for name in tree for k, v in flat(tree[name], f"{path}/{name}").items()}


def assert_same(x: Any, y: Any) -> None:
    """Assert that two trees are equal to the last bit: names, types, dtypes, shapes and values.

    Raises:
        AssertionError: If they differ; the message gives the path.
    """
    x, y = flat(x), flat(y)
    assert x.keys() == y.keys()
    for path in x:
        assert type(x[path]) is type(y[path]), path
        if isinstance(x[path], torch.Tensor):
            assert x[path].dtype == y[path].dtype, path
            assert torch.equal(x[path], y[path]), path
        else:
            assert x[path] == y[path], path


def assert_near(x: Any, y: Any, atol: float) -> None:
    """Assert that two trees have equal names, texts, shapes and dtypes, and values within ``atol``.

    Raises:
        AssertionError: If they differ; the message gives the path.
    """
    x, y = flat(x), flat(y)
    assert x.keys() == y.keys()
    for path in x:
        if isinstance(x[path], str):
            assert x[path] == y[path], path
            continue
        torch.testing.assert_close(
            x[path], y[path], rtol=0, atol=atol, msg=lambda text, path=path: f"{path}: {text}"
        )


def saved_and_loaded(value: Any) -> Any:
    """A tree after ``torch.save`` and ``torch.load`` without pickled code."""
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def storages(*trees: Any) -> set[int]:
    """Addresses of the storages of all tensors in some trees, without empty ones."""
    return {
        leaf.untyped_storage().data_ptr()
        for tree in trees
        for leaf in flat(tree).values()
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    }
