"""Link prediction: the published split, scores, decoders, flat twins, the choice of an epoch."""

import networkx as nx
import numpy as np
import pytest
import scipy.sparse as sp
import torch
from geoopt import Lorentz as GeooptLorentz

from benchmarks.links import __main__ as links
from benchmarks.links import encoders as link_encoders
from benchmarks.results import Results
from fedbolic.core.rng import Rng
from fedbolic.data import Graph, LabelledPairs, split_links
from fedbolic.data.graphs.graph import simple_edges
from fedbolic.nn import TangentLinear


def tree(nodes=60):
    network = nx.random_labeled_tree(nodes, seed=0)
    edges = simple_edges(torch.tensor(list(network.edges)).T, nodes)
    features = torch.randn(nodes, 4, generator=torch.Generator().manual_seed(0))
    return Graph(features, edges, torch.zeros(nodes, dtype=torch.int64))


def row(name):
    return next(row for row in links.ROWS if row.name == name)


def literal_split(graph, seed):
    """Shuffled rows of the edges and of the non-edges, by one legacy stream after the other."""
    n = len(graph)
    dense = np.zeros((n, n))
    dense[tuple(graph.edges.numpy())] = 1
    stream = np.random.RandomState(seed)
    listed = []
    for matrix in (dense, 1 - dense):
        pairs = np.array(list(zip(*sp.triu(sp.csr_matrix(matrix)).nonzero(), strict=True)))
        stream.shuffle(pairs)
        listed.append(pairs)
    return listed


@pytest.mark.parametrize("seed", [1234, 5])
def test_the_published_split_is_that_of_shuffled_rows(seed):
    graph = tree()
    edges, others = literal_split(graph, seed)
    split = links.published_split(graph, seed)
    num, first, second = len(edges), int(0.05 * (len(edges))), int(0.1 * len(edges))
    both = np.concatenate((edges[:first], others[:first]))
    assert split.validation.pairs.T.tolist() == both.tolist()
    later = slice(first, first + second)
    assert split.test.pairs.T.tolist() == np.concatenate((edges[later], others[later])).tolist()
    assert split.train.T.tolist() == edges[first + second : num].tolist()


def test_scores_are_shares_of_pairs_in_order_and_mean_precisions():
    logits = torch.tensor([3.0, 1.0, 0.0, 2.0, 1.0, -1.0])
    examples = LabelledPairs(torch.zeros(2, 6).long(), torch.tensor([1.0, 1, 1, 0, 0, 0]))
    # of nine pairs, 3 > all; 1 < 2, = 1, > -1; 0 > -1. Precisions at recall 1/3, 2/3, 1:
    # 1 of 1, 2 of 4 (two logits are 1), 3 of 5
    assert links.scores(logits, examples) == pytest.approx((100 * 5.5 / 9, 100 * 2.1 / 3))


@pytest.mark.parametrize("name", ["flat distance", "flat distance, unit ball"])
def test_flat_decoders_are_written_out(name):
    v = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([[0, 1, 2], [3, 4, 2]])
    at = v.renorm(2, 0, 1.0) if "ball" in name else v
    expected = 2 - ((at[pairs[0]] - at[pairs[1]]) ** 2).sum(-1)
    torch.testing.assert_close(
        link_encoders.DECODERS[name]()(v, pairs), expected, rtol=1e-6, atol=1e-6
    )


def test_the_hyperbolic_decoder_has_the_distance_of_geoopt():
    v = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    pairs = torch.tensor([[0, 1, 2], [3, 4, 0]])
    space = GeooptLorentz()
    points = space.expmap0(torch.nn.functional.pad(v, (1, 0)))
    expected = 2 - space.dist(points[pairs[0]], points[pairs[1]]) ** 2
    decoder = link_encoders.DECODERS["hyperboloid distance"]()
    torch.testing.assert_close(decoder(v, pairs), expected)


@pytest.mark.parametrize("encoder", [name for name in link_encoders.ENCODERS if "c = 0" in name])
def test_flat_twins_are_linear_maps_and_means(encoder):
    graph = tree()
    x, edges = graph.features, graph.edges
    weights = torch.eye(len(graph))
    if "HGCNConv" in encoder:
        weights[tuple(edges)] = 1
    if "weights of a GCN" in encoder:
        root = weights.sum(1).rsqrt()
        weights = root[:, None] * weights * root
    mean = weights / weights.sum(1, keepdim=True)
    module = row(f"{encoder} / flat distance").model(x.shape[1]).encoder
    first, second = (m for m in module.modules() if isinstance(m, TangentLinear))
    for linear in (first, second):
        torch.nn.init.normal_(linear.bias)
    hidden = (mean @ (x @ first.weight.T + first.bias)).relu()
    expected = mean @ (hidden @ second.weight.T + second.bias)
    torch.testing.assert_close(module(x, edges), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", [row.name for row in links.ROWS])
def test_every_row_trains_on_its_graph_or_on_features_alone(name):
    split = split_links(tree(), Rng(0))
    model = row(name).model(4)
    x, pairs = split.graph.features, split.test.pairs
    logits = model(x, split.graph.edges, pairs)
    logits.sum().backward()
    assert all(p.grad.isfinite().all() for p in model.parameters() if p.grad is not None)
    same = torch.equal(logits, model(x, split.graph.edges[:, :0], pairs))
    assert same == (row(name).graph == "no")


def test_the_epoch_is_the_one_with_the_best_validation(monkeypatch):
    """Validation rises, falls and rises again after patience has ended; test rises throughout."""
    split = split_links(tree(), Rng(0))
    curve = iter([50.0, 70.0, 60.0, 65.0, 69.0, 99.0])
    tests = iter([1.0, 2.0, 3.0])

    def scores(logits, examples):
        return (next(curve), 0.0) if examples is split.validation else (next(tests), 5.0)

    monkeypatch.setattr(links, "scores", scores)
    training = links.LinkTraining(patience=3)
    found = links.train(
        row("MLP / flat distance"), split, split.graph.features, seed=0, training=training
    )
    assert found == {"validation": 70.0, "AUC": 2.0, "AP": 5.0, "epoch": 1}
    assert next(curve) == 99.0


def problem_of(file):
    split = split_links(tree(), Rng(0))
    training = links.LinkTraining(patience=3, epochs=6)
    return links.Problem(("tree", "0"), split, Results(file), training)


def test_an_interrupted_run_continues_from_its_file(tmp_path, monkeypatch, capsys):
    file, rows = tmp_path / "links.csv", [row("MLP / flat distance")]
    first = links.report(problem_of(file), rows, seeds=2)
    table = capsys.readouterr().out.split("\n\n")[-1]
    monkeypatch.setattr(links, "train", lambda *_, **__: pytest.fail("trained again"))
    assert links.report(problem_of(file), rows, seeds=2) == first
    assert capsys.readouterr().out.split("\n\n")[-1] == table


def test_the_scale_of_features_is_chosen_on_validation(tmp_path, monkeypatch):
    problem = problem_of(tmp_path / "links.csv")
    published, unit = problem.features.values()

    def train(row, split, x, *, seed, training):
        assert seed == links.CHOOSING
        return {"validation": 1.0, "AUC": 0.0} if x is unit else {"validation": 0.0, "AUC": 1.0}

    monkeypatch.setattr(links, "train", train)
    assert problem.chosen(row("MLP / flat distance")) == "unit length"
    assert torch.equal(published, problem.split.graph.features)


def test_an_end_without_a_training_edge_is_scored_by_counts(tmp_path):
    """The AUC of a yes or no is the mean of its shares among edges and, denied, among others."""
    problem = problem_of(tmp_path / "links.csv")
    examples, known = problem.split.test, nx.Graph(problem.split.train.T.tolist())
    said = np.array([u not in known or v not in known for u, v in examples.pairs.T.tolist()])
    labels = examples.labels.bool().numpy()
    expected = 50 * (said[labels].mean() + (~said[~labels]).mean())
    auc, _ = problem.baselines()["an end without a training edge"]
    assert auc == pytest.approx(expected)
