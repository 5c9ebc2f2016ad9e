"""What Flower runs: the server's side in one process, every client's in its own.

Both read the run's configuration from the app; a node may override parts of it with a file of its
own, such as where its data are.
"""

# pyright: reportMissingImports=false
# (the extra flower may not be installed)

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from fedbolic.configuration import SetupError, build, one_line, setting_up
from fedbolic.data import Client
from fedbolic.experiment import DTYPES, arithmetic, load, place, resume, run
from fedbolic.federated.flower import FlowerPost, from_records, to_records
from fedbolic.federated.node import Node, introduction
from fedbolic.federated.nodes import Nodes
from fedbolic.federated.shelf import Shelf
from fedbolic.progress import ProgressBar
from fedbolic.reproducible import reproducible

server = ServerApp()
client = ClientApp()


@server.main()
def serve(grid: Grid, context: Context) -> None:
    """One run, or what is left of it."""
    app = context.run_config
    with _telling(str(app["outcome"])):
        with setting_up():
            settings = build(run, ["--config", str(app["config"])])
            terms = {"timeout": float(app["timeout"]), "least": int(app["least"])}
            nodes = Nodes(FlowerPost(grid), int(app["clients"]), **terms)
        path = settings["runs"] / settings["name"] / f"seed{settings['seed']}"
        bar = ProgressBar(settings["name"])
        if app["resume"] or (path.exists() and not app["overwrite"]):
            resume(Path(str(app["resume"] or path)), callbacks=[bar], nodes=nodes)
        else:
            run(**settings, overwrite=True, callbacks=[bar], nodes=nodes)


@contextlib.contextmanager
def _telling(file: str) -> Iterator[None]:
    """Write how the block ends, for whoever started Flower: an exit code, and why in one line."""
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


@client.query()
@client.train()
@client.evaluate()
def answer(message: Message, context: Context) -> Message:
    """What this node's client says to the server."""
    settings = _settings(context)
    own = _client(settings, context)
    asked = from_records(message.content)
    if asked.get("task") == "introduction":
        return Message(to_records(introduction(own)), reply_to=message)
    evaluation, shelf = settings["evaluation"], Shelf(_file(context))
    node = Node(settings["method"], own, settings["channels"], evaluation, shelf)
    device = own.no_inputs.device
    with reproducible(device), arithmetic(settings["precision"], device):
        told = node.answer(asked)
    return Message(to_records(told), reply_to=message)


def _settings(context: Context) -> dict[str, Any]:
    """The app's settings, with what a file of this node says in their place."""
    files = ["--config", str(context.run_config["config"])]
    if "config" in context.node_config:
        files += ["--config", str(context.node_config["config"])]
    return build(run, files)


def _client(settings: dict[str, Any], context: Context) -> Client:
    """This node's client: the only one of data of its own, or its share of common data."""
    clients, client_id = load(settings).clients, int(context.node_config["partition-id"])
    # data of its own do not say how many others there are, and the server must not
    number = int(context.node_config.get("clients", context.run_config["clients"]))
    if len(clients) > 1 and client_id not in range(len(clients)):
        raise ValueError(f"partition-id is {client_id}, and the data have {len(clients)} clients")
    own = clients[0 if len(clients) == 1 else client_id]
    meta = dataclasses.replace(own.meta, num_clients=number)
    own = dataclasses.replace(own, id=client_id, meta=meta)
    return own.to(place(settings), DTYPES[settings["precision"]])


def _file(context: Context) -> Path:
    """Where this node keeps the memory of this run."""
    app, node = context.run_config, context.node_config
    shared = Path(str(app["memory"])) / str(node["partition-id"])
    return Path(str(node.get("memory", shared))) / f"{app['run']}.pt"
