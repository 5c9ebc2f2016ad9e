"""Limits and transcripts of sites: what a server gets, and what whoever checks finds."""

import dataclasses
import json

import pytest
import torch

from fedbolic.cli.commands import _names_of_states, execute
from fedbolic.federated import Trainer
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.loopback import AtNodes
from fedbolic.remote.nodes import Nodes
from fedbolic.remote.site import (
    Site,
    SiteLimitError,
    different_messages,
    unshared_exchanges,
)
from fedbolic.run.configuration import build
from fedbolic.run.experiment import run
from fedbolic.testing.audit import Audit
from tests.federated.simple_method import SMALL, federation, train
from tests.remote.transports import Here

DATA = federation((5, 6, 7))


def at_sites(folder, limits=None, method=SMALL, **settings):
    """Nodes that each have a site, their engine and federation, and the sites."""
    transport = Here(method, DATA, folder, **settings)
    sites = [Site.create(folder / f"site{i}", limits) for i in range(3)]
    for number, node in transport.nodes.items():
        transport.nodes[number] = dataclasses.replace(node, site=sites[node.client.id])
    nodes = Nodes(transport, 3)
    return nodes, nodes.federation(None).to("cpu", torch.float64), sites


@pytest.fixture(scope="module")
def told(tmp_path_factory):
    """Sites after a run of three rounds, and the folder of the run."""
    folder = tmp_path_factory.mktemp("run")
    nodes, _, sites = at_sites(folder, {"train": 3, "scores": 9})
    settings = build(run, ["--runs", str(folder), "--name=far", "--device=cpu"])
    given = {"method": SMALL, "data": AtNodes(), "precision": "64-true"}
    return sites, run(**{**settings, **given}, nodes=nodes)


@pytest.fixture
def received(told):
    """Names of client states, as the server has them."""
    return _names_of_states(told[1])


def copied(site, folder):
    """A copy of a site without its private key, as whoever checks has it."""
    (folder / "copy").mkdir()
    for name in ("0.pub", "transcript", "limits.json"):
        (folder / "copy" / name).write_bytes((site.folder / name).read_bytes())
    return folder / "copy"


def test_a_transcript_says_what_was_asked(told, tmp_path):
    reports = [Site(site.folder).check() for site in told[0]]
    assert [report.counts["train"] for report in reports] == [3, 3, 3]
    assert not any(report.faults for report in reports)
    assert not different_messages(reports)
    paths = [json.loads(path) for path in reports[0].messages]
    assert [path[1:3] for path in paths] == [["round", 1], ["round", 2], ["round", 3]]
    assert not Site(copied(told[0][0], tmp_path)).check().faults  # no private key is needed


def changed(lines):
    lines[0] = lines[0].replace(b'"kind": "train"', b'"kind": "scores"')


def removed(lines):
    del lines[2]


def moved(lines):
    lines[2:4] = lines[3], lines[2]


def forged(lines):
    """A line of nobody, with the right hash."""
    import hashlib

    last = hashlib.sha256(lines[-1]).hexdigest()
    entry = {"event": "told", "request": "", "reply": "", "costs": [], "before": last}
    lines.append(json.dumps({**entry, "signature": "00" * 64}).encode())


def charged(lines):
    """A line of nobody, with costs on which sums fail."""
    forged(lines)
    cost = {"mechanism": "", "releases": 1, "epsilon": 1e999, "rounds": 0}
    lines[-1] = lines[-1].replace(b'"costs": []', b'"costs": [%s]' % json.dumps(cost).encode())


def cut(lines):
    lines[2] = lines[2][:40]


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (changed, "line 1 is not signed"),
        (removed, "missing or was moved before line 3"),
        (moved, "missing or was moved before line 3"),
        (forged, "is not signed"),
        (charged, "is not signed"),
        (cut, "damaged"),
    ],
)
def test_an_altered_transcript_is_found(fault, words, told, tmp_path):
    folder = copied(told[0][1], tmp_path)
    lines = (folder / "transcript").read_bytes().split(b"\n")[:-1]
    fault(lines)
    (folder / "transcript").write_bytes(b"".join(line + b"\n" for line in lines))
    assert any(words in found for found in Site(folder).check().faults)


@pytest.mark.parametrize(
    "wrong",
    [{"rounds": 0}, {"rounds": "x"}, {"releases": 10**4000}, {"releases": -5}, {"epsilon": None}],
    ids=lambda wrong: "-".join(wrong),
)
def test_charges_that_no_ledger_makes_are_a_fault_of_the_site_that_signs_them(wrong, tmp_path):
    """One site that lies does not keep the audit from the others."""
    site = Site.create(tmp_path / "site")
    site.ask("train", "a", {})
    site.tell("a", {}, [{"mechanism": "", "releases": 1, "epsilon": 1.0, "rounds": 1, **wrong}])
    assert site.check().faults == ("the transcript is damaged",)


def test_an_end_that_the_server_has_is_not_cut_off(told, received, tmp_path):
    """A transcript that ends before the reply of the last round, of which the server has proof."""
    folder = copied(told[0][1], tmp_path)
    lines = (folder / "transcript").read_bytes().splitlines(keepends=True)
    kinds = [(json.loads(line)["event"], json.loads(line).get("kind")) for line in lines]
    last = max(i for i, kind in enumerate(kinds) if kind == ("asked", "train")) + 2
    for end in range(1, len(lines) + 1):
        (folder / "transcript").write_bytes(b"".join(lines[:end]))
        assert not Site(folder).check().faults  # without the server's names
        found = any("its end was cut off" in fault for fault in Site(folder).check(received).faults)
        assert found == (end < last)


def test_nobody_writes_a_transcript_anew_without_a_request(told, received, tmp_path):
    """The owner of the key signs all lines again but those of the first round."""
    site, new = told[0][1], Site(copied(told[0][1], tmp_path))
    entries = [entry for entry, *_ in site._lines()]
    first = next(entry["request"] for entry in entries if entry.get("kind") == "train")
    new.file.unlink()
    (new.folder / "0.key").write_bytes((site.folder / "0.key").read_bytes())
    (new.folder / "0.key").chmod(0o600)
    for entry in entries:
        if entry["request"] != first:
            kept = {name: x for name, x in entry.items() if name not in ("before", "state")}
            new._append(kept)
    assert new.check().counts == {"train": 2, "scores": 3}
    assert not new.check().faults
    assert any("its end was cut off" in fault for fault in new.check(received).faults)
    assert not site.check(received).faults


def test_a_transcript_that_is_begun_anew_during_a_run_shows(tmp_path):
    """The server keeps the name of the last client state alone, and its line is there."""
    nodes, seen, (site, *_) = at_sites(tmp_path)
    trainer = Trainer(engine=nodes)
    state, _ = next(trainer.run(SMALL, seen, 0))
    site.file.unlink()
    *_, (state, _) = trainer.run(SMALL, seen, 0, state)
    received = [own["name"] for own in state.client_states.values()]
    assert site.check().counts["train"] == 2
    assert any(
        "a client state that no earlier line names" in x for x in site.check(received).faults
    )


def test_the_key_of_another_site_does_not_fit(told, tmp_path):
    folder = copied(told[0][0], tmp_path)
    (folder / "0.pub").write_bytes((told[0][1].folder / "0.pub").read_bytes())
    assert Site(folder).check().faults


def test_limits_hold_and_a_refusal_says_why(told):
    """A fourth request is refused by text, the third one again is free, and nothing is booked."""
    sites, before = told[0], Site(told[0][0].folder).check()
    with pytest.raises(SiteLimitError, match="at most 3 requests of kind train"):
        sites[0].answer("train", {"message": {}, "path": "[]"}, lambda *_: {})
    with pytest.raises(SiteLimitError, match="no fine_tuning"):
        sites[0].answer("fine_tuning", {}, lambda *_: {})
    with pytest.raises(SiteLimitError, match="no unknown"):
        sites[0].answer("anything", {}, lambda *_: {})
    name = next(e["request"] for e, *_ in sites[0]._lines() if e.get("kind") == "train")
    sites[0].ask("train", name, {})
    after = Site(sites[0].folder).check()
    assert (after.counts, after.faults) == (before.counts, ())


def test_a_server_gets_no_training_by_another_name(tmp_path):
    nodes, seen, sites = at_sites(tmp_path, {"train": 3})
    train(SMALL, seen, engine=nodes)
    number, request = next(r[1:] for r in nodes.transport.requests if r[0] == "train")
    for purpose in ("handshake", "other", "fine_tuning"):
        reply = nodes.transport.reply(number, {**request, "seed": 5, "purpose": purpose})
        assert reply.keys() == {"error"}
    assert nodes.transport.reply(number, {**request, "seed": 5}).keys() == {"error"}
    assert not any(Site(site.folder).check().faults for site in sites)


def test_a_run_goes_on_without_a_site_that_refuses(tmp_path, caplog):
    nodes, seen, sites = at_sites(tmp_path, {"train": 3})
    sites[0].folder.joinpath("limits.json").write_text('{"train": 1}')
    transport = nodes.transport
    for number, node in transport.nodes.items():
        if node.client.id == 0:
            strict = Site(sites[0].folder)
            transport.nodes[number] = dataclasses.replace(node, site=strict)
    train(SMALL, seen, engine=nodes)
    assert "this site answers at most 1 requests of kind train" in caplog.text
    assert [Site(s.folder).check().counts["train"] for s in sites] == [1, 3, 3]


def test_more_requests_than_allowed_are_a_fault(told, tmp_path):
    folder = copied(told[0][2], tmp_path)
    (folder / "limits.json").write_text('{"train": 2, "scores": 9}')
    assert Site(folder).check().faults == ("3 requests of train were answered, not 2",)


def test_what_the_limits_do_not_name_is_a_fault(told, tmp_path):
    folder = copied(told[0][2], tmp_path)
    (folder / "limits.json").write_text('{"scores": 9}')
    assert Site(folder).check().faults == ("3 requests of train were answered, not 0",)


def test_handshakes_have_a_limit_where_it_is_named(tmp_path):
    site = Site.create(tmp_path / "site", {"handshake": 1})
    for _ in range(2):
        site.answer("handshake", {"task": "handshake"}, lambda *_: {})
    with pytest.raises(SiteLimitError, match="at most 1 requests of kind handshake"):
        site.answer("handshake", {"task": "handshake", "n": 1}, lambda *_: {})


def test_an_interrupted_line_is_no_fault_and_hides_no_answer(told, tmp_path):
    folder = tmp_path / "site"
    site = Site.create(folder)
    site.answer("train", {"message": {}, "path": "[]"}, lambda *_: {"a": 1})
    with site.file.open("ab") as file:
        file.write(b'{"event": "told", "req')
    assert not site.check().faults
    site.answer("train", {"message": {}, "path": "[1]"}, lambda *_: {"a": 1})
    assert (found := site.check()).counts == {"train": 2}
    assert not found.faults


def test_sites_with_different_messages_are_reported(tmp_path):
    sites = [Site.create(tmp_path / name) for name in "ab"]
    for site, model in zip(sites, (1.0, 2.0), strict=True):
        for message, path in (({"w": 0.0}, "first"), ({"w": model}, "second")):
            site.answer("train", {"message": message, "path": path}, lambda *_: {})
    assert different_messages([site.check() for site in sites]) == ["second"]
    # who asks once more with the message of the others does not hide the first one
    sites[0].answer("train", {"message": {"w": 2.0}, "path": "second"}, lambda *_: {})
    assert different_messages([site.check() for site in sites]) == ["second"]
    # nor does who asks both once more, each with the message of the other
    sites[1].answer("train", {"message": {"w": 1.0}, "path": "second"}, lambda *_: {})
    assert different_messages([site.check() for site in sites]) == ["second"]


def test_an_exchange_that_is_written_otherwise_is_the_same(tmp_path):
    sites = [Site.create(tmp_path / name) for name in "ab"]
    for site, path in zip(sites, ('["round", 1]', '["\\u0072ound",1]'), strict=True):
        site.answer("train", {"message": {"w": len(path)}, "path": path}, lambda *_: {})
        site.answer("train", {"message": {"w": 0}, "path": "[" * 10**5}, lambda *_: {})
    reports = [site.check() for site in sites]
    assert different_messages(reports) == ['["round", 1]']
    assert not any(report.faults for report in reports)
    assert unshared_exchanges(reports) == 0


def test_an_exchange_that_each_site_knows_by_another_name_is_not_taken_as_compared(tmp_path):
    sites = [Site.create(tmp_path / name) for name in "ab"]
    for site, path in zip(sites, ('["round", 1]', '["round", 1.0]'), strict=True):
        site.answer("train", {"message": {"w": len(path)}, "path": path}, lambda *_: {})
    reports = [site.check() for site in sites]
    assert different_messages(reports) == []
    assert unshared_exchanges(reports) == 2
    assert unshared_exchanges(reports[:1]) == 0


def test_costs_are_those_of_the_account(tmp_path):
    pytest.importorskip("dp_accounting")
    from tests.remote.test_budgets import NOISY

    accounts = PrivacyAccounts(tmp_path / "accounts", "client0")
    for i in range(3):
        one = dataclasses.replace(accounts, data=f"client{i}")
        one.create("example", epsilon=9.0, dp_delta=1e-2)
    given = {"method": NOISY, "accounts": tmp_path / "accounts"}
    nodes, seen, sites = at_sites(tmp_path, {"train": 9}, **given)
    train(NOISY, seen, engine=nodes)
    (found, *_), balance = [site.check() for site in sites], accounts.balance("example")
    assert found.epsilon == pytest.approx(balance.epsilon)
    assert found.epsilon > 0


@pytest.mark.parametrize("limits", ['{"trian": 3}', '{"train": -1}', '{"train": true}', "[]"])
def test_limits_that_say_nothing_are_refused(limits, tmp_path):
    (tmp_path / "limits.json").write_text(limits)
    with pytest.raises(ValueError, match="numbers of requests by kind"):
        Site(tmp_path)
    with pytest.raises(ValueError, match="numbers of requests by kind"):
        Site.create(tmp_path / "new", json.loads(limits))
    assert not (tmp_path / "new").exists()


def test_a_site_is_created_by_a_command(tmp_path, capsys):
    words = ["account", "site", str(tmp_path / "site"), "--limits", '{"train": 30, "scores": 0}']
    assert execute(words) == 0
    assert Site(tmp_path / "site").limits == {"train": 30, "scores": 0}
    assert str(tmp_path / "site") in capsys.readouterr().out
    assert (tmp_path / "site" / "0.key").stat().st_mode & 0o777 == 0o600


def test_an_audit_checks_the_sites_that_it_is_given(told, tmp_path, capsys, monkeypatch):
    sound = Audit(ledger=1.0, bound=0.5, ideals=(0.6,), faults=())
    monkeypatch.setattr("fedbolic.testing.run_audit.audit_run", lambda *_, **__: sound)
    other = Site.create(tmp_path / "other")
    path = next(iter(Site(told[0][1].folder).check().messages))
    other.answer("train", {"message": {"w": 0}, "path": path}, lambda *_: {})
    folder = copied(told[0][1], tmp_path)
    words = ["audit", str(told[1]), "--sites", str(folder)]
    assert execute(words) == 0
    said = capsys.readouterr().out
    assert "site copy: 3 train" in said
    assert "not " not in said.split("site copy")[1]  # all was compared and checked
    assert execute([*words, str(other.folder)]) != 0
    said = capsys.readouterr().out
    assert f"sites received different messages in {path}\n" in said
    assert "FAULT: site other: it has no reply that the run's server has" in said
    assert "2 exchanges reached only some sites, and are not compared\n" in said
    lines = (folder / "transcript").read_bytes().splitlines(keepends=True)
    (folder / "transcript").write_bytes(b"".join(lines[1:]))
    assert execute(words) != 0
    assert "FAULT: site copy: a line is missing" in capsys.readouterr().out
    monkeypatch.setattr("fedbolic.cli.commands._names_of_states", lambda _: [])
    assert execute(words) != 0
    assert "so the ends of transcripts are not checked\n" in capsys.readouterr().out
