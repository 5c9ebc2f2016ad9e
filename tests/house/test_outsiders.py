"""The methods that the page for contributors shows, next to the library's own."""

import pytest

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import Batched, Cohort, Sequential, Trainer
from fedbolic.methods import FedAvg, Scaffold
from tests.federated.simple_method import assert_near
from tests.house.test_readme import ROOT, blocks

PAGE = [code for _, code in blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")]
PAGE += [(ROOT / "docs/contribute/scaffold.py").read_text()]

SETTINGS = {"FedProx": {"proximal": 0.3}, "Scaffold": {}}
OURS = {"FedProx": FedAvg, "Scaffold": Scaffold}
LENGTHS = {"FedProx": 30, "Scaffold": 70}


def code_of(name):
    (code,) = [code for code in PAGE if f"class {name}(" in code]
    return code


def method_of(name):
    """The class, without the lines that train it."""
    named = {"__name__": "outsider"}
    exec(compile(code_of(name).partition("\n\n\ndata = ")[0], "outsider", "exec"), named)
    return named[name]


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=["sequential", "batched"])
@pytest.mark.parametrize("name", OURS)
def test_a_method_of_the_page_is_the_librarys(name, engine):
    data, trainer = Partitioned(Digits(), IID(4)).load(Rng(0)), Trainer(engine, Cohort(0.5))
    ends = [
        [*trainer.run(kind(rounds=3, **SETTINGS[name]), data, Rng(0))][-1][0].server_state
        for kind in (method_of(name), OURS[name])
    ]
    for kept in ("parameters", "variate")[: 1 + (name == "Scaffold")]:
        assert_near(*(state[kept] for state in ends), 1e-6)


@pytest.mark.parametrize("name", OURS)
def test_a_method_of_the_page_is_short(name):
    assert len([line for line in code_of(name).splitlines() if line.strip()]) <= LENGTHS[name]
