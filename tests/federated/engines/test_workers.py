import contextlib
import dataclasses
import multiprocessing
import os
import pickle
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.federated import (
    Cohort,
    Evaluation,
    Failure,
    FineTune,
    LocalTraining,
    RunStoppedError,
    Sequential,
    Trainer,
    Workers,
)
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.processes.worker import WorkerRequest, deal, results
from fedbolic.methods import Ditto
from fedbolic.nn.network.backbone import MLP
from hyperfed import HyperFed
from tests.federated.faults import FAULTS
from tests.federated.simple_method import (
    RNG,
    SMALL,
    Averaged,
    NormNet,
    Relay,
    assert_near,
    assert_same,
    federation,
    point,
    rows_of,
    train,
)

SIZES = (7, 4, 12, 1, 30, 5)
DATA = federation(SIZES)
NETWORK, SCHEDULE = MLP((4,)), LocalTraining(2, 4)

METHODS = {
    "means": Averaged(),
    "fedavg": SMALL,
    "dropout": dataclasses.replace(SMALL, backbone=MLP((4,), dropout=0.5)),
    "batch norm": dataclasses.replace(SMALL, backbone=NormNet()),
    "ditto": Ditto(NETWORK, rounds=3, local=SCHEDULE),
    "hyperfed": HyperFed(NETWORK, rounds=2, local=SCHEDULE, lr=0.1),
    "several exchanges": Relay(legs=3, lost=((1, 2), (4, 0))),
}


@pytest.fixture(scope="module")
def pools():
    """Workers that hold ``DATA``, by their number; started on first use."""
    with contextlib.ExitStack() as stack:
        started = {}

        def pool(num):
            if num not in started:
                started[num] = stack.enter_context(Workers(num).open(DATA.clients))
            return started[num]

        yield pool


def assert_equal_runs(method, engine, **settings):
    """Assert that states and rows equal those of one client after another, to the last bit."""
    plain, plain_rows = train(method, DATA, **settings)
    found, rows = train(method, DATA, engine=engine, **settings)
    assert rows == plain_rows
    assert len(found) == len(plain) > 1
    for one, other in zip(found, plain, strict=True):
        assert_same(
            {
                **one.checkpoint(),
                "client_states": {str(i): m for i, m in one.client_states.items()},
            },
            {
                **other.checkpoint(),
                "client_states": {str(i): m for i, m in other.client_states.items()},
            },
        )


# --- results ---------------------------------------------------------------------------------


@pytest.mark.parametrize("num", [2, 3])
@pytest.mark.parametrize("name", METHODS)
@pytest.mark.processes
def test_any_number_of_workers_gives_what_one_client_after_another_gives(name, num, pools):
    assert_equal_runs(METHODS[name], pools(num))


@pytest.mark.parametrize("rate", [1 / 6, 1 / 2])
@pytest.mark.processes
def test_partial_participation(rate, pools):
    assert_equal_runs(METHODS["ditto"], pools(2), cohort=Cohort(rate))


@pytest.mark.processes
def test_single_precision_and_automatic_casts():
    data = federation(SIZES, dtype=torch.float32)
    with Workers(1).open(data.clients) as pool:
        plain, rows = train(METHODS["fedavg"], data)
        assert rows == train(METHODS["fedavg"], data, engine=pool)[1]
        with torch.autocast("cpu", torch.bfloat16):
            cast, rows = train(METHODS["fedavg"], data)
            found, found_rows = train(METHODS["fedavg"], data, engine=pool)
    assert found_rows == rows
    assert_same(found[-1].server_state, cast[-1].server_state)
    key = "head.weight"
    assert not torch.equal(
        cast[-1].server_state["parameters"][key], plain[-1].server_state["parameters"][key]
    )


@pytest.mark.processes
def test_fine_tuning_before_the_scores(pools):
    assert_equal_runs(SMALL, pools(2), evaluation=Evaluation(2, FineTune(1)))
    _, rows = train(SMALL, DATA, engine=pools(2), evaluation=Evaluation(2, FineTune(1)))
    assert len(rows_of(rows, "fine_tuned/accuracy")) == 1


@pytest.mark.processes
def test_results_come_in_order_of_id_and_are_the_callers_clients(pools):
    server_state = Averaged().init(DATA.meta, RNG)
    clients = [DATA.clients[i] for i in (0, 2, 3, 5)]
    messages = {c.id: server_state for c in clients}
    answers = pools(3).run(Exchange(Averaged(), messages, clients, {}, RNG))
    assert [client for client, *_ in answers] == clients


@dataclass(frozen=True)
class Keeper(Averaged):
    """Clients keep the client state of their first turn."""

    def local_update(self, message, client, client_state, rng):
        update, new = super().local_update(message, client, client_state, rng)
        return update, client_state or new


@pytest.mark.processes
def test_memory_that_stays_is_not_copied(pools):
    positions, _ = train(Keeper(), DATA, engine=pools(2))
    first, last = positions[0].client_states, positions[-1].client_states
    assert first.keys() == last.keys() == set(range(len(SIZES)))
    assert all(last[i]["last"] is first[i]["last"] for i in first)


@pytest.mark.processes
def test_an_engine_without_a_pool_starts_one_and_leaves_nothing():
    before = set(multiprocessing.active_children()), shared_files()
    found, rows = train(Averaged(), DATA, engine=Workers(1))
    plain, plain_rows = train(Averaged(), DATA)
    assert rows == plain_rows
    assert_same(found[-1].server_state, plain[-1].server_state)
    assert (set(multiprocessing.active_children()), shared_files()) == before


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 5))
def test_shares_cover_the_clients_and_none_is_much_longer_than_needed(sizes, num):
    clients = federation(tuple(sizes)).clients if sizes else ()
    shares = deal(clients, num)
    assert sorted(c.id for share in shares for c in share) == list(range(len(sizes)))
    assert all([c.id for c in share] == sorted(c.id for c in share) for share in shares)
    work = [max(size, 1) for size in sizes]
    loads = [sum(work[c.id] for c in share) for share in shares]
    assert max(loads, default=0) <= sum(work) / num + max(work, default=0)


# --- failures --------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.processes
def test_a_client_in_trouble_is_left_out_as_before(fault, pools, caplog):
    method = Averaged(faults={2: fault})
    assert_equal_runs(method, pools(2))
    texts = [record.message for record in caplog.records]
    assert len(texts) == 4
    assert texts[:2] == texts[2:]


class TwoWordsError(Exception):
    """An error that pickle cannot rebuild from its single argument."""

    def __init__(self, one, two):
        super().__init__(f"{one} {two}")


@dataclass(frozen=True)
class Strange(Averaged):
    """Raises an error, or returns a value, that cannot be pickled."""

    gives: bool = False

    def local_update(self, message, client, client_state, rng):
        if client.id != 1:
            return super().local_update(message, client, client_state, rng)
        if self.gives:
            return lambda: None, {}
        raise TwoWordsError("not", "portable")


@pytest.mark.processes
def test_what_cannot_be_sent_is_a_failure_of_its_client(pools, caplog):
    for gives, words in ((False, "TwoWordsError: not portable"), (True, "local object")):
        caplog.clear()
        _, rows = train(Strange(rounds=1, gives=gives), DATA, engine=pools(2))
        assert rows_of(rows, "clients/failed") == [1]
        assert "client 1 is left out" in caplog.text
        assert words in caplog.text


@pytest.mark.processes
def test_a_method_that_cannot_be_sent_is_refused(pools):
    @dataclass(frozen=True)
    class Local(Averaged):
        pass

    with pytest.raises(RunStoppedError, match=r"Local cannot be sent .*: define it in a module"):
        train(Local(), DATA, engine=pools(2))


@dataclass(frozen=True)
class Tired(Sequential):
    """An engine that stops half-way."""

    says: bool = True

    def run(self, exchange):
        for result in super().run(exchange):
            if result[0].id == 4:
                if self.says:
                    raise RuntimeError("tired")
                return
            yield result


@pytest.mark.parametrize("says", [True, False])
def test_an_engine_that_breaks_off_costs_the_rest_of_its_share(says):
    messages = dict.fromkeys((1, 2, 4, 5), Averaged().init(DATA.meta, RNG))
    method = pickle.dumps(Averaged())
    task = WorkerRequest("updates", method, messages, {}, RNG, torch.get_default_dtype(), None)
    found = list(results(Tired(says), dict(enumerate(DATA.clients)), task))
    assert [client_id for client_id, *_ in found] == [1, 2, 4, 5]
    assert [isinstance(update, Failure) for _, update, _ in found] == [False, False, True, True]
    text = "tired" if says else "Tired gave no result for this client"
    assert {str(update.error) for _, update, _ in found[2:]} == {text}


# --- deaths ----------------------------------------------------------------------------------


@pytest.mark.processes
def test_a_worker_killed_at_work_costs_the_rest_of_its_share_and_is_replaced(pools, caplog):
    pool = pools(2)
    before = {index: worker.process.pid for index, worker in pool.workers.items()}
    positions, rows = train(Averaged(rounds=2, faults={2: "killed"}), DATA, engine=pool)
    lost = {2, 3, 5}  # of the clients 0, 1, 2, 3, 5 of that worker
    assert rows_of(rows, "clients/failed") == [0, 3]
    assert_near(positions[-1].server_state["x"], point(DATA, 2, without=lost), 1e-12)
    assert [positions[-1].client_states[i]["turns"] for i in range(6)] == [2, 2, 1, 1, 2, 1]
    for i in lost:
        text = f"client {i} is left out of this exchange: WorkerError: worker 1 (process "
        assert text in caplog.text
    assert f"(process {before[1]}) was killed by SIGKILL before it finished" in caplog.text
    _, rows = train(Averaged(), DATA, engine=pool, state=positions[-1])
    assert rows_of(rows, "clients/failed") == [0]
    after = {index: worker.process.pid for index, worker in pool.workers.items()}
    assert after[0] == before[0]
    assert after[1] != before[1]


@pytest.mark.processes
def test_a_worker_killed_at_rest_is_replaced_in_time(pools):
    pool = pools(1)
    os.kill(pool.workers[0].process.pid, signal.SIGKILL)
    pool.workers[0].process.join()
    assert_equal_runs(SMALL, pool)


@pytest.mark.processes
def test_others_go_on_if_a_worker_cannot_be_started_again(caplog, monkeypatch):
    with Workers(2).open(DATA.clients) as pool:
        run = Trainer(engine=pool).run(SMALL, DATA, RNG)
        first, _ = next(run)
        monkeypatch.setattr("fedbolic.federated.engines.workers.Worker", no_process)
        for index, rest in ((1, "1 of 2 workers remain"), (0, "")):
            os.kill(pool.workers[index].process.pid, signal.SIGKILL)
            pool.workers[index].process.join()
            if rest:
                second, rows = next(run)
                assert rows_of(rows, "clients/failed") == [0]
                assert rest in caplog.text
        with pytest.raises(
            RunStoppedError, match=r"no worker could be started: worker 0 .* cannot"
        ):
            next(run)
    assert (first.round, second.round) == (1, 2)
    assert_same(second.server_state, train(SMALL, DATA)[0][1].server_state)


def no_process(*arguments):
    raise OSError("the machine is full")


@dataclass(frozen=True)
class Deadly(Sequential):
    """An engine that ends the process that unpickles it."""

    def __reduce__(self):
        return os._exit, (3,)


@pytest.mark.processes
def test_a_run_stops_if_no_worker_becomes_ready():
    before = set(multiprocessing.active_children())
    with pytest.raises(
        RunStoppedError,
        match=r"no worker could be started: worker 0 \(process \d+\) ended with exit code 3 before",
    ):
        train(SMALL, DATA, engine=Workers(1, Deadly()))
    assert set(multiprocessing.active_children()) == before


@pytest.mark.processes
def test_whoever_stops_early_leaves_no_process_at_work(pools):
    pool = pools(1)
    server_state = Averaged().init(DATA.meta, RNG)
    messages = {client.id: server_state for client in DATA.clients}
    answers = pool.run(Exchange(Averaged(), messages, DATA.clients, {}, RNG))
    next(answers)
    with pytest.raises(ValueError, match="the workers run another exchange"):
        next(pool.run(Exchange(Averaged(), messages, DATA.clients, {}, RNG)))
    answers.close()
    assert not any(worker.pending for worker in pool.workers.values())
    assert_equal_runs(SMALL, pool)
    before = set(multiprocessing.active_children())
    run = Trainer(engine=Workers(1)).run(SMALL, DATA, RNG)
    next(run)
    assert len(set(multiprocessing.active_children()) - before) == 1
    del run
    assert set(multiprocessing.active_children()) == before


def shared_files():
    """Names in the folder of shared memory, except semaphores of other programs."""
    return {file.name for file in Path("/dev/shm").glob("*") if not file.name.startswith("sem.")}


# --- refused settings --------------------------------------------------------------------------


def test_what_cannot_work_is_refused():
    with pytest.raises(ValueError, match="num must be at least 1, got 0"):
        Workers(0)
    with pytest.raises(ValueError, match="inner must work in one process"):
        Workers(2, Workers(2))
    elsewhere = DATA.to("meta")
    with pytest.raises(ValueError, match=r"Workers share the CPU.*'meta'.*use device cpu"):
        Workers().open(elsewhere.clients)
    with pytest.raises(ValueError, match="Workers share the CPU"):
        Trainer(engine=Workers()).begin(SMALL, elsewhere, RNG)


@pytest.mark.processes
def test_a_pool_refuses_clients_that_it_does_not_hold(pools):
    with pytest.raises(RunStoppedError, match=r"do not hold the data of clients \[0, 1"):
        train(SMALL, federation(SIZES), engine=pools(1))
