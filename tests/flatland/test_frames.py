"""Frames, prototypes and the personal proximal term, compared with independent computations."""

import dataclasses

import pytest
import torch
from torch.testing import assert_close

from fedbolic.core import tree
from fedbolic.core.rng import Rng
from fedbolic.manifolds import Lorentz
from flatland import FlatLand, Frame, LorentzGCN, Twin
from flatland.frames import FLAT_FRAMES, FRAMES, FlatPrototypes, LorentzPrototypes, boosted
from flatland.graphs.blocks import graph_block
from flatland.graphs.model import time_of
from flatland.method import CURVATURE
from tests.flatland.cases import federation, graph_of, star
from tests.flatland.graphs.test_model import values
from tests.flatland.test_method import NET, begin, next_state, start, work

CURVATURES = [0.1, 1.0, 7.0]


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def filled(head, seed=0):
    head = head.double()
    with torch.no_grad():
        for i, value in enumerate(head.parameters()):
            value.copy_(normal(*value.shape, seed=seed + i))
    return head


@pytest.mark.parametrize("c", CURVATURES)
def test_a_boost_is_an_isometry_that_takes_the_origin_to_its_point(c):
    space, u, s = Lorentz(c), normal(1, 1, 4), normal(1, 9, 4, seed=1)
    time, moved = boosted(u, time_of(space, s), s)
    assert_close(time, time_of(space, moved), rtol=1e-12, atol=1e-12)
    before, after = (torch.cat((time_of(space, x), x), -1)[0] for x in (s, moved))
    assert_close(space.cdist(after, after), space.cdist(before, before), rtol=1e-7, atol=1e-7)
    origin = torch.zeros(1, 1, 4, dtype=torch.float64)
    assert_close(boosted(u, time_of(space, origin), origin)[1], u / c**0.5)


def test_a_boost_along_an_axis_is_the_textbooks_matrix():
    space, rapidity = Lorentz(1.0), torch.tensor(0.8, dtype=torch.float64)
    u = torch.stack((rapidity.sinh(), *rapidity.new_zeros(2))).reshape(1, 1, 3)
    s = normal(1, 5, 3)
    matrix = torch.eye(4, dtype=torch.float64)
    matrix[:2, :2] = torch.stack(
        (
            torch.stack((rapidity.cosh(), rapidity.sinh())),
            torch.stack((rapidity.sinh(), rapidity.cosh())),
        )
    )
    expected = torch.cat((time_of(space, s), s), -1) @ matrix.T
    assert_close(torch.cat(boosted(u, time_of(space, s), s), -1), expected)


@pytest.mark.parametrize("c", CURVATURES)
def test_logits_fall_with_the_distance_to_the_prototype(c):
    space, head, s = Lorentz(c), filled(LorentzPrototypes(4, 3)), normal(1, 9, 4, seed=7)
    _, moved = boosted(head.frame.reshape(1, 1, -1), time_of(space, s), s)
    points, own = (
        torch.cat((time_of(space, x), x), -1) for x in (moved[0], head.space.mT.contiguous())
    )
    distance = space.cdist(points, own)
    expected = 2 / c * (1 - (c**0.5 * distance).cosh()) + head.bias
    assert_close(head(time_of(space, s), s, space)[0], expected, rtol=1e-6, atol=1e-6)


def test_the_twin_is_the_flat_distance_from_translated_points():
    head, x = filled(FlatPrototypes(4, 3)), normal(1, 9, 4, seed=7)
    expected = -torch.cdist(x[0] + head.frame, head.space.mT).square() + head.bias
    assert_close(head(x)[0], expected)


def test_in_nearly_flat_space_the_frames_logits_are_the_twins():
    curved, flat, s = LorentzPrototypes(4, 3), FlatPrototypes(4, 3), normal(1, 9, 4, seed=7)
    for head in (curved, flat):
        filled(head)
    gaps = []
    for c in (1e-2, 1e-4, 1e-6):
        with torch.no_grad():  # the boost's point is in radii, the translation in units of length
            curved.frame.copy_(flat.frame * c**0.5)
            logits = curved(time_of(Lorentz(c), s), s, Lorentz(c))
            gaps.append(float((logits - flat(s)).abs().max()))
    assert gaps[0] > 50 * gaps[1] > 2500 * gaps[2]


def test_in_nearly_flat_space_the_frame_is_the_twin_by_means():
    graph = graph_of(star(6), 8)
    frame, p, buffers = values(Frame((6, 4), dropout=0.0), c=0.0101, time=0.0)
    logits = frame(p, buffers, graph_block((graph,)))[0]
    gaps = {}
    for weights in ("mean", "symmetric"):
        twin, q, _ = values(Twin((6, 4), dropout=0.0, neighbours=weights))
        q = {name: p[name] for name in q}
        gaps[weights] = float((logits - twin(q, buffers, graph_block((graph,)))[0]).abs().max())
    assert 20 * gaps["mean"] < gaps["symmetric"]


@pytest.mark.parametrize("network", [Frame((6, 4)), Twin((6, 4))])
def test_a_clients_own_are_its_frame_and_its_curvature(network):
    data = federation()
    sharing = FRAMES if isinstance(network, Frame) else FLAT_FRAMES
    method = FlatLand(network, sharing=sharing)
    for update, client_state in work(method, data.clients, begin(method, data)).values():
        curved = {CURVATURE} if isinstance(network, Frame) else set()
        assert set(client_state["parameters"]) == {"head.frame"} | curved
        assert {"head.space", "head.bias"} <= set(update.payload["delta"])
        assert client_state["parameters"]["head.frame"].abs().max() > 0


def test_networks_of_frames_that_cannot_be_are_refused():
    for network in (Frame, Twin):
        with pytest.raises(ValueError, match="dropout"):
            network(dropout=1.0)


def test_shrink_sends_what_is_personal_but_the_curvature_and_keeps_its_mean():
    data = federation()
    method = FlatLand(NET, personal_proximal=0.5, weights="uniform")
    server_state = begin(method, data)
    results = work(method, data.clients, server_state)
    after = next_state(method, server_state, results)
    assert set(server_state["means"]) == {"body.0.time", "body.1.time", "head.time"}
    for name, mean in after["means"].items():
        own = torch.stack(
            [client_state["parameters"][name] for _, client_state in results.values()]
        )
        assert_close(mean, own.mean(0))
        for i, (_, client_state) in results.items():  # personal parameters stay bitwise equal
            local, _ = start(method, data, after, i, client_state)
            assert torch.equal(local["parameters"][name], client_state["parameters"][name])


def test_a_late_client_begins_at_the_mean():
    data = federation()
    method = FlatLand(NET, personal_proximal=0.5)
    server_state = begin(method, data)
    server_state = next_state(method, server_state, work(method, data.clients[:2], server_state))
    local, _ = start(method, data, server_state, 2)
    for name, mean in server_state["means"].items():
        assert torch.equal(local["parameters"][name], mean)


def test_the_stronger_it_shrinks_the_nearer_clients_are():
    data, spreads = federation(), []
    for personal_proximal in (0.0, 1.0, 100.0):
        method = FlatLand(NET, personal_proximal=personal_proximal)
        server_state, client_states = begin(method, data), None
        for round in (1, 2, 3):
            results = work(method, data.clients, server_state, client_states, round)
            server_state = next_state(method, server_state, results)
            client_states = {i: client_state for i, (_, client_state) in results.items()}
        own = torch.stack([m["parameters"]["head.time"] for m in client_states.values()])
        spreads.append(float(own.std(0).sum()))
    assert spreads[0] > spreads[1] > spreads[2]


def test_without_shrinking_nothing_more_is_sent_or_kept():
    data = federation()
    server_state = begin(FlatLand(NET), data)
    assert set(server_state) == {"parameters", "buffers", "seed"}
    assert tree.num_bytes(server_state) < tree.num_bytes(
        begin(FlatLand(NET, personal_proximal=1.0), data)
    )
    with pytest.raises(ValueError, match="personal_proximal"):
        dataclasses.replace(FlatLand(LorentzGCN((2,))), personal_proximal=-1.0).init(
            data.meta, Rng(0)
        )
