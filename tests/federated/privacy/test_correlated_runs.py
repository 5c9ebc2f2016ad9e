"""Runs with noise that is correlated by a tree or by bands: resumed, accounted and refused."""

import dataclasses

import pytest

from fedbolic.federated import (
    AdaptiveClipping,
    ClientPrivacy,
    Cohort,
    RunStoppedError,
    Trainer,
    TrainerState,
)
from fedbolic.federated.accounting.gaussian import gaussian_epsilon
from fedbolic.federated.accounting.ledger import PrivacyLedger
from tests.federated.simple_method import (
    RNG,
    SMALL,
    assert_same,
    federation,
    rows_of,
    saved_and_loaded,
    train,
)

DATA = federation((7, 4, 12, 5, 6))
METHOD = dataclasses.replace(SMALL, rounds=5)
TREE, BANDED = (
    ClientPrivacy(dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1, correlation=kind)
    for kind in ("tree", "banded")
)
INDEPENDENT = ClientPrivacy(dp_delta=1e-2, epsilon=8.0, clip_norm=0.1)
ONCE, CYCLIC = (Cohort(0.4, sampling=kind) for kind in ("once", "cyclic"))  # of 2, 2, 1 clients


@pytest.mark.parametrize(
    ("privacy", "cohort", "place"),
    [*((TREE, ONCE, place) for place in range(4)), (BANDED, CYCLIC, 1), (BANDED, CYCLIC, 3)],
)
def test_a_resumed_run_neither_repeats_nor_loses_noise(privacy, cohort, place):
    trainer = Trainer(cohort=cohort, privacy=privacy)
    whole = list(trainer.run(METHOD, DATA, RNG))
    middle = TrainerState.restore(saved_and_loaded(whole[place][0].checkpoint()))
    again = list(trainer.run(METHOD, DATA, RNG, middle))
    assert_same(again[-1][0].server_state, whole[-1][0].server_state)
    assert [rows for _, rows in again] == [rows for _, rows in whole[place + 1 :]]
    assert "nodes" not in whole[-1][0].privacy


@pytest.mark.parametrize(
    ("privacy", "cohort", "changed"),
    [
        (TREE, ONCE, (1, 2, 2, 3, 4)),  # nodes: a tree of three rounds has two levels
        (BANDED, CYCLIC, (1, 1, 1, 2, 2)),  # columns
    ],
    ids=["tree", "banded"],
)
def test_epsilon_of_every_round_is_that_of_what_a_client_changed(privacy, cohort, changed):
    _, rows = train(METHOD, DATA, privacy=privacy, cohort=cohort)
    expected = [gaussian_epsilon(1e-2, 1.0, k) for k in changed]
    assert rows_of(rows, "privacy/epsilon") == expected


@pytest.mark.parametrize(
    ("privacy", "cohort"),
    [
        *((TREE, cohort) for cohort in (Cohort(0.4), Cohort(0.4, sampling="poisson"), Cohort())),
        *((BANDED, cohort) for cohort in (Cohort(0.4), ONCE, Cohort())),
    ],
)
def test_clients_that_may_take_part_too_often_are_refused(privacy, cohort):
    fits = CYCLIC if privacy is BANDED else ONCE
    words = rf"set cohort\.sampling to {fits.sampling}"
    with pytest.raises(ValueError, match=words):
        Trainer(cohort=cohort, privacy=privacy).begin(METHOD, DATA, RNG)
    with pytest.raises(ValueError, match=words):
        privacy.ledger(fits, 5, 3, kind="all")
    with pytest.raises(ValueError, match="must take part once in"):
        PrivacyLedger("everyone", "add/remove", 1.0, 1.0, 1e-5, 3, correlation=privacy.correlation)


@pytest.mark.parametrize(
    ("privacy", "cohort", "settings", "rounds"),
    [
        (BANDED, CYCLIC, {}, 6),  # the matrix of five rounds is another one
        (BANDED, CYCLIC, {"noise_multiplier": 2.0}, 5),
        (TREE, ONCE, {"noise_multiplier": 2.0}, 5),
        (TREE, ONCE, {"correlation": "none"}, 5),
        (INDEPENDENT, Cohort(), {}, 6),  # the noise of epsilon 8 in more rounds is larger
        (INDEPENDENT, Cohort(), {"epsilon": 1.0}, 5),
        (INDEPENDENT, Cohort(), {"dp_delta": 1e-3}, 5),
    ],
)
def test_a_run_goes_on_with_the_noise_and_the_cohorts_that_it_began_with(
    privacy, cohort, settings, rounds
):
    """The ledger of other settings would count earlier releases as if they had its noise."""
    (_, state, *_), _ = train(METHOD, DATA, privacy=privacy, cohort=cohort)
    other = Trainer(cohort=cohort, privacy=dataclasses.replace(privacy, **settings))
    method = dataclasses.replace(METHOD, rounds=rounds)
    with pytest.raises(RunStoppedError, match=r"was begun with PrivacyLedger.*keep its settings"):
        next(other.run(method, DATA, RNG, state))
    with pytest.raises(RunStoppedError, match="begun with privacy, and would go on without it"):
        next(Trainer().run(method, DATA, RNG, state))


def test_a_run_with_a_given_noise_may_have_more_rounds():
    trainer = Trainer(cohort=ONCE, privacy=TREE)
    state, _ = next(trainer.run(METHOD, DATA, RNG))
    *_, (state, rows) = trainer.run(dataclasses.replace(METHOD, rounds=6), DATA, RNG, state)
    assert rows_of(rows, "privacy/epsilon") == [gaussian_epsilon(1e-2, 1.0, 4)]


@pytest.mark.parametrize("privacy", [TREE, BANDED], ids=["tree", "banded"])
@pytest.mark.parametrize("settings", [{"placement": "clients"}, {"adaptive": AdaptiveClipping()}])
def test_noise_of_changing_size_is_refused(privacy, settings):
    with pytest.raises(ValueError, match="one size in all rounds"):
        dataclasses.replace(privacy, **settings)
