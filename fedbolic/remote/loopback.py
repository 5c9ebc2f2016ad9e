"""Runs in a Flower federation on this machine: a SuperLink, and a SuperNode for every client."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typing_extensions import override

from fedbolic.core import check
from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData, Source
from fedbolic.federated import RunStoppedError
from fedbolic.methods import FedAvg
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.processes import Federation
from fedbolic.run.configuration import SetupError, build, describe, setting_up
from fedbolic.run.experiment import run
from fedbolic.run.loaded_data import load_data
from fedbolic.run.record import RunFolder, refuse_existing

CLIENT_STATES = "nodes"
"""Folder of the client states inside the folder of a run on one machine."""

PROJECT = """\
[project]
name = "fedbolic-run"
version = "1.0.0"
description = "A run of fedbolic"
license = "Apache-2.0"
dependencies = ["fedbolic[flower]"]

[tool.flwr.app]
publisher = "fedbolic"

[tool.flwr.app.components]
serverapp = "fedbolic.remote.app:server"
clientapp = "fedbolic.remote.client:client"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class DeploymentConfig:
    """Number of clients and requirements on their replies.

    Args:
        timeout: Seconds to wait for clients at the start and for the replies of an exchange, above
            0.
        least: Minimum number of replies in every exchange and evaluation, at least 1. If fewer
            clients are asked, all must reply. Otherwise the run stops and can be resumed.
        simulated: Let Flower simulate the clients one after another, without SuperNodes. This tests
            the same app in fewer processes.
        clients: Number of clients, at least 1; ``None`` for the number in this machine's data.
        accounts: Folder of the clients' privacy accounts, which a method with noise at the clients
            needs; the data of the clients on this machine are named ``client0``, ``client1``, ...
        nodes: Folder of one YAML file for every node, whose settings override the run's at that
            node, such as the path of its own data. Nodes are numbered in the order of the files'
            names, and the server has a test set only if the run names ``data`` as well. ``None`` if
            all share the run's data.

    Raises:
        ValueError: If a value is out of range, or both ``accounts`` and ``nodes`` are given.
    """

    timeout: float = 600.0
    least: int = 1
    simulated: bool = False
    clients: int | None = None
    accounts: Path | str | None = None
    nodes: Path | str | None = None

    def __post_init__(self) -> None:
        if self.accounts is not None and self.nodes is not None:
            raise ValueError(
                "nodes with accounts read one common file on this machine: leave out nodes, or "
                "start SuperNodes whose own configurations name their accounts"
            )
        check.positive(timeout=self.timeout)
        check.at_least(1, least=self.least, clients=1 if self.clients is None else self.clients)


@dataclass(frozen=True)
class AtNodes(Source):
    """Data of which the server has none, not even a test set: every node reads its own."""

    @override
    def load(self, rng: Rng) -> FederatedData:
        raise FileNotFoundError("the data are at the nodes")


def _write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """Write the Flower app of a run: a project file that refers to the installed fedbolic.

    Args:
        folder: Folder of the app, created if necessary.
        config: Configuration that the server and its clients read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # JSON strings, numbers and booleans are valid TOML
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in config.items()}
    lines = [f"{name} = {text}\n" for name, text in texts.items()]
    (folder / "pyproject.toml").write_text(PROJECT + "".join(lines))


def flower(
    settings: dict[str, Any],
    deployment: DeploymentConfig = DeploymentConfig(),
    *,
    overwrite: bool = False,
) -> Path:
    """Run a federation whose clients are SuperNodes on this machine, each in separate processes.

    Args:
        settings: Arguments of :func:`~fedbolic.run.experiment.run`.
        deployment: Number of clients and requirements on their replies.
        overwrite: Replace a run of the same name and seed.

    Returns:
        The run's folder, as :func:`~fedbolic.run.experiment.run` leaves it, with the client states
        in its folder ``nodes``.

    Raises:
        SetupError: If the settings are invalid or the federation cannot be started.
        RunStoppedError: If training cannot continue; the last good state is saved.
    """
    settings = {
        **settings,
        "runs": Path(settings["runs"]).absolute(),
        "name": settings["name"] or "run",
    }
    path = settings["runs"] / settings["name"] / f"seed{settings['seed']}"
    with setting_up():
        if not overwrite:
            refuse_existing(path)
        app = _app(settings, deployment)
        _check_accounts(settings, deployment, app["clients"])
    _serve(path, {**app, "overwrite": overwrite}, deployment)
    return path


def go_on(path: Path) -> None:
    """Resume a stopped run of :func:`flower`.

    Of its deployment ``timeout``, ``least``, ``accounts`` and ``nodes`` are restored: a simulated
    run is resumed with SuperNodes, one for each client of the data.

    Args:
        path: Folder of the run.

    Raises:
        SetupError: If the run's clients are on other machines, or the run cannot be resumed here.
        RunStoppedError: If training cannot continue; the last good state is saved.
    """
    with setting_up():
        folder = RunFolder.open(path.absolute())
        if not (folder.path / CLIENT_STATES).is_dir() and (folder.path / "state.pt").exists():
            raise SetupError(
                f"the clients of {path} are on other machines: resume with `flwr run` of its app"
            )
        settings = build(run, ["--config", str(folder.config)])
        deployment = DeploymentConfig(**folder.environment["deployment"])
        app = _app(settings, deployment)
        _check_accounts(settings, deployment, app["clients"])
    _serve(folder.path, {**app, "resume": str(folder.path)}, deployment)


def is_deployed(path: Path) -> bool:
    """True if the clients of the run in a folder were nodes, on this machine or on others."""
    return (path / "environment.json").is_file() and "deployment" in RunFolder(path).environment


def prepare(
    folder: Path, settings: dict[str, Any], deployment: DeploymentConfig = DeploymentConfig()
) -> None:
    """Write the app of a run across machines, which ``flwr run`` starts or resumes.

    Args:
        folder: Folder of the app, created if necessary.
        settings: Arguments of :func:`~fedbolic.run.experiment.run`.
        deployment: Number of clients and requirements on their replies.

    Raises:
        SetupError: If the settings are invalid.
    """
    with setting_up():
        app = _app({**settings, "name": settings["name"] or "run"}, deployment)
        _write_app(folder, {**app, "client_state": "fedbolic", "run": secrets.token_hex(8)})


def _app(settings: dict[str, Any], deployment: DeploymentConfig) -> dict[str, Any]:
    """Configuration of an app, which the server and its clients read."""
    if deployment.nodes:
        settings = {"data": AtNodes(), **settings}
    if "method" in settings:  # the default method is safe to deploy
        settings["method"].check_deployed()
    return {
        "config": describe(run, settings),
        "clients": _num_clients(settings, deployment),
        "timeout": deployment.timeout,
        "least": deployment.least,
        "accounts": str(Path(deployment.accounts).absolute()) if deployment.accounts else "",
        "nodes": str(Path(deployment.nodes).absolute()) if deployment.nodes else "",
        "overwrite": False,
        "resume": "",
        "outcome": "",
    }


def _num_clients(settings: dict[str, Any], deployment: DeploymentConfig) -> int:
    if not deployment.nodes:
        return deployment.clients or len(load_data(settings).clients)
    number = len(own_files(deployment.nodes))
    if deployment.clients not in (None, number):
        raise ValueError(
            f"{deployment.nodes} has files of {number} nodes, but clients is {deployment.clients}: "
            "leave out clients"
        )
    return number


def own_files(folder: Path | str) -> list[Path]:
    """Configurations of the nodes in a folder, client 0 first.

    Args:
        folder: Folder with a ``.yaml`` file for every node.

    Raises:
        FileNotFoundError: If there is none.
    """
    files = sorted(Path(folder).glob("*.yaml"))
    if not files:
        raise FileNotFoundError(f"{folder} has no .yaml file: it needs one for every node")
    return files


def _check_accounts(
    settings: dict[str, Any], deployment: DeploymentConfig, num_clients: int
) -> None:
    """Refuse a private run on this machine whose clients have no accounts.

    Raises:
        ValueError: If the folder of the accounts is not given, or Flower simulates the clients.
        FileNotFoundError: If an account is missing.
    """
    unit = settings.get("method", FedAvg()).traits.privacy_unit
    if unit is None:
        return
    if deployment.accounts is None or deployment.simulated:
        raise ValueError(
            f"the clients spend the privacy of every {unit}, and nodes count that: create accounts "
            "with `fedbolic account create`, give their folder as --deployment.accounts, and do "
            "not set --deployment.simulated"
        )
    for i in range(num_clients):
        PrivacyAccounts(Path(deployment.accounts), _data_name(i)).balance(unit)


def _data_name(client_id: int) -> str:
    """Owner's name of the data of a client on this machine."""
    return f"client{client_id}"


def _serve(path: Path, app: dict[str, Any], deployment: DeploymentConfig) -> None:
    """Run an app in a federation on this machine, and raise the error that it reports."""
    with Federation(path) as federation:
        folder = federation.folder
        outcome, number = folder / "outcome.json", app["clients"]
        own = {
            "client_state": str(path / CLIENT_STATES),
            "run": "client_state",
            "outcome": str(outcome),
        }
        _write_app(folder / "app", {**app, **own})
        nodes = [f"partition-id={i}" for i in range(number)]
        if app["nodes"]:
            files = own_files(app["nodes"])
            nodes = [f'{node} config="{file}"' for node, file in zip(nodes, files, strict=True)]
        if app["accounts"]:  # these nodes read their own file and nothing of the app
            (file := folder / "nodes.yaml").write_text(app["config"])
            kept = f'clients={number} config="{file}" accounts="{app["accounts"]}"'
            nodes = [f'{node} {kept} data_name="{_data_name(i)}"' for i, node in enumerate(nodes)]
        federation.start(nodes, simulated=deployment.simulated)
        cores = [f"num-supernodes={number}", "client-resources-num-cpus=1", "init-args-num-cpus=1"]
        federation.submit(folder / "app", cores if deployment.simulated else ())
        code, error = 1, "the server process ended without a result"
        if outcome.exists():
            code, error = json.loads(outcome.read_text()).values()
        if code:
            raise (SetupError if code == 2 else RunStoppedError)(f"{error} (see logs in {folder})")
