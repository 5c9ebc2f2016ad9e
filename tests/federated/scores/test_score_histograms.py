"""Histograms of scores, against scikit-learn on the pooled examples and mpmath."""

from collections import Counter

import mpmath
import pytest
import torch
from sklearn.metrics import roc_auc_score

from fedbolic.core.rng import Rng
from fedbolic.data import Digits, Partition, Partitioned
from fedbolic.federated import Evaluation, LocalTraining
from fedbolic.federated.scores.score_histograms import (
    LARGEST_SCORE,
    NUM_SCORE_BINS,
    histogram_auroc,
    log_odds,
    score_histograms,
)
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import rows_of, train

SEEDS = pytest.mark.parametrize("seed", range(6))
WIDTH = 2 * LARGEST_SCORE / NUM_SCORE_BINS


def examples(seed, num_classes, num=200):
    """Logits that depend on the label, and labels of which each occurs."""
    generator = Rng(seed).generator()
    labels = torch.arange(num) % num_classes
    logits = torch.randn(num, num_classes, generator=generator, dtype=torch.float64)
    return logits + torch.nn.functional.one_hot(labels, num_classes), labels


def added(*sums):
    """Sums over clients, by kind."""
    kinds = ("positive", "negative")
    return {kind: dict(sum((Counter(one[kind]) for one in sums), Counter())) for kind in kinds}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_log_odds_are_those_of_mpmath(scale, dtype):
    logits = scale * torch.tensor([[1.0, -0.5, 0.25], [0.0, 0.0, 0.0], [-1.0, 3.0, 2.75]])
    logits = logits.to(dtype)
    with mpmath.workdps(60):
        for row, found in zip(logits.tolist(), log_odds(logits).tolist(), strict=True):
            powers = [mpmath.exp(mpmath.mpf(z)) for z in row]
            for k, value in enumerate(found):
                others = sum(power for j, power in enumerate(powers) if j != k)
                expected = float(mpmath.log(powers[k] / others))
                error = 8 * torch.finfo(dtype).eps
                assert value == pytest.approx(expected, rel=error, abs=error * max(scale, 1.0))


@SEEDS
@pytest.mark.parametrize("num_classes", [2, 5])
def test_the_area_is_that_of_scikit_learn_within_its_bound(seed, num_classes):
    logits, labels = examples(seed, num_classes)
    shares = logits.softmax(1)
    scores = shares[:, 1] if num_classes == 2 else shares
    exact = roc_auc_score(labels, scores, multi_class="ovr")
    found = histogram_auroc(score_histograms(logits, labels))
    assert abs(found["auroc"] - exact) <= found["auroc_bound"]
    assert found["auroc_bound"] < 0.02


@SEEDS
def test_the_area_is_exact_where_scores_differ_by_whole_bins(seed):
    generator = Rng(seed).generator()
    places = torch.randint(-20, 20, (60,), generator=generator)
    labels = torch.randint(2, (60,), generator=generator)
    middles = (places + 0.5) * WIDTH
    logits = torch.stack([torch.zeros(60), middles], dim=1)
    found = histogram_auroc(score_histograms(logits, labels))
    assert found["auroc"] == pytest.approx(roc_auc_score(labels, places), abs=1e-12)


@SEEDS
def test_sums_over_clients_are_those_of_the_pooled_examples(seed):
    logits, labels = examples(seed, 4)
    parts = torch.randperm(200, generator=Rng(seed).generator()).split([1, 60, 39, 100])
    clients = [score_histograms(logits[part], labels[part]) for part in parts]
    assert added(*clients) == score_histograms(logits, labels)


def test_scores_beyond_the_last_bin_are_ties():
    logits = torch.tensor([[0.0, 40.0], [0.0, 50.0], [0.0, -40.0]], dtype=torch.float64)
    found = histogram_auroc(score_histograms(logits, torch.tensor([0, 1, 0])))
    assert found == {"auroc": 0.75, "auroc_bound": 0.25}


class ByClass(Partition):
    """One client for each class."""

    def split(self, labels, rng):
        return [torch.nonzero(labels == k).flatten() for k in range(10)]


def test_a_federation_has_an_area_where_no_client_has_two_classes():
    data = Partitioned(Digits(), ByClass(), num_train=300, num_test=60).load(Rng(0))
    data = data.to("cpu", torch.float64)
    method = FedAvg(MLP((8,)), rounds=1, local=LocalTraining(1, 16), lr=0.2)
    (*_, last), rows = train(method, data, evaluation=Evaluation(metrics=("auroc",)))
    assert not any(row.client is not None and row.name == "test/auroc" for row in rows)
    assert rows_of(rows, "test/auroc_client_mean", 1) == []
    parameters, model = last.server_state["parameters"], method.model(data.meta)
    batches = [client.test.all() for client in data.clients]
    logits = torch.cat([model(parameters, {}, batch["x"])[0] for batch in batches])
    labels = torch.cat([batch["y"] for batch in batches])
    exact = roc_auc_score(labels, logits.softmax(1), multi_class="ovr")
    (area,), (bound,) = (rows_of(rows, f"test/{name}", 1) for name in ("auroc", "auroc_bound"))
    assert abs(area - exact) <= bound < 0.02
