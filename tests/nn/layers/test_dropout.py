"""Dropout whose random bits are a function of the seed and the position."""

import copy

import pytest
import torch
from torch.func import functional_call, vmap

from fedbolic.core import tree
from fedbolic.federated import LocalTraining, Sequential
from fedbolic.federated.contract.engine import Exchange
from fedbolic.methods import FedAvg
from fedbolic.nn.layers.dropout import SEED, Dropout
from fedbolic.nn.network.backbone import MLP
from tests.federated.simple_method import RNG, federation, train


def splitmix64(seed, n):
    """The first numbers of SplitMix64 in Python's unbounded integers."""
    numbers, mask = [], 2**64 - 1
    for i in range(1, n + 1):
        z = (seed + i * 0x9E3779B97F4A7C15) & mask
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & mask
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & mask
        numbers.append(z ^ (z >> 31))
    return numbers


def mixed(seed):
    """The output function of SplitMix64 applied to any state."""
    return splitmix64(seed - 0x9E3779B97F4A7C15, 1)[0]


def layer(seed, p=0.5):
    module = Dropout(p)
    module.dropout_seed = torch.tensor(seed)
    return module


def test_the_reference_is_the_published_generator():
    # the test vector of the Java and C implementations
    assert splitmix64(1234567, 3) == [
        6457827717110365317, 3203168211198807973, 9817491932198370423,
    ]  # fmt: skip


@pytest.mark.parametrize("seed", [0, 1, 7, 2**62 + 12345])
@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_an_element_is_dropped_where_the_generator_says_so(seed, p):
    numbers = splitmix64(mixed(seed), 32)
    coins = [half / 2**32 for number in numbers for half in (number % 2**32, number >> 32)]
    dropped = layer(seed, p)(torch.ones(3, 21)).flatten() == 0
    coins = coins[: len(dropped)]
    assert dropped.tolist() == [coin < p for coin in coins]


def test_the_rate_is_kept_and_neighbours_are_independent():
    kept = torch.stack([layer(seed, 0.3)(torch.ones(5000)) > 0 for seed in range(20)]).float()
    assert kept.mean() == pytest.approx(0.7, abs=5 * (0.21 / 1e5) ** 0.5)
    assert torch.corrcoef(kept).triu(1).abs().max() < 5 / 5000**0.5
    beside = torch.stack([kept[:, :-1].flatten(), kept[:, 1:].flatten()])
    assert torch.corrcoef(beside)[0, 1].abs() < 5 / 1e5**0.5


def test_every_pass_of_training_drops_others_and_evaluation_none():
    module, x = layer(3), torch.ones(100)
    first, second = module(x), module(x)
    assert not torch.equal(first, second)
    assert torch.equal(layer(4)(x), second)
    assert torch.equal(module.eval()(x), x)
    assert int(module.dropout_seed) == 5


def test_a_loaded_module_goes_on_where_the_saved_one_was():
    module, x = layer(3), torch.ones(100)
    module(x)
    other = Dropout()
    other.load_state_dict(copy.deepcopy(module.state_dict()))
    assert torch.equal(other(x), module(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_coins_are_those_of_every_dtype(dtype):
    x = torch.ones(200, dtype=dtype)
    assert layer(5)(x).dtype == dtype
    assert torch.equal(layer(5)(x) > 0, layer(5)(x.float()) > 0)


def test_a_longer_batch_drops_the_same_in_its_beginning():
    x = torch.ones(9, 7)
    assert torch.equal(layer(5)(x)[:4], layer(5)(x[:4]))


def test_vmap_takes_a_seed_for_each():
    module, x = Dropout(), torch.ones(4, 50)
    seeds = torch.tensor([3, 9, 3, 4])

    def one(seed, x):
        return functional_call(module, {SEED: seed}, (x,))

    mapped = vmap(one)(seeds, x)
    for row, seed in zip(mapped, seeds.tolist(), strict=True):
        assert torch.equal(row, layer(seed)(torch.ones(50)))


def test_the_gradient_is_that_of_the_kept():
    x = torch.ones(50, requires_grad=True)
    y = layer(5, 0.2)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad, y.detach())


def test_a_rate_next_to_one_is_none():
    assert int((layer(5, 1 - 1e-12)(torch.ones(1000)) == 0).sum()) == 1000


def test_a_rate_of_one_is_refused():
    with pytest.raises(ValueError, match=r"p must lie in \[0, 1\), got 1.0"):
        Dropout(1.0)


METHOD = FedAvg(MLP((8,), dropout=0.5), rounds=2, local=LocalTraining(2, 4))


def test_clients_and_rounds_drop_others_and_no_seed_leaves_a_client():
    data, seeds, update = federation(), [], FedAvg.loss

    def noted(self, model, parameters, buffers, batch, context):
        seeds.append(int(buffers[f"body.3.{SEED}"]))
        return update(self, model, parameters, buffers, batch, context)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FedAvg, "loss", noted)
        (*_, last), _ = train(METHOD, data, RNG)
    assert len(set(seeds)) == len(seeds) > 10
    assert int(last.server_state["buffers"][f"body.3.{SEED}"]) == 0

    state = tree.to(METHOD.init(data.meta, RNG), "cpu", torch.float64)
    messages = {client.id: METHOD.broadcast(state, client.id) for client in data.clients}
    for _, update, _ in Sequential().run(Exchange(METHOD, messages, data.clients, {}, RNG)):
        assert int(update.payload["buffers"][f"body.3.{SEED}"]) == 0
