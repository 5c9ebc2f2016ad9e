import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng

seeds = st.integers(0, 2**63)
paths = st.lists(st.one_of(st.text(max_size=3), st.integers(-5, 5)), max_size=4).map(tuple)


@given(seeds, paths, paths)
def test_a_name_given_in_parts_is_the_same_name(seed, first, second):
    assert Rng(seed).at(*first).at(*second) == Rng(seed).at(*first, *second)
    assert Rng(seed).at(*first).at(*second).number() == Rng(seed, first + second).number()


@given(seeds, seeds, paths, paths)
def test_different_seeds_or_names_give_different_numbers(seed, other, first, second):
    x, y = Rng(seed, first), Rng(other, second)
    assert (x.number() == y.number()) == ((seed, first) == (other, second))


@pytest.mark.parametrize(
    ("x", "y"), [(("a", 1), ("a1",)), ((1,), ("1",)), (("a", "b"), ("ab",)), ((), ("",))]
)
def test_names_that_look_alike_are_kept_apart(x, y):
    assert Rng(0, x).number() != Rng(0, y).number()


@given(seeds, paths)
def test_a_stream_begins_anew_each_time_and_ignores_the_global_one(seed, path):
    rng, state = Rng(seed, path), torch.get_rng_state()
    first = torch.rand(3, generator=rng.generator()), rng.numpy().random(3)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(seed % 11)
    np.random.default_rng(0).random()
    second = torch.rand(3, generator=rng.generator()), rng.numpy().random(3)
    assert torch.equal(first[0], second[0])
    assert (first[1] == second[1]).all()
    torch.set_rng_state(state)


@given(seeds, paths)
def test_numbers_have_63_bits(seed, path):
    assert 0 <= Rng(seed, path).number() < 2**63


def test_the_bits_of_neighbouring_names_are_even():
    numbers = [Rng(0).at("client", i).number() for i in range(2000)]
    shares = np.array([[number >> bit & 1 for bit in range(63)] for number in numbers]).mean(0)
    assert (abs(shares - 0.5) < 5 * (0.25 / 2000) ** 0.5).all()


def test_the_streams_of_neighbouring_clients_do_not_correlate():
    draws = np.stack(
        [torch.rand(500, generator=Rng(0).at("client", i).generator()).numpy() for i in range(40)]
    )
    correlations = np.corrcoef(draws)[np.triu_indices(40, 1)]
    assert abs(correlations).max() < 5.5 / 500**0.5


def test_the_number_is_the_same_on_every_machine_and_day():
    """The first 8 bytes, halved, of the SHA-256 of the stream's written name; sha256sum agrees.

    printf "(0, ('round', 1))" | sha256sum
    """
    assert Rng(0).at("round", 1).number() == 0x59BD0EEA7D774CD8 >> 1


DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
def test_torch_s_global_stream_is_a_named_one_within_a_block_and_nowhere_else(device):
    place = torch.device(device, 0) if device == "cuda" else torch.device(device)

    def draws():
        return torch.rand(3).tolist(), torch.rand(3, device=place).tolist()

    torch.manual_seed(5)
    expected = draws(), draws()
    torch.manual_seed(5)
    before = draws()
    found = []
    for name in ("a", "b", "a"):
        with Rng(0).at(name).as_torch_global(place) as drawn:
            assert not drawn()
            found.append(draws())
            assert drawn()
    with pytest.raises(ValueError, match="gone"), Rng(0).as_torch_global(place):
        torch.rand(len(draws()) + int("gone"))
    assert (before, draws()) == expected
    assert found[0] == found[2] != found[1]
    generator = torch.Generator(place).manual_seed(Rng(0).at("a").number())
    if device == "cpu":
        assert found[0][0] == torch.rand(3, generator=generator).tolist()
