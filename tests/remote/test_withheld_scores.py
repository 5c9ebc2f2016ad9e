"""Scores of a protected node: models that predict one class each must not read its labels."""

import dataclasses

import pytest
import torch

from fedbolic.core import tree
from fedbolic.federated import DistributedNoise, SumPrivacy, Trainer
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.node import make_request
from flynn import FlyNN, Histogram
from tests.federated.simple_method import RNG, SMALL, federation, train
from tests.remote.transports import Here, away, identified

DATA = federation((7, 4, 12, 5), num_test=40)
NOISE = SumPrivacy(survivors=3, dp_delta=1e-3, noise_multiplier=8.0, clip_norm=0.1, bits=24)
ONCE = dataclasses.replace(SMALL, rounds=1)
PROTECTED = (
    SecureSum(ONCE, threshold=3),
    SecureSum(FlyNN(dim=60, fan_in=2, active=7), threshold=3),
    SecureSum(DistributedNoise(ONCE, NOISE), threshold=3),
    PrivateSteps(ONCE, steps=2, rate=0.5, dp_delta=1e-3),
    FlyNN(dim=60, fan_in=2, active=7, privacy=Histogram(0.5)),
)


def accounts_for(method, folder):
    """Folder of accounts with large budgets; ``None`` if the method needs none."""
    if method.traits.privacy_unit is None:
        return None
    relation = "replace" if method.traits.privacy_unit == "client" else "add/remove"
    for client in DATA.clients:
        accounts = PrivacyAccounts(folder, f"client{client.id}")
        accounts.create(method.traits.privacy_unit, epsilon=1e6, dp_delta=1e-2, neighbours=relation)
    return folder


def constant(message, label):
    """The message of a model that predicts one class, whatever its input."""
    if "parameters" not in message:
        return {name: constant(leaf, label) if isinstance(leaf, dict) else leaf
                for name, leaf in message.items()}  # fmt: skip
    zeros = tree.map(torch.zeros_like, message["parameters"])
    return {**message, "parameters": {**zeros, "head.bias": zeros["head.bias"].clone()
            .index_fill_(0, torch.tensor([label]), 1.0)}}  # fmt: skip


def told(method, folder, accounts=None):
    """Scores that a node tells a server which asks for models of one class each."""
    node = Here(method, DATA, folder, accounts=accounts).nodes[1000]
    state = Trainer().begin(method, DATA, RNG).server_state
    found = []
    for label in range(3):
        message = constant(method.broadcast(state, 0), label)
        request = make_request(method, message, {}, DATA.meta, RNG, task="scores")
        found.append(node.reply(request))
    return found


def test_without_protection_three_models_read_the_labels_of_a_node(tmp_path):
    shares = [reply["scores"]["test/accuracy"] for reply in told(ONCE, tmp_path)]
    labels = DATA.clients[0].test.tensors["y"].bincount(minlength=3)
    assert shares == pytest.approx((labels / labels.sum()).tolist())


def protected(method, folder):
    """The method, whose nodes have keys under a secure sum."""
    return identified(method, folder) if isinstance(method, SecureSum) else method


def test_a_protected_node_tells_no_score(tmp_path):
    for number, method in enumerate(PROTECTED):
        folder = tmp_path / str(number)
        method = protected(method, folder)
        accounts = accounts_for(method, folder)
        assert told(method, folder, accounts) == [{"scores": {}}] * 3


def test_a_run_of_protected_nodes_has_the_scores_of_the_server_alone(tmp_path):
    for number, method in enumerate(PROTECTED):
        folder = tmp_path / str(number)
        method = protected(method, folder)
        nodes, seen = away(method, DATA, folder, accounts=accounts_for(method, folder))
        _, rows = train(method, seen, engine=nodes)
        names = {row.name.partition("/")[0] for row in rows}
        assert "holdout" in names
        assert not names & {"test", "validation", "fine_tuned", "ridge_head"}
