"""Methods whose noise has no ledger say that they claim no epsilon."""

import pytest

from fedbolic.core.rng import Rng
from fedbolic.core.types import Meta
from flatland import FedGnn, FedSagePlus


@pytest.mark.parametrize(
    ("method", "said"), [(FedGnn(), 1), (FedGnn(noise=0.0), 0), (FedSagePlus(), 1)]
)
def test_a_run_with_noise_that_no_ledger_counts_claims_no_epsilon(method, said, caplog):
    with caplog.at_level("INFO", "fedbolic"):
        method.init(Meta(3, (5,), 2), Rng(0))
    assert caplog.text.count("claims no epsilon") == said
    assert method.traits.privacy_unit is None
