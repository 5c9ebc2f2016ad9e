"""Whole transformers: their parts in order, causality, decoding by a cache, and training."""

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.manifolds import Curvature, Lorentz
from fedbolic.nn import MLR, LorentzTransformer, LorentzViT
from tests.nn.transformer import transcription
from tests.nn.transformer.test_blocks import C, noisy, normal, some_points, streams

TOKENS = torch.tensor([3, 1, 4, 1, 5, 9, 2])


def language_model(stream="points", **settings):
    space = Lorentz(C)
    return noisy(
        LorentzTransformer(space, 10, 4, 2, 2, hidden_dim=6, causal=True, stream=stream, **settings)
    )


@streams
def test_a_transformer_is_its_blocks_on_points_of_tokens(stream):
    body = language_model(stream)
    x = [transcription.exponential(body.embedding.weight[token], C) for token in TOKENS]
    for block in body.blocks:
        x = [*transcription.block(block, x, C, sees=lambda i, j: j <= i)]
    expected = [transcription.point(transcription.normed(body.norm, row[1:]), C) for row in x]
    torch.testing.assert_close(body(TOKENS), torch.stack(expected), rtol=1e-9, atol=1e-9)


@streams
def test_networks_without_values_have_shapes(stream):
    with torch.device("meta"):
        network = LorentzViT(Lorentz(C), 4, 2, 4, 2, 1, 6, stream=stream)
        assert network(torch.zeros(3, 3, 4, 4)).shape == (3, 6)


def test_a_vit_is_its_parts():
    network = noisy(LorentzViT(Lorentz(C), 4, 2, 4, 2, 1, 6, hidden_dim=6, power=2.0))
    images = normal(3, 3, 4, 4)
    for image, found in zip(images, network(images), strict=True):
        x = [*network.positions(network.patches(image))]
        x = transcription.block(network.blocks[0], x, C)
        mean = sum(row[0] ** 2 * row for row in x)  # the power of times is the weight
        centre = mean / torch.sqrt(-C * transcription.product(mean, mean))
        place = transcription.point(transcription.normed(network.norm, centre[1:]), C)
        torch.testing.assert_close(found, network.head.weight @ place + network.head.bias)


@streams
def test_later_tokens_change_nothing_before_them(stream):
    body, other = language_model(stream, num_positions=9), TOKENS.clone()
    other[4:] = torch.tensor([0, 0, 0])
    torch.testing.assert_close(body(other)[:4], body(TOKENS)[:4])
    assert not torch.allclose(body(other)[4:], body(TOKENS)[4:])


@streams
@pytest.mark.parametrize("cross", [False, True])
@pytest.mark.parametrize("parts", [[1] * 7, [3, 1, 3], [7]])
def test_decoding_by_a_cache_is_one_pass(stream, cross, parts):
    body = language_model(stream, num_positions=8, cross=cross)
    tokens = TOKENS.expand(2, 7)
    memory = some_points(5).expand(2, 5, 5) if cross else None
    expected = body(tokens, memory)
    past, found = (), []
    for part in tokens.split(parts, -1):
        points, past = body.decode(part, past, memory=memory)
        found.append(points)
    torch.testing.assert_close(torch.cat(found, -2), expected, rtol=1e-10, atol=1e-10)
    assert [heads[0].shape[-2] for heads in past] == [7, 7]


def test_a_cache_keeps_the_memory_of_the_first_call():
    body, memory = language_model(cross=True), some_points(5)
    _, past = body.decode(TOKENS[:3], memory=memory)
    first, _ = body.decode(TOKENS[3:], past, memory=memory)
    other, _ = body.decode(TOKENS[3:], past, memory=torch.zeros_like(memory))
    torch.testing.assert_close(first, other)


def test_a_mask_hides_tokens_besides_later_ones():
    body, mask = language_model(), torch.ones(7, 7).bool()
    mask[:, 0] = False
    mask[0, 0] = True
    other = TOKENS.clone()
    other[0] = 7
    torch.testing.assert_close(body(other, mask=mask)[1:], body(TOKENS, mask=mask)[1:])
    assert not torch.allclose(body(other)[1:], body(TOKENS)[1:])


def test_all_layers_share_the_learnt_curvature():
    curvature = Curvature(C)
    network = LorentzViT(Lorentz(curvature), 4, 2, 4, 2, 2, 6)
    assert [m for m in network.modules() if isinstance(m, Curvature)] == [curvature]
    network(normal(2, 3, 4, 4).float()).sum().backward()
    assert curvature.raw.grad.abs() > 0


@streams
def test_a_language_model_learns_what_follows(stream):
    torch.manual_seed(0)
    space = Lorentz(1.0)
    body = LorentzTransformer(space, 10, 16, 2, 2, causal=True, stream=stream)
    network = nn.Sequential(body, MLR(space, 16, 10))
    optimiser = torch.optim.Adam(network.parameters(), 1e-2)
    losses, text = [], torch.arange(400) ** 2 % 10  # what follows a square depends on two
    for _ in range(80):
        places = torch.randint(380, (16, 1)) + torch.arange(13)
        x, y = text[places][:, :-1], text[places][:, 1:]
        loss = cross_entropy(network(x).flatten(0, 1), y.flatten())
        losses.append(loss.item())
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    assert losses[0] > 1.75  # of the shares of digits, without what lies before them
    assert losses[-1] < 0.5
