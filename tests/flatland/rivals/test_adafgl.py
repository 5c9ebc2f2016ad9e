"""Refusals of AdaFGL, its personal rounds, and the parts of its propagation."""

import pytest
import torch

from fedbolic.federated import ClientPrivacy, Evaluation, FineTune
from flatland import GCN, AdaFgl, FlatLand, PersonalPropagation
from flatland.rivals.adafgl import confidence, signed_messages
from tests.federated.simple_method import RNG, train
from tests.flatland.cases import complete, federation, path


@pytest.mark.parametrize(
    ("make", "match"),
    [
        (lambda: AdaFgl(personal_share=0.0), "personal_share"),
        (lambda: AdaFgl(personal_share=1.0), "personal_share"),
        (lambda: AdaFgl(sharing={"*": "personal"}), "shared"),
        (lambda: PersonalPropagation(steps=0), "steps"),
        (lambda: PersonalPropagation(alpha=1.5), "alpha"),
        (lambda: PersonalPropagation(widths=(4, 4)), "widths"),
    ],
)
def test_settings_that_make_no_sense_are_refused(make, match):
    with pytest.raises(ValueError, match=match):
        make()


def test_noise_of_privacy_does_not_move_the_common_model_in_personal_rounds():
    data = federation([(path(9), 9), (complete(6), 9)])
    network = PersonalPropagation((4,), 0.0)
    method = AdaFgl(GCN((4,), 0.0), rounds=3, propagation=network, weights="uniform")
    states, _ = train(method, data, RNG, privacy=ClientPrivacy(1e-3, noise_multiplier=1.0))
    first, before, after = (one.server_state["parameters"] for one in states)
    assert all(torch.equal(x, after[name]) for name, x in before.items())
    assert not any(torch.equal(x, before[name]) for name, x in first.items())


def test_fine_tuning_does_not_score_the_common_model_in_place_of_the_personal_ones():
    network = PersonalPropagation((4,), 0.0)
    method = AdaFgl(GCN((4,), 0.0), rounds=2, propagation=network, personal_share=0.5)
    tuned = Evaluation(fine_tuning=FineTune(1))
    _, rows = train(method, federation([(path(9), 9)]), RNG, evaluation=tuned)
    assert "test/accuracy" in {row.name for row in rows}
    assert not any(row.name.startswith("fine_tuned/") for row in rows)


@pytest.mark.parametrize(("rounds", "common"), [(1, 1), (4, 2)])
def test_rounds_before_the_personal_ones_are_scored_as_federated_averaging(rounds, common):
    data = federation([(path(9), 9), (complete(6), 9)])
    network = PersonalPropagation((4,), 0.0)
    method = AdaFgl(GCN((4,), 0.0), rounds, propagation=network, personal_share=0.5)
    plain = FlatLand(GCN((4,), 0.0), rounds, sharing={"*": "shared"})

    def scores(rows):
        named = {(r.round, r.client, r.name): r.value for r in rows if r.round <= common}
        return {k: x for k, x in named.items() if k[2].startswith(("test", "holdout"))}

    (_, ours), (_, theirs) = (train(one, data, RNG) for one in (method, plain))
    assert scores(ours) == pytest.approx(scores(theirs), rel=1e-9)
    assert {"holdout/loss", "test/loss"} <= {name for *_, name in scores(ours)}
    assert method.num_common == common


def test_labels_reach_a_neighbour_and_nothing_is_asked_of_one_node():
    step = torch.full((2, 2), 0.5)
    ask = torch.tensor([0, 1]), torch.tensor([2, 2])
    assert confidence(step, *ask, num_classes=3, alpha=0.5) == 1.0
    assert confidence(step, ask[0], torch.tensor([2, 1]), num_classes=3, alpha=0.5) == 0.0
    assert confidence(step, ask[0][:1], ask[1][:1], num_classes=3, alpha=0.5) == 0.5


def test_padding_changes_no_message():
    x = torch.randn(4, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    padded, valid = torch.cat((x, torch.ones(2, 3))), torch.ones(6, 1, dtype=torch.float64)
    valid[4:] = 0
    alone = signed_messages(x, valid[:4])
    assert torch.allclose(signed_messages(padded, valid)[:4], alone, atol=1e-12)
