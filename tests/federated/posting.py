"""A federation of nodes in this process: their letters are written and read, but not carried."""

from fedbolic.federated import Evaluation
from fedbolic.federated.node import Node, introduction
from fedbolic.federated.nodes import Nodes, Post
from fedbolic.federated.shelf import Shelf
from fedbolic.federated.wire import decode, encode


class Here(Post):
    """Nodes of this process, by numbers that are not those of their clients.

    Args:
        method: That every node has.
        data: Of whose clients each node gets one.
        folder: Where they keep their memories.
        channels: At every node.
        evaluation: At every node.
    """

    def __init__(self, method, data, folder, *, channels=(), evaluation=Evaluation()):
        self.nodes = {
            1000 - client.id: Node(
                method, client, channels, evaluation, Shelf(folder / str(client.id) / "memory.pt")
            )
            for client in data.clients
        }
        self.gone, self.lost, self.asked = set(), set(), []

    def online(self):
        return self.nodes.keys() - self.gone

    def exchange(self, kind, questions, *, group, timeout):
        answers = {}
        for number in sorted(questions):
            asked = decode(encode(questions[number]))
            self.asked.append((kind, number, asked))
            answers[number] = decode(encode(self.answer(number, asked)))
            if (kind, number) in self.lost:  # it did the work, and nobody hears of it
                answers[number] = {"error": "lost"}
        return answers

    def answer(self, number, asked):
        node = self.nodes[number]
        if asked["task"] == "introduction":
            return introduction(node.client)
        return node.answer(asked)


def away(method, data, folder, *, least=1, **settings):
    """An engine of such nodes, and the federation as its server sees it."""
    post = Here(method, data, folder, **settings)
    nodes = Nodes(post, len(data.clients), least=least)
    inputs = data.clients[0].no_inputs
    return nodes, nodes.federation(data.holdout).to(inputs.device, inputs.dtype)


def without_data(data):
    """Whether no client holds an example."""
    return all(len(split) == 0 for c in data.clients for split in (c.train, c.validation, c.test))
