"""Losses, masks and decoders of pairs, compiled without a graph break."""

import pytest
import torch

from fedbolic.nn import FermiDirac, MarginLoss, NegativeSampler, RankingLoss, pair_keys


def assert_compiles(function, *args):
    torch._dynamo.reset()
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(*args), function(*args))


@pytest.mark.parametrize("loss", [RankingLoss(), MarginLoss()])
def test_losses_and_their_gradients_compile(loss):
    generator = torch.Generator().manual_seed(0)
    d = torch.rand(5, 7, generator=generator)
    mask = torch.rand(5, 6, generator=generator) > 0.5

    def losses(d):
        return loss(d[:, 0], d[:, 1:], mask=mask)

    compiled = torch.compile(losses, fullgraph=True, backend="aot_eager")
    d.requires_grad_()
    gradients = [torch.autograd.grad(f(d).sum(), d) for f in (compiled, losses)]
    torch.testing.assert_close(*gradients)
    assert_compiles(losses, d)


def test_masks_of_negatives_compile():
    known = pair_keys(torch.tensor([[0, 1], [1, 2]]), num_nodes=4)
    nodes, negatives = torch.arange(3), torch.arange(12).reshape(3, 4) % 4
    assert_compiles(
        lambda u, v: NegativeSampler.mask(u, v, known=known, num_nodes=4), nodes, negatives
    )


@pytest.mark.parametrize("learnable", [False, True])
def test_decoders_compile(learnable):
    assert_compiles(FermiDirac(squared=True, learnable=learnable), torch.linspace(0, 3, 5))
