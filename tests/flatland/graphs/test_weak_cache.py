"""A weak cache computes once for living objects, and holds neither objects nor old results."""

import gc
from weakref import ref

import pytest

from flatland.graphs.weak_cache import WeakCache


class Part:
    """An object that can be referred to weakly."""

    def __init__(self, number):
        self.number = number


@pytest.fixture
def calls():
    return []


def summing(calls, size):
    def total(parts, *others):
        calls.append((*(part.number for part in parts), *others))
        return sum(part.number for part in parts) + sum(others)

    return WeakCache(total, size)


def test_equal_arguments_are_computed_once(calls):
    cache, parts = summing(calls, 4), tuple(map(Part, range(3)))
    assert [cache(parts), cache(parts), cache(tuple(parts)), cache(parts, 7)] == [3, 3, 3, 10]
    assert calls == [(0, 1, 2), (0, 1, 2, 7)]
    assert cache(parts[::-1]) == 3
    assert len(calls) == 3


def test_other_objects_of_equal_content_are_computed_again(calls):
    cache = summing(calls, 4)
    first, second = Part(1), Part(1)
    assert cache((first,)) == cache((second,)) == 1
    assert len(calls) == 2


@pytest.mark.parametrize("size", [1, 2, 3])
def test_the_latest_results_are_kept(calls, size):
    cache, parts = summing(calls, size), [(Part(i),) for i in range(5)]
    for part in parts:
        cache(part)
    assert len(cache) == size
    for part in parts[-size:]:
        cache(part)
    assert len(calls) == 5
    cache(parts[0])
    assert len(calls) == 6


def test_a_result_ends_with_any_of_its_objects(calls):
    cache, left, right, other = summing(calls, 4), Part(1), Part(2), Part(3)
    cache((left, right)), cache((left, other))
    gone = ref(right)
    del right
    gc.collect()
    assert gone() is None
    assert len(cache) == 1
    cache((left, other))
    assert len(calls) == 2
