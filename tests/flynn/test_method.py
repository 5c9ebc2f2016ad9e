"""FlyNNFL equals the classifier on all examples in one place, with every engine."""

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import Client, Examples, FederatedData
from fedbolic.federated import Cohort, Workers
from fedbolic.federated.noise.draws import SystemKeys
from flynn import FlyNN, FlyNNClassifier, Histogram, Paper, Parallel, Peel
from flynn.method import wire_dtype
from tests.federated.simple_method import RNG, assert_same, federation, train
from tests.seeded import SeededKeys

METHOD = FlyNN(dim=300, fan_in=2, active=7, decay=0.4)
SEED = RNG.at("init", "hash").number()


def pooled(clients, name):
    split = [getattr(client, name).tensors for client in clients]
    return [torch.cat([one[key] for one in split]).numpy() for key in ("x", "y")]


def in_one_place(clients, classes, method=METHOD):
    """The scikit-learn style classifier, fitted on the examples of all clients."""
    sizes = method.dim, method.fan_in, method.active
    model = FlyNNClassifier(
        *sizes, decay=method.decay, channels=method.channels, scaling=None, seed=SEED
    )
    return model.partial_fit(*pooled(clients, "train"), classes=np.arange(classes))


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=16),
    st.integers(2, 6),
    st.sampled_from([0.0, 0.4]),
    st.integers(0, 2**31),
)
def test_the_model_is_that_of_all_examples_in_one_place(sizes, classes, decay, seed):
    data = federation(tuple(sizes), classes=classes, seed=seed)
    method = dataclasses.replace(METHOD, decay=decay)
    (state,), rows = train(method, data)
    model = in_one_place(data.clients, classes, method)
    assert (state.server_state["counts"].numpy() == model.counts_).all()
    scores = {(row.client, row.name): row.value for row in rows}
    for client in data.clients:
        accuracy = model.score(*pooled([client], "test"))
        assert scores[client.id, "test/accuracy"] == pytest.approx(accuracy)
    accuracy = model.score(*pooled([data.holdout], "test"))
    assert scores[None, "holdout/accuracy"] == pytest.approx(accuracy)


def split_among(num, n=400, classes=3):
    """One set of examples dealt unevenly among parties; the first of many hold almost none."""
    (one,) = federation((n,), classes=classes).clients
    cuts = np.linspace(0, 1, num + 1) ** 2 * n
    parts = torch.arange(n).tensor_split(cuts[1:-1].astype(int).tolist())
    meta = dataclasses.replace(one.meta, num_clients=num)
    empty = Examples(one.train.at(torch.arange(0)))
    clients = tuple(
        Client(i, Examples(one.train.at(part)), empty, empty, meta) for i, part in enumerate(parts)
    )
    return FederatedData(clients, meta)


@pytest.mark.parametrize("num", [1, 2, 4, 8, 16])
def test_any_number_of_parties_gives_the_same_counts(num):
    data = split_among(num)
    (state,), _ = train(METHOD, data)
    assert torch.equal(
        state.server_state["counts"], train(METHOD, split_among(1))[0][0].server_state["counts"]
    )


@pytest.mark.parametrize(
    "num", [2, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 4, 8, 16))]
)
@pytest.mark.processes
def test_parties_in_processes_of_their_own_give_the_same_counts(num):
    data = split_among(num)
    (state,), rows = train(METHOD, data, engine=Workers(num))
    (plain,), plain_rows = train(METHOD, data)
    assert_same(state.server_state, plain.server_state)
    assert rows == plain_rows


def test_the_model_of_those_who_answered_is_theirs():
    data = federation((5, 9, 3, 8))
    (state,), _ = train(METHOD, data, cohort=Cohort(0.5))
    assert state.server_state["parties"] == 2
    answered = [data.clients[i] for i in state.client_states]
    model = in_one_place(answered, 3)
    assert (state.server_state["counts"].numpy() == model.counts_).all()


def test_a_party_with_no_example_or_without_a_class_changes_nothing():
    data = federation((9, 6))
    first, second = data.clients
    kept = second.train.tensors["y"] != 1
    clients = (
        first,
        dataclasses.replace(second, train=Examples(second.train.at(kept.nonzero().flatten()))),
        dataclasses.replace(first, id=2, train=Examples(first.train.at(torch.arange(0)))),
    )
    meta = dataclasses.replace(data.meta, num_clients=len(clients))
    clients = tuple(dataclasses.replace(client, meta=meta) for client in clients)
    (state,), rows = train(METHOD, FederatedData(clients, meta, data.holdout))
    model = in_one_place(clients[:2], 3)
    assert (state.server_state["counts"].numpy() == model.counts_).all()
    assert next(row.value for row in rows if row.name == "clients/failed") == 0


def test_bytes_are_those_of_a_seed_down_and_small_integers_up():
    data = federation((200, 20), classes=3)
    _, rows = train(METHOD, data)
    found = {row.name: row.value for row in rows if row.client is None}
    assert found["bytes/up"] == 2 * 3 * 300
    assert found["bytes/down"] == 2 * 16
    assert [wire_dtype(n) for n in (255, 256, 32767, 32768, 2**31)] == [
        *(torch.uint8, torch.int16, torch.int16, torch.int32, torch.int64)
    ]


def test_under_a_secure_sum_counts_are_as_short_as_the_largest_party_allows():
    secure = pytest.importorskip("fedbolic.federated.secure").SecureSum(METHOD)
    data = federation((200, 20, 3))
    server_state = secure.admit(secure.init(data.meta, RNG), data.sizes)
    assert server_state["inner"]["largest"] == 200


def test_a_party_with_a_value_that_is_not_finite_is_left_out(caplog):
    data = federation((9, 6))
    data.clients[1].train.tensors["x"][2, 1] = float("nan")
    (state,), rows = train(METHOD, data)
    model = in_one_place(data.clients[:1], 3)
    assert (state.server_state["counts"].numpy() == model.counts_).all()
    assert next(row.value for row in rows if row.name == "clients/failed") == 1
    assert "features must be finite, got NaN or infinity in example 2" in caplog.text


def test_a_party_with_another_number_of_features_is_left_out(caplog):
    data = federation((9, 6))
    tensors = data.clients[1].train.tensors
    narrow = {"x": tensors["x"][:, :-1], "y": tensors["y"]}
    clients = (data.clients[0], dataclasses.replace(data.clients[1], train=Examples(narrow)))
    (state,), rows = train(METHOD, dataclasses.replace(data, clients=clients))
    model = in_one_place(data.clients[:1], 3)
    assert (state.server_state["counts"].numpy() == model.counts_).all()
    assert next(row.value for row in rows if row.name == "clients/failed") == 1
    assert "examples have 4 features instead of 5" in caplog.text


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"decay": 1.0}, r"decay must lie in \[0, 1\), got 1"),
        ({"active": 301}, "active must lie in 1 .. dim = 300, got 301"),
        ({"fan_in": 0}, "fan_in must be at least 1, got 0"),
        ({"dim": 0}, "dim must be at least 1, got 0"),
    ],
)
def test_bad_settings_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(METHOD, **settings)


def test_more_connections_than_features_are_refused_before_the_first_round():
    with pytest.raises(ValueError, match="fan_in is 6, but inputs have 5 features"):
        dataclasses.replace(METHOD, fan_in=6).init(federation().meta, Rng(0))


PRIVATE = dataclasses.replace(METHOD, privacy=Histogram(2.0), noise=SeededKeys())


def test_private_counts_are_those_of_every_party_with_its_own_noise():
    data = federation((40, 30))
    (state,), rows = train(PRIVATE, data)
    server_state = PRIVATE.init(data.meta, RNG)
    sent = []
    for client in data.clients:
        stream = RNG.at("client", client.id)
        message = PRIVATE.broadcast(server_state, client.id)
        update, _ = PRIVATE.local_update(message, client, {}, stream)
        plain, _ = METHOD.local_update(METHOD.init(data.meta, RNG), client, {}, stream)
        noise = update.payload["counts"].long() - plain.payload["counts"].long()
        assert (noise % 7 != 0).any()
        assert noise.double().std() == pytest.approx(2**0.5 * 7 / 2, rel=0.1)  # of Laplace(rho/eps)
        assert update.payload["counts"].dtype == torch.int32
        assert (update.weight, update.metrics) == (1.0, {})
        assert set(message) == {"largest", "seed", "counts"}
        assert message["largest"] == 0
        sent.append(noise)
    assert not torch.equal(*sent)
    assert (state.server_state["counts"] >= 0).all()
    assert next(row.value for row in rows if row.name == "clients/failed") == 0


def test_the_system_draws_other_noise_each_time():
    data = federation((40, 30))
    for noise, same in ((SystemKeys(), False), (SeededKeys(), True)):
        method = dataclasses.replace(PRIVATE, noise=noise)
        one, two = (train(method, data)[0][0].server_state["counts"] for _ in range(2))
        assert torch.equal(one, two) == same


def test_a_run_begins_with_its_ledger_and_says_if_it_is_hopeless(caplog):
    train(PRIVATE, federation((40, 30)))
    assert "Histogram: epsilon 2 asked for" in caplog.text
    assert "NOT PRIVATE" in caplog.text
    assert "70 examples times epsilon 2 are fewer than the 900 counts" in caplog.text
    caplog.clear()
    train(PRIVATE, federation((400, 300)))
    assert "noise will drown" not in caplog.text


@pytest.mark.parametrize("mechanism", [Paper(4.0, 50), Parallel(4.0, 50), Peel(4.0, 50)])
def test_a_party_releases_no_more_counts_than_it_selects(mechanism):
    data = federation((40, 30))
    method = dataclasses.replace(PRIVATE, privacy=mechanism)
    (state,), _ = train(method, data)
    assert 0 < state.server_state["counts"].count_nonzero() <= 100
