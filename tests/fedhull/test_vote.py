"""One share for all clients: the median of their votes, and the run that this share gives."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core.rng import Rng
from fedbolic.data import IID, HalfPlanes
from fedbolic.federated.secure import SecureSum
from fedhull import Central, Farthest, FedHull, HullPeeling, HyperbolicBoundary, ValidatedCore
from fedhull.exchanges import arrays
from fedhull.vote import CoreVotes, VotedCore
from tests.federated.simple_method import train
from tests.fedhull.test_method import scores

BOUNDARY = HyperbolicBoundary(10.0, pairs=1)
SHARES = (0.0, 0.1, 0.3)


@pytest.fixture(scope="module")
def data():
    source = HalfPlanes(num_points=300, least=50, overlap=0.5, partition=IID(3))
    return source.load(Rng(0))


def run(core, data, wrap=lambda method: method):
    positions, rows = train(wrap(FedHull(boundary=BOUNDARY, core=core)), data)
    return positions[-1].server_state, scores(rows, "holdout/accuracy")[None]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=12))
def test_the_share_is_the_lower_median_of_the_votes(chosen):
    votes = torch.bincount(torch.tensor(chosen), minlength=3)
    found = VotedCore(ValidatedCore(shares=SHARES)).median(votes)
    assert found == SHARES[statistics.median_low(chosen)]


@pytest.mark.parametrize("rule", [Farthest(), HullPeeling()])
def test_a_run_is_that_with_the_median_of_the_clients_own_shares(rule, data):
    own = ValidatedCore(rule, shares=SHARES, folds=2)
    chosen = [
        own.chosen(*arrays(client.train), c=1.0, boundary=BOUNDARY) for client in data.clients
    ]
    voted, accuracy = run(VotedCore(own), data)
    share = statistics.median_low(chosen)
    assert voted["core_share"] == share
    given_one, same = run(rule.with_share(share), data)
    for name, found in given_one["hulls"].items():
        assert torch.equal(voted["hulls"][name], found)
    assert accuracy == same


def test_the_vote_is_the_same_under_a_secure_sum(data):
    core = VotedCore(ValidatedCore(shares=SHARES, folds=2))
    clear, _ = run(core, data)
    masked = run(core, data, lambda method: SecureSum(method, threshold=2))[0]["inner"]
    assert masked["core_share"] == clear["core_share"]
    # the order of labels is another one
    assert sorted(masked["hulls"]["bins"].tolist()) == sorted(clear["hulls"]["bins"].tolist())


def test_a_client_reveals_one_vote(data):
    method = CoreVotes(VotedCore(), 1.0, BOUNDARY)
    update, _ = method.local_update({}, data.clients[0], {}, Rng(0))
    assert update.payload["votes"].sum() == 1
    assert set(update.payload) == {"votes"}
    assert update.payload["votes"].shape == method.template({})["votes"].shape


def test_a_share_that_was_not_voted_about_is_refused(data):
    with pytest.raises(ValueError, match=r"the vote was about \(0.0, .*, got the share 0.9"):
        VotedCore().agreed(0.9)
    with pytest.raises(ValueError, match="in up to 6 dimensions, got 7"):
        VotedCore().require_dim(7)


def test_in_one_place_there_is_one_vote(data):
    own = ValidatedCore(shares=SHARES, folds=2)
    x, y = (np.concatenate(of) for of in zip(*(arrays(d.train) for d in data.clients), strict=True))
    kept = VotedCore(own).kept(x, y, c=1.0, boundary=BOUNDARY)
    assert (kept == own.kept(x, y, c=1.0, boundary=BOUNDARY)).all()
    methods = (Central(BOUNDARY, hulls="once", core=core) for core in (own, VotedCore(own)))
    one, other = (scores(train(method, data)[1], "holdout/accuracy")[None] for method in methods)
    assert one == other
