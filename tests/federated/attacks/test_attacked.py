import contextlib
import dataclasses

import numpy as np
import pytest
import torch

from fedbolic.data import FederatedData
from fedbolic.federated import (
    ALIE,
    Attacked,
    Auto,
    Batched,
    Clip,
    Cohort,
    GaussianNoise,
    Median,
    RunStoppedError,
    Sequential,
    SignFlip,
)
from tests.federated.agreement import exchange
from tests.federated.simple_method import (
    RNG,
    SIZES,
    SMALL,
    Averaged,
    Relay,
    assert_near,
    assert_same,
    federation,
    rows_of,
    train,
)

DATA = federation(SIZES)


def results(engine, data=DATA):
    """Updates and client states of the first exchange, by client id."""
    found = exchange(engine, SMALL, data)
    return {client.id: (update, client_state) for client, update, client_state in found}


def test_only_the_attackers_deltas_differ():
    honest = results(Sequential())
    attacked = results(Attacked(SignFlip(3.0), (1, 3)))
    assert list(attacked) == list(honest)
    for i, (update, state) in honest.items():
        sent, new = attacked[i]
        assert_same(new, state)
        assert_same(sent.payload["buffers"], update.payload["buffers"])
        assert (sent.weight, sent.metrics) == (update.weight, update.metrics)
        factor = -3.0 if i in (1, 3) else 1.0
        expected = {name: factor * leaf for name, leaf in update.payload["delta"].items()}
        assert_same(sent.payload["delta"], expected)


def test_attackers_of_the_cohort_collude_and_the_others_are_not_read():
    honest = results(Sequential())
    deltas = [honest[i][0].payload["delta"]["head.bias"].numpy() for i in (1, 3)]
    expected = np.mean(deltas, axis=0) - 1.5 * np.std(deltas, axis=0)
    attacked = results(Attacked(ALIE(z=1.5), (1, 3)))
    for i in (1, 3):
        ours = attacked[i][0].payload["delta"]["head.bias"]
        np.testing.assert_allclose(ours.numpy(), expected, rtol=1e-10, atol=1e-14)
    alone = results(Attacked(ALIE(z=1.5), (1, 3)), FederatedData(DATA.clients[:3], DATA.meta))
    torch.testing.assert_close(alone[1][0].payload["delta"], honest[1][0].payload["delta"])


def test_a_run_without_attackers_is_the_honest_run_bit_for_bit():
    (*_, honest), rows = train(SMALL, DATA)
    (*_, state), new = train(SMALL, DATA, engine=Attacked(SignFlip(), ()))
    assert_same(state.server_state, honest.server_state)
    assert new == rows


def test_engines_agree_under_attack():
    attack = Attacked(GaussianNoise(0.1), (0, 2))
    (*_, plain), rows = train(SMALL, DATA, engine=attack)
    (*_, fast), new = train(SMALL, DATA, engine=dataclasses.replace(attack, inner=Batched()))
    assert_near(fast.server_state, plain.server_state, 1e-10)
    assert [row[:3] for row in new] == [row[:3] for row in rows]


@dataclasses.dataclass(frozen=True)
class Held(Sequential):
    """An engine that records its opening, its exchanges, its scores and its end."""

    said: list[str] = dataclasses.field(default_factory=list)

    @contextlib.contextmanager
    def open(self, clients):
        self.said.append("open")
        yield self
        self.said.append("closed")

    def run(self, *args):
        self.said.append("run")
        return super().run(*args)

    def scores(self, *args):
        self.said.append("scores")
        return super().scores(*args)


def test_the_inner_engine_is_opened_once_and_scores_the_clients():
    inner = Held()
    train(SMALL, DATA, engine=Attacked(SignFlip(), (0,), inner=inner))
    assert inner.said[:2] == ["open", "run"]
    assert inner.said[-1] == "closed"
    assert inner.said.count("open") == inner.said.count("closed") == 1
    assert inner.said.count("run") == SMALL.rounds
    assert "scores" in inner.said


def test_a_sampled_cohort_may_have_no_attacker():
    engine, cohort = Attacked(SignFlip(), (0,)), Cohort(rate=0.25)
    positions, _ = train(SMALL, DATA, engine=engine, cohort=cohort)
    assert len(positions) == SMALL.rounds


def test_the_median_withstands_a_client_that_turns_the_mean_around():
    """One of four clients sends a thousand times the negative of its delta."""
    method = Averaged(rounds=1)
    start = method.init(DATA.meta, RNG.at("init"))["x"].double()
    attack = Attacked(SignFlip(1000.0), (1,))
    ends = {}
    for collect in ("mean", "median"):
        honest, attacked = (
            train(Averaged(1, collect=collect), DATA, **settings)[0][-1].server_state["x"] - start
            for settings in ({}, {"engine": attack})
        )
        ends[collect] = float((attacked - honest).norm() / honest.norm())
    assert ends["mean"] > 10
    assert ends["median"] < 2


def test_a_channel_acts_on_the_malicious_update():
    engine = Attacked(SignFlip(1000.0), (1,))
    _, rows = train(Averaged(1), DATA, engine=engine, channels=(Clip(0.5),))
    (plain,) = rows_of(train(Averaged(1), DATA, channels=(Clip(0.5),))[1], "clip/factor", client=1)
    (factor,) = rows_of(rows, "clip/factor", client=1)
    assert factor == pytest.approx(plain / 1000)


def test_a_client_that_fails_does_not_attack(caplog):
    method = Averaged(2, faults={1: "raises", 2: "nan"})
    positions, _ = train(method, DATA, engine=Attacked(SignFlip(), (1,)))
    assert positions[-1].round == 2
    assert "client 1 is left out" in caplog.text


def test_a_payload_without_the_part_stops_the_run_by_name():
    with pytest.raises(RunStoppedError, match=r"part 'delta'.*client 1 sent \['who'\]: set part"):
        train(Relay(), DATA, engine=Attacked(SignFlip(), (1,)))


def test_unknown_attackers_are_refused_before_the_run():
    with pytest.raises(ValueError, match=r"clients \[4\] cannot attack, as the ids are 0 .. 3"):
        train(SMALL, DATA, engine=Attacked(SignFlip(), (1, 4)))


@pytest.mark.parametrize("clients", [(1, 1), (-1,)])
def test_ids_that_are_negative_or_repeated_are_refused(clients):
    with pytest.raises(ValueError, match="clients must be different ids from 0 on"):
        Attacked(SignFlip(), clients)


def test_an_engine_that_chooses_anew_is_refused():
    with pytest.raises(ValueError, match="got Auto: name the engine"):
        Attacked(SignFlip(), (0,), inner=Auto())


def test_fedavg_with_the_median_trains_under_attack():
    method = dataclasses.replace(SMALL, aggregator=Median())
    engine = Attacked(SignFlip(100.0), (2,), inner=Batched())
    (*_, state), _ = train(method, DATA, engine=engine)
    assert state.round == SMALL.rounds
