"""Inputs and settings refused by transformers, with messages that name the remedy."""

import pytest
import torch

from fedbolic.manifolds import Lorentz
from fedbolic.nn import CentroidPool, LorentzEncoderBlock, LorentzTransformer, LorentzViT

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2])


def test_what_does_not_fit_is_refused():
    space = Lorentz()
    with pytest.raises(ValueError, match="stream must be one of points, tangents, got 'flat'"):
        LorentzEncoderBlock(space, 4, 2, stream="flat")
    with pytest.raises(ValueError, match=r"rotary_base must be above 1 .* got 10\.0 and 3 dim"):
        LorentzEncoderBlock(space, 3, 1, rotary_base=10.0)
    with pytest.raises(ValueError, match="depth must be at least 1, got 0"):
        LorentzTransformer(space, 10, 4, 2, 0)
    with pytest.raises(ValueError, match="patch_size must divide image_size 5, got 2"):
        LorentzViT(space, 5, 2, 4, 2, 1, 10)
    vit = LorentzViT(space, 4, 2, 4, 2, 1, 10)
    with pytest.raises(ValueError, match=r"x must be images \(\.\.\., 3, 4, 4\), got .*resize"):
        vit(torch.zeros(2, 3, 6, 6))
    with pytest.raises(ValueError, match=r"images \(\.\.\., 3, height, width\) .* of 2, got"):
        vit(torch.zeros(2, 1, 4, 4))
    with pytest.raises(ValueError, match=r"index must be of integers"):
        LorentzTransformer(space, 10, 4, 2, 1)(torch.zeros(3))
    encoder = LorentzTransformer(space, 10, 4, 2, 1)
    with pytest.raises(ValueError, match="causal=True"):
        encoder.decode(TOKENS)
    with pytest.raises(ValueError, match="memory goes with cross=True, got one with cross=False"):
        encoder(TOKENS, space.origin(5, 5))
    with pytest.raises(ValueError, match="memory goes with cross=True, got none with cross=True"):
        LorentzTransformer(space, 10, 4, 2, 1, cross=True)(TOKENS)
    with pytest.raises(ValueError, match=r"with n up to 4, got shape \(7, 5\).*rotary"):
        LorentzTransformer(space, 10, 4, 2, 1, num_positions=4)(TOKENS)
    with pytest.raises(ValueError, match=r"x must be sets of points .*unsqueeze\(-2\)"):
        LorentzEncoderBlock(space, 4, 2)(space.origin(5))
    with pytest.raises(ValueError, match="power must be"):
        CentroidPool(space, power=-1.0)
