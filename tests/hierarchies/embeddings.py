"""Embeddings of twenty odd names, with places of every kind."""

import numpy as np
import pytest
import torch
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import Hierarchy, random_tree
from fedbolic.hierarchies import Embedding
from fedbolic.hierarchies.node_table import NodeTable
from fedbolic.hierarchies.scored_places import places_of
from fedbolic.manifolds import HalfSpacePlaces, Lorentz, ManifoldPlaces, Poincare, PolarPlaces

ODD = (
    *("plain", "a,b", 'say "hi"', "two\nlines", "return\rhere", "Ω ünï 🐈", " blank ", "'quoted"),
    *(
        "=1+1",
        "+x",
        "-x",
        "@x",
        "\ttab",
        "nul\0",
        "[]",
        "0.5",
        "true",
        "\uff1d1",
        "\nnext",
        "e\u0301",
    ),
)
seeds = st.integers(0, 2**32 - 1)


def numbers(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def polar(n, seed):
    turns = np.random.default_rng(seed).integers(-(2**63), 2**63 - 1, n)
    return PolarPlaces(torch.from_numpy(turns), 10 * numbers(seed, n).abs())


def half_space(n, seed):
    return HalfSpacePlaces(numbers(seed, n, 2), 3 * numbers(seed, n))


def ball(n, seed, c=0.5):
    return ManifoldPlaces(Poincare(c), Poincare(c).expmap0(numbers(seed, n, 3)))


def hyperboloid(n, seed, c=2.0):
    space = Lorentz(c)
    return ManifoldPlaces(space, space.expmap0(space.lift(numbers(seed, n, 3))))


def with_biases(n, seed):
    return places_of(NodeTable(2, 0.0, "ancestor"), numbers(seed, n, 3))


POINTS = {"polar": polar, "half-space": half_space, "ball": ball, "hyperboloid": hyperboloid}
KINDS = {**POINTS, "biases": with_biases}
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)


def embedding(kind=ball, names=ODD, seed=0):
    tree = Hierarchy(tuple(names), random_tree(len(names), Rng(seed)).pairs)
    return Embedding.of(tree, kind(len(names), seed))


def names_up_to(n):
    return tuple(map(str, range(n)))
