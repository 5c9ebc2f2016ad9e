"""The table of what clients hold: counted by hand, and shown of no private run."""

import torch

from fedbolic.cli.client_list import FIRST_CLIENTS, LISTED, client_list
from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from fedbolic.data import Client, Examples, FederatedData, PartitionedHierarchy
from tests.command_line import refused


def examples(labels):
    return Examples({"x": torch.zeros(len(labels), 2), "y": torch.tensor(labels)})


def federation(num_clients, num_classes, labels):
    meta = Meta(num_classes, (2,), num_clients)
    made = (Client(i, *(examples(x) for x in labels), meta) for i in range(num_clients))
    return FederatedData(tuple(made), meta)


def test_a_line_counts_the_examples_of_each_class():
    lines = client_list(federation(2, 3, ([0, 2, 2], [1], [0, 1]))).splitlines()
    assert len(lines) == 3
    assert lines[1].split() == ["0", "3", "1", "2", "1", "0", "2"]


def test_many_classes_are_counted_together():
    table = client_list(federation(1, LISTED + 1, ([0, 2, 2], [1], [0, 1])))
    assert table.endswith(f"2 of {LISTED + 1} classes")


def test_clients_without_labels_have_no_classes():
    lines = client_list(PartitionedHierarchy().load(Rng(0))).splitlines()
    assert lines[0].split() == ["client", "training", "validation", "test"]


def test_of_many_clients_the_first_ones_have_lines():
    text = client_list(federation(FIRST_CLIENTS + 5, 2, ([0, 1, 1], [1], [0])))
    assert len(text.splitlines()) == FIRST_CLIENTS + 2
    assert text.endswith("and 5 more clients with 3 to 3 training examples")


def test_a_dry_run_shows_the_clients_and_writes_nothing(fedbolic, config, runs):
    code, out, err = fedbolic("run", "--config", config, "--runs", runs, "--dry-run")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].split()[:2] == ["client", "training"]
    assert not runs.exists()


def test_a_dry_run_of_what_could_not_start_is_refused(fedbolic, config, runs):
    words = ("run", "--config", config, "--runs", runs)
    assert refused(fedbolic(*words, "--dry-run", "--name=../x"), names=["name must stay inside"])
    fedbolic(*words)
    assert refused(fedbolic(*words, "--dry-run"), names=["exists", "--overwrite"])
    assert fedbolic(*words, "--dry-run", "--overwrite")[0] == 0
    assert (runs / "tiny" / "seed0" / "state.pt").exists()


def test_a_run_begins_with_the_table_of_its_clients(fedbolic, config, runs):
    code, _, err = fedbolic("run", "--config", config, "--runs", runs)
    assert code == 0
    assert [line.split()[0] for line in err.splitlines()[:4]] == ["client", "0", "1", "2"]


def test_a_private_run_shows_no_clients(fedbolic, config, runs):
    private = ["--privacy.epsilon=8", "--privacy.dp_delta=1e-5", "--evaluation.per_client=false"]
    told = fedbolic("run", "--config", config, "--runs", runs, "--dry-run", *private)
    assert told[0] == 0, told
    assert "training examples" not in told[1]
    code, _, err = fedbolic("run", "--config", config, "--runs", runs, *private)
    assert code == 0, err
    assert "training examples by class" not in err


def test_a_dry_run_of_a_method_that_cannot_learn_is_refused(fedbolic, config, runs):
    words = ("run", "--config", config, "--runs", runs, "--method=FlatLand", "--dry-run")
    code, out, err = fedbolic(*words)
    assert (code, out) == (2, "")
    assert "take other data, or one of" in err
