"""Laws of every method; a method is tested here once it has a ``configs/**/quick.yaml``."""

import math

import pytest
import torch

from fedbolic.federated import Evaluation, FineTune, GradientMethod, RidgeHead, TrainerState
from fedbolic.federated.rounds.ridge_head import featured
from fedbolic.run import experiment
from fedbolic.run.configuration import build, describe
from fedbolic.testing import METHOD_LAWS
from fedbolic.testing.methods import holds_a_row
from flatland.graphs.graph_method import GraphMethod
from tests.federated.simple_method import assert_same, saved_and_loaded, train
from tests.subjects import (
    QUICK,
    RNG,
    every_configuration,
    every_method,
    exchanges,
    recorded,
    settings,
    subject,
)


def test_a_row_is_found_wherever_it_stands():
    rows = torch.arange(12.0).reshape(4, 3)
    assert holds_a_row(torch.tensor([7.0, 3.0, 4.0, 5.0, 9.0]), rows)
    assert not holds_a_row(torch.tensor([7.0, 3.0, 4.0, 8.0, 5.0]), rows)
    assert not holds_a_row(torch.tensor([3.0, 4.0]), rows)


def test_every_method_of_the_library_has_a_quick_configuration():
    assert {"fedavg", "ditto", "scaffold", "spherefed", "majority"} <= set(QUICK)


@every_method
@pytest.mark.parametrize("law", METHOD_LAWS, ids=lambda law: law.__name__)
def test_a_method_keeps_the_law(name, law):
    law(recorded(name))


@every_configuration
def test_a_configuration_that_is_written_is_read_back_equal(name, tmp_path):
    given = settings(name)
    file = tmp_path / "config.yaml"
    text = describe(experiment.run, given)
    file.write_text(text)
    again = build(experiment.run, ["--config", str(file)])
    assert {key: again[key] for key in given} == given
    assert describe(experiment.run, again) == text  # compares the order, too


@every_method
def test_a_run_is_resumed_to_the_last_bit_and_every_client_has_fine_tuned_and_ridge_head_scores(
    name,
):
    method, data = subject(name)
    evaluation = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())
    positions, rows = train(method, data, RNG, evaluation=evaluation)
    assert_same(
        positions[-1].server_state, exchanges(name)[-1].next
    )  # the loop in subjects equals the trainer
    for state in positions[:-1]:
        loaded = TrainerState.restore(saved_and_loaded(state.checkpoint()))
        rest, new = train(method, data, RNG, loaded, evaluation=evaluation)
        assert_same(rest[-1].server_state, positions[-1].server_state)
        for i, client_state in positions[-1].client_states.items():
            assert_same(rest[-1].client_states[i], client_state)
        assert new == rows[len(rows) - len(new) :]
    assert all(math.isfinite(row.value) for row in rows)
    assert not any(row.value for row in rows if row.name == "clients/failed")
    gradients = isinstance(method, GradientMethod)
    if gradients and method.fine_tuning(1, None) is not None:
        tuned = {row.client for row in rows if row.name == "fine_tuned/accuracy"}
        assert tuned == {None, *(client.id for client in data.clients)}
    calibrated = {row.client for row in rows if row.name == "ridge_head/accuracy"}
    common = featured(method) is not None
    assert calibrated == ({None, *(client.id for client in data.clients)} if common else set())
    assert sum(row.name == "ridge_head/holdout/accuracy" for row in rows) == common


@every_method
def test_no_client_fails_under_automatic_casts(name):
    with torch.autocast("cpu", torch.bfloat16):
        _, rows = train(*subject(name), RNG)
    assert not any(row.value for row in rows if row.name == "clients/failed")


@every_method
def test_a_gradient_method_with_a_global_classifier_can_have_a_ridge_head(name):
    method, data = subject(name)
    message = method.broadcast(method.init(data.meta, RNG), data.holdout.id)
    has_global_classifier = "test/accuracy" in method.evaluate(message, data.holdout, {}, RNG)
    # networks on graphs have no features of single examples, whether they are global or not
    if isinstance(method, GradientMethod) and not isinstance(method, GraphMethod):
        assert (featured(method) is not None) == has_global_classifier
