"""The kernel of FlyHash, interpreted on the CPU: ``make kernels``."""

import numpy as np
import pytest
import torch

from fedbolic import kernels
from flynn import fly_hash as module
from flynn.fly_hash import connections, fixed_point, fly_hash, two_phases

pytestmark = pytest.mark.kernels


@pytest.mark.parametrize("block", [1, 4, 7])
@pytest.mark.parametrize(("n", "dim"), [(1, 5), (70, 61)])
def test_maxima_of_blocks_are_numpys(block, n, dim):
    from fedbolic.kernels.hash import block_maximum

    rows = connections(dim, 9, 3, seed=0)
    x = torch.randint(-(2**28), 2**28, (n, 9), generator=torch.Generator().manual_seed(0))
    sums = x.numpy()[:, rows.numpy()].sum(axis=2)
    wanted = np.stack([sums[:, i : i + block].max(axis=1) for i in range(0, dim, block)], axis=1)
    assert np.array_equal(block_maximum(x.int().T, rows, block).numpy(), wanted)


@pytest.mark.parametrize("scale", [3, 2**20], ids=["many ties", "30 bits"])
def test_hashes_are_those_of_the_cpu(scale, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(scale, (40, 12), generator=generator).double() / 7
    rows = connections(150, 12, 4, seed=1)
    wanted = fly_hash(x, rows, 5)
    monkeypatch.setattr(kernels, "run_on", lambda x: True)
    called = []
    by_integers = module._by_integers
    monkeypatch.setattr(
        module, "_by_integers", lambda *given: called.append(1) or by_integers(*given)
    )
    assert torch.equal(two_phases(fixed_point(x, 4), rows, 5), wanted)
    assert called
