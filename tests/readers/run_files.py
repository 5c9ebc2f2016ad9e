"""Files of runs and nodes: whole ones, and their readers where no single function reads them."""

import torch

from fedbolic.core.checksums import DamagedError
from fedbolic.core.client_states import ClientStateLog, ClientStates
from fedbolic.core.rows import Row
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.report import table_rows
from fedbolic.run.record import RunFolder

CONFIG = """\
seed: 3
method:
  class_path: fedbolic.methods.FedAvg
  init_args: {rounds: 2, lr: 0.1, local: {epochs: 1, batch_size: 16}}
data:
  class_path: fedbolic.data.Partitioned
  init_args: {num_train: 60, partition: {class_path: fedbolic.data.IID, init_args: {}}}
"""


def a_run(folder, name):
    path = folder / "runs" / "a" / "seed3"
    made = RunFolder.create(path, config=CONFIG, environment={"rounds": 2, "python": "3"})
    states = ClientStates(ClientStateLog(path), {i: {"own": torch.ones(3), "n": i} for i in (1, 5)})
    rows = [Row(1, i, "test/accuracy", 0.1 * i) for i in range(4)]
    state = {"round": 1, "exchange": 0, "server_state": {"w": torch.arange(6.0)}}
    made.save({**state, "client_states": states}, rows, 0.5)
    made.save_engine("Sequential()", {"Sequential()": 0.5})
    made.mark_complete()
    (path.parent / "place").write_text("3")
    return path / name


def read_run(path):
    found = RunFolder.open(path.parent).read_checkpoint()
    return {**found, "client_states": dict(found["client_states"])}


def read_complete(path):
    if not RunFolder(path.parent).is_complete():
        raise DamagedError(path, "is not of these files")


def read_rank(path):
    return table_rows.find(path.parent)[0].num_unfinished


def saved(folder, value):
    torch.save(value, folder / "a.pt")
    return folder / "a.pt"


TREE = {"a": {"n": 3, "s": "x"}, "x": torch.arange(12.0).reshape(3, 4), "y": torch.tensor([True])}


def stored(folder):
    ClientStateStore(folder / "a.pt").keep("t", {"x": torch.ones(3)}, TREE, earlier="")
    return folder / "a.pt"
