import dataclasses
from collections import OrderedDict

import pytest
import torch
from torch import nn
from torch.nn.functional import cross_entropy

from fedbolic.federated import LocalTraining, ServerSGD
from fedbolic.methods import FedAvg
from fedbolic.nn.network.backbone import MLP
from fedbolic.optim import SGD
from tests.federated.simple_method import (
    RNG,
    MeanEmbedding,
    NormNet,
    Words,
    assert_near,
    assert_same,
    average,
    batches,
    federation,
    plain_network,
    train,
    values,
    with_words,
)

PLAIN = FedAvg(MLP((4,)), rounds=3, local=LocalTraining(epochs=2, batch_size=3), lr=0.2)


def with_(method=PLAIN, **changes):
    return dataclasses.replace(method, **changes)


def start(data, method=PLAIN):
    """Parameters before the first round, by the named stream and a hand-made module's names."""
    server_state = method.init(data.meta, RNG.at("init"))
    dtype = data.clients[0].train.tensors["x"].dtype
    return {name: value.to(dtype) for name, value in server_state["parameters"].items()}


def local_loop(parameters, client, round, method, *, mu=0.0, optimizer=None):
    """Local training as in PyTorch's own tutorial."""
    network = plain_network(parameters)
    global_parameters = values(network)
    make = optimizer or (lambda p: torch.optim.SGD(p, lr=method.lr))
    optimizer = make(network.parameters())
    local = method.local
    for x, y in batches(RNG, round, client, epochs=local.epochs, batch_size=local.batch_size):
        for _ in range(local.repeats):
            optimizer.zero_grad()
            loss = cross_entropy(network(x), y, reduction="none").mean()
            for name, value in network.named_parameters():
                if mu:
                    loss = loss + mu / 2 * (value - global_parameters[name]).square().sum()
            loss.backward()
            optimizer.step()
    return values(network)


def global_loop(data, method, *, rounds=3, weights=None, beta=0.0, **options):
    """FedAvg, Algorithm 1, with server momentum."""
    theta = start(data, method)
    velocity = {name: torch.zeros_like(value) for name, value in theta.items()}
    n = [float(len(client.train)) if weights is None else 1.0 for client in data.clients]
    for r in range(1, rounds + 1):
        local = [local_loop(theta, client, r, method, **options) for client in data.clients]
        for name in theta:
            delta = sum(w * (t[name] - theta[name]) for w, t in zip(n, local, strict=True))
            velocity[name] = beta * velocity[name] + delta / sum(n)
            theta = {**theta, name: theta[name] + velocity[name]}
    return theta


def trained(method, data, **settings):
    return train(method, data, RNG, **settings)[0][-1].server_state["parameters"]


@pytest.mark.parametrize("batch_size", [1, 3, 5, None])
def test_rounds_equal_the_plain_loop(batch_size):
    data = federation()
    method = with_(local=LocalTraining(2, batch_size))
    assert_near(trained(method, data), global_loop(data, method), 1e-12)


def clipped(optimizer, bound):
    """The optimiser behind a bound on the norm of all its gradients together."""
    step = optimizer.step

    def bounded():
        gradients = [p.grad for group in optimizer.param_groups for p in group["params"]]
        norm = torch.cat([g.flatten() for g in gradients]).norm()
        for g in gradients:
            g.mul_(min(1.0, bound / norm.item()))
        step()

    optimizer.step = bounded
    return optimizer


def test_a_long_gradient_is_scaled_to_the_bound():
    data = federation()
    method = with_(local=LocalTraining(2, 3, clip_norm=0.3))
    make = lambda p: clipped(torch.optim.SGD(p, lr=0.2), 0.3)  # noqa: E731
    assert_near(trained(method, data), global_loop(data, method, optimizer=make), 1e-12)
    free = trained(PLAIN, data)
    assert (trained(method, data)["head.bias"] - free["head.bias"]).abs().max() > 1e-3
    wide = trained(with_(local=LocalTraining(2, 3, clip_norm=1e6)), data)
    assert_same(wide, free)


def test_repeats_are_steps_on_the_same_batch():
    data = federation()
    method = with_(local=LocalTraining(2, 3, repeats=3))
    assert_near(trained(method, data), global_loop(data, method), 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_local_training_equals_torch_to_the_last_bit(dtype):
    data = federation(dtype=dtype)
    theta = start(data)
    message = {"parameters": theta, "buffers": {}, "seed": 0}
    for client in data.clients:
        stream = RNG.at("round", 1, "exchange", 0, "client", client.id)
        update, client_state = PLAIN.local_update(message, client, {}, stream)
        expected = local_loop(theta, client, 1, PLAIN)
        delta = {name: value - theta[name] for name, value in expected.items()}
        assert_same(update.payload, {"delta": delta, "buffers": {}})
        assert client_state == {}


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.2, momentum=0.9)),
        (SGD(weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.2, weight_decay=0.1)),
    ],
)
def test_the_local_optimizer_starts_afresh_each_round(ours, theirs):
    data = federation()
    method = with_(optimizer=ours)
    assert_near(trained(method, data), global_loop(data, method, optimizer=theirs), 1e-12)


def test_one_client_is_local_gradient_descent():
    data = federation(sizes=(11,))
    theta = start(data)
    for r in (1, 2, 3):
        theta = local_loop(theta, data.clients[0], r, PLAIN)
    assert_near(trained(PLAIN, data), theta, 1e-14)


def test_uniform_weights_ignore_sizes():
    data = federation()
    method = with_(weights="uniform")
    expected = global_loop(data, method, weights="uniform")
    assert_near(trained(method, data), expected, 1e-12)
    by_size = global_loop(data, PLAIN)
    assert (expected["head.weight"] - by_size["head.weight"]).abs().max() > 1e-3


@pytest.mark.parametrize("mu", [0.01, 1.0])
def test_the_proximal_step_descends_a_loss_with_the_proximal_term(mu):
    data = federation()
    method = with_(proximal=mu)
    assert_near(trained(method, data), global_loop(data, method, mu=mu), 1e-12)


def test_no_proximal_term_is_fedavg_to_the_last_bit():
    data = federation(dtype=torch.float32)
    assert_same(trained(with_(proximal=0.0), data), trained(PLAIN, data))
    assert not torch.equal(
        trained(with_(proximal=0.1), data)["head.bias"], trained(PLAIN, data)["head.bias"]
    )


@pytest.mark.parametrize("beta", [0.5, 0.9])
def test_server_momentum_is_the_recursion_of_the_velocity(beta):
    data = federation()
    method = with_(server_optimizer=ServerSGD(momentum=beta))
    assert_near(trained(method, data), global_loop(data, method, beta=beta), 1e-12)


def test_a_personal_model_is_never_sent_and_equals_isolated_training():
    data = federation()
    method = with_(sharing={"*": "personal"})
    positions, rows = train(method, data, RNG)
    message = method.broadcast(positions[-1].server_state, 0)
    assert message["parameters"] == message["buffers"] == {}
    assert all(row.value == 0 for row in rows if row.name == "bytes/up")
    theta = start(data)
    for client in data.clients:
        alone = theta
        for r in (1, 2, 3):
            alone = local_loop(alone, client, r, PLAIN)
        assert_near(positions[-1].client_states[client.id]["parameters"], alone, 1e-12)


def test_a_personal_head_stays_at_home():
    data = federation()
    method = with_(sharing={"head.*": "personal", "*": "shared"})
    positions, _ = train(method, data, RNG)
    for server_state in (positions[0].server_state, positions[-1].server_state):
        message = method.broadcast(server_state, 0)
        assert set(message["parameters"]) == {"body.1.weight", "body.1.bias"}
        assert set(server_state["parameters"]) == set(message["parameters"])
    update, client_state = method.local_update(message, data.clients[0], {}, RNG)
    assert set(update.payload["delta"]) == {"body.1.weight", "body.1.bias"}
    assert set(client_state["parameters"]) == {"head.weight", "head.bias"}


def test_fixed_parameters_never_move_and_are_never_sent():
    data = federation()
    method = with_(sharing={"head.*": "fixed", "*": "shared"})
    theta = start(data)  # the whole model from the same seed
    positions, _ = train(method, data, RNG)
    server_state = positions[-1].server_state
    assert set(server_state["parameters"]) == {"body.1.weight", "body.1.bias"}
    assert all(client_state == {} for client_state in positions[-1].client_states.values())
    local, context = method.start(method.broadcast(server_state, 0), data.clients[0], {})
    everything = {**local["parameters"], **context["shared"]["fixed"]}
    head = {name: everything[name] for name in ("head.weight", "head.bias")}
    assert_near(head, {name: theta[name] for name in head}, 0.0)
    # layers frozen the way torch does it
    for r in (1, 2, 3):
        local = []
        for client in data.clients:
            network = plain_network(theta)
            network.head.requires_grad_(False)
            descent = torch.optim.SGD(network.body.parameters(), lr=0.2)
            for x, y in batches(RNG, r, client, epochs=2, batch_size=3):
                descent.zero_grad()
                cross_entropy(network(x), y).backward()
                descent.step()
            local.append(values(network))
        theta = average(local, data.sizes)
    assert_near(
        server_state["parameters"], {k: theta[k] for k in server_state["parameters"]}, 1e-12
    )


def norm_loop(data, method, rounds):
    """FedAvg with batch norm: statistics are averaged, and batches of one are skipped."""
    server_state = method.init(data.meta, RNG.at("init"))
    theta, stats = (
        {n: v.double() if v.is_floating_point() else v for n, v in server_state[kind].items()}
        for kind in ("parameters", "buffers")
    )
    for r in range(1, rounds + 1):
        local = []
        for client in data.clients:
            network = plain_network(theta, stats, norm=True)
            descent = torch.optim.SGD(network.parameters(), lr=method.lr)
            for x, y in batches(RNG, r, client, epochs=2, batch_size=3):
                if len(x) == 1:
                    continue
                descent.zero_grad()
                cross_entropy(network(x), y).backward()
                descent.step()
            local.append(network.state_dict())
        mean = average(local, data.sizes)
        theta = {k: mean[k] for k in theta}
        stats = {k: mean[k].round().long() if "num" in k else mean[k] for k in stats}
    return theta, stats


def test_batch_norm_statistics_are_averaged_and_batches_of_one_left_out():
    data = federation(sizes=(7, 4, 12, 1))  # 7 = 3 + 3 + 1, 4 = 3 + 1, 1 = 1
    method = with_(backbone=NormNet())
    server_state = train(method, data, RNG)[0][-1].server_state
    theta, stats = norm_loop(data, method, 3)
    assert_near(server_state["parameters"], theta, 1e-12)
    assert_near(server_state["buffers"], stats, 1e-12)
    assert (server_state["buffers"]["body.2.running_mean"] != 0).all()


def test_personal_batch_norm_keeps_its_statistics_at_home():
    data = federation()
    method = with_(backbone=NormNet(), sharing={"body.2.*": "personal", "*": "shared"})
    positions, _ = train(method, data, RNG)
    assert positions[-1].server_state["buffers"] == {}
    client_state = positions[-1].client_states[2]
    assert set(client_state["buffers"]) == {
        "body.2.running_mean",
        "body.2.running_var",
        "body.2.num_batches_tracked",
    }
    assert (
        int(client_state["buffers"]["body.2.num_batches_tracked"]) == 3 * 2 * 4
    )  # 12 examples in batches of 3
    assert set(client_state["parameters"]) == {"body.2.weight", "body.2.bias"}


def test_a_client_without_examples_changes_nothing():
    with_empty, without = federation(sizes=(7, 4, 0)), federation(sizes=(7, 4))
    assert_same(trained(PLAIN, with_empty), trained(PLAIN, without))


def test_inputs_may_be_integers():
    data = with_words(federation())
    method = with_(backbone=Words())
    theta = method.init(data.meta, RNG.at("init"))["parameters"]
    for r in (1, 2, 3):
        local = []
        for client in data.clients:
            network = nn.Sequential(OrderedDict(body=MeanEmbedding(4), head=nn.Linear(4, 3)))
            network.load_state_dict(theta)
            descent = torch.optim.SGD(network.parameters(), lr=0.2)
            for x, y in batches(RNG, r, client, epochs=2, batch_size=3):
                descent.zero_grad()
                cross_entropy(network(x), y).backward()
                descent.step()
            local.append(values(network))
        theta = average(local, data.sizes)
    assert_near(trained(method, data), theta, 1e-6)


@pytest.mark.parametrize("num_test", [6, 1500])  # 1500 are more than are scored at once
def test_scores_are_those_of_the_averaged_model(num_test):
    data = federation(num_test=num_test)
    positions, rows = train(PLAIN, data, RNG)
    network = plain_network(positions[-1].server_state["parameters"])
    found = {(row.client, row.name): row.value for row in rows if row.round == 3}
    correct = total = 0
    for client in (*data.clients, data.holdout):
        x, y = client.test.tensors["x"], client.test.tensors["y"]
        logits = network(x).detach()
        hits = int((logits.argmax(1) == y).sum())
        if client.id >= 0:
            assert found[client.id, "test/accuracy"] == hits / len(y)
            assert found[client.id, "test/loss"] == pytest.approx(
                float(cross_entropy(logits, y)), rel=1e-6
            )
            correct, total = correct + hits, total + len(y)
        else:
            assert found[None, "holdout/accuracy"] == hits / len(y)
    assert found[None, "test/accuracy"] == pytest.approx(correct / total)


def test_the_recorded_training_loss_is_the_mean_over_the_examples_seen():
    data = federation()
    client, theta = data.clients[0], start(data)
    message = {"parameters": theta, "buffers": {}, "seed": 0}
    stream = RNG.at("round", 1, "exchange", 0, "client", 0)
    update, _ = PLAIN.local_update(message, client, {}, stream)
    network = plain_network(theta)
    descent = torch.optim.SGD(network.parameters(), lr=0.2)
    seen = []
    for x, y in batches(RNG, 1, client, epochs=2, batch_size=3):
        losses = nn.CrossEntropyLoss(reduction="none")(network(x), y)
        seen += losses.tolist()
        descent.zero_grad()
        losses.mean().backward()
        descent.step()
    assert len(seen) == 14
    assert update.metrics["train/loss"] == pytest.approx(sum(seen) / 14, rel=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rounds": 0}, "rounds must be at least 1, got 0"),
        ({"lr": 0.0}, "lr must be a positive number, got 0.0"),
        ({"lr": float("nan")}, "lr must be a positive number, got nan"),
        ({"proximal": -1.0}, "proximal must be 0 or more, got -1.0"),
        ({"sharing": {}}, "sharing has no row"),
        ({"sharing": {"*": "fixed"}}, "sharing fixes every parameter"),
    ],
)
def test_values_outside_their_range_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        with_(**changes)


def test_a_name_that_no_pattern_matches_is_refused():
    method = with_(sharing={"head.*": "shared"})
    with pytest.raises(ValueError, match=r"matches 'body\.1\.weight'"):
        method.init(federation().meta, RNG)
