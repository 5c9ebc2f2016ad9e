"""GCFL and GCFL+: averaging in clusters that minimum cuts split, here those of networkx."""

import itertools
import math
from dataclasses import replace

import networkx
import numpy as np
import torch

from flatland import Gcfl, GradientNorms, ShiftedCosines
from tests.conformance.graphs import (
    NET,
    SETTINGS,
    Learner,
    kept_by,
    models_of,
    shared_names,
    six_graphs,
)
from tests.conformance.loop import End, Loop, initial


def flat(delta):
    return np.concatenate([x.numpy().ravel() for x in delta.values()])


def cut(weights, members):
    """Both sides of a minimum cut, that with the smallest client first."""
    graph = networkx.Graph()
    for (a, i), (b, j) in itertools.combinations(enumerate(members), 2):
        graph.add_edge(i, j, weight=float(weights[a, b]))
    return sorted(sorted(side) for side in networkx.stoer_wagner(graph)[1])


def warping(first, second):
    """Distance of dynamic time warping."""
    best = np.full((len(first) + 1, len(second) + 1), np.inf)
    best[0, 0] = 0
    for (i, a), (j, b) in itertools.product(enumerate(first), enumerate(second)):
        best[i + 1, j + 1] = (a - b) ** 2 + min(best[i, j], best[i, j + 1], best[i + 1, j])
    return math.sqrt(best[-1, -1])


class Server:
    """The server of the algorithm as it is here: bounds in units, cosines cut at 0.

    Clusters of which somebody did not answer are averaged over the others, and not split.
    """

    def __init__(self, method, theta, sizes):
        self.method, self.sizes = method, sizes
        self.clusters = [list(range(len(sizes)))]
        self.models = {i: dict(theta) for i in range(len(sizes))}
        self.norms = {i: [] for i in range(len(sizes))}
        self.round, self.unit = 0, None

    def serve(self, deltas, norms):
        """A round, from the updates and gradient norms of those who answered."""
        self.round += 1
        updates = {i: flat(delta) for i, delta in deltas.items()}
        self.unit = self.unit or self.first_unit(updates)
        for i, norm in norms.items():
            self.norms[i].append(norm)
        self.clusters = [part for old in self.clusters for part in self.parts(old, updates)]
        for members in self.clusters:
            there = [i for i in members if i in deltas]
            total = sum(self.sizes[i] for i in there)
            for name, value in self.models[members[0]].items():
                moved = value + sum(self.sizes[i] / total * deltas[i][name] for i in there)
                for i in members:
                    self.models[i][name] = moved

    def parts(self, members, updates):
        """The cluster, or both sides of its cut."""
        window = self.method.affinity.window
        if self.round <= self.method.warmup or len(members) <= 2 or not set(members) <= {*updates}:
            return [members]
        own = np.stack([updates[i] for i in members])
        mean = np.linalg.norm(np.average(own, 0, self.weights_in_bound(members)))
        largest = np.linalg.norm(own, axis=1).max()
        if mean >= self.method.mean_bound * self.unit:
            return [members]
        if largest <= self.method.largest_bound * self.unit:
            return [members]
        if any(len(self.norms[i]) < window for i in self.awaited(members)):
            return [members]
        if not window:
            directions = own / np.linalg.norm(own, axis=1, keepdims=True)
            return cut(self.affinities(directions @ directions.T), members)
        rows = self.trends(np.stack([self.norms[i][-window:] for i in members]))
        distances = np.array([[warping(a, b) for b in rows] for a in rows])
        self.forget(members)
        return cut(distances.max() - distances, members)

    def first_unit(self, updates):
        if self.method.units == "absolute":
            return 1.0
        return max(np.linalg.norm(x) for x in updates.values())

    def weights_in_bound(self, members):
        return [self.sizes[i] for i in members]

    def affinities(self, cosines):
        return np.maximum(cosines, 0)

    def trends(self, rows):
        return rows / rows.std(axis=1, keepdims=True)

    def awaited(self, members):
        return members

    def forget(self, members):
        for i in members:
            self.norms[i] = []


class AuthorsServer(Server):
    """The server of the authors' code, where a line of it differs."""

    def weights_in_bound(self, members):
        return [1] * len(members)  # np.mean of the updates

    def affinities(self, cosines):
        return cosines + 1

    def trends(self, rows):
        return rows

    def awaited(self, members):
        return self.norms  # one list of sequences is for all

    def forget(self, members):
        super().forget(self.norms)


def gcfl(server_class, normed=""):
    """The algorithm; the norm is that of gradients whose name begins with ``normed``."""

    def run(method, data, cohorts):
        theta = initial(method, data)
        learners = {client.id: Learner(method, client, theta) for client in data.clients}
        names = shared_names(method, theta)
        sizes = [len(client.train) for client in data.clients]
        server = server_class(method, {n: theta[n] for n in names}, sizes)
        for cohort in cohorts:
            deltas, norms = {}, {}
            for i in cohort:
                before, after = server.models[i], learners[i].train(server.models[i])
                deltas[i] = {n: after[n] - before[n] for n in names}
                squares = [
                    learners[i].p[n].grad.square().sum() for n in names if n.startswith(normed)
                ]
                norms[i] = float(torch.stack(squares).sum().sqrt())
            server.serve(deltas, norms)
        clusters = {
            str(place): {"members": torch.tensor(ids), "parameters": server.models[ids[0]]}
            for place, ids in enumerate(server.clusters)
        }
        kept = kept_by(learners, cohorts, names)
        return End({"clusters": clusters}, kept, models_of(learners, server.models))

    return run


# bounds at which the unit matters, and in the authors' form that the mean is a plain one
GCFL = Gcfl(NET, warmup=1, mean_bound=0.479, largest_bound=0.85, **SETTINGS)
PLUS = replace(GCFL, affinity=GradientNorms(2))
AUTHORS = replace(
    GCFL,
    affinity=ShiftedCosines(),
    sharing={"body.*": "shared", "*": "personal"},
    units="absolute",
    mean_bound=0.19,
    largest_bound=0.1,
    bounded_mean="uniform",
    normed="body.*",
    forgets="all",
)
AUTHORS_PLUS = replace(AUTHORS, affinity=GradientNorms(2, standardised=False))
BOX = "Xie et al. (2021), Algorithms 1 and 2"
CODE = "its authors' code"

# these need a split while other windows are full, and a mean between both kinds:
# tests/flatland/rivals/test_gcfl.py has both, with the servers of this file
FORGETS = ("forgets",)
BOTH = ("bounded_mean", "forgets")

LOOPS = {
    "GCFL": Loop(GCFL, BOX, gcfl(Server), six_graphs, BOTH),
    "GCFL+": Loop(PLUS, BOX, gcfl(Server), six_graphs, BOTH),
    "GCFL, authors' form": Loop(AUTHORS, CODE, gcfl(AuthorsServer, "body."), six_graphs, FORGETS),
    "GCFL+, authors' form": Loop(
        AUTHORS_PLUS, CODE, gcfl(AuthorsServer, "body."), six_graphs, FORGETS
    ),
}
