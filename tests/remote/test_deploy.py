"""The command flower, as far as it works without Flower."""

import json
import shutil
import sys
import time
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from fedbolic.remote import processes
from fedbolic.remote.loopback import AtNodes, own_files
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from tests.command_line import refused


def app_of(folder):
    project = tomllib.loads((folder / "pyproject.toml").read_text())
    return project["tool"]["flwr"]["app"]["config"]


def test_an_app_holds_the_whole_configuration(fedbolic, config, tmp_path):
    words = ["--name", 'Zürich "\\n\U0001f33c"', "--method.lr=1e-05", "--deployment.least=2"]
    code, out, _ = fedbolic("flower", "--config", config, "--app", tmp_path / "app", *words)
    assert (code, out) == (0, f"{tmp_path / 'app'}\n")
    app = app_of(tmp_path / "app")
    settings = build(run, ["--config", app["config"]])
    assert settings["name"] == 'Zürich "\\n\U0001f33c"'
    assert settings["method"].lr == 1e-5
    assert settings["method"].rounds == 2
    assert (app["clients"], app["least"], app["timeout"]) == (3, 2, 600.0)


def test_two_apps_are_two_runs_to_the_nodes(fedbolic, config, tmp_path):
    for name in ("one", "two"):
        assert fedbolic("flower", "--config", config, "--app", tmp_path / name)[0] == 0
    assert app_of(tmp_path / "one")["run"] != app_of(tmp_path / "two")["run"]


def test_clients_may_be_counted_without_their_data(fedbolic, config, tmp_path):
    words = ["--deployment.clients=7", "--app", tmp_path / "app"]
    assert fedbolic("flower", "--config", config, *words)[0] == 0
    assert app_of(tmp_path / "app")["clients"] == 7


def test_nodes_with_own_files_are_counted_and_leave_the_server_without_data(fedbolic, tmp_path):
    (own := tmp_path / "own").mkdir()
    words = ["flower", "--method", "FedAvg", "--deployment.nodes", own, "--app", tmp_path / "app"]
    assert refused(fedbolic(*words), names=["has no .yaml file"])
    for city in ("york", "bath"):
        (own / f"{city}.yaml").write_text("seed: 1\n")
    assert fedbolic(*words)[0] == 0
    app = app_of(tmp_path / "app")
    assert (app["clients"], app["nodes"]) == (2, str(own))
    assert build(run, ["--config", app["config"]])["data"] == AtNodes()
    assert [file.stem for file in own_files(own)] == ["bath", "york"]
    assert refused(fedbolic(*words, "--deployment.clients=3"), names=["files of 2 nodes"])
    both = ["--deployment.accounts", tmp_path]
    assert refused(fedbolic(*words, *both), names=["leave out nodes"])


@pytest.mark.parametrize(
    ("word", "fault"),
    [
        ("--deployment.least=0", "least must be at least 1, got 0"),
        ("--deployment.timeout=0", "timeout must be a positive number, got 0.0"),
        ("--deployment.clients=0", "clients must be at least 1, got 0"),
        ("--method.lr=-1", "lr must be a positive number, got -1.0"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_starts(word, fault, fedbolic, config, runs):
    assert refused(fedbolic("flower", "--config", config, "--runs", runs, word), names=[fault])
    assert not runs.exists()


@pytest.mark.parametrize("words", [(), ("--app", "app")])
def test_a_secure_sum_without_a_threshold_and_keys_is_not_deployed(
    words, fedbolic, config, runs, tmp_path, monkeypatch
):
    """The default depends on the number of clients, which nodes must not take from a server."""
    monkeypatch.chdir(tmp_path)
    method = "fedbolic.federated.secure.SecureSum"
    inner = "fedbolic.methods.FedAvg"
    settings = ["--runs", runs, f"--method={method}", f"--method.method={inner}", *words]
    answer = fedbolic("flower", "--config", config, *settings)
    assert refused(answer, names=["SecureSum needs a threshold where clients are nodes"])
    assert not runs.exists()
    answer = fedbolic("flower", "--config", config, *settings, "--method.threshold=3")
    assert refused(answer, names=["SecureSum needs keys where clients are nodes"])
    app = ["--method.threshold=3", "--method.keys", tmp_path / "keys", "--app", tmp_path / "app"]
    assert fedbolic("flower", "--config", config, *settings[:4], *app)[0] == 0


@pytest.mark.skipif(find_spec("flwr") is not None, reason="Flower is here")
def test_without_flower_the_extra_is_named(fedbolic, config, runs):
    answer = fedbolic("flower", "--config", config, "--runs", runs)
    assert refused(answer, names=["pip install 'fedbolic[flower]'"])
    assert not runs.exists()


def test_a_run_that_is_there_is_not_replaced(fedbolic, config, runs):
    assert fedbolic("run", "--config", config, "--runs", runs)[0] == 0
    answer = fedbolic("flower", "--config", config, "--runs", runs)
    assert refused(answer, names=["exists: continue it with"])


def test_a_run_between_machines_goes_on_by_its_app(fedbolic, config, runs):
    assert fedbolic("run", "--config", config, "--runs", runs)[0] == 0
    path = runs / "tiny" / "seed0"
    environment = json.loads((path / "environment.json").read_text())
    environment |= {"engine": "Nodes", "deployment": {"timeout": 5.0, "least": 1}}
    (path / "environment.json").write_text(json.dumps(environment))
    assert refused(fedbolic("resume", path), names=["on other machines", "`flwr run` of its app"])


def alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("stubborn", ["", "trap '' TERM\n"])
def test_no_process_outlives_its_federation(stubborn, monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name, path: name)
    monkeypatch.setattr(processes, "_GRACE", 1.0)
    with processes.Federation(tmp_path / "run") as federation:
        told = tmp_path / "pids"
        life = tmp_path / "life"
        life.write_text(f"{stubborn}echo $$ >> {told}\nsleep 99\n")
        # one process started directly, and one in its own session whose parent has ended
        federation._launch("one", ["bash", "-c", f"(setsid bash {life} &); exec bash {life}"])
        federation._launch("two", ["env", "-i", "sleep", "99"])  # nothing marks it, as at its end
        end = time.monotonic() + 600
        while not told.exists() or len(told.read_text().split()) < 2:
            assert time.monotonic() < end
            time.sleep(0.05)
        found = told.read_text().split()
        assert all(map(alive, found))
        folder = federation.folder
    assert not any(map(alive, found))
    assert all(process.returncode is not None for process in federation.processes)
    assert not folder.exists()


def test_after_an_error_the_logs_are_kept(monkeypatch, tmp_path):
    monkeypatch.setattr(shutil, "which", lambda name, path: name)
    with pytest.raises(RuntimeError), processes.Federation(tmp_path / "run") as federation:
        raise RuntimeError
    assert (federation.folder / "home" / "config.toml").exists()


def test_a_private_run_on_this_machine_needs_accounts(fedbolic, config, runs, tmp_path):
    words = ["flower", "--config", config, "--runs", runs, "--method=fedbolic.methods.PrivateSteps"]
    words += ["--method.method=fedbolic.methods.FedAvg"]
    assert refused(fedbolic(*words), names=["give their folder as --deployment.accounts"])
    words += ["--deployment.accounts", tmp_path / "accounts"]
    assert refused(fedbolic(*words), names=["client0 --unit example --epsilon E"])
    for i in range(3):
        given = [tmp_path / "accounts", f"client{i}", "--unit=example", "--epsilon=2"]
        assert fedbolic("account", "create", *given)[0] == 0
    assert refused(fedbolic("account", "create", *given), names=["there is an account already"])
    shown = fedbolic("account", "show", *given[:2])
    assert shown[1] == "example: epsilon 0 of 2 at delta 0 of 0, 0 charges\n"
    simulated = fedbolic(*words, "--deployment.simulated=true")
    assert refused(simulated, names=["do not set --deployment.simulated"])
    assert not runs.exists()
