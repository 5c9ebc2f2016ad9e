"""No metric of a client's training takes the name of a row that the federation writes."""

import dataclasses
from dataclasses import dataclass

from fedbolic.federated import Cohort, Evaluation, FineTune, RidgeHead, Sequential
from fedbolic.federated.rounds.fine_tuning import FineTuningPhase
from fedbolic.methods import Scaffold
from flatland import FlatLand, LorentzGCN, PrivateForman
from tests.federated.simple_method import RNG, SMALL, federation, train
from tests.flatland import cases
from tests.seeded import SeededKeys

FORGED = 1e6
EVALUATION = Evaluation(
    fine_tuning=FineTune(1), ridge_head=RidgeHead(), metrics=("macro_f1", "auroc", "top_2")
)


@dataclass(frozen=True)
class Forging(Sequential):
    """An engine whose clients send training metrics of any names."""

    names: tuple[str, ...] = ()

    def run(self, exchange):
        for client, update, kept in super().run(exchange):
            if not isinstance(exchange.method, FineTuningPhase):  # its metrics are scores
                update = dataclasses.replace(update, metrics=dict.fromkeys(self.names, FORGED))
            yield client, update, kept


def test_no_training_metric_becomes_a_row_of_the_federation_or_a_score():
    private = FlatLand(LorentzGCN((4,)), rounds=2, curvature=PrivateForman(0.5, noise=SeededKeys()))
    for method, data in (
        (dataclasses.replace(SMALL, rounds=2), federation()),
        (Scaffold(SMALL.backbone, rounds=2), federation()),
        (private, cases.federation()),
    ):
        settings = {"evaluation": EVALUATION, "cohort": Cohort(0.7)}
        _, rows = train(method, data, RNG, **settings)
        names = {row.name for row in rows if not row.name.startswith(("train/", "local/", "rel"))}
        assert {"fine_tuned/accuracy", "test/accuracy", "bytes/up"} <= names
        _, forged = train(method, data, RNG, engine=Forging(tuple(sorted(names))), **settings)
        assert not [r for r in forged if r.value == FORGED and not r.name.startswith("train/")]
        own = [row[:3] for row in forged if not row.name.startswith("train/")]
        assert len(own) == len(set(own))
        same = {row for row in rows if row.name in names}
        assert same == {row for row in forged if row.name in names}
