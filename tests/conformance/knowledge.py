"""KnowledgeEmbedding: rows of entities and relations, trained triple by triple, averaged by row."""

import torch

from fedbolic.data import ByRelation, Families, PartitionedTriples
from fedbolic.federated import LocalTraining
from fedbolic.knowledge import KnowledgeEmbedding, TripleScorer
from fedbolic.nn import NegativeSampler
from tests.conformance.loop import End, Loop, initial
from tests.federated.simple_method import RNG

METHOD = KnowledgeEmbedding(
    dim=2,
    rounds=4,
    local=LocalTraining(1, 4),
    lr=0.2,
    negatives=NegativeSampler(4),
    n3=0.01,
    max_weight=1,
    server_lr=0.8,
)


def local_training(method, client, tables, rng, *, lr=None, adams=None):
    """Tables after a client's round, triple by triple, with torch's Adam.

    ``adams`` holds the optimisers of clients that keep theirs, with the scorers that they move.
    """
    sizes = client.meta.num_classes, 2 * client.meta.input_shape[1]
    scorer = TripleScorer(method.scorer, *sizes).double()
    adam = torch.optim.Adam(scorer.parameters(), lr=method.lr)
    if adams is not None:
        scorer, adam = adams.setdefault(client.id, (scorer, adam))
    scorer.load_state_dict(tables)
    adam.param_groups[0]["lr"] = lr or method.lr
    n, triples = client.meta.input_shape[1], client.train.all()["x"].tolist()
    held = {(h, r, t) for h, r, t in triples} | {(t, r + n, h) for h, r, t in triples}
    known = {end for h, _, t in triples for end in (h, t)}
    plan = method.plan(method.model(client.meta), client, rng)
    for step, length in enumerate(plan.lengths.tolist()):
        losses = []
        for place in range(length):
            h, r, t = triples[int(plan.positions[step, place])]
            both = []
            for way, (u, relation, v) in enumerate(((h, r, t), (t, r + n, h))):
                if method.negatives is None:
                    tails = [v, *(e for e in range(client.meta.num_classes) if e != v)]
                else:
                    drawn = plan.draws["negatives"][step, place, way].tolist()
                    tails = [v, *(e for e in drawn if (u, relation, e) not in held)]
                scores = scorer(torch.tensor([[u, relation, e] for e in tails]))
                both.append(-torch.log(scores[0].exp() / scores.exp().sum()))
            cubes = sum(scorer.entity[e, : method.dim].abs().pow(3).sum() for e in (h, t))
            # not of angles, which are as many as planes turn: one rotation, or two
            planes = {"RotE": 1, "RotH": 1, "RotatE": 1, "AttE": 2, "AttH": 2}.get(method.score, 0)
            angles = planes * method.dim // 2
            for relation in (r, r + n):  # a triple and its inverse are two examples
                cubes = cubes + scorer.relation[relation, angles:].abs().pow(3).sum() / 2
            losses.append(sum(both) / 2 + method.n3 * cubes)
        adam.zero_grad()
        torch.stack(losses).mean().backward()
        strangers = [e for e in range(client.meta.num_classes) if e not in known]
        scorer.entity.grad[strangers] = 0
        if method.bias == "both":  # it cancels, but for rounding
            scorer.entity.grad[:, method.dim] = 0
        adam.step()
    return {name: x.detach().clone() for name, x in scorer.named_parameters()}


def run(method, data, cohorts):
    tables, adams = initial(method, data), {}
    for t, cohort in enumerate(cohorts):
        left = (method.rounds - t) / (0.3 * method.rounds)
        moved = {name: torch.zeros_like(x) for name, x in tables.items()}
        weights = {name: torch.zeros(len(x), 1).double() for name, x in tables.items()}
        for i in cohort:
            client = data.clients[i]
            rng = RNG.at("round", t + 1, "exchange", 0, "client", i)
            lr = method.lr * min(1.0, max(0.02, left))
            new = local_training(method, client, tables, rng, lr=lr, adams=adams)
            held, n = client.train.all()["x"].tolist(), client.meta.input_shape[1]
            relations = [r + n * way for _, r, _ in held for way in (0, 1)]
            numbers = {"entity": [end for h, _, t in held for end in (h, t)]}
            numbers |= {"relation": relations, "curvature": relations}
            for name, table in tables.items():
                for row in set(numbers[name]):
                    weight = min(method.max_weight, numbers[name].count(row))
                    moved[name][row] += weight * (new[name][row] - table[row])
                    weights[name][row] += weight
        for name, table in tables.items():
            mean = torch.where(weights[name] > 0, moved[name] / weights[name], 0.0)
            tables = {**tables, name: table + method.server_lr * mean}
    return End({"parameters": tables})


def family():
    source = PartitionedTriples(Families(1, 2), ByRelation(3), validation_rate=0, test_rate=0)
    return source.load(RNG).to("cpu", torch.float64)


SOURCE = "ours, `fedbolic/knowledge/README.md`"
# two rounds reach no other step size, and an odd dimension is refused
INERT = ("dim", "schedule.initial", "schedule.cooling", "schedule.lowest")
LOOPS = {"KnowledgeEmbedding": Loop(METHOD, SOURCE, run, family, INERT)}
