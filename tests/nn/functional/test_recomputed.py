"""Activation checkpointing: a forward pass that is computed again drops what the first one did."""

import copy
import itertools

import pytest
import torch
from torch import nn
from torch.autograd.graph import save_on_cpu
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, set_checkpoint_early_stop

from fedbolic.manifolds import Poincare
from fedbolic.nn import TangentDropout, ToManifold
from fedbolic.nn.layers.dropout import AlphaDropout, ChannelDropout, Dropout

MODES = [False, True]
DIM = 6


def layers():
    """A dropout of each kind, one of them in two places, between layers whose gradients need it."""
    parts: list[nn.Module] = []
    twice = Dropout(0.4)
    channels = ChannelDropout(0.4, num_axes=1)
    points = nn.Sequential(ToManifold(Poincare()), TangentDropout(Poincare(), 0.4))
    for drop in (twice, AlphaDropout(0.4), channels, points, twice):
        parts += [nn.Linear(DIM, DIM), nn.Tanh(), drop]
    return nn.Sequential(*parts, nn.Linear(DIM, DIM)).double()


def inputs(n=1):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(5, 3, DIM, generator=generator).double() for _ in range(n)]


def split(network, sizes=(5, 11)):
    """The layers in three groups, cut between a layer and its dropout."""
    ends = [0, *sizes, len(network)]
    return [network[a:b] for a, b in itertools.pairwise(ends)]


def plain(network, x):
    return network(x)


def whole(mode):
    return lambda network, x: checkpoint(network, x, use_reentrant=mode)


def segments(mode):
    def run(network, x):
        first, middle, last = split(network)
        x = checkpoint(first, x, use_reentrant=mode)
        return checkpoint(last, middle(x), use_reentrant=mode)

    return run


def sequential(mode):
    # of a list, because torch skips the second place of a layer in a network
    return lambda network, x: checkpoint_sequential(list(network), 4, x, use_reentrant=mode)


def nested(outer, inner, depth=3):
    """A segment that holds two segments, each of which may hold others."""

    def run(network, x, depth=depth):
        if depth == 0 or len(network) < 2:
            return network(x)
        half = len(network) // 2
        mode = (outer, inner)[depth % 2]
        for part in (network[:half], network[half:]):
            x = checkpoint(lambda x, part=part: run(part, x, depth - 1), x, use_reentrant=mode)
        return x

    return run


def on_cpu(mode):
    def run(network, x):
        def inside(x):
            with save_on_cpu():
                return network(x)

        return checkpoint(inside, x, use_reentrant=mode)

    return run


RUNS = {
    **{f"{make.__name__}-{m}": make(m) for make in (whole, segments, sequential) for m in MODES},
    **{f"nested-{a}-{b}": nested(a, b) for a in MODES for b in MODES},
    "on_cpu": on_cpu(False),
}


def found(network, run, backward, num_passes):
    """Outputs, gradients and the seeds afterwards, of a copy of a network."""
    network = copy.deepcopy(network)
    xs = [x.requires_grad_() for x in inputs(num_passes)]
    outputs = [run(network, x) for x in xs]
    backward([out.square().sum() for out in outputs])
    gradients = [x.grad for x in xs] + [p.grad for p in network.parameters()]
    seeds = [value.clone() for name, value in network.named_buffers()]
    again = run(network, xs[0])  # the next pass is not the one that was computed again
    return [*outputs, *gradients, *seeds, again]


def together(losses):
    sum(losses).backward()


def in_order(losses):
    for loss in losses:
        loss.backward()


def in_reverse(losses):
    in_order(losses[::-1])


def kept_graph(losses):
    sum(losses).backward(retain_graph=True)
    sum(losses).backward()


@pytest.mark.filterwarnings("ignore:None of the inputs")  # in the first pass of a reentrant segment
@pytest.mark.parametrize("backward", [together, in_order, in_reverse, kept_graph])
def test_gradients_are_those_without_checkpoints(backward):
    network, num_passes = layers(), 3
    wanted = found(network, plain, backward, num_passes)
    for name, run in RUNS.items():
        got = found(network, run, backward, num_passes)
        assert_close(got, wanted, msg=lambda m, name=name: f"{name}: {m}")  # sums round


def test_a_segment_may_be_computed_whole_again():
    network = layers()
    with set_checkpoint_early_stop(False):
        got = found(network, RUNS["nested-False-False"], together, 2)
    assert_close(got, found(network, plain, together, 2))


def test_a_gradient_may_be_taken_within_a_segment():
    network = layers()

    def slope(network, x, run):
        def inside(x):
            value = run(network, x).square().sum()
            return torch.autograd.grad(value, x, create_graph=True)[0]

        return run(inside, x)

    x, wanted_x = (inputs()[0].requires_grad_() for _ in range(2))
    slope(copy.deepcopy(network), wanted_x, plain).square().sum().backward()
    slope(network, x, whole(False)).square().sum().backward()
    assert_close(x.grad, wanted_x.grad)


def test_a_saved_tensor_may_be_read_outside_a_backward_pass():
    drop, x = Dropout(0.5), torch.ones(200, requires_grad=True)
    out = checkpoint(lambda x: drop(x).exp(), x, use_reentrant=False)
    for _ in range(2):
        assert torch.equal(out.grad_fn._saved_result, out)


def test_a_mask_that_nobody_knows_is_an_error():
    drop = Dropout(0.5)

    class Recomputed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return drop(x)

        @staticmethod
        def backward(ctx, grad):
            return grad * drop(ctx.saved_tensors[0])

    out = Recomputed.apply(torch.ones(3, requires_grad=True)).sum()
    with pytest.raises(RuntimeError, match=r"use torch\.utils\.checkpoint"):
        out.backward(retain_graph=True)
    drop.eval()
    out.backward()
