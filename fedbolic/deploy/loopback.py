"""A whole Flower federation on this machine: a SuperLink, a SuperNode for every client, one run."""

import json
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedbolic import check
from fedbolic.configuration import SetupError, build, describe, setting_up
from fedbolic.deploy.processes import Federation
from fedbolic.experiment import load, run
from fedbolic.federated import RunStoppedError
from fedbolic.record import RunFolder, refuse_existing

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
serverapp = "fedbolic.deploy.app:server"
clientapp = "fedbolic.deploy.app:client"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Terms:
    """On which terms clients take part.

    Args:
        timeout: Seconds to wait for the answers of an exchange, above 0.
        least: Clients that must answer in every exchange and evaluation, as far as so many are
            asked; with fewer the run stops, to be resumed.
        simulated: Whether Flower plays the clients one after another, without SuperNodes: a trial
            of the same app in fewer processes.

    Raises:
        ValueError: If a value is out of range.
    """

    timeout: float = 600.0
    least: int = 1
    simulated: bool = False

    def __post_init__(self) -> None:
        check.positive(timeout=self.timeout)
        check.at_least(1, least=self.least)


def write_app(folder: Path, config: Mapping[str, Any]) -> None:
    """The Flower app of a run, which is a project file alone: code is what fedbolic installs.

    Args:
        folder: Where; made if it is not there.
        config: What both sides read.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # a JSON text, number or truth value is one of TOML as well
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in config.items()]
    (folder / "pyproject.toml").write_text(PROJECT + "".join(lines))


def flower(settings: dict[str, Any], terms: Terms = Terms(), *, overwrite: bool = False) -> Path:
    """A run whose clients are SuperNodes of this machine, each in processes of its own.

    Args:
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        terms: On which clients take part.
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
        config = describe(run, settings)
    _serve(path, config, len(load(settings).clients), terms, overwrite=overwrite)
    return path


def go_on(path: Path) -> None:
    """Go on with a run of :func:`flower` that was stopped.

    Args:
        path: Its folder.

    Raises:
        SetupError: If it cannot go on here as it began.
        RunStoppedError: If training cannot go on; the last good state is saved.
    """
    folder = RunFolder.open(path.absolute())
    with setting_up():
        settings = build(run, ["--config", str(folder.config)])
        terms = Terms(**folder.environment["terms"])
    number = len(load(settings).clients)
    _serve(folder.path, folder.config.read_text(), number, terms, overwrite=False)


def is_deployed(path: Path) -> bool:
    """Whether the run in a folder is one of :func:`flower`."""
    return (path / "environment.json").is_file() and "terms" in RunFolder(path).environment


def prepare(
    folder: Path, settings: dict[str, Any], terms: Terms = Terms(), *, clients: int | None = None
) -> None:
    """Write the app of a run between machines, for ``flwr run``; run again, it goes on.

    Args:
        folder: Where.
        settings: Arguments of :func:`~fedbolic.experiment.run`.
        terms: On which clients take part.
        clients: How many; none: as many as the data here have.
    """
    with setting_up():
        settings = {**settings, "name": settings["name"] or "run"}
        app = {
            "config": describe(run, settings),
            "clients": len(load(settings).clients) if clients is None else clients,
            "timeout": terms.timeout,
            "least": terms.least,
            "overwrite": False,
            "memory": "fedbolic",
            "run": secrets.token_hex(8),
            "outcome": "",
        }
        write_app(folder, app)


def _serve(path: Path, config: str, number: int, terms: Terms, *, overwrite: bool) -> None:
    """Start everything, run, and stop everything."""
    with Federation(path.with_name(f"{path.name}.flower")) as federation:
        outcome = federation.folder / "outcome.json"
        app = {
            "config": config,
            "clients": number,
            "timeout": terms.timeout,
            "least": terms.least,
            "overwrite": overwrite,
            "memory": str(path / "nodes"),
            "run": "memory",
            "outcome": str(outcome),
        }
        write_app(federation.folder / "app", app)
        federation.start(number, simulated=terms.simulated)
        cores = [f"num-supernodes={number}", "client-resources-num-cpus=1", "init-args-num-cpus=1"]
        federation.submit(federation.folder / "app", cores if terms.simulated else ())
        said = json.loads(outcome.read_text()) if outcome.exists() else None
        if said is None or said["code"]:
            federation.keep_logs()
        if said is None:
            raise RunStoppedError(f"the server's process was lost; see {federation.folder}")
        if said["code"] == 2:
            raise SetupError(said["error"])
        if said["code"]:
            raise RunStoppedError(said["error"])
