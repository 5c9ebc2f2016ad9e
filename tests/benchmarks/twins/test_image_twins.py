"""The benchmark of hyperbolic residual networks: rows, resumption, and equal starts."""

import numpy as np
import pytest
import torch

from benchmarks.results import Results
from benchmarks.twins import images as image_twins
from fedbolic.core.rng import Rng
from fedbolic.nn.network.hyperbolic_resnet import HyperbolicResNet
from fedbolic.nn.network.resnet import ResNet

SMALL = {
    "ResNet-20": ResNet(4, (1,), 2, "cifar"),
    "hyperboloid": HyperbolicResNet(4, (1,), 2),
}


@pytest.fixture
def data(tmp_path, monkeypatch):
    """200 tiny images whose brightness is their class, as the file that the benchmark reads."""
    y = np.arange(200) % 10
    noise = np.random.default_rng(0).integers(0, 20, (200, 4, 4, 3))
    x = (20 * y[:, None, None, None] + noise).astype(np.uint8)
    np.savez(tmp_path / image_twins.FILE, x_train=x, y_train=y, x_test=x[:40], y_test=y[:40])
    monkeypatch.setattr(image_twins, "NUM_VALIDATION", 50)
    monkeypatch.setattr(image_twins, "NETWORKS", SMALL)
    monkeypatch.setattr(image_twins, "DIM", 4)
    monkeypatch.setattr(image_twins, "GRID", (0.05, 0.1))
    monkeypatch.setattr(image_twins, "SEEDS", range(2))
    return image_twins.load(tmp_path)


def test_training_images_are_standardised_and_no_other_part_counts(data):
    x, y = data.train
    assert (len(x), len(data.validation[0]), len(data.test[0])) == (150, 50, 40)
    assert y.bincount(minlength=10).tolist() == [15] * 10
    torch.testing.assert_close(x.mean((0, 2, 3)), torch.zeros(3), atol=1e-5, rtol=0)
    torch.testing.assert_close(x.std((0, 2, 3)), torch.ones(3))


def test_an_epoch_visits_every_image_once_but_for_the_last_incomplete_batch(data):
    x, y = data.train
    part = torch.arange(len(x)).float().view(-1, 1, 1, 1).expand_as(x), y
    seen = torch.cat([a[:, 0, 0, 0] for a, _ in image_twins.batches(part, Rng(0).generator())])
    assert len(seen) == len(set(seen.tolist())) == len(x) // image_twins.BATCH * image_twins.BATCH


def test_every_row_is_printed_and_a_second_run_trains_nothing(data, tmp_path, monkeypatch, capsys):
    file = tmp_path / "results.csv"
    image_twins.compare(data, Results(file), epochs=1)
    first = capsys.readouterr().out
    rows = [line for line in first.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| network", *(f"| {n}" for n in SMALL)]
    monkeypatch.setattr(image_twins, "train", None)
    image_twins.compare(data, Results(file), epochs=1)
    assert [line for line in capsys.readouterr().out.splitlines() if line[:2] == "| "] == rows


def test_a_projection_names_every_network(data, capsys):
    image_twins.project(data)
    printed = capsys.readouterr().out
    assert all(f"| {name} | " in printed for name in SMALL)
