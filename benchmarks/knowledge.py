"""MRR and hits of flat and hyperbolic scores of WordNet's relations, alone and federated.

    python -m benchmarks.knowledge --root DATA [--seeds 5] [--results FILE]
    python -m benchmarks.knowledge --root DATA --wn18rr    # also WN18RR, a folder of DATA
    python -m benchmarks.knowledge --root DATA --epochs    # time and memory, also of PyKEEN

Ten relations among WordNet's nouns (``WordNetRelations``) are pooled, or at 3, 5 or 10 clients that
hold relations each, or at 5 that hold entities. Entities have 32 numbers: 30 dimensions and two
biases. The validation triples of a seed that is not reported choose the step size of a row among
three, and among further ones while the smallest or largest is the best; rows of 3 and 10 clients
have the choice of 5. Test scores are means over the clients' own triples, so they are of the same
triples in each row of a seed. Every run adds lines to the file of results, from which an
interrupted one continues.

``--wn18rr`` has the sizes of the authors of RotH, https://github.com/HazyResearch/KGEmb, and keeps
the round with the best validation triples. Their loss is another: logistic, of negatives with both
ends drawn.

``--epochs`` trains an epoch of TransE and RotatE three times, with 32 numbers an entity, 20
negatives and the same number of queries a step, and prints the fastest and the growth of the
process. PyKEEN is no dependency: install it, or its rows are left out.

Takes half an hour of a core.
"""

import argparse
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from benchmarks.engines.processes import forget_peak
from benchmarks.results import Figures, Results
from benchmarks.script import alone, parser
from benchmarks.table import difference, head, interval, line
from benchmarks.timing import Clock, held_mebibytes
from fedbolic.core.rng import Rng
from fedbolic.data import (
    ByEntity,
    ByRelation,
    Client,
    FederatedData,
    PartitionedTriples,
    TripleFolder,
    TripleSplit,
    WordNetRelations,
)
from fedbolic.federated import Evaluation, LocalTraining, Sequential, Trainer
from fedbolic.knowledge import KnowledgeEmbedding
from fedbolic.knowledge.method import TableName
from fedbolic.knowledge.ranking import tail_rank_scores
from fedbolic.knowledge.triple_scores import ScoreName
from fedbolic.nn import NegativeSampler

CHOOSING = 100
"""The seed that chooses step sizes."""

STEP_SIZES = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
FIRST_TRIES = (3, 5)
"""Places of the smallest and the largest step size that are tried first."""

CLIENTS = (5, 10, 3)
FIGURES = ("mrr", "hits_at_1", "hits_at_3", "hits_at_10")
TABLES: tuple[TableName, ...] = ("entity", "relation", "curvature")
Row = tuple[str, str, str]
"""Way of training, number of clients and score."""

METHOD = KnowledgeEmbedding(
    dim=30,
    bias="both",
    rounds=10,
    local=LocalTraining(epochs=2, batch_size=512),
    negatives=NegativeSampler(20),
)

TWINS: tuple[tuple[ScoreName, ScoreName], ...] = (
    ("RotE", "RotH"),
    ("AttE", "AttH"),
    ("MuRE", "MuRP"),
)
"""Flat scores and their hyperbolic forms; the first pair is trained by clients, too."""

PUBLISHED: dict[ScoreName, tuple[float, float, int]] = {
    "RotE": (0.455, 0.527, 100),
    "RotH": (0.473, 0.551, 500),
}
"""MRR and hits at 10 of WN18RR that the authors publish for 32 dimensions, and their batch size."""

WAYS: dict[str, tuple[TableName, ...]] = {
    "pooled": (),
    "alone": TABLES,
    "federated": (),
    "by entity": (),
    "by entity, personal curvature": ("curvature",),
}
"""Tables that stay at the clients. Rows by entity are federated, too.

Where clients hold relations, a relation has one client: personal curvatures would change nothing.
"""


def main() -> None:
    """Train what the file of results lacks, and print its tables."""
    made = parser(__doc__, "build/knowledge.csv")
    made.add_argument("--root", type=Path, required=True, help="folder of data")
    made.add_argument("--seeds", type=int, default=5, help="number of seeds")
    made.add_argument("--wn18rr", action="store_true", help="train on WN18RR, too")
    made.add_argument("--epochs", action="store_true", help="measure epochs instead")
    made.add_argument("--epoch", nargs=2, help=argparse.SUPPRESS)
    options = made.parse_args()
    if options.epoch:
        print(*measured_epoch(options.root, *options.epoch))
        return
    if options.epochs:
        show_epochs(options.root)
        return
    results, seeds = Results(options.results, quiet=True), range(options.seeds)
    for seed in seeds:
        results.add(("test", "popularity", "", "1", str(seed)), popularity, options.root, seed)
    for seed, (score, way, clients) in itertools.product(seeds, rows()):
        key = ("test", way, score, str(clients), str(seed))
        lr = chosen(results, options.root, score, way)
        results.add(key, trained, options.root, score, way, clients, lr, seed)
    for score in PUBLISHED if options.wn18rr else ():
        results.add(("published", score, "0"), of_wn18rr, options.root, score)
    show(results, [str(seed) for seed in seeds])


def rows() -> Iterator[tuple[ScoreName, str, int]]:
    """Score, way of training and number of clients of every row."""
    for score in TWINS[0]:
        yield score, "pooled", 1
    for clients in CLIENTS:
        for way in ("federated", "alone"):
            for score in TWINS[0]:
                yield score, way, clients
    for score in TWINS[0]:
        yield score, "by entity", 5
    yield "RotH", "by entity, personal curvature", 5
    for pair in TWINS[1:]:
        for score in pair:
            yield score, "pooled", 1


def chosen(results: Results, root: Path, score: ScoreName, way: str) -> float:
    """The step size with the best MRR of validation triples.

    Smaller or larger ones are tried while the smallest or largest is the best.
    """
    clients = 1 if way == "pooled" else 5

    def quality(lr: float) -> float:
        key = ("choice", way, score, str(lr), str(CHOOSING))
        tried = results.add(key, trained, root, score, way, clients, lr, CHOOSING)
        return tried["validation/mrr"]

    first, last = FIRST_TRIES
    while True:
        best = max(STEP_SIZES[first : last + 1], key=quality)
        if best == STEP_SIZES[first] and first > 0:
            first -= 1
        elif best == STEP_SIZES[last] and last < len(STEP_SIZES) - 1:
            last += 1
        else:
            return best


@functools.cache
def federation(
    root: Path, clients: int, seed: int, partition: type[ByRelation | ByEntity] = ByRelation
) -> FederatedData:
    """The graph dealt to clients; a seed holds out the same triples for all of them."""
    source = PartitionedTriples(WordNetRelations(), partition(clients), root=root)
    return source.load(Rng(seed))


def trained(root: Path, score: ScoreName, way: str, clients: int, lr: float, seed: int) -> Figures:
    """Validation and test scores of one run, means over the clients' own triples."""
    partition = ByEntity if way.startswith("by entity") else ByRelation
    data = dataclasses.replace(federation(root, clients, seed, partition), holdout=None)
    method = dataclasses.replace(METHOD, score=score, lr=lr, personal=WAYS[way])
    trainer = Trainer(Sequential(), evaluation=Evaluation(every=method.rounds, per_client=False))
    *_, (_, found) = trainer.run(method, data, Rng(seed))
    named = {row.name: row.value for row in found if row.client is None}
    kept = ("validation/mrr", *(f"test/{name}" for name in FIGURES))
    return {name: named[name] for name in kept} | {"lr": lr}


def of_wn18rr(root: Path, score: ScoreName) -> Figures:
    """Validation and test scores of WN18RR, pooled, of the round with the best validation MRR."""
    graph = TripleFolder(Path("WN18RR"))
    data = PartitionedTriples(graph, ByRelation(1), root=root).load(Rng(0))
    sizes = {"score": score, "dim": 32, "rounds": 20 * METHOD.rounds, "lr": 0.001}
    local = LocalTraining(epochs=1, batch_size=PUBLISHED[score][2])
    method = dataclasses.replace(METHOD, **sizes, local=local, negatives=NegativeSampler(50))
    trainer = Trainer(Sequential(), evaluation=Evaluation(every=METHOD.rounds, per_client=False))
    rounds = [
        {row.name: row.value for row in rows if row.client is None}
        for _, rows in trainer.run(method, dataclasses.replace(data, holdout=None), Rng(0))
    ]
    scored = [found for found in rounds if "validation/mrr" in found]
    return max(scored, key=lambda found: found["validation/mrr"])


def popularity(root: Path, seed: int) -> Figures:
    """Scores of tails by the number of their training triples with the relation."""
    (client,) = federation(root, 1, seed).clients
    split, triples = client.split_of(TripleSplit, "test"), client.split_of(TripleSplit).triples
    n, m = len(split.entities), len(split.relations)
    counts = torch.zeros(2 * m, n)
    for relations, tails in ((triples[:, 1], triples[:, 2]), (triples[:, 1] + m, triples[:, 0])):
        counts.index_put_((relations, tails), torch.ones(len(triples)), accumulate=True)
    found = tail_rank_scores(lambda heads, relations: counts[relations], split)
    return {f"test/{name}": found[name] for name in FIGURES}


def show(results: Results, seeds: list[str]) -> None:
    """Print the test scores of all rows, and differences of MRR between twins."""
    print(
        f"**Test triples**\n\n{head('trained', 'clients', 'score', 'step size', 'seeds', *FIGURES)}"
    )
    grouped: dict[Row, list[Figures]] = {}
    for (table, way, score, clients, seed), figures in results.known.items():
        if table == "test" and seed in seeds:
            grouped.setdefault((way, clients, score), []).append(figures)
    ordered = sorted(grouped.items(), key=lambda row: order(row[0]))
    for (way, clients, score), found in ordered:
        cells = [interval([of[f"test/{name}"] for of in found], 4) for name in FIGURES]
        print(line(way, clients, score or "", found[0].get("lr", ""), len(found), *cells))
    print(f"\n**Hyperbolic minus flat**\n\n{head('trained', 'clients', 'scores', 'mrr')}")
    flat = {curved: flat for flat, curved in TWINS}
    for (way, clients, score), found in ordered:
        common = way.partition(",")[0]
        for other in (flat.get(score, ""), *([score] if way != common else [])):
            base = grouped.get((common, clients, other), [])
            if len(base) == len(found) and score in flat:
                curved, plain = ([of["test/mrr"] for of in each] for each in (found, base))
                print(line(way, clients, f"{score} - {other}", difference(curved, plain, 4)))
    print(
        f"\n**WN18RR**\n\n{head('score', 'published mrr', 'hits_at_10', 'our mrr', 'hits_at_10')}"
    )
    for score, (mrr, hits, _) in PUBLISHED.items():
        found = results.known.get(("published", score, "0"), {})
        ours = [found.get(f"test/{name}", "untested") for name in ("mrr", "hits_at_10")]
        print(line(score, mrr, hits, *ours))


def show_epochs(root: Path) -> None:
    """Print time and memory of an epoch, each in a process of its own."""
    libraries = ["ours", *(["PyKEEN"] if find_spec("pykeen") else [])]
    print(f"**An epoch**\n\n{head('score', 'library', 'CPU s', 'MiB')}")
    for score in ("TransE", "RotatE"):
        for library in libraries:
            found = alone("knowledge", "--root", root, "--epoch", library, score)
            print(line(score, library, *found.split()))


def measured_epoch(root: Path, library: str, score: ScoreName) -> tuple[str, str]:
    """CPU seconds of the fastest of three epochs, and MiB by which the process has grown."""
    (client,) = federation(root, 1, 0).clients
    if library != "ours":
        import_module("pykeen.pipeline")  # libraries are no part of an epoch
    forget_peak()  # of reading the graph
    before, clock, times = held_mebibytes(), Clock(), []
    train = our_epoch(client, score) if library == "ours" else pykeen_epoch(client, score)
    for _ in range(3):
        clock.lap()
        train()
        times.append(clock.lap())
    return f"{min(times):.2f}", f"{held_mebibytes() - before:.0f}"


def our_epoch(client: Client, score: ScoreName) -> Callable[[], object]:
    """An epoch of a client by this library."""
    local = dataclasses.replace(METHOD.local, epochs=1)
    method = dataclasses.replace(METHOD, score=score, dim=32, bias="none", local=local)
    state = method.init(client.meta, Rng(0))
    return lambda: method.local_update(state, client, {}, Rng(0))


def pykeen_epoch(client: Client, score: ScoreName) -> Callable[[], object]:
    """An epoch of the same triples and their inverses by PyKEEN."""
    keen = {name: import_module(f"pykeen.{name}") for name in ("models", "training", "triples")}
    sizes = {"num_entities": client.meta.num_classes, "num_relations": client.meta.input_shape[1]}
    triples = keen["triples"].CoreTriplesFactory(
        mapped_triples=client.split_of(TripleSplit).triples, create_inverse_triples=True, **sizes
    )
    dim = 16 if score == "RotatE" else 32  # RotatE's numbers are complex
    model = getattr(keen["models"], score)(triples_factory=triples, embedding_dim=dim)
    loop = keen["training"].SLCWATrainingLoop(
        model=model,
        triples_factory=triples,
        optimizer=torch.optim.Adam(model.get_grad_params()),
        negative_sampler_kwargs={"num_negs_per_pos": 20},
    )
    settings = {"num_epochs": 1, "batch_size": 2 * (METHOD.local.batch_size or 1)}
    return lambda: loop.train(triples_factory=triples, use_tqdm=False, **settings)


def order(row: Row) -> tuple[int, int, str]:
    """Place of a row in the tables."""
    way, clients, score = row
    return ["popularity", *WAYS].index(way), int(clients), score


if __name__ == "__main__":
    main()
