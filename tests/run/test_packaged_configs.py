"""Configurations of the package are found by name, and files of the user go first."""

import sys
from pathlib import Path

import pytest

from fedbolic.core.imports import SYSTEMS, namesake
from fedbolic.run import packaged_configs
from fedbolic.run.configuration import SetupError, build
from fedbolic.run.experiment import run
from fedbolic.run.packaged_configs import config_folder, config_names, description, find_config

FORMS = ("fedavg/quick", "fedavg/quick.yaml", "configs/fedavg/quick.yaml", "configs/fedavg/quick")


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("given", FORMS)
def test_a_name_is_found_from_any_folder(given):
    assert Path(find_config(given)) == config_folder() / "fedavg" / "quick.yaml"


def test_every_listed_name_is_found_and_described():
    names = config_names()
    assert {"fedavg/quick", "flatland/quick", "demo"} <= set(names)
    assert names == sorted(set(names))
    for name in names:
        assert Path(find_config(name)).is_file()
        assert description(name).strip()


@pytest.mark.parametrize("given", FORMS)
def test_a_file_of_the_user_goes_first(given):
    Path(given).parent.mkdir(parents=True)
    Path(given).touch()
    assert find_config(given) == given


@pytest.mark.parametrize("given", ["seed: 3", "{}", "[a]", "", "a\nb"])
def test_text_that_is_no_path_is_left_to_the_parser(given):
    assert find_config(given) == given


def test_a_mistyped_name_is_answered_by_the_nearest():
    with pytest.raises(FileNotFoundError, match=r"fedavg/quik does not exist.* fedavg/quick,"):
        find_config("fedavg/quik")
    with pytest.raises(FileNotFoundError, match=r"flatland/table1_cora"):
        find_config("flatland/table1_core.yaml")


@pytest.mark.parametrize("given", ["../pyproject", "fedavg/../demo", "/fedavg/quick"])
def test_a_name_does_not_leave_the_folder(given):
    with pytest.raises(FileNotFoundError, match="no configuration of the package"):
        find_config(given)


def test_a_run_is_built_from_a_name_as_from_its_file():
    file = config_folder() / "fedavg" / "quick.yaml"
    assert build(run, ["--config=fedavg/quick"]) == build(run, ["--config", str(file)])
    with pytest.raises(SetupError, match="fedbolic configs"):
        build(run, ["--config=nothing/like/it"])


def test_an_installation_without_configurations_says_so(monkeypatch, tmp_path):
    monkeypatch.setattr(packaged_configs, "FOLDERS", (tmp_path / "a", tmp_path / "b"))
    with pytest.raises(FileNotFoundError, match="install fedbolic again"):
        find_config("fedavg/quick")


def test_an_installed_package_goes_before_a_folder_next_to_it(monkeypatch, tmp_path):
    for name in ("package/configs", "configs"):
        (tmp_path / name).mkdir(parents=True)
    folders = (tmp_path / "package" / "configs", tmp_path / "configs")
    monkeypatch.setattr(packaged_configs, "FOLDERS", folders)
    assert config_folder() == folders[0]


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_package_of_the_same_name_is_named_in_the_error(name, tmp_path, monkeypatch):
    message = f"Problem with given class_path '{name}.Method': no attribute"
    assert namesake(message) == ""  # ours is found
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text("from other import thing\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)
    assert str(tmp_path / name) in namesake(message)
    assert namesake(f"{tmp_path}/{name}/metrics.csv is damaged") == ""
    assert namesake("no attribute") == ""


def test_a_folder_of_the_same_name_without_code_is_named_too(tmp_path, monkeypatch):
    (tmp_path / "flatland").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "flatland", raising=False)
    assert str(tmp_path / "flatland") in namesake("no module flatland.method")
    monkeypatch.setattr(sys, "path", [])
    assert namesake("No module named 'flatland'") == ""


def test_another_flatland_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr("fedbolic.run.configuration.namesake", lambda text: f"hidden by {text[:7]}")
    with pytest.raises(SetupError, match=r"flatland.Nothing.*\(hidden by Parser "):
        build(run, ["--method=flatland.Nothing"])
