"""The secure sum as a run of its five exchanges: exact, and robust to lost clients."""

import itertools
import random

import pytest
import torch

from fedbolic.federated import Clip, Cohort, LocalTraining, RunStoppedError, Trainer, TrainerState
from fedbolic.federated.aggregators.modular import from_limbs
from fedbolic.federated.secure import SecureSum
from fedbolic.federated.secure.exchange import PROGRESS
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from hyperfed import HyperFed
from tests.federated.secure.parties import (
    ROWS,
    STAGES,
    TEN,
    Losing,
    Numbers,
    last,
    parties,
    plain,
    summed,
)
from tests.federated.simple_method import (
    RNG,
    assert_near,
    assert_same,
    federation,
    flat,
    rows_of,
    saved_and_loaded,
    train,
)


@pytest.mark.parametrize("modulus", [2**32, 2**32 - 5, 2**61 - 1, 2**127 - 1])
def test_the_sum_is_that_of_random_integers(modulus):
    source = random.Random(modulus)
    rows = tuple(tuple(source.randrange(modulus) for _ in range(20)) for _ in range(10))
    server_state = last(SecureSum(Numbers(rows, modulus))).server_state
    assert summed(server_state, modulus) == plain(rows, range(10), modulus)


@pytest.mark.parametrize("modulus", [2**32, 2**61 - 1, 2**127 - 1])
def test_the_sum_of_integers_of_either_sign_does_not_wrap_around(modulus):
    bound = min((modulus - 1) // 2, 2**62) // 10
    source = random.Random(modulus)
    rows = tuple(tuple(source.randrange(-bound, bound + 1) for _ in range(20)) for _ in range(10))
    server_state = last(SecureSum(Numbers(rows), modulus=modulus)).server_state
    assert summed(server_state) == plain(rows, range(10))
    assert server_state["inner"]["weight"] == 55.0


def check_recovery(lost):
    engine = Losing(lost=tuple(lost))
    server_state = last(SecureSum(Numbers(ROWS)), engine=engine).server_state
    early = {client_id for stage, client_id in lost if STAGES.index(stage) < 3}
    there = sorted(set(range(10)) - early)
    assert summed(server_state) == plain(ROWS, there), lost
    assert server_state["inner"]["clients"].tolist() == there
    assert server_state["inner"]["weight"] == sum(i + 1 for i in there)


@pytest.mark.parametrize("stage", STAGES)
def test_one_lost_client_is_recovered_from(stage):
    for client_id in range(10):
        check_recovery([(stage, client_id)])


@pytest.mark.parametrize("stages", list(itertools.product(STAGES, STAGES)))
def test_two_lost_clients_are_recovered_from(stages):
    check_recovery(list(zip(stages, (3, 9), strict=True)))


@pytest.mark.slow
@pytest.mark.parametrize("stages", list(itertools.product(STAGES, STAGES)))
def test_every_pair_of_lost_clients_is_recovered_from(stages):
    for pair in itertools.combinations(range(10), 2):
        check_recovery(list(zip(stages, pair, strict=True)))


def test_an_exchange_may_lose_others_than_the_one_before():
    check_recovery([("cards", 0), ("shares", 4), ("sums", 9)])
    check_recovery([("sums", 0), ("survivors", 4), ("unmasking", 9)])


@pytest.mark.parametrize("stage", STAGES)
def test_below_the_threshold_the_run_stops_and_nothing_is_revealed(stage):
    method = SecureSum(Numbers(ROWS))
    engine = Losing(lost=tuple((stage, i) for i in (1, 2, 5, 8)))  # 6 are left, 7 are needed
    positions: list[TrainerState] = []
    with pytest.raises(RunStoppedError, match=r"6 clients .*, and the threshold is 7: nothing"):
        positions.extend(state for state, _ in Trainer(engine).run(method, TEN, RNG))
    assert len(positions) == STAGES.index(stage)
    for state in positions:
        assert state.server_state["inner"] == {"round": 0}
        if "total" in state.server_state:  # a sum under the masks of all clients
            masked = from_limbs(state.server_state["total"]["sums"])
            assert masked != plain(ROWS, state.answered, 2**62)
        secrets = {
            leaf.numpy().tobytes()
            for client_state in state.client_states.values()
            for name, leaf in client_state["secure"].items()
            if name in ("cipher", "mask", "seed", "signer", "shares", "own_plaintext")
        }
        shown = [
            x.numpy().tobytes() for x in flat(state.server_state).values() if torch.is_tensor(x)
        ]
        assert secrets
        assert not any(secret in content for secret in secrets for content in shown)


def test_few_shares_do_not_unmask():
    """Shares of fewer clients than the threshold do not unmask the sum in the server's state."""
    method = SecureSum(Numbers(ROWS))
    *_, before, _ = train(method, TEN)[0]
    phase = method.phase(before.server_state)
    found = {i: phase.reply(phase.broadcast(before.server_state, i), TEN.clients[i],
             before.client_states[i], RNG)[0].payload["shares"] for i in range(6)}  # fmt: skip
    with pytest.raises(ValueError, match=r"altered|too few"):
        phase._unmasked(before.server_state, found, phase.roster)


def test_a_masked_vector_looks_uniform_and_differs_between_runs():
    method = SecureSum(Numbers(((0,) * 3000,) * 3), modulus=2**32, threshold=2)
    states = [train(method, parties(3))[0][2].server_state["total"]["sums"] for _ in range(2)]
    sums = [server_state[:, 0] for server_state in states]
    assert not torch.equal(*sums)
    counts = torch.histc(sums[0].double(), bins=10, min=0, max=2.0**32)
    # 9 degrees of freedom: a uniform vector fails with a probability of 1e-9
    assert (counts - 300).square().sum() / 300 < 61


def test_what_leaves_a_client_says_neither_weight_nor_metrics():
    seen = []

    class Watching(Losing):
        def run(self, *arguments):
            for client, update, client_state in super().run(*arguments):
                seen.append((update.weight, update.metrics, set(flat(update.payload))))
                yield client, update, client_state

    train(SecureSum(Numbers(ROWS)), TEN, engine=Watching())
    assert {(weight, len(metrics)) for weight, metrics, _ in seen} == {(1.0, 0)}
    names = {name for _, _, found in seen for name in found}
    assert names == {
        *("/card", "/ciphertexts", "/commitment", "/signature", "/sums", "/weight", "/form"),
        "/broadcast",
        *("/survivors", "/shares"),
    }


@pytest.mark.parametrize("index", range(5))
def test_a_run_resumed_in_the_middle_of_a_sum_ends_the_same(index):
    method = SecureSum(Numbers(ROWS, rounds=2))
    positions, rows = train(method, TEN)
    loaded = TrainerState.restore(saved_and_loaded(positions[index].checkpoint()))
    rest, new = train(method, TEN, state=loaded)
    assert_same(rest[-1].server_state, positions[-1].server_state)
    assert new == rows[len(rows) - len(new) :]


def test_secrets_are_dropped_when_the_sum_is_over():
    positions, _ = train(SecureSum(Numbers(ROWS, rounds=2)), TEN)
    assert not any("secure" in state for state in positions[-1].client_states.values())
    for client_state in positions[4].client_states.values():
        assert set(client_state["secure"]) == {"session", "signer", "known", *PROGRESS}
        assert client_state["inner"] == {"turns": 1}


def test_a_client_answers_every_exchange_once():
    method = SecureSum(Numbers(ROWS))
    positions, _ = train(method, TEN)
    start = Trainer().begin(method, TEN, RNG)
    for before, after in itertools.pairwise([start, *positions]):
        phase = method.phase(before.server_state)
        message = phase.broadcast(before.server_state, 3)
        phase.local_update(message, TEN.clients[3], before.client_states.get(3, {}), RNG)
        with pytest.raises(ValueError, match=r"used once, in one secure sum|a replay"):
            phase.local_update(message, TEN.clients[3], after.client_states[3], RNG)


def test_a_sample_needs_a_threshold_of_its_own():
    cohort = Cohort(0.5)
    with pytest.raises(RunStoppedError, match="5 clients showed a card, and the threshold is 7"):
        train(SecureSum(Numbers(ROWS)), TEN, cohort=cohort)
    clear = last(Numbers(ROWS), cohort=cohort).server_state
    server_state = last(SecureSum(Numbers(ROWS), threshold=3), cohort=cohort).server_state
    assert_same(server_state["inner"], clear)


def test_numbers_that_would_wrap_around_leave_their_client_out(caplog):
    rows = tuple((2**20 if i == 4 else 1,) for i in range(10))
    server_state = last(SecureSum(Numbers(rows), modulus=2**20)).server_state
    assert summed(server_state) == [9]
    assert "too large for a sum of 10" in caplog.text


FEDAVG = FedAvg(MLP((4,)), rounds=2, local=LocalTraining(1, 4), lr=0.2)


def test_averages_are_those_in_the_clear_up_to_fixed_point():
    data = federation((7, 4, 12, 5))
    clear, rows = train(FEDAVG, data)
    masked, masked_rows = train(SecureSum(FEDAVG, modulus=2**127 - 1, fraction_bits=44), data)
    assert_near(masked[-1].server_state["inner"], clear[-1].server_state, 1e-11)
    for name in ("test/accuracy", "holdout/accuracy"):
        assert rows_of(masked_rows, name) == rows_of(rows, name)
    assert not rows_of(masked_rows, "train/loss")
    coarse = last(SecureSum(FEDAVG, fraction_bits=10), data)
    assert_near(coarse.server_state["inner"], clear[-1].server_state, 1e-2)
    with pytest.raises(AssertionError):
        assert_near(coarse.server_state["inner"], clear[-1].server_state, 1e-6)


def test_what_does_not_sum_is_refused():
    with pytest.raises(
        ValueError, match="needs an aggregator that sums, and HyperFed uses MinNorm"
    ):
        SecureSum(HyperFed())
    with pytest.raises(ValueError, match="threshold of 1 does not suit 1 clients"):
        train(SecureSum(Numbers(ROWS)), parties(1))
    with pytest.raises(RunStoppedError, match="Clip scales"):
        train(SecureSum(FEDAVG), federation(), channels=(Clip(1.0),))
    for wrong in ({"modulus": 1}, {"threshold": 1}, {"fraction_bits": -1}):
        with pytest.raises(ValueError, match="must be at least"):
            SecureSum(Numbers(ROWS), **wrong)
