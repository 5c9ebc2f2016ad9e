"""Figures survive writing and reading; files hold plain arrays only."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.figure import DiscFigure, EmbeddingFigure, read_figure, write_figure

dtypes = st.sampled_from([torch.float32, torch.float64])
counts = st.integers(0, 5)


@st.composite
def discs(draw):
    n, m, dtype = draw(counts), draw(counts), draw(dtypes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    points, marks = (torch.rand(k, 2, generator=generator, dtype=dtype) - 0.5 for k in (n, m))
    labels = torch.randint(26, (n,), generator=generator)
    p = draw(counts)
    ids = torch.arange(p).repeat_interleave(torch.randint(1, 4, (p,), generator=generator))
    curves = torch.rand(len(ids), 2, generator=generator, dtype=dtype) - 0.5
    return DiscFigure(points, labels, marks, curves, ids, torch.arange(p), torch.arange(p) % 2 == 0)


@st.composite
def embeddings(draw):
    n, dtype = draw(counts), draw(dtypes)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    points = torch.randn(n, draw(st.integers(1, 7)), generator=generator, dtype=dtype)
    of = draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0")))
    return EmbeddingFigure(points, torch.randint(26, (n,), generator=generator), of=of)


def assert_same(x, y):
    """Assert equal types, dtypes and values, to the last bit."""
    assert type(x) is type(y)
    for name, value in vars(x).items():
        other = getattr(y, name)
        if isinstance(value, torch.Tensor):
            assert value.dtype == other.dtype
            assert torch.equal(value, other)
        else:
            assert value == other


@given(discs() | embeddings())
def test_a_figure_is_read_as_it_was_written(tmp_path_factory, figure):
    file = tmp_path_factory.mktemp("figures") / "a.npz"
    with file.open("wb") as stream:
        write_figure(figure, stream)
    assert_same(read_figure(file), figure)


def test_the_file_holds_the_fields_as_arrays_and_no_pickle(tmp_path):
    points, labels = torch.tensor([[0.5, 0.25]], requires_grad=True), torch.tensor([3])
    with (tmp_path / "a.npz").open("wb") as stream:
        write_figure(
            DiscFigure(points * 1, labels), stream
        )  # part of an autograd graph, as a method may return it
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        curves = {"curves", "curve_ids", "curve_labels", "curve_dashed"}
        assert set(arrays.files) == {"kind", "points", "labels", "marks"} | curves
        assert arrays["kind"] == "disc"
        assert arrays["points"].tolist() == [[0.5, 0.25]]
        assert arrays["labels"].tolist() == [3]
        assert arrays["marks"].shape == (0, 2)
        assert not any(arrays[name].dtype.hasobject for name in arrays.files)


@pytest.mark.parametrize("arrays", [{}, {"kind": np.array("torus")}, {"points": np.zeros((1, 2))}])
def test_a_file_of_something_else_is_refused_and_named(arrays, tmp_path):
    file: Path = tmp_path / "other.npz"
    np.savez(file, **arrays)
    with pytest.raises(ValueError, match=r"other\.npz must hold a figure of kind disc or embeddi"):
        read_figure(file)
