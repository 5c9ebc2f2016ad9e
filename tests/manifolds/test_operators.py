"""Budgets of operators, which are kernel launches on a GPU: a change that raises one fails here."""

import pytest

from benchmarks.geometry.operations import operators, rows

BUDGETS = {
    "hyperboloid dist": 85,
    "hyperboloid expmap": 86,
    "hyperboloid expmap0": 40,
    "hyperboloid logmap": 134,
    "hyperboloid logmap0": 37,
    "hyperboloid transp": 152,
    "hyperboloid centroid": 137,
    "hyperboloid frechet_mean": 2032,
    "ball dist": 44,
    "ball expmap": 86,
    "ball expmap0": 30,
    "ball logmap": 84,
    "ball logmap0": 26,
    "ball transp": 121,
    "ball mobius_add": 57,
    "ball centroid": 164,
    "ball frechet_mean": 1223,
    "hyperboloid dist, learnt c": 166,
    "hyperboloid expmap0, learnt c": 86,
    "hyperboloid logmap0, learnt c": 82,
    "ball dist, learnt c": 114,
    "ball expmap0, learnt c": 74,
    "ball logmap0, learnt c": 74,
    "HyperbolicBatchNorm, hyperboloid": 352,
    "HyperbolicBatchNorm, ball": 379,
    "MLR, hyperboloid": 62,
    "MLR, ball": 96,
    "Linear, ball": 134,
    "TangentLinear": 172,
    "PrototypeHead, hyperboloid": 157,
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
