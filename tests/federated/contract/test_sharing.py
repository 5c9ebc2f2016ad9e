"""Sharing tables: a row that decides nothing is refused before the first round."""

import dataclasses
from fnmatch import fnmatchcase

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Partitioned
from fedbolic.federated import LocalTraining, Trainer
from fedbolic.federated.contract.sharing import check_patterns, kinds
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.run.configuration import SetupError
from fedbolic.run.experiment import run
from tests.federated.simple_method import NormNet
from tests.subjects import subject

NAMES = ["body.1.weight", "body.1.bias", "body.2.running_mean", "head.weight", "head.bias"]
PATTERNS = ["*", "head.*", "body.*", "*.bias", "head.bias", "haed.*", "body.2.*", "tail"]
KINDS = ["shared", "personal", "fixed"]
tables = st.dictionaries(st.sampled_from(PATTERNS), st.sampled_from(KINDS), min_size=1)


@given(table=tables)
def test_a_table_is_refused_if_and_only_if_a_row_can_be_left_out(table):
    def first(name, rows):
        return next((p for p in rows if fnmatchcase(name, p)), None)

    assume(all(first(name, table) for name in NAMES))
    idle = [p for p in table if all(first(name, table) != p for name in NAMES)]
    if idle == ["*"]:
        idle = []  # "*" catches the names of other networks
    if not idle:
        check_patterns(table, NAMES)
        return
    with pytest.raises(ValueError, match="sharing of") as caught:
        check_patterns(table, NAMES)
    assert any(f"sharing of {pattern!r}" in str(caught.value) for pattern in idle)
    without = {p: kind for p, kind in table.items() if p not in idle}
    assert kinds(without, NAMES) == kinds(table, NAMES)


@pytest.mark.parametrize(
    ("pattern", "near"),
    [("haed.*", "'head.*'"), ("head.wieght", "'head.weight'"), ("boddy.1.*", "'body.1.*'")],
)
def test_an_error_names_the_pattern_and_what_is_near(pattern, near):
    with pytest.raises(ValueError, match="matches no parameter") as caught:
        check_patterns({pattern: "personal", "*": "shared"}, NAMES)
    message = str(caught.value)
    assert repr(pattern) in message
    assert near in message
    assert "body.1.bias" in message


def test_a_row_below_one_that_takes_its_names_is_refused():
    with pytest.raises(ValueError, match=r"'head.\*' has no effect: the earlier row '\*'"):
        check_patterns({"*": "shared", "head.*": "personal"}, NAMES)


def test_a_run_with_a_mistyped_pattern_writes_nothing(tmp_path):
    method = FedAvg(
        MLP((4,)), local=LocalTraining(1), sharing={"haed.*": "personal", "*": "shared"}
    )
    data = Partitioned(partition=IID(2), num_train=20, num_test=5)
    with pytest.raises(SetupError, match=r"did you mean 'head.\*'"):
        run(method, data, runs=tmp_path)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["fedavg", "flatland", "fedpub"])
def test_every_method_with_a_table_refuses_at_the_start(name):
    method, data = subject(name)
    Trainer().begin(method, data, Rng(0))
    method = dataclasses.replace(method, sharing={"haed.*": "personal", **method.sharing})
    with pytest.raises(ValueError, match=r"'haed.\*' matches no parameter"):
        Trainer().begin(method, data, Rng(0))


def test_a_pattern_may_match_buffers_alone():
    method, data = subject("fedavg")
    sharing = {"*.running_*": "personal", "*": "shared"}
    Trainer().begin(dataclasses.replace(method, backbone=NormNet(), sharing=sharing), data, Rng(0))
