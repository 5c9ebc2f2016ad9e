"""Finished and unfinished runs."""

import json

import pytest

from fedbolic.data import IID, Partitioned
from fedbolic.federated import LocalTraining
from fedbolic.methods import ClosedFormHead, FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.report.table_rows import find, is_finished
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder

DATA = Partitioned(partition=IID(2), num_train=40, num_test=20)
FEDAVG = FedAvg(backbone=MLP((4,)), rounds=2, local=LocalTraining(1, 16))


class Interrupted:
    """A callback that ends a run after its first round."""

    def on_round_end(self, round, **_):
        if round == 1:
            raise KeyboardInterrupt


@pytest.mark.parametrize(("method", "rounds"), [(FEDAVG, 2), (ClosedFormHead(FEDAVG), 3)])
def test_a_run_is_finished_when_its_last_round_has_ended(method, rounds, tmp_path):
    with pytest.raises(KeyboardInterrupt):
        run(method, DATA, runs=tmp_path, callbacks=[Interrupted()])
    (row,) = find(tmp_path)
    assert row.folders[0].environment["rounds"] == rounds
    assert (row.finished, row.num_unfinished, row.plotted) == ((), 1, row.folders)
    assert resume(tmp_path / "run" / "seed0")
    (row,) = find(tmp_path)
    assert (row.finished, row.num_unfinished, row.plotted) == (row.folders, 0, row.folders)


@pytest.mark.parametrize(
    ("rounds", "times", "finished"),
    [
        (2, ["1,0,1.0"], False),
        (2, ["1,0,1.0", "1,1,1.0"], False),  # one exchange of the last round is over
        (2, ["1,0,1.0", "1,1,1.0", "2,0,1.0"], True),
        (None, [], True),
    ],
)
def test_a_run_is_finished_by_the_exchanges_of_its_last_round(rounds, times, finished, tmp_path):
    (tmp_path / "environment.json").write_text(json.dumps({"rounds": rounds}))
    (tmp_path / "times.csv").write_text("\n".join(["round,exchange,seconds", *times, ""]))
    assert is_finished(RunFolder(tmp_path)) == finished
