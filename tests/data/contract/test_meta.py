"""Public facts that every party holds."""

import torch

from fedbolic.core.tree_bytes import encode_message
from fedbolic.methods import FedAvg
from fedbolic.remote.node import make_request
from tests.federated.simple_method import RNG, federation


def test_what_every_party_knows_does_not_grow_with_the_clients():
    """Counts have equally many digits: hash and equality depend on the fields that repr shows."""
    few, many = federation((1,) * 10).meta, federation((1,) * 90).meta
    assert len(repr(many)) == len(repr(few))

    def num_bytes(of):
        letter = encode_message(
            make_request(FedAvg(), {"x": torch.zeros(3)}, {}, of, RNG, task="update")
        )
        return len(letter.text) + sum(map(len, letter.buffers))

    assert num_bytes(many) == num_bytes(few)


def test_the_server_keeps_how_many_examples_each_client_has():
    data = federation((7, 0, 12))
    assert data.sizes == data.to("cpu", torch.float32).sizes == (7, 0, 12)
    assert data.meta == federation((1, 2, 3)).meta
