"""Least-norm points of hulls, exact and by consistent updating, and the Gram matrix of both."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize
from torch.testing import assert_close

from benchmarks.solvers import GOAL_GAP, GOAL_RELATIVE, cases, exact_gap, stepwise
from fedbolic.federated.aggregators import deltas
from fedbolic.federated.aggregators.deltas import gram_matrix
from fedbolic.federated.aggregators.min_norm import frank_wolfe, min_norm_point
from tests.federated.aggregators.hulls import hulls, nearest_by_faces, seeds, uniform, updates


@pytest.mark.parametrize(("name", "x"), list(cases()))
def test_goal_of_the_exact_solver(name, x):
    gram = x @ x.T
    p, told = min_norm_point(gram, uniform(len(x)))
    gap, norm = exact_gap(gram, p)
    assert gap <= GOAL_GAP * gram.max()
    assert norm < 1e-12 * gram.max() or gap <= GOAL_RELATIVE * norm
    assert p.min() >= 0
    assert abs(p.sum() - 1) <= 1e-12
    assert 0 <= told <= GOAL_GAP


@given(hulls(most=4))
def test_exact_solver_agrees_with_a_search_of_all_faces(x):
    p, _ = min_norm_point(x @ x.T, uniform(len(x)))
    assert_close(p @ x, nearest_by_faces(x), rtol=0, atol=1e-7 * float(x.norm(dim=1).max()))


@pytest.mark.parametrize("k", [6, 15, 40])
@pytest.mark.parametrize("shift", [0.0, 0.5])
def test_exact_solver_agrees_with_a_quadratic_program(k, shift):
    x = np.random.default_rng(k).standard_normal((k, 20)) + shift
    gram = x @ x.T
    found = minimize(
        lambda p: p @ gram @ p / 2,
        np.full(k, 1 / k),
        jac=lambda p: gram @ p,
        bounds=[(0, 1)] * k,
        constraints={"type": "eq", "fun": lambda p: p.sum() - 1, "jac": np.ones_like},
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    p, _ = min_norm_point(torch.from_numpy(gram), uniform(k))
    assert_close(p.numpy() @ x, found.x @ x, rtol=0, atol=1e-4)
    assert p.numpy() @ gram @ p.numpy() <= found.x @ gram @ found.x + 1e-12


@given(hulls())
def test_no_vector_is_against_the_least_norm_point(x):
    p, gap = min_norm_point(x @ x.T, uniform(len(x)))
    point = p @ x
    largest = x.square().sum(dim=1).max()
    assert (x @ point >= point @ point - 1e-12 * largest).all()
    assert 0 <= gap <= 1e-13


@given(seeds)
def test_weights_that_are_optimal_are_kept(seed):
    start = torch.from_numpy(np.random.default_rng(seed).dirichlet(np.ones(5)))
    gram = torch.full((5, 5), 3.7, dtype=torch.float64)
    assert torch.equal(min_norm_point(gram, start)[0], start)
    assert torch.equal(min_norm_point(0 * gram, start)[0], start)
    assert_close(frank_wolfe(gram, start, 9)[0], start, rtol=0, atol=1e-15)


def test_consistent_updating_is_the_papers_closed_form_and_monotone():
    difference, rise = stepwise(20, 60)
    assert difference <= 1e-14
    assert rise <= 1e-15


@given(hulls(most=6), st.integers(1, 40))
def test_consistent_updating_converges_as_frank_wolfe_must(x, steps):
    gram, start = x @ x.T, uniform(len(x))
    p, gap = frank_wolfe(gram, start, steps)
    best, _ = min_norm_point(gram, start)
    excess = p @ gram @ p - best @ gram @ best
    diameter = torch.cdist(x, x).max()
    assert p.min() >= 0
    assert excess <= 2 * diameter**2 / (steps + 2) + 1e-12 * gram.max()  # Jaggi (2013), Thm. 1
    assert excess <= 2 * gap * gram.max() + 1e-12 * gram.max()


@pytest.mark.parametrize("block", [1, 7, 10**6])
def test_gram_matrix_is_that_of_the_flat_changes(monkeypatch, block):
    monkeypatch.setattr(deltas, "BLOCK", block)
    x = torch.randn(3, 11, generator=torch.Generator().manual_seed(0))
    changes = [u.payload["delta"] for u in updates(x, dtype=torch.float32).values()]
    assert_close(gram_matrix(changes), x.double() @ x.double().T, rtol=1e-14, atol=1e-14)
