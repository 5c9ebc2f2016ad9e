"""Files of runs that hold keys: readable by their owner alone, and without keys in the end."""

import dataclasses
from pathlib import Path

import pytest
import torch

from fedbolic.core import tree
from fedbolic.data import IID, Partitioned
from fedbolic.federated import ClientPrivacy, Cohort, DistributedNoise, LocalTraining, SumPrivacy
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import ClosedFormHead, FedAvg, PrivateSteps
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
PLAIN = FedAvg(backbone=MLP((4,)), rounds=3, local=LocalTraining(epochs=1, batch_size=16))
NOISY = DistributedNoise(PLAIN, SumPrivacy(survivors=2, dp_delta=1e-3, noise_multiplier=1.0))
PRIVATE = ClientPrivacy(dp_delta=1e-3, noise_multiplier=1.0)
TREE = dataclasses.replace(PRIVATE, correlation="tree")
SETTINGS = {
    "noise at the server": {"privacy": PRIVATE},
    "noise of a tree": {"privacy": TREE, "cohort": Cohort(0.4, sampling="once")},
    "banded noise": {
        "privacy": dataclasses.replace(PRIVATE, correlation="banded"),
        "cohort": Cohort(0.4, sampling="cyclic"),
    },
    "noise at the clients": {"privacy": dataclasses.replace(PRIVATE, placement="clients")},
    "DP-SGD": {"method": PrivateSteps(PLAIN, steps=2)},
    "noise in a sum": {"method": NOISY},
    "secure sum": {"method": SecureSum(PLAIN, threshold=2)},
    "noise in a secure sum": {"method": SecureSum(NOISY, threshold=2)},
    "secure sum of a head": {"method": SecureSum(ClosedFormHead(PLAIN), threshold=2)},
}


def secrets_of(folder):
    """Bytes of all keys, seeds and shares that the checkpoint of a run holds."""
    checkpoint = folder.read_checkpoint()
    parts = {str(i): own for i, own in checkpoint["client_states"].items()}
    leaves = tree.leaves({**parts, "privacy": checkpoint["privacy"]})
    names = [(path.split("/"), leaf) for path, leaf in leaves]
    found = [leaf for path, leaf in names if {"key", "secure", "nodes"} & set(path)]
    return [bytes(x.numpy()) for x in found if isinstance(x, torch.Tensor) and x.numel() >= 16]


def modes(path):
    files = [Path(path), *Path(path).rglob("*")]
    return {file.name: file.stat().st_mode & 0o777 for file in files if file.name != ".lock"}


class Watch:
    """Callback that looks into the folder of a run after every round."""

    def __init__(self, folder):
        self.folder, self.secrets, self.modes = folder, [], []

    def on_round_end(self, round, rounds, rows):
        if round < rounds:
            self.secrets += secrets_of(RunFolder(self.folder))
        self.modes.append(modes(self.folder))


@pytest.mark.parametrize("kind", SETTINGS)
def test_keys_are_readable_by_their_owner_and_gone_in_the_end(kind, tmp_path):
    watch = Watch(tmp_path / "run" / "seed0")
    path = run(
        **{"method": PLAIN, "data": DATA, **SETTINGS[kind]}, runs=tmp_path, callbacks=[watch]
    )
    assert len(watch.secrets) >= 2
    for found in (*watch.modes, modes(path)):
        assert found.pop("seed0") == 0o700
        assert set(found.values()) == {0o600}
    files = [file.read_bytes() for file in path.rglob("*") if file.is_file()]
    assert [secret for secret in watch.secrets if any(secret in text for text in files)] == []
    assert secrets_of(RunFolder(path)) == []
    assert not resume(path)


def test_a_run_without_keys_may_be_read_by_others(tmp_path):
    path = run(PLAIN, DATA, runs=tmp_path)
    found = modes(path)
    assert found.pop("seed0") == 0o755
    assert set(found.values()) == {0o644}


def test_resuming_a_run_with_keys_restricts_its_files(tmp_path):
    class StoppedError(Exception):
        pass

    class Stop:
        def on_round_end(self, round, rounds, rows):
            raise StoppedError

    with pytest.raises(StoppedError):
        run(PLAIN, DATA, privacy=PRIVATE, runs=tmp_path, callbacks=[Stop()])
    path = tmp_path / "run" / "seed0"
    for file in (path, *path.iterdir()):
        file.chmod(0o755 if file.is_dir() else 0o644)
    assert resume(path)
    found = modes(path)
    assert found.pop("seed0") == 0o700
    assert set(found.values()) == {0o600}
