"""The Python interface of runs as a notebook uses it: strings as paths, clear refusals."""

from pathlib import Path

import numpy as np
import pytest
import torch

import fedbolic
from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, GraphFile, HierarchyFile, Partitioned
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.report import html_report, plots
from fedbolic.report.html_report import page, write_page
from fedbolic.report.text_report import report
from fedbolic.run import experiment
from fedbolic.run.configuration import SetupError
from fedbolic.run.exports import export
from fedbolic.run.record import RunFolder

SOURCE = Partitioned(Digits(), IID(3), num_train=60, num_test=20)
METHOD = FedAvg(MLP((4,)), rounds=1)


@pytest.fixture
def folder(tmp_path):
    return experiment.run(METHOD, SOURCE, runs=str(tmp_path / "runs"), name="mine")


@pytest.mark.parametrize(
    ("method", "data", "words"),
    [
        ("fedbolic.methods.FedAvg", SOURCE, r"method .* such as FedAvg\(\), got 'fedbolic.methods"),
        (FedAvg, SOURCE, r"instance of Method, such as FedAvg\(\), got the class FedAvg"),
        (METHOD, Digits(), r"instance of Source, such as Partitioned\(Digits\(\)\), got Digits"),
    ],
)
def test_what_is_no_method_or_source_is_refused_before_anything_is_written(
    method, data, words, tmp_path
):
    with pytest.raises(SetupError, match=words):
        experiment.run(method, data, runs=tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_an_existing_run_is_replaced_by_the_argument_that_the_message_names(folder):
    runs = folder.parents[1]
    with pytest.raises(SetupError, match="overwrite=True"):
        experiment.run(METHOD, SOURCE, runs=runs, name="mine")
    assert experiment.run(METHOD, SOURCE, runs=runs, name="mine", overwrite=True) == folder


def test_a_folder_of_runs_is_a_string_a_path_or_one_of_several(folder, monkeypatch):
    for module in (plots, html_report):  # plotting takes long
        monkeypatch.setattr(module, "installed", lambda: False)
    runs = folder.parents[1]
    assert report(str(runs)) == report(runs) == report([str(runs)]) == report([runs])
    assert page(str(folder)) == page([folder])
    assert RunFolder.open(str(folder)) == RunFolder(folder)
    write_page(str(runs), str(runs / "page.html"))
    assert (runs / "page.html").read_text() == page([Path(runs)])


def test_an_export_takes_strings(folder, tmp_path):
    with pytest.raises(SetupError, match=r"model\.txt has an unknown extension"):
        export(str(folder), str(tmp_path / "model.txt"))


def test_images_of_another_range_are_refused_by_a_trained_model(folder):
    model, images = fedbolic.load(folder), torch.rand(3, 1, 8, 8)
    assert torch.equal(model(images), model.train()(images))
    for scaled in (2 * images - 1, 16 * images):
        with pytest.raises(ValueError, match=r"floats in \[0, 1\], got floats from .* rescale"):
            model(scaled)


def test_files_of_graphs_and_hierarchies_are_given_by_strings(tmp_path):
    np.savez(tmp_path / "path.npz", x=np.eye(3), edges=[[0, 1], [1, 2]], y=[0, 1, 0])
    graph = GraphFile(str(tmp_path / "path.npz")).read(Rng(0), None, download=False)
    assert graph.degrees.tolist() == [1, 2, 1]
    (tmp_path / "cats.tsv").write_text("lion\tcat\n")
    assert len(HierarchyFile(str(tmp_path / "cats.tsv")).read(None, download=False)) == 2
