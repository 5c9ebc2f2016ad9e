"""Audits of runs between machines: canaries are nodes, and faults of nodes are found."""

import dataclasses
import re

import pytest

from fedbolic.cli.commands import execute
from fedbolic.core import tree
from fedbolic.core.log import logger, without_repetition
from fedbolic.federated import ClientPrivacy, DistributedNoise, SumPrivacy, Trainer
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import FedAvg, PrivateSteps
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.loopback import AtNodes
from fedbolic.remote.node import Node
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from fedbolic.testing import audit_checks, noisy_audit
from fedbolic.testing.audit import audit
from fedbolic.testing.canary_nodes import CanaryNodes
from fedbolic.testing.noisy_audit import audit_noisy
from tests.federated.simple_method import SMALL, federation
from tests.remote.transports import away

STEPS = PrivateSteps(FedAvg(rounds=2), steps=1, rate=1.0)
BATCHES = dataclasses.replace(STEPS, rate=0.5, steps=2)
PRIVACY = SumPrivacy(survivors=2, dp_delta=1e-4, noise_multiplier=1.0)
SUM = SecureSum(DistributedNoise(FedAvg(rounds=1), PRIVACY), threshold=2)
CENTRAL = ClientPrivacy(dp_delta=1e-5, noise_multiplier=1.0, clip_norm=0.5)


@pytest.fixture(autouse=True)
def few(monkeypatch):
    monkeypatch.setattr(noisy_audit, "UNUSED", 1500)
    monkeypatch.setattr(audit_checks, "LEAST_NUMBERS", 5000)


def found_in(method, folder, planted=4):
    if isinstance(method, ClientPrivacy):
        return audit(Trainer(CanaryNodes(folder), privacy=method), 5, 2, planted=planted)
    return audit_noisy(method, CanaryNodes(folder), 3, planted=planted)


@pytest.mark.parametrize(
    ("method", "planted"),
    [(BATCHES, 40), (STEPS, 40), (SUM, 2), (CENTRAL, 40)],
    ids=["batches", "whole", "secure sum", "central"],
)
def test_sound_nodes_have_no_fault_and_stay_below_their_accounts(method, planted, tmp_path):
    found = found_in(method, tmp_path, planted)
    assert found.faults == ()
    assert 0 <= found.bound <= found.ledger
    assert found.charged == (None if method is CENTRAL else pytest.approx(found.ledger))


def longer_updates(monkeypatch):
    whole = Node.reply

    def reply(self, request):
        found = whole(self, request)
        longer = tree.map(lambda x: x * 1.5, found.get("payload", {}))
        return {**found, "payload": longer} if longer else found

    monkeypatch.setattr(Node, "reply", reply)


def other_settings(monkeypatch, replaced):
    whole = Node.reply
    monkeypatch.setattr(Node, "reply", lambda self, request: whole(replaced(self), request))


def less_noise(monkeypatch):
    """A node whose own configuration adds less noise than the server counts."""

    def replaced(node):
        noise = 0.8 * node.method.noise_multiplier
        return dataclasses.replace(
            node, method=dataclasses.replace(node.method, noise_multiplier=noise)
        )

    other_settings(monkeypatch, replaced)


def full_updates(monkeypatch):
    other_settings(monkeypatch, lambda node: dataclasses.replace(node, private=False))


def open_scores(monkeypatch):
    monkeypatch.setattr(Node, "_withholds_scores", False)


def uncharged(monkeypatch):
    monkeypatch.setattr(Node, "_charge", lambda *_: ("charge", "none", 0))


def charged_once(monkeypatch):
    whole = PrivacyAccounts.charge

    def charge(self, ledger, num_releases):
        first = self.balance(ledger.unit).num_charges == 0
        return whole(self, ledger, num_releases) if first else ("charge", "none", 0)

    monkeypatch.setattr(PrivacyAccounts, "charge", charge)


def forgetful(monkeypatch):
    monkeypatch.setattr(ClientStateStore, "reply", lambda *_: None)


@pytest.mark.parametrize(
    ("plant", "method", "words"),
    [
        (longer_updates, STEPS, "a contribution is not the bound"),
        (less_noise, STEPS, r"the noise is 0\.(7[3-9]\d*|8([0-6]\d*)?) times"),
        (open_scores, STEPS, "a node sends scores"),
        (full_updates, CENTRAL, "a node sends metrics or a weight"),
        (uncharged, STEPS, "an account of a node is charged 0, and the ledger"),
        (charged_once, STEPS, "answers more requests than it charges"),
        (forgetful, STEPS, "answers a repeated request anew"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_planted_faults_of_nodes_are_found(plant, method, words, monkeypatch, tmp_path):
    plant(monkeypatch)
    found = found_in(method, tmp_path)
    assert any(re.search(words, fault) for fault in found.faults), found


def test_the_command_audits_a_run_of_nodes_as_nodes(tmp_path, capsys):
    method = PrivateSteps(SMALL, steps=1, rate=1.0, dp_delta=1e-3)
    for i in range(2):
        account = PrivacyAccounts(tmp_path / "accounts", f"client{i}")
        account.create("example", epsilon=50.0, dp_delta=1e-2)
    nodes, _ = away(method, federation((5, 6)), tmp_path, accounts=tmp_path / "accounts")
    settings = build(run, ["--runs", str(tmp_path), "--name=far", "--device=cpu"])
    given = {"method": method, "data": AtNodes(), "precision": "64-true"}
    path = run(**{**settings, **given}, nodes=nodes)
    assert execute(["audit", str(path), "--planted", "20"]) == 0
    said = capsys.readouterr().out
    stated = re.match(r"ledger: epsilon ([\d.]+), accounts of nodes ([\d.]+); attack", said)
    assert stated[1] == stated[2] == f"{account.balance('example').epsilon:.4g}"


def test_what_nodes_refuse_in_an_audit_is_logged_once_and_without_a_traceback(caplog):
    with without_repetition():
        for number in (1, 1, 20):
            logger.error("client %d cannot reply", number, exc_info=ValueError())
    (record,) = caplog.records
    assert (record.getMessage(), record.exc_info) == ("client 1 cannot reply", None)
