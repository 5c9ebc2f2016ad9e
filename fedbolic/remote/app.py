"""The Flower app: its server, and the answers of its clients.

Both read the run's configuration from the app. A node may override parts of it with its own file,
for example the path of its data. A node with privacy accounts reads its own file alone.
"""

# pyright: reportMissingImports=false
# (the extra flower may not be installed)

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from fedbolic.core.imports import extra
from fedbolic.data import Client
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.flower import FlowerTransport, from_records, to_records
from fedbolic.remote.node import Node, handshake
from fedbolic.remote.nodes import Nodes
from fedbolic.remote.score_noise import score_noise_of
from fedbolic.remote.site import Site
from fedbolic.run.computing import DTYPES, arithmetic, place
from fedbolic.run.configuration import SetupError, build, one_line, setting_up
from fedbolic.run.experiment import resume, run
from fedbolic.run.loaded_data import load_data
from fedbolic.run.progress import ProgressBar
from fedbolic.run.reproducible import reproducible

with extra("flower", "fedbolic.remote"):
    from flwr.app import Context, RecordDict
    from flwr.serverapp import Grid, ServerApp

server = ServerApp()


@server.main()
def run_server(grid: Grid, context: Context) -> None:
    """Start a run, or resume it if its folder exists and is not to be overwritten."""
    app = context.run_config
    with _telling(str(app["outcome"])):
        with setting_up():
            settings = build(run, ["--config", str(app["config"])])
            nodes = Nodes(
                FlowerTransport(grid),
                int(app["clients"]),
                timeout=float(app["timeout"]),
                least=int(app["least"]),
                accounts=str(app.get("accounts", "")),
                files=str(app.get("nodes", "")),
            )
        path = Path(settings["runs"]) / settings["name"] / f"seed{settings['seed']}"
        bar = ProgressBar(settings["name"])
        if app["resume"] or (path.exists() and not app["overwrite"]):
            resume(Path(str(app["resume"] or path)), callbacks=[bar], nodes=nodes)
        else:
            run(**settings, overwrite=True, callbacks=[bar], nodes=nodes)


@contextlib.contextmanager
def _telling(file: str) -> Iterator[None]:
    """Context manager that writes the block's outcome to a file: exit code and one-line error."""
    outcome = {"code": 0, "error": ""}
    try:
        yield
    except Exception as error:
        code = 2 if isinstance(error, SetupError) else 1
        outcome = {"code": code, "error": one_line(error)}
        raise
    finally:
        if file:
            Path(file).write_text(json.dumps(outcome))


def answer(content: RecordDict, context: Context) -> RecordDict:
    """Answer of this node's client to the content of a request.

    Args:
        content: Records of the request.
        context: Configuration of the app and of the node.
    """
    request = from_records(content)
    if starts := request.get("task") == "handshake":
        _last.clear()  # files of data may have changed before a run starts or goes on
    settings, own = _held(context)
    site = Site(Path(str(context.node_config["site"]))) if "site" in context.node_config else None
    if starts:
        reply = handshake(own)
        return to_records(site.answer("handshake", request, lambda *_: reply) if site else reply)
    evaluation, store = settings["evaluation"], ClientStateStore(_file(context))
    accounts = _accounts(context)
    noise, private = score_noise_of(context.node_config), settings.get("privacy") is not None
    kept = store, accounts, noise, private, site
    node = Node(settings["method"], own, settings["channels"], evaluation, *kept)
    device = own.no_inputs.device
    with reproducible(device), arithmetic(settings["precision"], device):
        return to_records(node.reply(request))


_last: dict[str, tuple[dict[str, Any], Client]] = {}
"""Settings and client of the latest request, by all that they were made from."""


def _held(context: Context) -> tuple[dict[str, Any], Client]:
    """Settings and client of this node, made once for a configuration and a start."""
    node = dict(context.node_config)
    own = Path(str(node["config"])).read_text() if "config" in node else ""
    made_from = json.dumps([own, node, dict(context.run_config)], sort_keys=True)
    if made_from not in _last:
        settings = _settings(context)
        client = _client(settings, context)
        _last.clear()
        _last[made_from] = settings, client
    return _last[made_from]


def _settings(context: Context) -> dict[str, Any]:
    """Settings of the app, overridden by those in this node's own file.

    A server could weaken a mechanism, or read data that belong to another account, so under
    accounts all settings are the node's own.
    """
    node = context.node_config
    own = ["--config", str(node["config"])] if "config" in node else []
    if "accounts" not in node:
        return build(run, ["--config", str(context.run_config["config"]), *own])
    settings = build(run, own)
    if missing := {"method", "data"} - settings.keys():
        raise SetupError(f"a node with accounts needs {sorted(missing)} in its own config")
    return settings


def _accounts(context: Context) -> PrivacyAccounts | None:
    """Privacy accounts of this node's data, by its own configuration."""
    node = context.node_config
    if "accounts" not in node:
        return None
    if "data_name" not in node:
        raise SetupError("a node with accounts needs data_name, its owner's name of the data")
    return PrivacyAccounts(Path(str(node["accounts"])), str(node["data_name"]))


def _client(settings: dict[str, Any], context: Context) -> Client:
    """This node's client: the only one in the node's own data, or its share of common data."""
    data, client_id = load_data(settings), int(context.node_config["partition-id"])
    clients = data.clients
    # the node's own data do not contain this number, and the server is not trusted with it
    number = int(context.node_config.get("clients", context.run_config["clients"]))
    if len(clients) > 1 and client_id not in range(len(clients)):
        raise ValueError(f"partition-id is {client_id}, but the data have {len(clients)} clients")
    own = clients[0 if len(clients) == 1 else client_id]
    meta = dataclasses.replace(own.meta, num_clients=number)
    own = dataclasses.replace(own, id=client_id, meta=meta, class_names=data.class_names)
    return own.to(place(settings), DTYPES[settings["precision"]])


def _file(context: Context) -> Path:
    """File in which this node stores its client state of this run."""
    app, node = context.run_config, context.node_config
    shared = Path(str(app["client_state"])) / str(node["partition-id"])
    return Path(str(node.get("client_state", shared))) / f"{app['run']}.pt"
