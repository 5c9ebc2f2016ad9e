"""Additional scores, against scikit-learn, and the same in every engine."""

import pytest
import torch
from sklearn import metrics as sklearn_metrics

from fedbolic.core.rng import Rng
from fedbolic.data import Digits, Dirichlet, Partitioned
from fedbolic.federated import Batched, Evaluation, FineTune, LocalTraining, Sequential, Workers
from fedbolic.federated.scores.metrics import (
    EXTRA_METRICS,
    extra_scores,
    label_scores,
    measured,
    measuring,
    one_versus_rest,
    pooled_scores,
)
from fedbolic.methods import FedAvg, Majority
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import rows_of, train
from tests.remote.transports import away

SEEDS = pytest.mark.parametrize("seed", range(6))
ALL = Evaluation(metrics=EXTRA_METRICS)


def examples(seed, num_classes, *, tied=False, num=40):
    """Random logits, with ties if asked, and labels of which each occurs."""
    generator = Rng(seed).generator()
    logits = torch.randn(num, num_classes, generator=generator, dtype=torch.float64)
    logits = (2 * logits).round() / 2 if tied else logits
    labels = torch.randint(num_classes, (num,), generator=generator)
    labels[:num_classes] = torch.arange(num_classes)
    return logits, labels


@SEEDS
def test_macro_f1_is_that_of_scikit_learn(seed):
    # labels 0 .. 4 and predictions 0 .. 6, so some classes are only labelled or only predicted
    generator = Rng(seed).generator()
    labels = torch.randint(5, (12,), generator=generator)
    predicted = torch.randint(7, (12,), generator=generator)
    expected = sklearn_metrics.f1_score(labels, predicted, average="macro", zero_division=0)
    found = label_scores(predicted, labels, num_classes=7)
    assert found["macro_f1"] == pytest.approx(expected, abs=1e-12)


@SEEDS
@pytest.mark.parametrize("tied", [False, True])
def test_ranking_scores_of_two_classes_are_those_of_scikit_learn(seed, tied):
    logits, labels = examples(seed, 2, tied=tied)
    scores = logits[:, 1] - logits[:, 0]
    for name, theirs in (
        ("auroc", sklearn_metrics.roc_auc_score),
        ("average_precision", sklearn_metrics.average_precision_score),
    ):
        expected = pytest.approx(theirs(labels, scores), abs=1e-6)  # torchmetrics adds in float32
        assert one_versus_rest(name, logits, labels) == expected


@SEEDS
def test_ranking_scores_of_more_classes_are_those_of_scikit_learn(seed):
    logits, labels = examples(seed, 4)
    shares = logits.softmax(dim=1)
    one_hot = torch.nn.functional.one_hot(labels)
    assert one_versus_rest("auroc", logits, labels) == pytest.approx(
        sklearn_metrics.roc_auc_score(labels, shares, multi_class="ovr"), abs=1e-6
    )
    assert one_versus_rest("average_precision", logits, labels) == pytest.approx(
        sklearn_metrics.average_precision_score(one_hot, shares), abs=1e-6
    )


def test_a_class_without_examples_is_left_out_and_one_class_has_no_ranking():
    logits, labels = examples(0, 4)
    some = labels < 3
    expected = sum(
        sklearn_metrics.roc_auc_score(labels[some] == k, logits[some].softmax(1)[:, k])
        for k in range(3)
    )
    assert one_versus_rest("auroc", logits[some], labels[some]) == pytest.approx(expected / 3)
    with measuring(EXTRA_METRICS):
        found = extra_scores(logits[labels == 1], labels[labels == 1])
    scores = {name for name in found if not name.startswith("sums/")}
    assert scores == set(EXTRA_METRICS) - {"auroc", "average_precision"}


def test_confident_logits_keep_their_order():
    logits = torch.tensor([[0.0, 50.0], [0.0, 60.0], [0.0, 70.0]])  # probabilities round to 1
    assert one_versus_rest("auroc", logits, torch.tensor([0, 1, 1])) == 1


def test_names_are_those_of_the_context_alone():
    assert measured() == ()
    with measuring(("auroc",)):
        with measuring(EXTRA_METRICS):
            assert measured() == EXTRA_METRICS
        assert measured() == ("auroc",)
    assert measured() == ()


def federation():
    partition = Dirichlet(4, alpha=0.5, min_size=30)
    source = Partitioned(Digits(), partition, num_train=300, num_test=60, validation_rate=0.2)
    return source.load(Rng(0)).to("cpu", torch.float64)


METHOD = FedAvg(MLP((8,)), rounds=2, local=LocalTraining(2, 16), lr=0.2)


def by_bins(shares, labels, num_bins=15):
    """Expected calibration error, example by example."""
    bins = {}
    for row, label in zip(shares.tolist(), labels.tolist(), strict=True):
        confidence = max(row)
        entry = bins.setdefault(min(int(confidence * num_bins), num_bins), [0.0, 0.0])
        entry[0] += confidence
        entry[1] += row.index(confidence) == label
    return sum(abs(conf - right) for conf, right in bins.values()) / len(labels)


@SEEDS
def test_calibration_errors_and_top_accuracies_are_counted(seed):
    logits, labels = examples(seed, 6)
    with measuring(("calibration_error", "top_2", "top_5")):
        found = extra_scores(logits, labels)
    shares = logits.softmax(dim=1)
    # torchmetrics adds in float32
    assert found["calibration_error"] == pytest.approx(by_bins(shares, labels), abs=1e-6)
    for k in (2, 5):
        expected = sklearn_metrics.top_k_accuracy_score(labels, shares, k=k, labels=range(6))
        assert found[f"top_{k}"] == pytest.approx(expected, abs=1e-6)


def test_every_label_is_among_the_top_of_few_classes():
    logits, labels = examples(0, 4)
    with measuring(("top_5",)):
        assert extra_scores(logits, labels) == {"top_5": 1.0}


@SEEDS
def test_pooled_scores_do_not_depend_on_the_partition(seed):
    logits, labels = examples(seed, 5)
    names = ("macro_f1", "calibration_error", "auroc")
    with measuring(names):
        whole = extra_scores(logits, labels)
        some = [extra_scores(logits[part], labels[part]) for part in torch.arange(40).split(7)]
    pooled = pooled_scores({f"test/{k}": v for k, v in scores.items()} for scores in some)
    bound = pooled.pop("test/auroc_bound")
    errors = {"macro_f1": 1e-6, "calibration_error": 1e-6, "auroc": bound + 1e-6}
    assert pooled == {f"test/{n}": pytest.approx(whole[n], abs=errors[n]) for n in names}


def test_sums_that_no_client_of_ours_sends_are_ignored():
    assert pooled_scores([{"test/sums/other/tp.1": 1.0, "test/sums/macro_f1/xx.1": 1.0}]) == {}


def test_a_run_records_the_scores_of_every_client_and_of_the_pooled_examples():
    data = federation()
    (*_, last), rows = train(METHOD, data, evaluation=ALL)
    model = METHOD.model(data.meta)
    parameters = last.server_state["parameters"]
    own, labels, shares = [], [], []
    for client in data.clients:
        batch = client.test.all()
        logits = model(parameters, {}, batch["x"])[0]
        own.append(sklearn_metrics.f1_score(batch["y"], logits.argmax(1), average="macro"))
        labels.append(batch["y"])
        shares.append(logits.softmax(1))
        assert rows_of(rows, "test/macro_f1", 2, client.id) == [pytest.approx(own[-1])]
    labels, shares = torch.cat(labels), torch.cat(shares)
    pooled = sklearn_metrics.f1_score(labels, shares.argmax(1), average="macro")
    assert rows_of(rows, "test/macro_f1", 2) == [pytest.approx(pooled)]
    assert rows_of(rows, "test/macro_f1_client_mean", 2) == [pytest.approx(sum(own) / len(own))]
    error = by_bins(shares, labels)
    assert rows_of(rows, "test/calibration_error", 2) == [pytest.approx(error, abs=1e-6)]
    top = sklearn_metrics.top_k_accuracy_score(labels, shares, k=3, labels=range(10))
    assert rows_of(rows, "test/top_3", 2) == [pytest.approx(top, abs=1e-6)]
    (area,), (bound,) = (rows_of(rows, f"test/{name}", 2) for name in ("auroc", "auroc_bound"))
    exact = sklearn_metrics.roc_auc_score(labels, shares, multi_class="ovr")
    assert abs(area - exact) <= bound + 1e-12
    assert bound < 0.02
    assert rows_of(rows, "test/average_precision", 2) == []
    (mean,) = rows_of(rows, "test/auroc_client_mean", 2)
    each = [rows_of(rows, "test/auroc", 2, client.id)[0] for client in data.clients]
    assert mean == pytest.approx(sum(each) / len(each))
    assert not any("sums/" in row.name for row in rows)
    holdout = data.holdout.test.all()
    shares = model(parameters, {}, holdout["x"])[0].softmax(1)
    expected = sklearn_metrics.roc_auc_score(holdout["y"], shares, multi_class="ovr")
    assert rows_of(rows, "holdout/auroc", 2) == [pytest.approx(expected, abs=1e-6)]
    assert rows_of(rows, "validation/average_precision", 2, 0)


def test_no_metric_is_recorded_unless_it_is_named():
    _, rows = train(METHOD, federation(), evaluation=Evaluation(metrics=("auroc",)))
    names = {row.name.rpartition("/")[2] for row in rows}
    assert "auroc" in names
    assert not names & {"macro_f1", "average_precision"}


@pytest.mark.parametrize("engine", [Batched(), Workers(num=1)], ids=["batched", "workers"])
def test_engines_record_the_same_scores(engine):
    ends = [
        train(METHOD, federation(), engine=one, evaluation=ALL)[1] for one in (Sequential(), engine)
    ]
    assert [row[:3] for row in ends[1]] == [row[:3] for row in ends[0]]
    values = [[row.value for row in rows] for rows in ends]
    assert values[1] == pytest.approx(values[0], abs=1e-9)


def test_nodes_record_the_same_scores(tmp_path):
    data = federation()
    settings = {"evaluation": Evaluation(metrics=EXTRA_METRICS, fine_tuning=FineTune(1))}
    _, rows = train(METHOD, data, **settings)
    nodes, seen = away(METHOD, data, tmp_path, **settings)
    _, new = train(METHOD, seen, engine=nodes, **settings)
    assert rows_of(rows, "fine_tuned/macro_f1", 2, 0)
    assert [row[:3] for row in new] == [row[:3] for row in rows]
    assert [row.value for row in new] == pytest.approx([row.value for row in rows], abs=1e-12)


def test_predicted_labels_have_a_macro_f1():
    data = federation()
    _, rows = train(Majority(), data, evaluation=ALL)
    batch = data.clients[1].test.all()
    most = torch.stack([c.train.all()["y"].bincount(minlength=10) for c in data.clients]).sum(0)
    predicted = most.argmax().expand_as(batch["y"])
    expected = sklearn_metrics.f1_score(batch["y"], predicted, average="macro")
    assert rows_of(rows, "test/macro_f1", 1, 1) == [pytest.approx(expected)]
