"""Folders of runs and what is saved in them, for the tests of their files."""

import torch

from fedbolic.core.figure import DiscFigure
from fedbolic.core.rows import Row
from fedbolic.run.record import RunFolder

ROWS = [Row(1, None, "train/loss", 0.1), Row(1, 0, "test/accuracy", 1 / 3)]
POINT = DiscFigure(torch.zeros(1, 2), torch.tensor([0]))


def create(path):
    return RunFolder.create(path, config="seed: 0\n", environment={"threads": 1})


def checkpoint(round=1, **more):
    return {"round": round, "exchange": 0, "server_state": {"x": torch.arange(3.0)}, **more}
