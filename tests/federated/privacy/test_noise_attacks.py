"""Strategies of a dishonest server against the noise of clients in a secure sum."""

import dataclasses

import pytest
import torch

from fedbolic.core.rng import Rng
from fedbolic.federated import DistributedNoise
from fedbolic.federated.privacy.sum_privacy import SumPrivacy
from fedbolic.federated.secure import SecureSum
from tests.federated.secure.dishonest import NUM, VICTIM, Dishonest
from tests.federated.simple_method import RNG, SMALL, federation
from tests.seeded import SeededKeys

DATA = federation((4,) * NUM, dtype=torch.float32)
PRIVACY = SumPrivacy(survivors=4, dp_delta=1e-2, noise_multiplier=1.0, clip_norm=0.1)
NOISY = DistributedNoise(dataclasses.replace(SMALL, rounds=3), PRIVACY, noise=SeededKeys())
METHOD = SecureSum(NOISY, threshold=4)


class Watched(Dishonest):
    """A server that keeps the server state of the last sum, as far as it was formed."""

    def sum(self, members=range(NUM), **inner):
        self.last = None
        try:
            for state in self.states(members, **inner):
                self.last = state
        except Exception as error:
            self.refusals.append(str(error))
        return self.last["inner"].get("inner") if self.last["stage"] == "cards" else None


def summand(client_state):
    """The summand that one client would send without masks, and its next client state."""
    message = NOISY.broadcast(NOISY.init(DATA.meta, RNG), VICTIM)
    stream = Rng(3).at("client", VICTIM)
    return NOISY.local_update(message, DATA.clients[VICTIM], client_state, stream)


@pytest.mark.parametrize("last", ["survivors", "unmasking"])
def test_a_sum_that_is_not_finished_uses_up_a_release(last):
    server = Watched(METHOD, DATA, alter=lambda stage, i, m: None if stage == last else m)
    for used in (1, 2, 3):
        server.sum()
        states = [state["inner"] for state in server.client_states.values()]
        assert {state["releases"] for state in states} == {used}
        assert all("inner" not in state for state in states)
    server.alter = lambda stage, i, message: message
    server.sum()
    assert sum("all that its privacy budget is for" in each for each in server.refusals) == NUM


def test_a_client_whose_shares_are_not_asked_for_has_used_up_its_release_too():
    """The others unmask the sum, so its noise is released; with it again, it would cancel."""

    def alter(stage, i, message):
        return None if (stage, i) == ("unmasking", VICTIM) else message

    server = Watched(METHOD, DATA, alter=alter)
    assert server.sum() is not None
    assert server.client_states[VICTIM]["inner"]["releases"] == 1


def test_the_same_round_again_has_other_noise():
    """Two releases with the same noise would differ by the deltas alone."""
    first, state = summand({})
    second, later = summand(state)
    assert later["releases"] == 2
    gap = (first.payload["numbers"] - second.payload["numbers"]) % 2**PRIVACY.bits
    assert gap.count_nonzero() > 0.5 * gap.numel()


@pytest.mark.parametrize("rotation", [0, 1, 2**62])
@pytest.mark.parametrize("scale", [1.0, 1e6, 1e300])
def test_no_model_and_no_rotation_make_a_contribution_larger_than_the_bound(rotation, scale):
    """The noise, which the test knows by its key, is subtracted from what the client sends."""
    state = NOISY.init(DATA.meta, RNG)
    parameters = {n: x * scale for n, x in state["inner"]["parameters"].items()}
    state = {**state, "rotation": rotation, "inner": {**state["inner"], "parameters": parameters}}
    message = NOISY.broadcast(state, VICTIM)
    stream = Rng(3).at("client", VICTIM)
    update, _ = NOISY.local_update(message, DATA.clients[VICTIM], {}, stream)
    lattice, _ = NOISY._plan(NUM, NOISY.method.template(message["inner"]))
    key = NOISY.noise.stream(Rng(3).at("privacy", VICTIM)).at("release", 0, "round", 0)
    noise = torch.from_numpy(key.integers().gaussian(lattice.variance, lattice.dim))
    half = 2 ** (PRIVACY.bits - 1)
    sent = (update.payload["numbers"][:, 0] - noise + half) % (2 * half) - half
    assert float(sent.double().norm()) <= lattice.largest**0.5
