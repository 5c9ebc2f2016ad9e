"""The client's half of the Flower app, which passes requests on to a process that stays.

Flower starts a process for every request. That process imports Flower alone and asks the node's
resident process (:mod:`fedbolic.remote.resident`), which has torch and the data loaded since the
first request of a run.
"""

# pyright: reportMissingImports=false
# (the extra flower may not be installed)

import os

from fedbolic.core.imports import extra
from fedbolic.remote.resident import connect

with extra("flower", "fedbolic.remote"):
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

client = ClientApp()


@client.query()
@client.train()
@client.evaluate()
def reply(message: Message, context: Context) -> Message:
    """Reply of this node's client to a request of the server.

    Raises:
        RuntimeError: If the resident process has refused the request or ended.
    """
    if "num-partitions" in context.node_config:  # Flower simulates many clients in few processes
        from fedbolic.remote.app import answer

        return Message(answer(message.content, context), reply_to=message)
    facts = dict(context.node_config), dict(context.run_config)
    with connect(*facts, parent=os.getppid()) as process:  # Flower's, which ends with the SuperNode
        try:
            process.send((message.content, context))
            error, content = process.recv()
        except (EOFError, OSError):
            error, content = "the resident process of this node has ended", None
    if error:
        raise RuntimeError(error)
    return Message(content, reply_to=message)
