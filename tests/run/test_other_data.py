"""Every method with every kind of data: it learns, or is refused before the run."""

import functools

import pytest

from fedbolic.core.rng import Rng
from fedbolic.federated import Method, RunStoppedError, Trainer
from fedbolic.federated.contract.method import OtherDataError
from fedbolic.run.configuration import SetupError, build
from fedbolic.run.experiment import run
from fedbolic.run.loaded_data import suited_methods
from tests.subjects import QUICK, ROOT, settings, short, small

KINDS = {
    "examples": "fedavg",
    "nodes": "flatland",
    "pairs of nodes": "flatland/links",
    "whole graphs": "flatland/graphs",
    "hierarchy": "hierarchies",
}
"""A configuration with data of each kind."""


@functools.cache
def data_of(kind):
    return small(settings(KINDS[kind])["data"].load(Rng(0)))


@pytest.mark.parametrize("kind", KINDS)
def test_a_method_learns_from_data_or_is_refused_before_the_first_round(kind):
    """Another error before the run, of sizes or shapes, is a refusal, too.

    The contract's tests train every method on data of its own kind.
    """
    stopped, refused, own = {}, set(), type(settings(KINDS[kind])["data"])
    for name in QUICK:
        if type(settings(name)["data"]) is own and name != KINDS[kind]:
            continue
        method, trainer = short(settings(name)["method"]), Trainer()
        try:
            state = trainer.begin(method, data_of(kind), Rng(0))
        except ValueError as error:
            refused |= {name} if isinstance(error, OtherDataError) else set()
            continue
        try:
            next(trainer.run(method, data_of(kind), Rng(0), state))
        except RunStoppedError as error:
            stopped[name] = str(error)
    assert stopped == {}
    assert KINDS[kind] not in refused
    assert ("hierarchies" in refused) == (kind != "hierarchy")
    assert ("fedavg" in refused) == (kind == "hierarchy")


def test_a_refusal_names_methods_that_fit(tmp_path):
    config = str(ROOT / "hierarchies" / "quick.yaml")
    given = build(
        run, ["--config", config, f"--runs={tmp_path}", "--method=fedbolic.methods.FedAvg"]
    )
    with pytest.raises(SetupError) as refusal:
        run(**given)
    kind = type(data_of("hierarchy").clients[0].train)
    assert all(path in str(refusal.value) for path in ("FedAvg learns from", *suited_methods(kind)))
    assert list(tmp_path.iterdir()) == []


def test_an_outsiders_method_is_not_refused():
    class Outsider(Method):
        aggregator = init = local_update = server_update = evaluate = None

    assert isinstance(data_of("hierarchy").clients[0].train, Outsider().traits.learns_from)
