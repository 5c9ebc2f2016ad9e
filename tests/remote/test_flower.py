"""Real federations of processes on this machine: with --flower, a few minutes each."""

import contextlib
import csv
import dataclasses
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
import yaml

from fedbolic.data import HolderFiles, HolderTriples, agree_names, write_triple_names
from fedbolic.federated import Evaluation
from fedbolic.federated.secure import write_identities
from fedbolic.hierarchies import HierarchyEmbedding, SlotLayout
from fedbolic.knowledge import KnowledgeEmbedding
from fedbolic.remote import loopback
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.processes import Federation
from fedbolic.run.configuration import build, describe
from fedbolic.run.experiment import run
from fedbolic.run.record import RunFolder
from tests.federated.simple_method import assert_near

pytestmark = [
    pytest.mark.flower,
    pytest.mark.skipif(find_spec("flwr") is None, reason="needs the extra flower"),
]

DIRICHLET = {
    "class_path": "fedbolic.data.Dirichlet",
    "init_args": {"num_clients": 3, "alpha": 1.0, "min_size": 40},
}
DIGITS = {
    "class_path": "fedbolic.data.Partitioned",
    "init_args": {"dataset": "fedbolic.data.Digits", "partition": DIRICHLET},
}
FEDAVG = {
    "method": {
        "class_path": "fedbolic.methods.FedAvg",
        "init_args": {"rounds": 3, "local": {"epochs": 1, "batch_size": 32}},
    },
    "data": DIGITS,
}
FLATLAND = {
    "method": {"class_path": "flatland.FlatLand", "init_args": {"rounds": 3, "proximal": 0.01}},
    "data": {
        "class_path": "fedbolic.data.Graphs",
        "init_args": {"graph": "fedbolic.data.BlockModel", "partition": DIRICHLET},
    },
}
FLYNN = {
    "method": {"class_path": "flynn.FlyNN", "init_args": {"dim": 2048, "active": 16}},
    "data": DIGITS,
}
FEDHULL = {
    "method": {
        "class_path": "fedhull.FedHull",
        "init_args": {
            "grid": {"epsilon": 0.1, "radius": 0.95},
            "boundary": {
                "class_path": "fedhull.HyperbolicBoundary",
                "init_args": {"C": 2e4, "pairs": 1},
            },
        },
    },
    "data": {
        "class_path": "fedbolic.data.HalfPlanes",
        "init_args": {
            **{"num_points": 600, "offset": 0.4, "margin": 0.01, "least": 60},
            "partition": {"class_path": "fedbolic.data.IID", "init_args": {"num_clients": 3}},
        },
    },
}
HIERARCHY = {
    "method": {
        "class_path": "fedbolic.hierarchies.HierarchyEmbedding",
        "init_args": {"dim": 2, "rounds": 3, "optimizer_state": "personal"},
    },
    "data": {
        "class_path": "fedbolic.data.PartitionedHierarchy",
        "init_args": {
            "hierarchy": {
                "class_path": "fedbolic.data.BalancedTree",
                "init_args": {"branching": 2, "depth": 5},
            },
            "partition": {"class_path": "fedbolic.data.Subtrees", "init_args": {"num_clients": 3}},
        },
    },
}
OURS = {"FEDBOLIC_TEST": str(os.getpid())}
"""Environment variable that marks the processes of these tests among other federations."""

METHODS = {
    "fedavg": FEDAVG,
    "flatland": FLATLAND,
    "flynn": FLYNN,
    "fedhull": FEDHULL,
    "hierarchies": HIERARCHY,
}
"""One method of each kind: gradients, personal client state, exact counts, several exchanges, and
payloads of some rows."""


def configuration(name, folder):
    """A file of the method's settings with scores at the end only: each request costs a process."""
    settings = {"name": name, "precision": "64-true", "device": "cpu", **METHODS[name]}
    file = folder / f"{name}.yaml"
    file.write_text(yaml.safe_dump({**settings, "evaluation": {"every": 3}}))
    return file


def sequential(file, folder):
    """The folder of the same run in this process."""
    return run(**{**build(run, ["--config", str(file)]), "runs": folder / "plain"})


def federation(*words):
    """Start the command line in a separate process."""
    words = [sys.executable, "-m", "fedbolic", *map(str, words)]
    return subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **OURS})


def ended(process):
    """Exit code and standard error of a command, which must leave no process behind."""
    _, said = process.communicate(timeout=1500)
    assert members() == {}, "processes are left"
    return process.returncode, said


def members():
    """Processes of these tests' federations: command by id."""
    found, own = {}, "=".join(*OURS.items()).encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if own in (folder / "environ").read_bytes().split(b"\0"):
                found[int(folder.name)] = (folder / "cmdline").read_bytes().decode().split("\0")
    return found


def rows(path, *, of=lambda row: True):
    with (path / "metrics.csv").open() as file:
        found = [row for row in csv.DictReader(file) if of(row)]
    names = [(row["round"], row["client"], row["name"]) for row in found]
    return names, [float(row["value"]) for row in found]


def server_state(path):
    return torch.load(path / "state.pt", weights_only=True)


def assert_same_run(path, plain):
    """Assert that state, metrics and client states are those of Sequential."""
    far, near = RunFolder(path).load(), RunFolder(plain).load()
    assert far["round"] == near["round"] > 0
    assert_near(far["server_state"], near["server_state"], 1e-10)
    (names, values), (expected, wanted) = rows(path), rows(plain)
    assert names == expected
    assert values == pytest.approx(wanted, abs=1e-10)
    assert far["client_states"].keys() >= near["client_states"].keys()
    for client_id, named in far["client_states"].items():
        assert named.keys() == {"name"}  # the client state itself stays on the node
        store = ClientStateStore(path / "nodes" / str(client_id) / "client_state.pt")
        assert_near(
            store.client_state(named["name"]), near["client_states"].get(client_id, {}), 1e-10
        )


@pytest.mark.parametrize("simulated", [False, True], ids=["processes", "simulated"])
@pytest.mark.parametrize("name", METHODS)
def test_a_federation_of_processes_does_what_sequential_does(name, simulated, tmp_path):
    file = configuration(name, tmp_path)
    words = ["--deployment.simulated", "true"] if simulated else []
    process = federation("flower", "--config", file, "--runs", tmp_path / "far", *words)
    code, said = ended(process)
    assert code == 0, said
    far = tmp_path / "far" / name
    assert_same_run(far / "seed0", sequential(file, tmp_path))
    assert [each.name for each in far.iterdir()] == ["seed0"]


def wait_for(condition, *, seconds=900):
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not come so far"
        time.sleep(0.1)
    return found


def kill_node(client_id, path):
    """Kill a SuperNode while its client works in round 2."""
    wait_for(lambda: (path / "state.pt").exists() and server_state(path)["round"] == 1)

    def at_work():
        found = members()
        node = [p for p, words in found.items() if f"partition-id={client_id}" in words]
        ports = {found[p][found[p].index("--port") + 1] for p in node}
        works = [words for words in found.values() if any("flwr-clientapp" in w for w in words)]
        return (
            node if ports & {word.rpartition(":")[2] for words in works for word in words} else None
        )

    (node,) = wait_for(at_work)
    os.kill(node, signal.SIGKILL)


def test_a_supernode_killed_in_mid_round_is_left_out_and_the_run_goes_on(tmp_path):
    file = configuration("fedavg", tmp_path)
    process = federation("flower", "--config", file, "--runs", tmp_path)
    path = tmp_path / "fedavg" / "seed0"
    kill_node(1, path)
    code, said = ended(process)
    assert code == 0, said
    names, failed = rows(path, of=lambda row: row["name"] == "clients/failed")
    assert [name[0] for name in names] == ["1", "2", "3"]
    assert failed == [0, 1, 1]
    assert server_state(path)["round"] == 3


def test_a_run_that_needs_all_stops_at_a_killed_supernode_and_resume_finishes_it(tmp_path):
    file = configuration("fedavg", tmp_path)
    words = ["--deployment.least=3", "--runs", tmp_path]
    process = federation("flower", "--config", file, *words)
    path = tmp_path / "fedavg" / "seed0"
    kill_node(1, path)
    code, said = ended(process)
    assert code == 1
    assert "stopped: 2 of 3 clients replied, fewer than least=3: {1:" in " ".join(said.split())
    assert server_state(path)["round"] == 1
    code, said = ended(federation("resume", path))
    assert code == 0, said
    assert_same_run(path, sequential(file, tmp_path))


def holders(folder):
    """Sources of five holders with a file each, of the server, and of all files in one place."""
    shops, common, key = folder / "shops", folder / "common.tsv", folder / "names.key"
    shops.mkdir()
    common.write_text("laptops\tgoods\nphones\tgoods\n")
    key.write_text("a7" * 32)
    lists, own = [], []
    agreed = {"common": common, "key": key, "names": folder / "all.names"}
    for i, shop in enumerate("abcde"):
        file = shops / f"{shop}.csv"
        file.write_text(f"child,parent\nMac{i},laptops\nPhone{i},phones\nCase{i},Phone{i}\n")
        lists.append(folder / f"{shop}.names")
        agree_names([file, common], lists[-1], key=key)
        own.append(HolderFiles({shop: file}, **agreed))
    agree_names(lists, folder / "all.names")
    return own, HolderFiles({}, names=agreed["names"]), HolderFiles(shops, common=common, key=key)


def triple_holders(folder):
    """The same of triples, which name pain and treatments in common."""
    files, key, kinds = folder / "files", folder / "names.key", ("entities", "relations")
    files.mkdir()
    key.write_text("a7" * 32)
    lists, own = {kind: [] for kind in kinds}, []
    agreed = {kind: folder / f"{kind}.names" for kind in kinds}
    whole = {"validation_rate": 0.0, "test_rate": 0.0}
    for i, holder in enumerate("abcde"):
        file = files / f"{holder}.tsv"
        file.write_text(f"drug{i}\ttreats\tpain\nflu{i}\tcauses\tpain\ndrug{i}\ttype{i}\tpill\n")
        for kind, names in lists.items():
            names.append(folder / f"{holder}.{kind}.names")
        write_triple_names([file], lists["entities"][-1], lists["relations"][-1], key=key)
        own.append(HolderTriples({holder: file}, **agreed, key=key, **whole))
    for kind, names in lists.items():
        agree_names(names, agreed[kind])
    return own, HolderTriples(**agreed, **whole), HolderTriples(files, key=key, **whole)


KNOWLEDGE = KnowledgeEmbedding(dim=2, rounds=2)


@pytest.mark.parametrize(
    ("method", "holders"),
    [
        (HierarchyEmbedding(dim=2, rounds=2), holders),
        (SlotLayout("published"), holders),
        (SlotLayout(), holders),
        (KNOWLEDGE, triple_holders),
        (dataclasses.replace(KNOWLEDGE, personal=("curvature",)), triple_holders),
    ],
    ids=["trained", "published", "kept_at_home", "triples", "own_curvature"],
)
def test_five_processes_with_five_files_do_what_a_simulation_does(method, holders, tmp_path):
    own, server, together = holders(tmp_path)
    settings = build(run, ["--runs", str(tmp_path), "--name=far", "--device=cpu"])
    settings |= {"method": method, "evaluation": Evaluation(every=2)}
    plain = run(**{**settings, "data": together, "name": "plain"})
    app = {**settings, "data": server}
    loopback.prepare(tmp_path / "app", app, loopback.DeploymentConfig(clients=5, least=5))
    nodes = []
    for i, source in enumerate(own):
        file = tmp_path / f"node{i}.yaml"
        file.write_text(describe(run, {**settings, "data": source}))
        nodes.append(f'partition-id={i} config="{file}" client_state="{tmp_path}/nodes/{i}"')
    with Federation(tmp_path / "federation") as there:
        there.start(nodes, simulated=False)
        there.submit(tmp_path / "app")
    far = RunFolder(tmp_path / "far" / "seed0").load()
    near = RunFolder(plain).load()
    assert far["round"] == near["round"] == method.rounds
    assert_near(far["server_state"], near["server_state"], 1e-6)
    for i, state in near["client_states"].items():
        (file,) = (tmp_path / "nodes" / str(i)).iterdir()
        name = far["client_states"][i]["name"]
        assert_near(ClientStateStore(file).client_state(name), state, 1e-6)


def test_five_private_nodes_have_the_epsilon_of_their_accounts_on_the_page_and_in_the_audit(
    tmp_path,
):
    """A secure sum to which the nodes add noise, by commands alone."""
    write_identities(tmp_path / "keys", 5)
    sums = {"survivors": 4, "dp_delta": 1e-3, "epsilon": 8.0, "neighbours": "add/remove"}
    noisy = {"privacy": sums, "method": FEDAVG["method"]}
    secure = {
        **{"threshold": 4, "keys": str(tmp_path / "keys")},
        "method": {"class_path": "fedbolic.federated.DistributedNoise", "init_args": noisy},
    }
    method = {"class_path": "fedbolic.federated.secure.SecureSum", "init_args": secure}
    partition = {"class_path": "fedbolic.data.IID", "init_args": {"num_clients": 5}}
    data = {**DIGITS, "init_args": {**DIGITS["init_args"], "partition": partition}}
    (file := tmp_path / "private.yaml").write_text(yaml.safe_dump({"method": method, "data": data}))
    for i in range(5):
        words = [tmp_path / "accounts", f"client{i}", "--unit", "client", "--epsilon", 8.01]
        assert ended(federation("account", "create", *words, "--dp_delta", 1e-3))[0] == 0
    words = ["--runs", tmp_path, "--deployment.accounts", tmp_path / "accounts", "--name", "far"]
    code, said = ended(federation("flower", "--config", file, "--device", "cpu", *words))
    assert code == 0, said
    path, page = tmp_path / "far" / "seed0", tmp_path / "page.html"
    _, spent = rows(path, of=lambda row: row["name"] == "privacy/epsilon")
    assert ended(federation("report", tmp_path / "far", "--html", page))[0] == 0
    assert re.search(rf"epsilon.*>{spent[-1]:.4g}<", page.read_text(), re.DOTALL)
    accounts = [PrivacyAccounts(tmp_path / "accounts", f"client{i}") for i in range(5)]
    assert {each.balance("client").epsilon for each in accounts} == {spent[-1]}
    words = [sys.executable, "-m", "fedbolic", "audit", str(path), "--planted", "8"]
    audited = subprocess.run(words, capture_output=True, text=True, check=True).stdout
    assert re.match(r"ledger: epsilon [78]\.\d+, accounts of nodes [78]\.\d+; attack", audited)
