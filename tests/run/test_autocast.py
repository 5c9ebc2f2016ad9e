"""Mixed precision: casts live for one step only, and results equal those of torch's autocast."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.weak import TensorWeakRef

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Partitioned
from fedbolic.federated import Batched, LocalTraining, Sequential
from fedbolic.federated.contract.engine import Exchange
from fedbolic.federated.processes.worker import pickled, results, worker_requests
from fedbolic.methods import Ditto, FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.computing import arithmetic
from fedbolic.run.experiment import run

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
SETTINGS = {"backbone": MLP((4,)), "rounds": 2, "local": LocalTraining(epochs=1, batch_size=16)}
METHODS = [FedAvg(**SETTINGS), Ditto(**SETTINGS)]
CPU = torch.device("cpu")


class Casts(TorchDispatchMode):
    """Records weakly every tensor that was cast to bfloat16, by autocast or otherwise."""

    def __init__(self):
        super().__init__()
        self.made = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        if function is torch.ops.aten._to_copy.default and result.dtype == torch.bfloat16:
            self.made.append(TensorWeakRef(result))
        return result

    def alive(self):
        return sum(reference() is not None for reference in self.made)


class Rounds:
    """A callback that counts live casts at the end of every round."""

    def __init__(self, casts):
        self.casts, self.alive = casts, []

    def on_round_end(self, **_):
        self.alive.append(self.casts.alive())


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=repr)
@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_no_cast_copy_outlives_its_round(method, engine, tmp_path):
    with Casts() as casts:
        rounds = Rounds(casts)
        run(
            method,
            DATA,
            engine=engine,
            precision="bf16-mixed",
            runs=tmp_path,
            callbacks=[rounds],
            device="cpu",
        )
    assert casts.made
    assert rounds.alive == [0, 0]


def test_no_cast_copy_outlives_the_step_it_was_made_for():
    data = DATA.load(Rng(0))
    method = METHODS[0]
    message = method.broadcast(method.init(data.meta, Rng(0)), 0)
    held = []

    class Watching(Casts):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            if function is torch.ops.aten.detach.default:  # a step begins
                held.append(self.alive())
            return super().__torch_dispatch__(function, types, args, kwargs)

    with Watching() as casts, arithmetic("bf16-mixed", CPU):
        method.local_update(message, data.clients[0], {}, Rng(1))
        of_step = len(casts.made) / 2  # 20 examples in batches of 16: two steps
        assert casts.alive() == 0
    assert max(held) <= of_step


def test_a_worker_keeps_no_cast_copy():
    data = DATA.load(Rng(0))
    method = METHODS[0]
    server_state = method.init(data.meta, Rng(0))
    messages = {client.id: method.broadcast(server_state, client.id) for client in data.clients}
    with torch.autocast("cpu", torch.bfloat16):
        exchange = Exchange(method, messages, data.clients, {}, Rng(1))
        (task,) = worker_requests("updates", pickled(method), exchange, [data.clients])
    before = torch.get_default_dtype()
    with Casts() as casts:
        alive = [casts.alive() for _ in results(Sequential(), dict(enumerate(data.clients)), task)]
    torch.set_default_dtype(before)
    assert casts.made
    assert alive == [0] * len(data.clients)


@pytest.mark.parametrize("method", METHODS, ids=lambda method: type(method).__name__)
def test_digits_are_those_of_torch_s_autocast(method):
    """The cache saves time where a weight is used twice; here each one is used once."""
    data = DATA.load(Rng(0))
    message = method.broadcast(method.init(data.meta, Rng(0)), 0)
    with arithmetic("bf16-mixed", CPU):
        ours, _ = method.local_update(message, data.clients[0], {}, Rng(1))
    with torch.autocast("cpu", torch.bfloat16):
        theirs, _ = method.local_update(message, data.clients[0], {}, Rng(1))
    for name, delta in theirs.payload["delta"].items():
        assert torch.equal(ours.payload["delta"][name], delta), name
    assert ours.metrics == theirs.metrics


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-mixed"])
def test_arithmetic_is_that_of_lightning_and_ends_with_its_context(precision):
    from lightning.fabric import Fabric

    def server_state():
        return torch.get_default_dtype(), torch.is_autocast_enabled("cpu")

    before = server_state(), torch.is_autocast_cache_enabled()
    with Fabric(accelerator="cpu", devices=1, precision=precision).autocast():
        expected = server_state()
    with arithmetic(precision, CPU):
        assert server_state() == expected
    assert (server_state(), torch.is_autocast_cache_enabled()) == before
