"""Run folders survive writing and reading; a crash at any moment leaves them intact."""

import math
import os
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.checksums import DamagedError
from fedbolic.core.rows import Row
from fedbolic.run.record import RunFolder, refuse_existing
from fedbolic.run.run_files import HEADERS, ExchangeTime
from tests.run.folders import POINT, ROWS, checkpoint, create


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "runs" / "a" / "seed0")


def bits(x):
    return struct.pack("d", x)


printable = st.characters(exclude_categories=("C", "Z"), include_characters=" ")
names = st.text(printable, min_size=1)
rows = st.lists(
    st.builds(
        Row,
        round=st.integers(1, 10**6),
        client=st.none() | st.integers(0, 10**6),
        name=names,
        value=st.floats(allow_nan=False) | st.just(math.nan),
    )
)


def test_seconds_are_read_without_an_incomplete_last_line(folder):
    assert folder.times() == []
    folder.save(checkpoint(1), [], 0.5)
    with (folder.path / "times.csv").open("a") as file:
        file.write("2,0,0.")
    assert folder.times() == [ExchangeTime(1, 0, 0.5)]
    (folder.path / "times.csv").write_text(HEADERS["times.csv"] + "1,0,soon\n")
    with pytest.raises(DamagedError, match=r"times\.csv is damaged"):
        folder.times()


@given(rows, rows)
def test_rows_are_read_as_they_were_written_to_the_last_bit(tmp_path_factory, first, second):
    folder = create(tmp_path_factory.mktemp("runs") / "seed0")
    folder.save(checkpoint(1), first, 0.5)
    folder.save(checkpoint(2), second, 0.5)
    found = folder.rows()
    assert [row[:3] for row in found] == [row[:3] for row in first + second]
    assert [bits(row.value) for row in found] == [bits(row.value) for row in first + second]


def test_the_text_of_metrics_is_this(folder):
    folder.save(checkpoint(), [*ROWS, Row(1, 12, "a", math.nan), Row(1, 1, "b", -math.inf)], 1.25)
    assert (folder.path / "metrics.csv").read_text() == (
        "round,client,name,value\n"
        "1,,train/loss,0.1\n"
        "1,0,test/accuracy,0.3333333333333333\n"
        "1,12,a,nan\n"
        "1,1,b,-inf\n"
    )
    assert (folder.path / "times.csv").read_text() == "round,exchange,seconds\n1,0,1.250\n"


def test_integers_and_tensors_are_written_as_numbers(folder):
    folder.save(checkpoint(), [Row(1, None, "bytes/up", 2**40), Row(1, None, "x", 1e-300)], 0.0)
    assert [row.value for row in folder.rows()] == [float(2**40), 1e-300]


def test_a_new_folder_holds_what_was_asked_and_nothing_measured(folder):
    assert folder.config.read_text() == "seed: 0\n"
    assert folder.environment == {"threads": 1}
    assert folder.rows() == []
    assert folder.load() is None
    assert RunFolder.open(folder.path) == folder


def test_a_folder_appears_only_when_it_is_complete(tmp_path, monkeypatch):
    path = tmp_path / "runs" / "seed0"
    seen = []
    write, rename = Path.write_text, Path.rename

    def watch(self, *arguments, **named):
        seen.append(path.exists())
        return write(self, *arguments, **named)

    def last(self, target):
        seen.append({file.name for file in self.iterdir()})
        return rename(self, target)

    monkeypatch.setattr(Path, "write_text", watch)
    monkeypatch.setattr(Path, "rename", last)
    create(path)
    *during, complete = seen
    assert during == [False] * 4
    assert complete == {"config.yaml", "environment.json", "metrics.csv", "times.csv"}
    assert [file.name for file in path.parent.iterdir()] == ["seed0"]


@pytest.mark.parametrize("write", range(4))
def test_a_crash_while_it_is_made_leaves_the_name_free(write, tmp_path, monkeypatch):
    path = tmp_path / "runs" / "seed0"
    count, plain = iter(range(4)), Path.write_text

    def fail(self, *arguments, **named):
        if next(count) == write:
            raise KeyboardInterrupt
        return plain(self, *arguments, **named)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", fail)
        with pytest.raises(KeyboardInterrupt):
            create(path)
    assert not path.exists()
    assert create(path).load() is None


def test_everybody_may_read_a_run(folder):
    assert folder.path.stat().st_mode & 0o777 == 0o755


@pytest.mark.parametrize("kind", ["folder", "file"])
def test_what_is_there_is_refused_with_two_ways_out(kind, tmp_path):
    path = tmp_path / "seed0"
    path.mkdir() if kind == "folder" else path.touch()
    for refuse in (refuse_existing, create):
        with pytest.raises(FileExistsError, match="--overwrite") as caught:
            refuse(path)
        assert f"`fedbolic resume {path}`" in str(caught.value)
    refuse_existing(tmp_path / "seed1")


def test_a_folder_without_a_run_is_not_opened(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(FileNotFoundError, match="there is no run in") as caught:
            RunFolder.open(path)
        assert str(path) in str(caught.value)


def test_a_checkpoint_is_loaded_as_it_was_saved(folder):
    saved = checkpoint(
        3, client_states={7: {"a": {"b": torch.ones(2, dtype=torch.int32)}}}, text="é"
    )
    folder.save(saved, ROWS, 0.0)
    found = folder.load()
    assert found.keys() == saved.keys()
    assert found["text"] == "é"
    assert torch.equal(found["server_state"]["x"], torch.arange(3.0))
    assert found["client_states"][7]["a"]["b"].dtype == torch.int32


def test_saving_leaves_the_checkpoint_as_it_was(folder):
    saved = checkpoint()
    folder.save(saved, ROWS, 0.0)
    assert saved.keys() == checkpoint().keys()


@pytest.mark.parametrize("tail", ["2,,train/loss,0.5\n", "2,0,test/acc", "\n", "2,0,x,1.0\n" * 999])
def test_metrics_after_the_last_checkpoint_are_cut_off(tail, folder):
    folder.save(checkpoint(), ROWS, 0.0)
    before = (folder.path / "metrics.csv").read_bytes()
    with (folder.path / "metrics.csv").open("a") as file:
        file.write(tail)
    assert folder.load()["round"] == 1
    assert (folder.path / "metrics.csv").read_bytes() == before
    assert folder.rows() == ROWS


def test_metrics_before_the_first_checkpoint_are_cut_off(folder):
    with (folder.path / "metrics.csv").open("a") as file:
        file.write("1,0,test/accu")
    assert folder.load() is None
    assert (folder.path / "metrics.csv").read_text() == HEADERS["metrics.csv"]


def test_times_after_the_last_checkpoint_are_cut_off(folder):
    folder.save(checkpoint(), ROWS, 1.5)
    before = (folder.path / "times.csv").read_text()
    with (folder.path / "times.csv").open("a") as file:
        file.write("2,0,0.1\n3,")
    folder.load()
    assert (folder.path / "times.csv").read_text() == before
    assert before.splitlines()[1:] == ["1,0,1.500"]


def test_metrics_that_lost_something_are_refused(folder):
    folder.save(checkpoint(), ROWS, 0.0)
    size = (folder.path / "metrics.csv").stat().st_size
    os.truncate(folder.path / "metrics.csv", size - 1)
    with pytest.raises(ValueError, match=f"{size - 1} bytes, but had {size}") as caught:
        folder.load()
    assert str(folder.path / "metrics.csv") in str(caught.value)
    assert (folder.path / "metrics.csv").stat().st_size == size - 1


class PowerError(BaseException):
    """An exception that the code does not catch, like a kill."""


@pytest.mark.parametrize("moment", ["writing", "syncing", "replacing"])
def test_a_crash_while_saving_leaves_the_old_checkpoint(moment, folder, monkeypatch):
    folder.save(checkpoint(1), ROWS, 0.0)
    before = (folder.path / "state.pt").read_bytes()

    def write(checkpoint, file):
        file.write(b"half of it")
        raise PowerError

    def die(*arguments):
        raise PowerError

    with monkeypatch.context() as patch:
        if moment == "writing":
            patch.setattr(torch, "save", write)
        elif moment == "syncing":
            syncs = iter([os.fsync, os.fsync, die])  # metrics, times, checkpoint
            patch.setattr(os, "fsync", lambda number: next(syncs)(number))
        else:
            patch.setattr(Path, "replace", die)
        with pytest.raises(PowerError):
            folder.save(checkpoint(2), [Row(2, None, "x", 1.0)], 0.0)
    assert (folder.path / "state.pt").read_bytes() == before
    assert folder.load()["round"] == 1
    assert folder.rows() == ROWS
    folder.save(checkpoint(2), [Row(2, None, "x", 1.0)], 0.0)
    assert folder.load()["round"] == 2
    assert folder.rows() == [*ROWS, Row(2, None, "x", 1.0)]


def test_metrics_are_on_the_disk_before_the_checkpoint_that_counts_them(folder, monkeypatch):
    order = []
    sync = os.fsync

    def watch(number):
        name = Path(f"/proc/self/fd/{number}").readlink().name
        order.append((name, (folder.path / "state.pt").exists()))
        sync(number)

    if not Path("/proc/self/fd").exists():
        pytest.skip("needs /proc")
    monkeypatch.setattr(os, "fsync", watch)
    folder.save(checkpoint(), ROWS, 0.0)
    names = [name for name, _ in order]
    assert names.index("metrics.csv") < names.index("state.pt.draft")
    assert not any(there for _, there in order)


def test_a_full_disk_is_an_error_of_the_system_and_leaves_no_draft(folder):
    """At every size of the largest possible file, in steps of 1500 bytes; the old state stays."""
    resource = pytest.importorskip("resource")
    kept, large = {0: {"z": torch.zeros(400)}}, {"server_state": {"x": torch.zeros(5000)}}
    folder.save(checkpoint(1, client_states=kept, **large), ROWS, 0.0)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = (folder.path / "state.pt").stat().st_size
    for limit in [*range(100, size, 1500), size - 1]:
        loaded = RunFolder(folder.path).load()
        assert loaded["round"] == 1
        states = loaded["client_states"] | kept
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
        try:
            with pytest.raises(OSError, match="too large"):
                folder.save(checkpoint(2, client_states=states, **large), [], 0.0)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
        assert not list(folder.path.glob("*draft*"))


def test_figures_that_do_not_fit_the_disk_leave_no_draft(folder, monkeypatch):
    def full(number):
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="no space"):
        folder.save_figures({"disc": POINT})
    assert not list(folder.path.glob("*draft*"))


def test_a_checkpoint_of_foreign_objects_is_not_loaded(folder):
    folder.save(checkpoint(evil=Path("x")), ROWS, 0.0)
    with pytest.raises(Exception, match=r"state.pt holds no tensors .*it refers to pathlib"):
        folder.load()


def test_a_removed_folder_is_gone(folder):
    folder.save(checkpoint(), ROWS, 0.0)
    folder.remove()
    assert not folder.path.exists()


def test_figures_are_listed_by_name_and_none_leave_no_folder(folder):
    folder.save_figures({})
    assert folder.figures() == []
    assert not list(folder.path.glob("figures*"))
    folder.save_figures({"b": POINT, "a.1": POINT})
    assert [file.name for file in folder.figures()] == ["a.1.npz", "b.npz"]


def test_new_figures_replace_the_old_and_what_was_drawn_of_them(folder):
    folder.save_figures({"a": POINT, "b": POINT})
    (folder.path / "figures" / "a.png").touch()
    folder.save_figures({"a": POINT})
    assert [file.name for file in (folder.path / "figures").iterdir()] == ["a.npz"]


def test_figures_appear_together_or_not_at_all(folder, monkeypatch):
    def die(*arguments):
        raise PowerError

    syncs = iter([os.fsync, die])  # of the first figure and of the second
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda number: next(syncs)(number))
        with pytest.raises(PowerError):
            folder.save_figures({"a": POINT, "b": POINT})
    assert folder.figures() == []
    folder.save_figures({"c": POINT})
    assert [file.name for file in folder.figures()] == ["c.npz"]
    assert not (folder.path / "figures.draft").exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../a", "/a"])
def test_a_figure_must_have_the_name_of_a_file(name, folder):
    before = list(folder.path.rglob("*"))
    with pytest.raises(ValueError, match="names of figures must be file names"):
        folder.save_figures({"a": POINT, name: POINT})
    assert list(folder.path.rglob("*")) == before


def test_a_folder_is_written_by_one_process_at_a_time(tmp_path):
    folder = RunFolder.create(tmp_path / "seed0", config="", environment={})
    code = (
        "import sys, time; from pathlib import Path; from fedbolic.run.record import RunFolder\n"
        "with RunFolder(Path(sys.argv[1])).alone():\n    print('held', flush=True)\n"
        "    time.sleep(600)\n"
    )
    words = [sys.executable, "-c", code, str(folder.path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        for write in (folder.alone().__enter__, folder.remove):
            with pytest.raises(BlockingIOError, match="is in use by another process"):
                write()
        other.kill()
    with folder.alone():
        pass
    folder.remove()
    assert not folder.path.exists()
