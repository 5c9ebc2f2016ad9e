"""Saved states, copies and schedules of the torch optimisers."""

import copy
import io
import itertools

import pytest
import torch
from torch import nn

from fedbolic.manifolds import Lorentz, Poincare
from fedbolic.optim.modules import RiemannianAdam, RiemannianSGD
from tests.manifolds.cases import normal
from tests.optim.torch_twins import (
    advance,
    close,
    every_method,
    every_twin,
    parameters,
    set_gradients,
    sparse_gradient,
    start,
)


def mixed_setup(kind, options):
    """An optimiser of a flat parameter, of points and of a table with sparse gradients."""
    flat, whole = nn.Parameter(normal(0, 3)), nn.Parameter(start(Lorentz(0.7)))
    table = nn.Parameter(start(Poincare(0.7)))
    groups = [
        {"params": [flat]},
        {"params": [whole], "space": Lorentz(0.7), "lr": 0.02},
        {"params": [table], "space": Poincare(0.7)},
    ]
    return [flat, whole, table], kind(groups, lr=0.1, **options)


def mixed_step(given, optimizer, seed):
    flat, whole, table = given
    set_gradients([flat, whole], seed)
    sparse_gradient(table, [seed % 3, 5], normal(seed, 2, 3))
    optimizer.step()


@every_method
def test_a_saved_state_resumes_to_the_last_bit(kind, options):
    given, optimizer = mixed_setup(kind, options)
    for seed in range(3):
        mixed_step(given, optimizer, seed)
    file = io.BytesIO()
    torch.save((optimizer.state_dict(), [p.detach() for p in given]), file)
    others, resumed = mixed_setup(kind, options)
    file.seek(0)
    state, values = torch.load(file, weights_only=True)
    resumed.load_state_dict(state)
    with torch.no_grad():
        for p, x in zip(others, values, strict=True):
            p.copy_(x)
    for seed in range(3, 6):
        mixed_step(given, optimizer, seed)
        mixed_step(others, resumed, seed)
    assert all(itertools.starmap(torch.equal, zip(given, others, strict=True)))
    assert resumed.param_groups[0]["space"] is None
    assert isinstance(resumed.param_groups[1]["space"], Lorentz)


@every_method
def test_a_copy_steps_alike_and_apart(kind, options):
    given, optimizer = mixed_setup(kind, options)
    mixed_step(given, optimizer, 0)
    others, copied = copy.deepcopy((given, optimizer))
    for seed in (1, 2):
        mixed_step(others, copied, seed)
    before = [p.detach().clone() for p in given]
    for seed in (1, 2):
        mixed_step(given, optimizer, seed)
    assert all(itertools.starmap(torch.equal, zip(given, others, strict=True)))
    assert not any(itertools.starmap(torch.equal, zip(given, before, strict=True)))


@every_twin
def test_a_state_of_torchs_optimiser_resumes_here(kind, twin, options):
    ours, theirs = parameters(), parameters()
    other = twin(theirs, lr=0.1, **options)
    advance(other, theirs, range(3))
    optimizer = kind(ours)
    optimizer.load_state_dict(copy.deepcopy(other.state_dict()))
    with torch.no_grad():
        for p, q in zip(ours, theirs, strict=True):
            p.copy_(q)
    advance(other, theirs, range(3, 6))
    advance(optimizer, ours, range(3, 6))
    close(ours, theirs)


def test_a_state_of_another_space_is_refused():
    _, optimizer = mixed_setup(RiemannianAdam, {})
    given, spaces = parameters()[:3], (None, Lorentz(2.0), Poincare(0.7))
    groups = [{"params": [p], "space": s} for p, s in zip(given, spaces, strict=True)]
    other = RiemannianAdam(groups)
    with pytest.raises(ValueError, match=r"\['Lorentz', 2.0\] in group 1.*\['Lorentz', 0.7\]"):
        optimizer.load_state_dict(other.state_dict())


def test_a_state_of_another_number_of_groups_is_refused():
    p, q = parameters()[:2]
    one, two = RiemannianAdam([p]), RiemannianAdam([{"params": [p]}, {"params": [q]}])
    for optimizer, other in ((one, two), (two, one)):
        with pytest.raises(ValueError, match="different number of parameter groups"):
            optimizer.load_state_dict(other.state_dict())


@pytest.mark.parametrize("lr", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=str)
@every_twin
def test_schedulers_change_the_step_as_they_change_torchs(kind, twin, options, lr):
    ours, theirs = parameters(), parameters()
    pairs = []
    for optimizer, given in (
        (kind(ours, copy.deepcopy(lr), **options), ours),
        (twin(theirs, lr=0.1, **options), theirs),
    ):
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.5)
        for seed in range(6):
            advance(optimizer, given, [seed])
            schedule.step()
        pairs.append(float(optimizer.param_groups[0]["lr"]))
    assert pairs[0] == pairs[1]
    close(ours, theirs)


def test_one_cycle_changes_the_momentum_as_it_changes_torchs():
    for kind, twin in ((RiemannianSGD, torch.optim.SGD), (RiemannianAdam, torch.optim.Adam)):
        ours, theirs = parameters(), parameters()
        options = {"momentum": 0.9} if kind is RiemannianSGD else {}
        for optimizer, given in ((kind(ours, **options), ours), (twin(theirs, **options), theirs)):
            schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=8)
            for seed in range(7):
                advance(optimizer, given, [seed])
                schedule.step()
        close(ours, theirs)
