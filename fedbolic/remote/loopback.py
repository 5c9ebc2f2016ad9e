"""A whole Flower federation on this machine: a SuperLink, a SuperNode for every client, one run."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, build, describe, setting_up
from fedbolic.experiment import load, run
from fedbolic.federated import RunStoppedError
from fedbolic.record import RunFolder, refuse_existing
from fedbolic.remote.processes import Federation

CLIENT_STATES = "nodes"
"""The folder, in that of a run on one machine, where its clients keep their memories."""

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
clientapp = "fedbolic.remote.app:client"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class DeploymentConfig:
    """Requirements on the clients that take part.

    Args:
        timeout: Seconds to wait for the answers of an exchange, above 0.
        least: Clients that must answer in every exchange and evaluation, as far as so many are
            asked; with fewer the run stops, to be resumed.
        simulated: Whether Flower plays the clients one after another, without SuperNodes: a trial
            of the same app in fewer processes.
        clients: How many there are, at least 1; ``None``: as many as the data of this machine have.

    Raises:
        ValueError: If a value is out of range.
    """

    timeout: float = 600.0
    least: int = 1
    simulated: bool = False
    clients: int | None = None

    def __post_init__(self) -> None:
        check.positive(timeout=self.timeout)
        check.at_least(1, least=self.least, clients=1 if self.clients is None else self.clients)


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """The Flower app of a run, which is a project file alone: code is what fedbolic installs.

    Args:
        folder: Where; made if it is not there.
        config: What both sides read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # a JSON text, number or truth value is one of TOML as well
    texts = {name: json.dumps(value, ensure_ascii=False) for name, value in config.items()}
    lines = [f"{name} = {text}\n" for name, text in texts.items()]
    (folder / "pyproject.toml").write_text(PROJECT + "".join(lines))


def flower(
    settings: dict[str, Any],
    deployment: DeploymentConfig = DeploymentConfig(),
    *,
    overwrite: bool = False,
) -> Path:
    """A run whose clients are SuperNodes of this machine, each in processes of its own.

    Args:
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        deployment: Requirements on the clients that take part.
        overwrite: Replace a run of the same name and seed.

    Returns:
        The run's folder, as :func:`~fedbolic.experiment.run` leaves it; the memories of clients lie
        in ``nodes`` there.

    Raises:
        SetupError: If the run cannot begin.
        RunStoppedError: If training cannot go on; the last good state is saved.
    """
    settings = {**settings, "runs": settings["runs"].absolute(), "name": settings["name"] or "run"}
    path = settings["runs"] / settings["name"] / f"seed{settings['seed']}"
    with setting_up():
        if not overwrite:
            refuse_existing(path)
        app = _app(settings, deployment)
    _serve(path, {**app, "overwrite": overwrite}, deployment)
    return path


def go_on(path: Path) -> None:
    """Go on with a run of :func:`flower` that was stopped.

    Args:
        path: Its folder.

    Raises:
        SetupError: If it cannot go on here as it began.
        RunStoppedError: If training cannot go on; the last good state is saved.
    """
    with setting_up():
        folder = RunFolder.open(path.absolute())
        if not (folder.path / CLIENT_STATES).is_dir() and (folder.path / "state.pt").exists():
            raise SetupError(
                f"the clients of {path} are on other machines: go on with `flwr run` of its app"
            )
        settings = build(run, ["--config", str(folder.config)])
        deployment = DeploymentConfig(**folder.environment["deployment"])
        app = _app(settings, deployment)
    _serve(folder.path, {**app, "resume": str(folder.path)}, deployment)


def is_deployed(path: Path) -> bool:
    """True if the run in a folder is one of :func:`flower`."""
    return (path / "environment.json").is_file() and "deployment" in RunFolder(path).environment


def prepare(
    folder: Path, settings: dict[str, Any], deployment: DeploymentConfig = DeploymentConfig()
) -> None:
    """Write the app of a run between machines, for ``flwr run``; run again, it goes on.

    Args:
        folder: Where.
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        deployment: Requirements on the clients that take part.

    Raises:
        SetupError: If the run could not begin.
    """
    with setting_up():
        app = _app({**settings, "name": settings["name"] or "run"}, deployment)
        write_app(folder, {**app, "client_state": "fedbolic", "run": secrets.token_hex(8)})


def _app(settings: dict[str, Any], deployment: DeploymentConfig) -> dict[str, Any]:
    """Settings that both sides of a run read."""
    if "method" in settings:  # the default has nothing to refuse
        settings["method"].check_deployed()
    return {
        "config": describe(run, settings),
        "clients": deployment.clients or len(load(settings).clients),
        "timeout": deployment.timeout,
        "least": deployment.least,
        "overwrite": False,
        "resume": "",
        "outcome": "",
    }


def _serve(path: Path, app: dict[str, Any], deployment: DeploymentConfig) -> None:
    """Start everything, run, and stop everything."""
    with Federation(path) as federation:
        folder = federation.folder
        outcome, number = folder / "outcome.json", app["clients"]
        own = {
            "client_state": str(path / CLIENT_STATES),
            "run": "client_state",
            "outcome": str(outcome),
        }
        write_app(folder / "app", {**app, **own})
        federation.start(number, simulated=deployment.simulated)
        cores = [f"num-supernodes={number}", "client-resources-num-cpus=1", "init-args-num-cpus=1"]
        federation.submit(folder / "app", cores if deployment.simulated else ())
        code, error = 1, "the server's process was lost"
        if outcome.exists():
            code, error = json.loads(outcome.read_text()).values()
        if code:
            raise (SetupError if code == 2 else RunStoppedError)(f"{error} (logs are in {folder})")
