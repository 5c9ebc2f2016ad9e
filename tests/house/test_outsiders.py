"""The method that the page for contributors shows, beside the library's own."""

import pytest

from fedbolic.core.rng import Rng
from fedbolic.data import IID, Digits, Partitioned
from fedbolic.federated import Batched, Sequential, Trainer
from fedbolic.methods import FedAvg
from tests.federated.simple_method import assert_near
from tests.house.test_readme import ROOT, blocks

(CODE,) = [
    code
    for _, code in blocks((ROOT / "CONTRIBUTING.md").read_text(), "python")
    if "class FedProx" in code
]


@pytest.mark.parametrize("engine", [Sequential(), Batched()], ids=["sequential", "batched"])
def test_the_pages_fedprox_is_the_librarys(engine):
    named = {"__name__": "outsider"}
    exec(compile(CODE.partition("\n\n\ndata = ")[0], "outsider", "exec"), named)
    data = Partitioned(Digits(), IID(3)).load(Rng(0))
    ours = FedAvg(rounds=2, proximal=0.3)
    ends = [
        [*Trainer(engine).run(method, data, Rng(0))][-1][0].server_state["parameters"]
        for method in (named["FedProx"](rounds=2, proximal=0.3), ours)
    ]
    assert_near(*ends, 1e-6)


def test_the_pages_fedprox_is_short():
    assert len([line for line in CODE.splitlines() if line.strip()]) <= 30
