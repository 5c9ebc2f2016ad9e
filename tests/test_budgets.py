"""Budgets of work on a GPU, counted on a shadow device: a change that needs more work fails.

A number is lowered with the work and raised only with a reason. Nothing here measures time.
"""

import pytest

from fedbolic.federated import Batched, Graphed, Sequential
from fedbolic.federated.engines.static_steps import StaticSteps
from tests import shadow
from tests.budgets import METHODS, exchange_of, spent

ENGINES = {
    "sequential": Sequential(),
    "batched": Batched(memory=1e6),
    "graphed": Graphed(memory=1e6),
}

LAUNCHES = {
    "fedavg mlp": ((17, 20), (53, 20), (57, 23)),
    "fedavg mlp adam": ((19, 38), (126, 31), (130, 36)),
    "fedavg mlp dropout": ((50, 23), (86, 22), (90, 25)),
    "fedavg convnet": ((29, 28), (77, 29), (81, 34)),
    "fedprox convnet": ((56, 44), (125, 39), (129, 46)),
    "ditto convnet": ((79, 36), (161, 39), (165, 46)),
    "scaffold convnet": ((46, 89), (94, 91), (98, 102)),
    "spherefed convnet": ((50, 24), (81, 24), (85, 28)),
    "hyperfed": ((257, 29), (288, 28), (293, 32)),
    "hyperfed trained": ((430, 31), (461, 30), (466, 35)),
    "hyperfed mixup": ((342, 32), (410, 29), (417, 34)),
    "h-ce": ((245, 29), (288, 28), (292, 33)),
    "resnet batch norm": ((228, 201), (485, 231), (489, 278)),
    "resnet group norm": ((148, 141), (424, 156), (428, 188)),
    "gcn": ((103, 89), (118, 84), (121, 93)),
    "flatland": ((386, 224), (401, 222), (404, 234)),
    "fedpub": ((111, 135), (126, 132), (129, 143)),
}
"""For each engine of :data:`ENGINES`: launches of a step, and per client and round besides.

A step is one client's with ``Sequential``, else all clients'. A graph of ``Graphed`` holds the
launches of its step.
"""

WAITS = {"gcn": 2.5, "flatland": 3.5, "fedpub": 2.5}
"""Waits per client and round of methods that score each client at the end of its training."""

UPLOADS = {"hyperfed": 2, "hyperfed trained": 2, "hyperfed mixup": 4, "flatland": 2}
"""Copies to the device per client and round of methods that send it draws, or a curvature."""

USUAL = {"fedavg mlp", "fedavg mlp dropout", "fedavg convnet", "scaffold convnet", "hyperfed"}
"""Methods whose budgets are checked by default, with FlatLand; the others are slow."""

SLOW = METHODS.keys() - USUAL - {"flatland"}

CASES = [
    pytest.param(name, engine, marks=pytest.mark.slow if name in SLOW else [])
    for name in METHODS
    for engine in ENGINES
]


@pytest.mark.parametrize(("name", "engine"), CASES)
def test_training_stays_within_its_budget(name, engine, monkeypatch):
    found = spent(name, ENGINES[engine], monkeypatch)
    of_step, of_round = LAUNCHES[name][list(ENGINES).index(engine)]
    assert found.step_waits == 0
    assert found.step_uploads == 0
    assert found.launches <= of_step
    assert found.round_launches <= of_round
    assert found.waits <= WAITS.get(name, 1)
    assert found.uploads <= UPLOADS.get(name, 1)


CAPTURED = [
    pytest.param(
        name,
        together,
        marks=pytest.mark.slow if name in SLOW or (together and name != "fedavg convnet") else [],
    )
    for name in METHODS
    for together in (None, 1)
]


@pytest.mark.parametrize(("name", "together"), CAPTURED)
def test_a_step_can_be_captured(name, together, monkeypatch):
    """Two calls launch the same operations with the same numbers, and never involve the host."""
    calls, take = {}, StaticSteps._take

    def noted(self, call, width, **options):
        work = active[-1].work
        before, work.log = work.total(), []
        take(self, call, width, **options)
        after = work.total()
        key = id(self), len(call[1]), options["last"]
        used = after["waits"] - before["waits"], after["uploads"] - before["uploads"]
        calls.setdefault(key, []).append((work.log, used))
        work.log = None

    active = shadow._ACTIVE
    monkeypatch.setattr(StaticSteps, "_take", noted)
    engine = Graphed(memory=1e6, together=together)
    exchange_of(name, engine=engine, epochs=3, monkeypatch=monkeypatch)
    repeated = [some for some in calls.values() if len(some) > 2]
    assert repeated
    for _, *later in repeated:
        assert all(used == (0, 0) for _, used in later)
        assert all(log == later[0][0] for log, _ in later)
