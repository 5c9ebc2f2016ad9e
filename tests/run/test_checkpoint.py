"""Checkpoints and the files they cover: altered, truncated or foreign files are refused."""

import dataclasses
import hashlib
import itertools
import os
import zipfile
import zlib
from pathlib import Path

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.core.rows import Row
from fedbolic.data import IID, Partitioned
from fedbolic.federated import Cohort, LocalTraining, RunStoppedError, Trainer
from fedbolic.methods import Scaffold
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import resume, run
from fedbolic.run.record import RunFolder

ROWS = [Row(1, None, "train/loss", 0.1), Row(1, 0, "test/accuracy", 1 / 3)]


def create(path):
    return RunFolder.create(path, config="seed: 0\n", environment={"threads": 1})


def checkpoint(round, **more):
    return {"round": round, "exchange": 0, "server_state": {"x": torch.arange(3.0)}, **more}


class PowerError(BaseException):
    """An exception that the code does not catch, like a kill."""


OWN = {0: {"own": torch.arange(2.0)}, 3: {"turns": 1}}


@pytest.fixture
def saved(tmp_path):
    """A folder with a checkpoint, client state and metrics, and the bytes of its files."""
    folder = create(tmp_path / "seed0")
    states = folder.client_states() | OWN
    folder.save(checkpoint(1, client_states=states), ROWS, 0.5)
    folder.save(checkpoint(2, client_states=states | {0: {"own": torch.ones(2)}}), ROWS, 0.5)
    return folder, {name: (folder.path / name).read_bytes() for name in COUNTED}


COUNTED = ("state.pt", "clients-0.log", "metrics.csv", "times.csv")
"""All files that a resumed run reads."""


def refused(folder, name, content):
    (folder.path / name).write_bytes(content)
    with pytest.raises(
        ValueError, match=f"{name} (is damaged|has no checksum|has \\d+ bytes)"
    ) as e:
        RunFolder(folder.path).load()
    assert "\n" not in str(e.value)


@pytest.mark.parametrize("name", COUNTED)
def test_a_flipped_bit_anywhere_is_noticed(name, saved):
    folder, before = saved
    content = before[name]
    for place in range(0, len(content), 7 if name == "state.pt" else 1):
        altered = bytes([content[place] ^ 1 << place % 8])
        refused(folder, name, content[:place] + altered + content[place + 1 :])
    (folder.path / name).write_bytes(content)
    assert torch.equal(folder.load()["client_states"][0]["own"], torch.ones(2))


@pytest.mark.parametrize("name", COUNTED)
def test_what_is_cut_short_is_noticed(name, saved):
    folder, before = saved
    for size in range(0, len(before[name]), 11):
        refused(folder, name, before[name][:size])
    (folder.path / name).unlink()
    if name == "state.pt":  # as before the first checkpoint
        assert folder.load() is None
        assert not list(folder.path.glob("clients-*"))
    else:
        with pytest.raises(ValueError, match=f"{name} has 0 bytes"):
            folder.load()


FOREIGN = {
    "nothing": b"",
    "text": b"state\n",
    "a zip": b"PK\x05\x06" + bytes(18),
    "a pickle": b"\x80\x04]\x94.",
    "pytorch": None,
}


@pytest.mark.parametrize("kind", FOREIGN)
def test_a_file_that_is_no_checkpoint_is_refused_in_a_line(kind, saved):
    folder, before = saved
    if kind == "pytorch":  # as written before checksums were introduced
        torch.save({"round": 1, "exchange": 0, "sizes": {}}, folder.path / "state.pt")
    content = FOREIGN[kind] or (folder.path / "state.pt").read_bytes()
    refused(folder, "state.pt", content if kind != "nothing" else b"")
    (folder.path / "state.pt").write_bytes(before["state.pt"])
    assert folder.load()["round"] == 2


def test_a_checkpoint_of_another_run_is_refused(saved, tmp_path):
    folder, _ = saved
    other = create(tmp_path / "other")
    other.save(checkpoint(2, client_states={0: {"own": torch.zeros(2)}}), ROWS[::-1], 0.5)
    (folder.path / "state.pt").write_bytes((other.path / "state.pt").read_bytes())
    with pytest.raises(ValueError, match=r"metrics\.csv is damaged"):
        folder.load()


def test_any_program_can_read_a_checkpoint(saved):
    """The checksum is stored in the comment of the archive."""
    folder, before = saved
    assert torch.load(folder.path / "state.pt", weights_only=True)["round"] == 2
    with zipfile.ZipFile(folder.path / "state.pt") as archive:
        assert archive.testzip() is None
        digest = archive.comment.decode().removeprefix("fedbolic SHA-256 ")
    without = before["state.pt"][: -len(archive.comment) - 2] + bytes(2)
    assert hashlib.sha256(without).hexdigest() == digest


def test_checksums_go_on_in_another_process(saved):
    """A resumed run continues the checksums of growing files from their content."""
    folder, _ = saved
    again = RunFolder(folder.path)
    loaded = again.load()
    again.save({**loaded, "round": 3}, ROWS, 0.5)
    third = RunFolder(folder.path).load()
    assert (third["round"], dict(third["client_states"]).keys()) == (3, {0, 3})
    metrics = (folder.path / "metrics.csv").read_bytes()
    found = torch.load(folder.path / "state.pt", weights_only=True)
    assert found["checksums"]["metrics.csv"] == zlib.crc32(metrics)
    assert found["sizes"]["metrics.csv"] == len(metrics)


@pytest.mark.parametrize("moment", range(5))
def test_a_kill_at_any_write_leaves_the_last_checkpoint_with_its_states(moment, saved, monkeypatch):
    """The steps are the syncs of states, metrics, times and checkpoint, and the final rename."""
    folder, _ = saved
    steps = iter(range(5))

    def dying(function):
        def step(*arguments):
            if next(steps) == moment:
                raise PowerError
            return function(*arguments)

        return step

    states = folder.load()["client_states"] | {0: {"own": torch.zeros(9)}, 7: {"turns": 9}}
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", dying(os.fsync))
        patch.setattr(Path, "replace", dying(Path.replace))
        with pytest.raises(PowerError):
            folder.save(checkpoint(3, client_states=states), ROWS, 0.5)
    found = RunFolder(folder.path).load()
    assert (found["round"], list(found["client_states"])) == (2, [0, 3])
    assert torch.equal(found["client_states"][0]["own"], torch.ones(2))
    assert folder.rows() == ROWS * 2


# --- runs --------------------------------------------------------------------------------------

DATA = Partitioned(partition=IID(3), num_train=60, num_test=20)
METHOD = Scaffold(MLP((4,)), rounds=3, local=LocalTraining(epochs=1, batch_size=16))


def test_a_run_of_before_there_were_checksums_is_refused_in_a_line(tmp_path):
    path = run(METHOD, DATA, runs=tmp_path)
    torch.save({"round": 1, "exchange": 0, "client_states": {}, "sizes": {}}, path / "state.pt")
    with pytest.raises(SetupError, match="earlier version of fedbolic wrote it") as caught:
        resume(path)
    assert "\n" not in str(caught.value)


class Damages:
    """A callback that flips a bit of a client's state during the run."""

    def on_round_end(self, round, rounds, rows):
        (log,) = Path(self.path).glob("clients-*.log")
        content = bytearray(log.read_bytes())
        content[-1] ^= 1
        log.write_bytes(content)


def test_a_state_that_cannot_be_read_any_more_stops_the_run(tmp_path):
    damages = Damages()
    damages.path = tmp_path / "run" / "seed0"
    with pytest.raises(RunStoppedError, match=r"client state cannot be read: .*clients-0\.log"):
        run(METHOD, DATA, runs=tmp_path, callbacks=[damages])
    with pytest.raises(SetupError, match=r"clients-0\.log is damaged"):
        resume(damages.path)


def test_an_exchange_holds_and_writes_the_states_of_its_cohort_only(tmp_path):
    """States in memory after each save, and growth of the log, over a whole run."""
    data = DATA.load(Rng(0))
    folder = create(tmp_path / "seed0")
    begun = Trainer().begin(METHOD, data, Rng(0))
    begun = dataclasses.replace(begun, client_states=folder.client_states())
    log, sizes = tmp_path / "seed0" / "clients-0.log", [0]
    trainer = Trainer(cohort=Cohort(0.3))
    for state, rows in trainer.run(METHOD, data, Rng(0), begun):
        assert len(state.client_states.changed) == 1
        folder.save(state.checkpoint(), rows, 0.0)
        assert state.client_states.changed == {}
        sizes.append(log.stat().st_size)
    assert len({after - before for before, after in itertools.pairwise(sizes)}) == 1
