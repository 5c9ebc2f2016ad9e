"""Budgets of operators, which are kernel launches on a GPU: a change that raises one fails here."""

import pytest

from benchmarks.operators import operators, rows

BUDGETS = {
    "hyperboloid dist": 74,
    "hyperboloid expmap": 99,
    "hyperboloid expmap0": 49,
    "hyperboloid logmap": 120,
    "hyperboloid logmap0": 45,
    "hyperboloid transp": 123,
    "hyperboloid centroid": 118,
    "hyperboloid frechet_mean": 3104,
    "ball dist": 56,
    "ball expmap": 112,
    "ball expmap0": 39,
    "ball logmap": 100,
    "ball logmap0": 39,
    "ball transp": 123,
    "ball centroid": 147,
    "ball frechet_mean": 2541,
    "hyperboloid dist, learnt c": 141,
    "hyperboloid expmap0, learnt c": 119,
    "hyperboloid logmap0, learnt c": 111,
    "ball dist, learnt c": 114,
    "ball expmap0, learnt c": 104,
    "ball logmap0, learnt c": 104,
    "HyperbolicBatchNorm, hyperboloid": 333,
    "HyperbolicBatchNorm, ball": 375,
    "LorentzMLR": 62,
    "PoincareMLR": 110,
    "PoincareLinear": 149,
    "TangentLinear": 172,
    "PrototypeHead, hyperboloid": 170,
    "Dropout": 32,
    "hyperfed excess": 100,
    "hyperfed prototype_distance": 136,
    "hyperfed Triplet": 118,
    "hyperfed CrossEntropy": 106,
}
"""Most operators of a forward and a backward pass."""


@pytest.fixture(scope="module")
def cases():
    return rows()


def test_every_case_of_the_benchmark_has_a_budget(cases):
    assert cases.keys() == BUDGETS.keys()


@pytest.mark.parametrize("name", BUDGETS)
def test_an_operation_stays_within_its_budget_of_operators(name, cases):
    assert sum(operators(cases[name])) <= BUDGETS[name]


def test_an_operation_takes_fewer_operators_without_a_gradient(cases):
    forward, backward = operators(cases["hyperboloid dist"])
    assert 0 < backward < forward
