"""A run of every method, its scores included, keeps the annotated types and shapes.

The types are checked where pytest is given ``--jaxtyping-packages``, as ``make test`` does.
"""

import pytest

from fedbolic.federated import Evaluation, FineTune, RidgeHead
from tests.federated.simple_method import train
from tests.subjects import QUICK, RNG, subject


@pytest.mark.parametrize("name", QUICK)
def test_a_run_keeps_its_annotations(name):
    evaluation = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())
    _, rows = train(*subject(name), RNG, evaluation=evaluation)
    assert not any(row.value for row in rows if row.name == "clients/failed")
