"""Inputs and settings refused by transformers, with messages that name the remedy."""

import pytest
import torch

from fedbolic.manifolds import Lorentz
from fedbolic.nn import (
    CentroidPool,
    LorentzDecoderBlock,
    LorentzEncoderBlock,
    LorentzTransformer,
    LorentzViT,
)
from fedbolic.nn.functional.attention import attended

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
    with pytest.raises(ValueError, match=r"tokens must be sets .*unsqueeze\(0\)"):
        encoder(TOKENS[0])
    with pytest.raises(ValueError, match="power must be"):
        CentroidPool(space, power=-1.0)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("learns", [False, True])
def test_a_mask_that_is_no_mask_of_all_pairs_is_refused(causal, learns):
    network = LorentzTransformer(Lorentz(), 10, 4, 2, 1, causal=causal).requires_grad_(learns)
    tokens, mask = TOKENS.expand(3, 7), torch.ones(7, 7)
    with pytest.raises(ValueError, match=r"mask must be of torch.bool, got torch.float32"):
        network(tokens, mask=mask)  # torch would add it to the scores
    for shape in ((7,), (7, 6), (6, 7), (2, 7, 7), (3, 2, 7, 7)):
        with pytest.raises(ValueError, match=r"mask must have the shape \(\.\.\., 7, 7\)"):
            network(tokens, mask=torch.ones(shape).bool())
    for shape in ((1, 7), (3, 7, 1), (1, 1, 1)):
        found = network(tokens, mask=torch.ones(shape).bool())
        torch.testing.assert_close(found, network(tokens))


@pytest.mark.parametrize("learns", [False, True])
def test_a_memory_for_each_set_is_wanted(learns):
    space = Lorentz()
    block = LorentzDecoderBlock(space, 4, 2).requires_grad_(learns)
    x, memory = space.origin(3, 7, 5), space.origin(3, 6, 5)
    for few in (memory[0], memory[:1], memory[:2]):
        with pytest.raises(ValueError, match=r"memory must have the axes \(3,\) of x .*expand"):
            block(x, few)
        with pytest.raises(ValueError, match=r"context must have the axes \(3,\) of x .*expand"):
            block.attention(x, few)
    with pytest.raises(ValueError, match=r"memory_mask must have the shape \(\.\.\., 7, 6\)"):
        block(x, memory, memory_mask=torch.ones(7, 7).bool())


def test_one_set_of_keys_serves_many_sets_of_queries():
    generator = torch.Generator().manual_seed(0)
    query, keys = (
        Lorentz().expmap0(Lorentz().lift(torch.randn(n, 2, 5, 3, generator=generator).double()))
        for n in (3, 1)
    )
    query.requires_grad_()
    both = []
    for given in (keys, keys.expand(3, -1, -1, -1)):
        means = attended(Lorentz(), query, given, given, scale=0.5)
        both.append((means, *torch.autograd.grad(means.square().sum(), query)))
    torch.testing.assert_close(*both)


def test_a_cache_of_other_sets_or_of_another_network_is_refused():
    sizes, tokens = (Lorentz(), 10, 4, 2, 2), TOKENS.expand(3, 7)
    body = LorentzTransformer(*sizes, causal=True)
    _, past = body.decode(tokens[:, :3])
    for of, given in ((tokens[:2], past), (tokens[:1], past), (TOKENS, past), (tokens, past[:1])):
        with pytest.raises(ValueError, match="past must be what decode gave"):
            body.decode(of[..., 3:], given)
    cross, memory = LorentzTransformer(*sizes, causal=True, cross=True), Lorentz().origin(3, 2, 5)
    with pytest.raises(ValueError, match="past must be what decode gave"):
        cross.decode(tokens, past, memory=memory)
    chosen = tuple(tuple(x[1:] for x in heads) for heads in past)
    torch.testing.assert_close(body.decode(tokens[1:, 3:], chosen)[0], body(tokens)[1:, 3:])
