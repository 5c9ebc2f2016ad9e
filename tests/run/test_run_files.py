"""A run is known to be complete by its files, which are read without torch."""

from pathlib import Path

import pytest
import torch

from tests.run.folders import POINT, ROWS, checkpoint, create

STATES = {0: {"own": torch.ones(2)}}


@pytest.fixture
def folder(tmp_path):
    return create(tmp_path / "runs" / "a" / "seed0")


@pytest.mark.parametrize(
    "name",
    [
        *("config.yaml", "environment.json", "engine.json", "metrics.csv", "times.csv", "state.pt"),
        *("clients-0.log", "figures/a.npz", "complete.json"),
    ],
)
@pytest.mark.parametrize("edit", [lambda file: append_byte(file), Path.unlink])
def test_a_run_is_complete_until_one_of_its_files_changes(name, edit, folder):
    folder.save_engine("Sequential()", {})
    folder.save(checkpoint(client_states=STATES), ROWS, 0.0)
    folder.save_figures({"a": POINT})
    assert not folder.is_complete()
    folder.mark_complete()
    (folder.path / "report.md").write_text("a report may be made at any time")
    assert folder.is_complete()
    edit(folder.path / name)
    assert not folder.is_complete()


def append_byte(file):
    with file.open("ab") as stream:
        stream.write(b"\n}")


def test_a_further_exchange_and_a_new_log_make_a_run_incomplete(folder):
    folder.save(checkpoint(), ROWS, 0.0)
    folder.mark_complete()
    (folder.path / "clients-1.log").touch()
    assert not folder.is_complete()
    folder.mark_complete()
    folder.save(checkpoint(2), ROWS, 0.0)
    assert not folder.is_complete()
