"""The law of every engine: its results are those of ``Sequential`` up to rounding."""

import torch

from fedbolic.core.rng import Rng
from fedbolic.data import FederatedData
from fedbolic.federated import Engine, Method, Sequential, Trainer
from fedbolic.testing.compare import assert_near


def check_engine(
    engine: Engine,
    method: Method,
    data: FederatedData,
    *,
    tolerance: float = 1e-10,
    seed: int = 3,
    **settings: object,
) -> None:
    """Assert that an engine gives the states, client states and metrics of ``Sequential``.

    Args:
        engine: Engine to test.
        method: Method that is trained, with few rounds.
        data: Federation in float64.
        tolerance: Largest allowed difference of a number.
        seed: Seed of all random numbers.
        **settings: Other settings of both trainers, such as ``channels``.

    Raises:
        AssertionError: If the results differ.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.federated import Batched
        >>> from fedbolic.methods import FedAvg
        >>> data = Partitioned(Digits(), IID(3), num_train=60).load(Rng(0))
        >>> check_engine(Batched(), FedAvg(rounds=1), data.to("cpu", torch.float64))
    """
    ends, rows = [], []
    for one in (Sequential(), engine):
        rounds = list(Trainer(engine=one, **settings).run(method, data, Rng(seed)))  # type: ignore[arg-type]
        ends.append(rounds[-1][0])
        rows.append([row for _, new in rounds for row in new])
    expected, found = ends
    assert_near(found.server_state, expected.server_state, tolerance)
    assert found.client_states.keys() == expected.client_states.keys()
    for i, client_state in expected.client_states.items():
        assert_near(found.client_states[i], client_state, tolerance)
    assert [row[:3] for row in rows[1]] == [row[:3] for row in rows[0]]
    values = [torch.tensor([row.value for row in each], dtype=torch.float64) for each in rows]
    torch.testing.assert_close(values[1], values[0], rtol=1e-6, atol=tolerance)
