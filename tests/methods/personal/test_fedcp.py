"""FedCP's discrepancy of features, against a loop over pairs in float64."""

import math

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.methods.personal.fedcp import _discrepancy


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_the_discrepancy_of_half_types_and_under_autocast_has_the_digits_of_float32(
    dtype, autocast
):
    x, noise = torch.randn(2, 12, 64, generator=Rng(0).generator())
    x = (3 + x / 2).to(dtype)
    y = x + (noise / 20).to(dtype)
    rows = [(1 / 9, z.double()) for z in x[:9]] + [(-1 / 9, z.double()) for z in y[:9]]
    expected = sum(
        v * w * math.exp(-float((a - b).square().sum()) / (2 * s))
        for v, a in rows
        for w, b in rows
        for s in (10, 15, 20, 50)
    )
    mask = (torch.arange(12) < 9).to(dtype)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = _discrepancy(x, y, mask)
    assert float(found) == pytest.approx(expected, rel=1e-2)
