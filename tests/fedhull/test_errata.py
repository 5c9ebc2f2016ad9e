"""A counterexample to each error of the paper or its code, and the correct behaviour.

Errors of a single subject are tested elsewhere: labels in ``test_labels``, reference points in
``test_classifier``, the two losses in ``test_svm``.
"""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import ClassRuns
from fedhull import Assignment, BoseChowla, HyperbolicSVC, KernighanLin, PolarGrid, Spectral
from fedhull.geometry.hull import hull
from fedhull.geometry.reference import midpoints
from fedhull.grouping import hull_distances
from fedhull.labels import logarithms, primitive_field
from fedhull.transmit import decode_hulls, encode_hulls, num_symbols, prime_above
from tests.fedhull.test_grouping import hulls as clouds


def test_sums_of_labels_wrap_around_in_the_field_of_the_paper():
    """Sec. 5.4, q >= max((L + 1)^h, B): correct by luck only, if there are many bins."""
    num_clients, h, num_bins = 3, 4, 100
    code, num_labels = BoseChowla(h), 2 * num_clients
    total = sum(code.values(num_labels)[-2:])  # both in one bin
    theirs = prime_above(max((num_clients + 1) ** h, num_bins) - 1)
    sums = [total * pow(7, power, theirs) % theirs for power in range(num_symbols(1))]
    assert decode_hulls(sums, num_bins=num_bins, modulus=theirs) == {7: total % theirs}
    assert total % theirs != total
    with pytest.raises(ValueError, match="take a larger field"):
        encode_hulls({7: total}, capacity=1, modulus=theirs)
    ours = prime_above(max(num_bins, code.largest_sum(num_labels)))
    sums = encode_hulls({7: total}, capacity=1, modulus=ours)
    (found,) = decode_hulls(sums, num_bins=num_bins, modulus=ours).values()
    assert code.decode(found, num_labels) == [num_labels - 2, num_labels - 1]


@pytest.mark.parametrize(("clients", "h"), [(3, 2), (3, 4), (10, 3)])
def test_sums_are_larger_than_the_complexity_of_the_paper_has_them(clients, h):
    """Sec. 5.5 counts max(B, h log L) for the field, but the labels themselves reach (2 L)^h."""
    assert BoseChowla(h).largest_sum(2 * clients) > h * math.log2(clients)
    assert max(BoseChowla(h).values(2 * clients)) > clients**h


def test_as_many_labels_as_elements_need_one_element_more():
    """App. G: the difference to the first logarithm is 0, which cannot be a label."""
    logs = [log for log, _ in logarithms(primitive_field(7, 2))]
    assert len(logs) == 7
    assert len([log - logs[0] for log in logs if log > logs[0]]) == 6
    assert len(BoseChowla(2).values(7)) == 7  # in a larger field


def test_a_bin_as_large_as_the_field_is_invisible():
    """Sec. 5.4 allows q = B: bin B is 0 modulo q, so only its first power sum is nonzero."""
    q = 101
    assert [5 * pow(q, power, q) % q for power in range(6)] == [5, 0, 0, 0, 0, 0]
    with pytest.raises(ValueError, match="no bins of 1"):
        decode_hulls([5, 0, 0, 0, 0, 0], num_bins=q, modulus=q)
    with pytest.raises(ValueError, match="take a larger field"):
        encode_hulls({q: 5}, capacity=2, modulus=q)
    assert prime_above(q) > q


def test_rings_are_bounded_by_their_own_number():
    """Eq. (11) prints the index of the angle instead of that of the ring: [h_{n1 - 1}, h_{n1})."""
    grid = PolarGrid(epsilon=0.5, radius=0.9)
    ring, angle = 3, 20  # from 0; by the angle's index the point would lie outside the disc
    (number,) = grid.encode(grid.decode(np.array([ring * grid.num_angles + angle + 1])))
    reach = 2 * np.arctanh(np.linalg.norm(grid.decode(np.array([number]))))
    assert ring <= reach / grid.reach * grid.num_rings < ring + 1
    assert angle >= grid.num_rings


def test_five_points_of_one_geodesic_have_two_corners_in_the_hull():
    """The released scan keeps all five points and repeats one corner.

    It pops right turns only. It begins and ends with the same corner, which then counts twice in
    distances, pairs and training sets.
    """
    x = np.array([[0.1, 0.0], [0.5, 0.0], [-0.5, 0.0], [0.25, 0.0], [-0.25, 0.0]])
    assert sorted(hull(x)) == [1, 2]


@pytest.mark.parametrize("n", [0, 1, 2, 3])
def test_up_to_three_points_are_reduced_as_others_are(n):
    """The released code returns three points unreduced and fails for no points."""
    x = np.array([[0.5, 0.0], [-0.5, 0.0], [0.0, 0.0]])[:n]
    assert sorted(hull(x)) == list(range(min(n, 2)))


def test_fewer_pairs_than_are_asked_for_are_no_error():
    """The released code indexes past the last pair."""
    found = midpoints(np.array([[0.5, 0.0]]), np.array([[-0.5, 0.0]]), pairs=3)
    np.testing.assert_allclose(found, [[0.0, 0.0]], atol=1e-15)


@given(st.sampled_from([0.2, 0.5, 3.0]))
def test_distances_of_hulls_know_the_curvature(c):
    """The released log maps use c = 1 wherever the argument is omitted."""
    one, other = np.array([[0.5, 0.0]]), np.array([[0.0, 0.5], [-0.5, 0.0]])
    unit = hull_distances([one, other])
    scaled = hull_distances([one / math.sqrt(c), other / math.sqrt(c)], c=c)
    np.testing.assert_allclose(scaled, unit / math.sqrt(c), rtol=1e-12)


def test_a_radius_at_the_edge_of_the_disc_is_refused():
    """The released grid adds 1e-4 to the largest norm: from 0.9999 upwards, all bins are NaN."""
    largest = 0.99995
    with np.errstate(invalid="ignore"):
        assert np.isnan(np.log((1 + largest + 1e-4) / (1 - largest - 1e-4)))
    with pytest.raises(ValueError, match="radius must be below"):
        PolarGrid(radius=largest + 1e-4)


def test_points_beyond_the_radius_have_bins_of_the_grid():
    """The released quantiser numbers them above B, where the server does not look."""
    grid = PolarGrid(epsilon=0.1, radius=0.9)
    x = np.array([[0.95, 0.0], [0.0, 0.999]])
    assert (grid.encode(x) <= grid.num_bins).all()


def test_runs_of_equal_length_may_leave_a_client_without_a_class():
    """The released code cuts 13 cells for ten clients into runs of two: three clients get none."""
    parts = ClassRuns(10).split(torch.zeros(13, dtype=torch.int64), Rng(0))
    assert [len(part) for part in parts] == [2] * 6 + [1] + [0] * 3


def test_a_class_that_is_missing_is_no_point_at_the_origin():
    """The released code gives a missing group a point at the origin and trains on it."""
    x = np.array([[0.5, 0.0], [0.4, 0.1]])
    with pytest.raises(ValueError, match="cannot be told apart"):
        HyperbolicSVC().fit(x, np.array([1, 1]))


@pytest.mark.parametrize("rule", [KernighanLin(), Spectral()])
def test_cuts_of_the_graph_may_put_hulls_of_one_client_together(rule):
    """Eq. (14) ignores that these hulls belong to different classes."""

    def shares(found, clients):
        return any(len(set(found[clients == i])) < 2 for i in range(4))

    together = 0
    for seed in range(10):
        sets, clients, _ = clouds(seed, 4, 2, apart=0.2)
        distances = hull_distances(sets)
        together += shares(rule.groups(distances, clients, num_groups=2), clients)
        assert not shares(Assignment().groups(distances, clients, num_groups=2), clients)
    assert together
