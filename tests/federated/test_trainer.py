import copy
import dataclasses
import itertools
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.torch_version import TorchVersion

from fedbolic.core.rng import Rng
from fedbolic.federated import (
    Clip,
    Cohort,
    Evaluation,
    FineTune,
    ServerAdam,
    ServerSGD,
    Trainer,
    TrainerState,
)
from fedbolic.federated.trainer import OLDEST_TORCH
from tests.federated.simple_method import (
    SIZES,
    SMALL,
    Averaged,
    NormNet,
    Relay,
    assert_near,
    assert_same,
    federation,
    flat,
    point,
    rows_of,
    saved_and_loaded,
    train,
)

# --- a round ---------------------------------------------------------------------------------


def test_rounds_are_the_means_worked_by_hand():
    data = federation(SIZES)
    positions, _ = train(Averaged(), data)
    assert_near(positions[-1].server_state["x"], point(data), 1e-12)
    assert [p.round for p in positions] == [1, 2, 3]
    assert [p.exchange for p in positions] == [0, 0, 0]
    assert all(m["turns"] == 3 for m in positions[-1].client_states.values())


def test_a_run_repeats_itself_and_leaves_its_arguments_untouched():
    data, method = federation(SIZES), Averaged()
    before = copy.deepcopy([client.train.tensors for client in data.clients])
    first, rows = train(method, data)
    twice, again = train(method, data)
    assert_same(first[-1].server_state, twice[-1].server_state)
    assert rows == again
    for client, old in zip(data.clients, before, strict=True):
        assert_same(client.train.tensors, old)
    other, _ = train(method, data, Rng(4))
    assert not torch.equal(first[-1].server_state["x"], other[-1].server_state["x"])


def test_the_global_random_stream_is_neither_used_nor_moved():
    data = federation()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first, _ = train(SMALL, data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    np.random.seed(5)  # noqa: NPY002
    second, _ = train(SMALL, data)
    assert_same(first[-1].server_state, second[-1].server_state)


@pytest.mark.parametrize("rate", [0.25, 0.5, 1.0])
def test_a_cohort_is_a_share_of_the_clients_drawn_anew_each_round(rate):
    data = federation((3,) * 8)
    positions, rows = train(Averaged(rounds=6), data, cohort=Cohort(rate))
    assert rows_of(rows, "clients/asked") == [8 * rate] * 6
    took_part = [
        tuple(r.client for r in rows if (r.name, r.round) == ("noise", n) and r.client is not None)
        for n in range(1, 7)
    ]
    assert all(ids == tuple(sorted(set(ids))) and len(ids) == 8 * rate for ids in took_part)
    assert (len(set(took_part)) == 1) == (rate == 1)
    turns = {i: m["turns"] for i, m in positions[-1].client_states.items()}
    assert sum(turns.values()) == 6 * 8 * rate


def test_clients_who_are_not_asked_keep_their_memory():
    data = federation((3,) * 6)
    positions, rows = train(Averaged(rounds=4), data, cohort=Cohort(1 / 3))
    for before, now in itertools.pairwise(positions):
        asked = {r.client for r in rows if r.name == "noise" and r.round == now.round}
        for i in before.client_states.keys() - asked:
            assert now.client_states[i] is before.client_states[i]


def test_single_precision_data_give_single_precision_training():
    for dtype in (torch.float32, torch.float64):
        server_state = train(SMALL, federation(dtype=dtype))[0][-1].server_state
        assert {value.dtype for value in server_state["parameters"].values()} == {dtype}


# --- protocols of several exchanges ----------------------------------------------------------


def who(state):
    """Ids of the clients that delivered, by exchange."""
    return [tuple(np.flatnonzero(row)) for row in state.server_state["who"].numpy()]


def test_two_exchanges_are_one_round_even_if_a_client_is_lost_between_them():
    data = federation(SIZES)
    positions, rows = train(Relay(lost=((1, 2),)), data)
    assert [(p.round, p.exchange) for p in positions] == [(0, 1), (1, 0), (1, 1), (2, 0)]
    assert [p.answered for p in positions] == [(0, 1, 2, 3), (), (0, 1, 2, 3), ()]
    assert who(positions[-1]) == [(0, 1, 2, 3), (0, 1, 3), (0, 1, 2, 3), (0, 1, 2, 3)]
    assert rows_of(rows, "clients/asked") == [8, 8]
    assert rows_of(rows, "clients/failed") == [1, 0]
    assert {i: m["turns"] for i, m in positions[-1].client_states.items()} == {
        0: 4,
        1: 4,
        2: 3,
        3: 4,
    }
    assert {r.round for r in rows} == {1, 2}
    assert len(rows_of(rows, "test/turns", client=0)) == 2


def test_only_those_who_answered_are_asked_again():
    data = federation((3,) * 6)
    lost = ((0, 4), (1, 2), (4, 0))
    positions, rows = train(Relay(legs=3, lost=lost), data, cohort=Cohort(5 / 6))
    first, second, third, fourth, fifth, sixth = who(positions[-1])
    sampled = {r.client for r in rows if r.name == "leg0" and r.round == 1} - {None}
    assert set(first) == sampled - {4}
    assert set(second) == set(first) - {2} == set(third)
    assert set(fifth) == set(fourth) - {0} == set(sixth)
    assert positions[0].answered == first
    assert positions[1].answered == second
    assert rows_of(rows, "clients/failed") == [(4 in (*first, 4)) + (2 in first), 1]


def test_a_first_exchange_with_all_clients_ignores_the_rate():
    data = federation((3,) * 6)
    positions, _ = train(Relay(first="all"), data, cohort=Cohort(0.5))
    assert [len(ids) for ids in who(positions[-1])] == [6, 6, 6, 6]
    positions, _ = train(Relay(), data, cohort=Cohort(0.5))
    assert [len(ids) for ids in who(positions[-1])] == [3, 3, 3, 3]


def test_every_exchange_has_streams_of_its_own():
    positions, _ = train(Relay(rounds=3, legs=3), federation(SIZES))
    draws = positions[-1].server_state["who"].flatten().tolist()
    assert len(set(draws)) == len(draws) == 9 * 4


# --- resume ----------------------------------------------------------------------------------

RUNS = {
    "means": (Averaged(), {"cohort": Cohort(0.5)}),
    "lost between exchanges": (Relay(legs=3, lost=((1, 2), (4, 0))), {}),
    "fedavg": (
        dataclasses.replace(SMALL, server_optimizer=ServerSGD(momentum=0.5)),
        {"cohort": Cohort(0.5)},
    ),
    "fedadam": (dataclasses.replace(SMALL, server_optimizer=ServerAdam()), {}),
    "personal heads": (
        dataclasses.replace(SMALL, sharing={"head.*": "personal", "*": "shared"}),
        {"cohort": Cohort(0.5), "evaluation": Evaluation(2, FineTune(1))},
    ),
    "batch norm": (dataclasses.replace(SMALL, backbone=NormNet()), {"channels": (Clip(0.1),)}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_resumed_from_any_position_ends_the_same_to_the_last_bit(name):
    method, settings = RUNS[name]
    data = federation(SIZES)
    positions, rows = train(method, data, **settings)
    for i, state in enumerate(positions):
        loaded = TrainerState.restore(saved_and_loaded(state.checkpoint()))
        rest, new = train(method, data, state=loaded, **settings)
        assert len(rest) == len(positions) - i - 1
        last = rest[-1] if rest else loaded
        assert_same(last.server_state, positions[-1].server_state)
        assert_same(
            {str(k): v for k, v in last.client_states.items()},
            {str(k): v for k, v in positions[-1].client_states.items()},
        )
        assert (last.round, last.exchange, last.answered) == (positions[-1].round, 0, ())
        assert new == rows[len(rows) - len(new) :]
    assert len(positions) > 2


def test_a_seed_may_stand_for_the_stream():
    data = federation()
    ends = [list(Trainer().run(SMALL, data, rng=rng)) for rng in (4, Rng(4), Rng(5))]
    first, second, other = (rounds[-1][0].server_state for rounds in ends)
    assert_same(first, second)
    assert not all(torch.equal(flat(first)[n], value) for n, value in flat(other).items())


def test_an_older_torch_is_named_and_refused_before_a_run(monkeypatch):
    for accepted in (OLDEST_TORCH, "2.13.0+cu126", "10.0.0"):
        monkeypatch.setattr(torch, "__version__", TorchVersion(accepted))
        Trainer()
    monkeypatch.setattr(torch, "__version__", TorchVersion("2.4.1+cpu"))
    with pytest.raises(ImportError, match=r"needs torch 2\.11 or newer, and 2\.4\.1\+cpu is"):
        Trainer()


def test_the_oldest_torch_is_the_one_that_the_package_asks_for():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert f"torch>={OLDEST_TORCH}" in project["dependencies"]
