"""Noisy scores of a node: what they reveal, what they cost, and who switches them on."""

import math

import pytest
import torch
from scipy import stats

from fedbolic.core.tree import map as tree_map
from fedbolic.data import Client, Examples
from fedbolic.federated import DistributedNoise, SumPrivacy, Trainer
from fedbolic.federated.noise.integers import IntegerDraws
from fedbolic.federated.secure import SecureSum
from fedbolic.methods import PrivateSteps
from fedbolic.remote.accounts import PrivacyAccounts
from fedbolic.remote.client_state_store import ClientStateStore
from fedbolic.remote.node import Node, make_request
from fedbolic.remote.score_noise import ScoreNoise, score_noise_of
from flynn import FlyNN, Histogram
from tests.federated.simple_method import RNG, SMALL, federation
from tests.remote.test_withheld_scores import constant
from tests.remote.transports import Here

CHANCE = 1e-9
"""Probability with which a correct mechanism fails a test of its law."""

DATA = federation((7, 4, 12, 5), classes=10, num_test=40)
STEPS = PrivateSteps(SMALL, steps=2, rate=0.5, dp_delta=1e-3)
HASH = FlyNN(dim=60, fan_in=2, active=7, privacy=Histogram(0.5))


def node_of(method, folder, *, noise, budget=1.0, client=DATA.clients[0]):
    accounts = PrivacyAccounts(folder, "mine")
    if not accounts.file("example").exists():
        accounts.create("example", epsilon=budget)
    node = Here(method, DATA, folder).nodes[1000]
    return Node(method, client, (), node.evaluation, node.store, accounts, noise)


def request_of(method, label, round, path=None):
    message = method.broadcast(Trainer().begin(method, DATA, RNG).server_state, 0)
    rng = RNG.at("round", round, "evaluation") if path is None else RNG.at(*path)
    return make_request(method, constant(message, label), {}, DATA.meta, rng, task="scores")


def right(reply):
    return reply["scores"]["test/accuracy"] * reply["scores"]["test/examples"]


def test_ten_constant_models_read_the_labels_from_exact_scores_and_not_from_noisy_ones(tmp_path):
    counts = DATA.clients[0].test.tensors["y"].bincount(minlength=10).double()
    exact = Here(SMALL, DATA, tmp_path / "open").nodes[1000]
    read = [right(exact.reply(request_of(SMALL, label, 1))) for label in range(10)]
    assert read == pytest.approx(counts.tolist())
    node = node_of(STEPS, tmp_path / "own", noise=ScoreNoise(0.1, rounds=10))
    replies = [node.reply(request_of(STEPS, label, 1 + label))["scores"] for label in range(10)]
    assert all(scores.keys() <= {"test/accuracy", "test/examples"} for scores in replies)
    # a reply has both counts exactly with probability tanh(epsilon / 2) ** 2 = 0.0025, five 3e-11
    exactly = [
        s.get("test/examples") == 40 and round(right({"scores": s})) == n
        for s, n in zip(replies, counts.tolist(), strict=True)
    ]
    assert sum(exactly) < 5
    assert node.accounts.balance("example").epsilon == pytest.approx(1.0)
    assert node.reply(request_of(STEPS, 0, 11)) == {"error": "ValueError"}  # the budget is spent
    assert node.accounts.balance("example").num_charges == 10


@pytest.mark.parametrize("epsilon", [0.3, 1.5])
def test_the_noise_on_both_counts_is_discrete_laplace(epsilon, tmp_path, monkeypatch):
    """Counts far above the noise are not clamped, so the reply gives the noise."""
    y = torch.tensor([0] * 300 + [1] * 500)
    many = Examples({"x": torch.zeros(len(y), 5, dtype=torch.float64), "y": y})
    monkeypatch.setattr("fedbolic.remote.score_noise._counts", lambda *_: (300, 500))
    found = []
    for _ in range(600):
        client = Client(0, many, many, many, DATA.meta)
        scores = ScoreNoise(epsilon, 1).release(STEPS, {}, client, RNG)
        total = round(scores["test/examples"])
        seen = round(scores["test/accuracy"] * total)
        found += [seen - 300, total - seen - 500]
    width, q = math.ceil(3 / epsilon), math.exp(-epsilon)
    inside = [(1 - q) / (1 + q) * q ** abs(k) for k in range(-width, width + 1)]
    tail = q ** (width + 1) / (1 + q)
    law = [tail, *inside, tail]
    cells = torch.tensor(found).clamp(-width - 1, width + 1) + width + 1
    observed = cells.bincount(minlength=len(law)).tolist()
    assert math.fsum(law) == pytest.approx(1)
    assert stats.chisquare(observed, [1200 * p for p in law]).pvalue > CHANCE


@pytest.mark.parametrize("method", [STEPS, HASH], ids=["steps", "hash"])
def test_one_example_changes_one_of_the_counts_by_one(method, monkeypatch):
    """Whatever the others are: training data, validation data and the order of the tests."""
    monkeypatch.setattr(
        IntegerDraws, "laplace", lambda self, scale, size: torch.zeros(size).numpy()
    )
    state = Trainer().begin(method, DATA, RNG).server_state
    message = method.broadcast(state, 0)
    if "counts" in message:
        counts = (torch.arange(600) % 7).view(10, 60).to(message["counts"].dtype)
        message = {**message, "parties": 4, "counts": counts}
    noise, own = ScoreNoise(1.0, 1), DATA.clients[0]
    tests = own.test.tensors

    def counts(rows, train=own.train):
        part = Examples(tree_map(lambda x: x[rows], tests))
        scores = noise.release(method, message, Client(0, train, train, part, DATA.meta), RNG)
        both = scores["test/accuracy"] * scores["test/examples"], scores["test/examples"]
        return round(both[0]), round(both[1])

    whole = counts(torch.arange(40))
    assert whole[1] == 40
    assert counts(torch.arange(40), train=own.test) == whole
    for k in range(0, 40, 8):
        rest = counts(torch.tensor([i for i in range(39, -1, -1) if i != k]))
        alone = counts(torch.tensor([k]))
        assert (rest[0] + alone[0], rest[1] + alone[1]) == whole


def test_a_round_is_scored_once_and_its_replay_is_free_and_the_same(tmp_path):
    node = node_of(STEPS, tmp_path, noise=ScoreNoise(0.1, rounds=5))
    first = node.reply(request_of(STEPS, 0, 3))
    for _ in range(3):
        again = node_of(STEPS, tmp_path, noise=ScoreNoise(0.1, rounds=5))  # a new process
        assert again.reply(request_of(STEPS, 0, 3)) == first
        assert again.reply(request_of(STEPS, 1, 3)) == {"error": "ValueError"}
    for path in ((), ("round", "x", "evaluation"), ("round", 4), ("round", 4, "evaluation", 0)):
        assert node.reply(request_of(STEPS, 0, 0, path)) == {"error": "ValueError"}
    assert node.accounts.balance("example").num_charges == 1
    assert "scores" in node.reply(request_of(STEPS, 0, 1))  # of a resumed run
    assert node.accounts.balance("example").num_charges == 2


def test_an_interrupted_scoring_stays_charged(tmp_path, monkeypatch):
    node = node_of(HASH, tmp_path, noise=ScoreNoise(0.5, rounds=1), budget=0.5)

    def broken(self, *_):
        raise OSError("the machine went down")

    with monkeypatch.context() as patch:
        patch.setattr(ClientStateStore, "keep_scoring", broken)
        assert node.reply(request_of(HASH, 0, 1)) == {"error": "OSError"}
    assert node.reply(request_of(HASH, 0, 1)) == {"error": "ValueError"}
    assert node.accounts.balance("example").epsilon == 0.5


def test_noisy_scores_are_refused_without_an_account_of_examples(tmp_path):
    sums = SumPrivacy(survivors=3, dp_delta=1e-3, noise_multiplier=8.0, clip_norm=0.1, bits=24)
    for method in (SMALL, SecureSum(SMALL, threshold=3), DistributedNoise(SMALL, sums)):
        node = Here(method, DATA, tmp_path).nodes[1000]
        noisy = Node(method, node.client, (), node.evaluation, node.store, None, ScoreNoise(1.0, 1))
        assert noisy.reply(request_of(SMALL, 0, 1)) == {"error": "ValueError"}
    for epsilon in (0.0, -1.0, 1e-7, math.inf, math.nan):
        with pytest.raises(ValueError, match="epsilon of a scoring must be finite"):
            ScoreNoise(epsilon, 1)
    with pytest.raises(ValueError, match="rounds must be at least 1"):
        ScoreNoise(1.0, 0)


def test_no_request_switches_scores_on(tmp_path):
    node = node_of(STEPS, tmp_path, noise=None)
    asked = {**request_of(STEPS, 0, 1), "score_epsilon": 1.0, "score_rounds": 5}
    assert node.reply(asked) == {"scores": {}}


def test_a_node_needs_an_account_and_a_number_of_rounds_for_noisy_scores():
    config = {"score_epsilon": 0.1, "score_rounds": 5, "accounts": "folder"}
    assert score_noise_of(config) == ScoreNoise(0.1, 5)
    assert score_noise_of({"accounts": "folder", "score_rounds": 5}) is None
    for name in ("accounts", "score_rounds"):
        rest = {key: value for key, value in config.items() if key != name}
        with pytest.raises(ValueError, match=f"needs \\['{name}'\\] as well"):
            score_noise_of(rest)
