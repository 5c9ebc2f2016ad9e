"""The reference trains, ends and scores clients by itself, without what other engines stack."""

import dataclasses
import sys
from pathlib import Path

import pytest

import fedbolic
from fedbolic.federated import Evaluation, FineTune, Method, RidgeHead, Sequential
from tests.subjects import QUICK, RNG, recorded
from tests.testing.test_fresh_process import RUNS

FEDERATED = Path(fedbolic.__file__).parent / "federated"
ENGINES = tuple(str(FEDERATED / name) for name in ("engines", "batched", "processes"))
OWN = {str(FEDERATED / "engines" / "sequential.py")}
ALL = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())


def entered(work):
    """Functions of other engines, and batched forms of methods, that ``work`` enters."""
    found = set()

    def note(frame, event, _):
        if event != "call":
            return
        code = frame.f_code
        elsewhere = code.co_filename.startswith(ENGINES) and code.co_filename not in OWN
        stacked = code.co_name.startswith("stacked_")
        if elsewhere or (stacked and isinstance(frame.f_locals.get("self"), Method)):
            found.add(f"{Path(code.co_filename).name}: {code.co_name}")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("name", [*QUICK, *RUNS])
def test_the_reference_enters_no_stacked_code(name):
    run, engine = RUNS.get(name) or recorded(name), Sequential()
    for x in run.exchanges:
        given = x.given.of(x.clients[:1])
        assert not entered(lambda given=given: list(engine.run(given)))
    data = dataclasses.replace(run.data, clients=run.data.clients[:1])
    given = run.method, data, x.next, x.kept
    settings = {"round": run.method.rounds, "engine": engine, "rng": RNG}
    assert not entered(lambda: ALL.rows(*given, **settings))
