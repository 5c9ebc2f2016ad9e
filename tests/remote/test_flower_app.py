"""The Flower app with a grid in this process: everything except Flower's own processes."""

import contextlib
import json

import pytest
import torch

from fedbolic.data import HolderFiles, agree_names
from fedbolic.federated import Evaluation
from fedbolic.hierarchies import HierarchyEmbedding
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.site import Site
from fedbolic.run.configuration import build, describe
from fedbolic.run.experiment import run
from fedbolic.run.record import RunFolder
from flynn import FlyNN, Histogram
from tests.federated.simple_method import assert_near

flwr = pytest.importorskip("flwr.app")
serverapp = pytest.importorskip("flwr.serverapp")
identity = pytest.importorskip("flwr.supercore.task_identity").TaskIdentity
app = pytest.importorskip("fedbolic.remote.app")
client = pytest.importorskip("fedbolic.remote.client").client
flower = pytest.importorskip("fedbolic.remote.flower")


class Here(serverapp.Grid):
    """Nodes that reply at once until they have left.

    ``lives`` holds the number of training requests that a node serves before it leaves.
    """

    def __init__(self, configs, settings, lives):
        self.lives = lives
        self.contexts = {
            10 + i: flwr.Context(
                run_id=1,
                node_id=10 + i,
                node_config={**config, "num-partitions": len(configs)},  # answers in this process
                state=flwr.RecordDict(),
                run_config=settings,
            )
            for i, config in enumerate(configs)
        }
        self.gone, self.replies = set(), {}

    def set_run(self, run): ...

    @property
    def run(self): ...

    def create_message(self, *_): ...

    def send_and_receive(self, messages, *, timeout=None): ...

    def get_node_ids(self):
        return [node for node in self.contexts if node not in self.gone]

    def push_messages(self, messages):
        ids = []
        for message in messages:
            node = message.metadata.dst_node_id
            if message.metadata.message_type == "train" and node in self.lives:
                self.lives[node] -= 1
            if self.lives.get(node, 0) < 0:
                self.gone.add(node)
                ids.append(f"lost {node}")
                continue
            ids.append(f"{node} {len(self.replies)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            self.replies[ids[-1]] = client(message, self.contexts[node])
        return ids

    def pull_messages(self, message_ids):
        return [self.replies.pop(i) for i in message_ids if i in self.replies]


@pytest.fixture(autouse=True)
def _identity(monkeypatch):
    """Set the task and run of messages, which Flower's processes would set."""
    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(identity, name, 1)


@pytest.fixture
def settings(config, runs):
    places = ["--config", str(config), "--runs", str(runs), "--name=far", "--device=cpu"]
    return build(run, [*places, "--precision=64-true", "--evaluation.fine_tuning.epochs=1"])


THREE = tuple({"partition-id": i} for i in range(3))


def serve(settings, folder, *, configs=THREE, gone=(), lives=(), **limits):
    """Outcome of the server's app."""
    of_app = {
        **{"config": describe(run, settings), "clients": 3, "timeout": 5.0, "least": 1},
        **{
            "overwrite": False,
            "client_state": str(folder / "nodes"),
            "run": "client_state",
            "resume": "",
        },
        **{"outcome": str(folder / "outcome.json"), **limits},
    }
    grid = Here(configs, of_app, dict(lives))
    grid.gone = set(gone)
    context = flwr.Context(
        run_id=1, node_id=1, node_config={}, state=flwr.RecordDict(), run_config=of_app
    )
    with contextlib.suppress(Exception):  # the outcome says which
        app.server(grid, context)
    return json.loads((folder / "outcome.json").read_text())


def rows(path):
    lines = (path / "metrics.csv").read_text().splitlines()[1:]
    parts = [line.rpartition(",") for line in lines]
    return [name for name, _, _ in parts], [float(value) for _, _, value in parts]


def assert_same_run(far, plain):
    states = [
        torch.load(path / "state.pt", weights_only=True)["server_state"] for path in (far, plain)
    ]
    assert_near(*states, 1e-10)
    assert rows(far)[0] == rows(plain)[0]
    assert rows(far)[1] == pytest.approx(rows(plain)[1], abs=1e-10)


def test_the_app_does_what_sequential_does(settings, runs, tmp_path):
    assert serve(settings, tmp_path) == {"code": 0, "error": ""}
    plain = run(**{**settings, "name": "plain"})
    assert_same_run(runs / "far" / "seed0", plain)
    environment = json.loads((runs / "far" / "seed0" / "environment.json").read_text())
    assert environment["engine"] == "Nodes"
    assert environment["deployment"] == {"timeout": 5.0, "least": 1}


def test_an_app_that_is_run_again_goes_on(settings, runs, tmp_path):
    said = serve(settings, tmp_path, lives={12: 1}, least=3)
    assert said["code"] == 1
    assert said["error"] == "2 of 3 clients replied, fewer than least=3: {2: 'its node is gone'}"
    far = runs / "far" / "seed0"
    assert torch.load(far / "state.pt", weights_only=True)["round"] == 1
    assert serve(settings, tmp_path, least=3)["code"] == 0
    assert_same_run(far, run(**{**settings, "name": "plain"}))


def test_without_a_client_a_run_goes_on_if_it_may(settings, runs, tmp_path):
    assert serve(settings, tmp_path, lives={12: 1}, least=2)["code"] == 0
    names, values = rows(runs / "far" / "seed0")
    failed = [v for n, v in zip(names, values, strict=True) if n.endswith(",clients/failed")]
    assert failed == [0, 1]


def test_a_missing_node_is_named_and_nothing_is_written(settings, runs, tmp_path):
    said = serve(settings, tmp_path, gone={11}, timeout=0.01)
    assert said == {"code": 1, "error": "2 of 3 clients joined within 0.01 seconds: [0, 2]"}
    assert not runs.exists()


def test_a_wrong_setting_is_said_in_one_line(settings, runs, tmp_path):
    said = serve(settings, tmp_path, least=0)
    assert said == {"code": 2, "error": "least must be at least 1, got 0"}


def test_a_node_may_have_data_a_folder_and_a_site_of_its_own(settings, config, runs, tmp_path):
    pytest.importorskip("cryptography")
    site = Site.create(tmp_path / "site", {"train": 1})
    own = tmp_path / "own.yaml"
    own.write_text(config.read_text().replace("num_clients: 3", "num_clients: 1"))
    node = {"partition-id": 2, "config": str(own), "client_state": str(tmp_path / "there")}
    node["site"] = str(site.folder)
    configs = [{"partition-id": 0}, {"partition-id": 1}, node]
    said = serve(settings, tmp_path, configs=configs)
    assert said["code"] == 0, said
    assert {each.name for each in (tmp_path / "nodes").iterdir()} == {"0", "1"}
    assert (tmp_path / "there" / "client_state.pt").exists()
    names, values = rows(runs / "far" / "seed0")
    weights = dict(zip(names, values, strict=True))
    assert weights["1,2,train/loss"] != weights["1,1,train/loss"]
    assert "2,2,train/loss" not in weights  # of a second request
    assert site.check().counts == {"handshake": 1, "train": 1}
    states = RunFolder(runs / "far" / "seed0").read_checkpoint()["client_states"]
    received = [own["name"] for own in states.values()]
    assert not site.check(received).faults
    *earlier, _ = [line for line in site.file.read_bytes().splitlines(True) if b'"told"' in line]
    site.file.write_bytes(b"".join(site.file.read_bytes().partition(earlier[-1])[:2]))
    assert any("its end was cut off" in fault for fault in site.check(received).faults)


def test_a_run_that_goes_on_reads_the_data_anew(settings, tmp_path):
    table, own = tmp_path / "own.csv", tmp_path / "own.yaml"
    own.write_text(
        "data:\n  class_path: fedbolic.data.Partitioned\n  init_args:\n"
        f"    dataset: {{class_path: TableFile, init_args: {{path: {table}, target: outcome}}}}\n"
        "    partition: {class_path: fedbolic.data.IID, init_args: {num_clients: 1}}\n"
        "    num_train: null\n    num_test: null\n"
    )
    node, of_app = {"partition-id": 0, "config": str(own)}, {"config": describe(run, settings)}
    context = flwr.Context(1, 1, node, flwr.RecordDict(), {**of_app, "clients": 1})

    def held(number):
        lines = [f"{i},{i % 7},{'ill' if i % 2 else 'well'}" for i in range(number)]
        table.write_text("\n".join(["age,dose,outcome", *lines]))
        told = flower.from_records(app.answer(flower.to_records({"task": "handshake"}), context))
        return told["size"]

    assert held(100) < 100 < held(200)


def test_a_node_takes_the_number_of_clients_from_its_own_configuration(settings, runs, tmp_path):
    configs = [{"partition-id": 0, "clients": 10}, {"partition-id": 1}, {"partition-id": 2}]
    assert serve(settings, tmp_path, configs=configs, least=2)["code"] == 0
    names, values = rows(runs / "far" / "seed0")
    failed = [v for n, v in zip(names, values, strict=True) if n.endswith(",clients/failed")]
    assert failed == [1, 1]  # the server claims another federation to client 0


def test_a_node_with_accounts_takes_nothing_that_protects_its_data_from_the_app(
    settings, runs, tmp_path
):
    """The app asks for exact counts; nodes with accounts answer by their own mechanism or not."""
    folder, own = tmp_path / "accounts", tmp_path / "own.yaml"
    exact = {**settings, "method": FlyNN(dim=64, fan_in=3, active=5)}
    exact |= {"evaluation": Evaluation()}
    noisy = {**exact, "method": FlyNN(dim=64, fan_in=3, active=5, privacy=Histogram(0.4))}
    for i in range(3):
        PrivacyAccounts(folder, f"clinic{i}").create("example", epsilon=0.5)
    mine = {"accounts": str(folder), "config": str(own), "clients": 3}
    nodes = [{"partition-id": i, "data_name": f"clinic{i}", **mine} for i in range(3)]

    def replies(app, text):
        own.write_text(text)
        return serve({**app, "name": f"far{len(text)}"}, tmp_path, configs=nodes)["error"]

    assert "needs ['data', 'method'] in its own config" in replies(exact, "device: cpu\n")
    assert "0 of 3 clients replied" in replies(exact, describe(run, exact))
    assert all(not p.balance("example").num_charges for p in accounts_in(folder))
    assert replies(noisy, describe(run, noisy)) == ""
    assert [p.balance("example").epsilon for p in accounts_in(folder)] == [0.4] * 3
    assert "0 of 3 clients replied" in replies({**noisy, "seed": 1}, describe(run, noisy))
    assert [p.balance("example").epsilon for p in accounts_in(folder)] == [0.4] * 3


def accounts_in(folder):
    return [PrivacyAccounts(folder, f"clinic{i}") for i in range(3)]


def test_what_is_no_letter_is_refused():
    records = flwr.RecordDict({"text": flwr.ConfigRecord({"text": "{}"})})
    with pytest.raises(ValueError, match="a message must have one text and its tensors as records"):
        app.from_records(records)


def test_trees_travel_as_records_of_flower():
    tree = {"x": torch.arange(6.0).reshape(2, 3), "deep": {"n": 2**100, "t": "text", "z": -0.5}}
    records = app.to_records(tree)
    assert records.array_records["tensors"]["0"].shape == (2, 3)
    assert_near(app.from_records(records)["x"], tree["x"], 0.0)
    assert app.from_records(records)["deep"] == tree["deep"]


def test_nodes_with_one_file_each_do_what_a_simulation_of_all_files_does(runs, tmp_path):
    """Five holders under keyed names: no node reads another's file, and the server reads none."""
    shops, common = tmp_path / "shops", tmp_path / "common.tsv"
    shops.mkdir()
    common.write_text("laptops\tgoods\nphones\tgoods\n")
    (tmp_path / "key").write_text("a7" * 32)
    lists = []
    for i, shop in enumerate("abcde"):
        file = shops / f"{shop}.csv"
        file.write_text(f"child,parent\nMac{i},laptops\nPhone{i},phones\nCase{i},Phone{i}\n")
        lists.append(tmp_path / f"{shop}.names")
        agree_names([file, common], lists[-1], key=tmp_path / "key")
    agree_names(lists, tmp_path / "all.names")
    method = HierarchyEmbedding(dim=2, rounds=2)
    places = ["--runs", str(runs), "--name=far", "--device=cpu", "--precision=64-true"]
    secret = {"common": common, "key": tmp_path / "key", "names": tmp_path / "all.names"}
    settings = build(run, places) | {
        "method": method,
        "data": HolderFiles({}, names=secret["names"]),
    }
    nodes = []
    for i, shop in enumerate("abcde"):
        own = {**settings, "data": HolderFiles({shop: shops / f"{shop}.csv"}, **secret)}
        (tmp_path / f"{shop}.yaml").write_text(describe(run, own))
        nodes.append({"partition-id": i, "config": str(tmp_path / f"{shop}.yaml")})
    said = serve(settings, tmp_path, configs=nodes, clients=5, least=5)
    assert said == {"code": 0, "error": ""}
    together = HolderFiles(shops, common=common, key=tmp_path / "key")
    plain = run(**{**settings, "data": together, "name": "plain"})
    far = runs / "far" / "seed0"
    states = [torch.load(p / "state.pt", weights_only=True)["server_state"] for p in (far, plain)]
    assert_near(*states, 1e-10)
    own = [dict(zip(*rows(path), strict=True)) for path in (far, plain)]
    scored = [name for name in own[0] if "test/own/map" in name]
    assert len(scored) > 5
    assert [own[0][name] for name in scored] == pytest.approx([own[1][name] for name in scored])
