"""Label codes: every sum is decoded, exhaustively for small cases, and no other number is."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedhull.labels import Binary, BoseChowla, DecodingError, logarithms, primitive_field


def sums(values, h):
    """Sum and labels of every multiset of up to ``h`` labels."""
    labels = range(len(values))
    for size in range(1, h + 1):
        for chosen in itertools.combinations_with_replacement(labels, size):
            yield sum(values[label] for label in chosen), list(chosen)


@pytest.mark.parametrize(("num", "h"), [(4, 2), (6, 2), (6, 3), (6, 4), (20, 2), (20, 3), (12, 4)])
def test_every_sum_of_up_to_h_labels_is_read_and_no_other_number(num, h):
    code = BoseChowla(h)
    values = code.values(num)
    assert min(values) > 0
    known = dict(sums(values, h))
    assert len(known) == sum(math.comb(num + size - 1, size) for size in range(1, h + 1))
    for total, labels in known.items():
        assert code.decode(total, num) == labels
    others = [n for n in range(1, max(known) + 1) if n not in known]
    for total in np.random.default_rng(0).choice(others, 300):
        with pytest.raises(DecodingError):
            code.decode(int(total), num)


@given(st.sets(st.integers(0, 59), min_size=1))
def test_binary_labels_decode_any_set(labels):
    values = Binary().values(60)
    assert Binary().decode(sum(values[label] for label in labels), 60) == sorted(labels)


@given(st.lists(st.integers(0, 99), min_size=1, max_size=4))
def test_a_hundred_labels_with_repetition(labels):
    code = BoseChowla(4)
    values = code.values(100)
    assert code.decode(sum(values[label] for label in labels), 100) == sorted(labels)


@pytest.mark.parametrize("total", [0, -3, 2**20])
@pytest.mark.parametrize("code", [Binary(), BoseChowla(2)])
def test_what_is_out_of_range_is_refused(code, total):
    with pytest.raises(DecodingError):
        code.decode(total, 6)


@pytest.mark.parametrize(("prime", "h"), [(3, 2), (7, 2), (5, 3), (11, 2)])
def test_logarithms_are_those_of_going_through_all_powers(prime, h):
    field = primitive_field(prime, h)
    powers = {str(field.gen() ** n): n for n in range(prime**h - 1)}
    assert len(powers) == prime**h - 1
    expected = sorted((powers[str(field.gen() + alpha)], alpha) for alpha in range(prime))
    assert logarithms(field) == expected


def is_bh(values, h):
    found = [total for total, _ in sums(values, h)]
    return len(found) == len(set(found))


def test_differences_of_neighbours_are_no_such_sequence():
    """Appendix G as printed, a_l = a'_{l+1} - a'_l: wrong for L = 3 and h = 2."""
    logs = [log for log, _ in logarithms(primitive_field(7, 2))]
    assert logs == [1, 5, 11, 12, 14, 26, 31]
    assert not is_bh([b - a for a, b in itertools.pairwise(logs)], 2)
    assert is_bh([b - logs[0] for b in logs[1:]], 2)


def test_the_raw_set_fails_for_fewer_than_h_labels():
    """Sums of exactly h labels differ, but those of up to h do not: 2 = 1 + 1."""
    assert not is_bh([1, 2, 15, 17, 22], 2)
    exactly = [a + b for a, b in itertools.combinations_with_replacement([1, 2, 15, 17, 22], 2)]
    assert len(exactly) == len(set(exactly))


@pytest.mark.parametrize(("clients", "h"), [(3, 4), (10, 6), (50, 4)])
def test_the_field_size_of_the_paper_is_too_small(clients, h):
    """The paper's bound max((L + 1)^h, B) is below the largest sum of labels unless B is large."""
    assert BoseChowla(h).largest_sum(2 * clients) > (clients + 1) ** h


def test_more_than_h_labels_may_be_misread_and_powers_of_two_are_not():
    """Three labels in a bin of a B_2 code can look like two others."""
    values = BoseChowla(2).values(20)
    known = dict(sums(values, 2))
    misread = [
        chosen
        for chosen in itertools.combinations(range(20), 3)
        if sum(values[label] for label in chosen) in known
    ]
    assert misread
    total = sum(values[label] for label in misread[0])
    assert BoseChowla(2).decode(total, 20) == known[total] != list(misread[0])
    powers = Binary().values(20)
    assert Binary().decode(sum(powers[label] for label in misread[0]), 20) == list(misread[0])
