import os

import pytest
import torch
from torch import distributed

from fedbolic.core import tree
from fedbolic.federated import Cohort, LocalTraining, Ranks
from fedbolic.federated.processes.worker import SPAWN
from fedbolic.methods import Ditto
from fedbolic.nn.network.backbone import MLP
from tests import shadow
from tests.federated.simple_method import SMALL, Averaged, assert_same, federation, train

DATA = federation((7, 4, 12, 1, 30, 5))
RUNS = {
    "one fails": (Averaged(faults={2: "raises"}), {}),
    "fedavg": (SMALL, {}),
    "ditto": (Ditto(MLP((4,)), rounds=3, local=LocalTraining(1, 4)), {"cohort": Cohort(0.5)}),
}


def last(method, **settings):
    """The last state of a run as a checkpoint holds it, and all rows."""
    positions, rows = train(method, DATA, **settings)
    return positions[-1].checkpoint(), [tuple(row) for row in rows]


def on_shadow(rank):
    """The last state and all rows of a rank whose data are on a shadow device of its own."""
    with pytest.MonkeyPatch.context() as patch, shadow.device(patch):
        positions, rows = train(SMALL, DATA.to(f"meta:{rank}"), engine=Ranks())
        server_state = positions[-1].server_state
        labels = {x.device_label for x in tree.tensors(server_state["parameters"]).values()}
        return tree.to(server_state, "cpu"), [tuple(row) for row in rows], labels


def take_part(rank, num, folder):
    """Run all cases as one rank and save its results."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    store = f"file://{folder}/store"
    distributed.init_process_group("gloo", init_method=store, rank=rank, world_size=num)
    found = {name: last(run, engine=Ranks(), **settings) for name, (run, settings) in RUNS.items()}
    found["shadow"] = on_shadow(rank)
    torch.save(found, folder / f"{rank}.pt")
    distributed.destroy_process_group()


@pytest.mark.processes
def test_every_rank_ends_with_what_one_client_after_another_gives(tmp_path):
    ranks = [SPAWN.Process(target=take_part, args=(rank, 2, tmp_path)) for rank in range(2)]
    for rank in ranks:
        rank.start()
    plain = {name: last(method, **settings) for name, (method, settings) in RUNS.items()}
    for rank in ranks:
        rank.join()
    assert [rank.exitcode for rank in ranks] == [0, 0]
    for rank in range(2):
        found = torch.load(tmp_path / f"{rank}.pt", weights_only=True)
        for name, (state, rows) in plain.items():
            assert found[name][1] == rows
            client_states = [
                {str(i): m for i, m in p["client_states"].items()} for p in (found[name][0], state)
            ]
            assert_same(*client_states)
            assert_same(found[name][0]["server_state"], state["server_state"])
        server_state, rows, labels = found["shadow"]
        state, wanted = plain["fedavg"]
        assert rows == wanted
        assert_same(server_state, state["server_state"])
        assert labels == {f"meta:{rank}"}


def test_a_process_alone_is_told_what_to_do():
    with pytest.raises(ValueError, match="init_process_group in every process"):
        train(SMALL, DATA, engine=Ranks())
