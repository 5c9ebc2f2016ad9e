"""Laws of every method; a method is tested here once it has a ``configs/**/quick.yaml``."""

import copy
import dataclasses
import math
import pickle

import pytest
import torch

from fedbolic import experiment
from fedbolic.configuration import build, describe
from fedbolic.data import Examples
from fedbolic.federated import (
    Additive,
    Batched,
    Evaluation,
    FineTune,
    GradientMethod,
    RidgeHead,
    Sequential,
    TrainerState,
)
from fedbolic.record import RunFolder
from flatland.graph_method import GraphMethod
from tests.federated.simple_method import assert_same, flat, saved_and_loaded, train
from tests.subjects import (
    QUICK,
    RNG,
    every_configuration,
    every_method,
    exchanges,
    settings,
    subject,
    work,
)


def storages(*trees):
    return {
        leaf.untyped_storage().data_ptr()
        for tree in trees
        for leaf in flat(tree).values()
        if isinstance(leaf, torch.Tensor) and leaf.numel()
    }


def holds_a_row(numbers, rows):
    """True if a row occurs as consecutive numbers anywhere in a vector."""
    width = rows.shape[1]
    if len(numbers) < width:
        return False
    windows = numbers.unfold(0, width, 1)
    for column in range(width):  # few windows remain after the first column
        windows = windows[torch.isin(windows[:, column], rows[:, column])]
    return bool((windows[:, None] == rows).all(-1).any())


def test_a_row_is_found_wherever_it_stands():
    rows = torch.arange(12.0).reshape(4, 3)
    assert holds_a_row(torch.tensor([7.0, 3.0, 4.0, 5.0, 9.0]), rows)
    assert not holds_a_row(torch.tensor([7.0, 3.0, 4.0, 8.0, 5.0]), rows)
    assert not holds_a_row(torch.tensor([3.0, 4.0]), rows)


def test_every_method_of_the_house_has_a_quick_configuration():
    assert {"fedavg", "ditto", "scaffold", "spherefed", "majority"} <= set(QUICK)


@every_method
def test_a_method_is_a_frozen_record_of_hyperparameters(name):
    method, _ = subject(name)
    assert type(method).__dataclass_params__.frozen
    assert method == copy.deepcopy(method) == pickle.loads(pickle.dumps(method))


@every_configuration
def test_a_configuration_that_is_written_is_read_back_equal(name, tmp_path):
    given = settings(name)
    file = tmp_path / "config.yaml"
    text = describe(experiment.run, given)
    file.write_text(text)
    again = build(experiment.run, ["--config", str(file)])
    assert {key: again[key] for key in given} == given
    assert describe(experiment.run, again) == text  # compares the order, too


@every_method
def test_init_is_pure_and_follows_the_seed(name):
    method, data = subject(name)
    global_stream = torch.get_rng_state()
    first, second = (method.init(data.meta, RNG.at("init")) for _ in range(2))
    assert_same(first, second)
    assert not storages(first) & storages(second)
    assert torch.equal(torch.get_rng_state(), global_stream)


@every_method
def test_local_work_is_pure_and_deterministic(name):
    for x in exchanges(name):
        for client in x.clients:
            arguments = (x.messages[client.id], x.client_states[client.id])
            splits = {"train": client.train, "test": client.test}
            data = {n: s.tensors for n, s in splits.items() if isinstance(s, Examples)}
            before, data_before = copy.deepcopy(arguments), copy.deepcopy(data)
            global_stream = torch.get_rng_state()
            update, client_state = work(x, client)
            assert torch.equal(torch.get_rng_state(), global_stream)
            for tree, old in zip(arguments, before, strict=True):
                assert_same(tree, old)
            assert_same(data, data_before)
            expected = x.updates[client.id]
            assert_same(update.payload, expected.payload)
            assert (update.weight, update.metrics) == (expected.weight, expected.metrics)
            assert_same(client_state, x.kept[client.id])


@every_method
def test_local_work_ignores_the_global_random_stream(name):
    server_state = torch.get_rng_state()
    for seed, x in enumerate(exchanges(name)):
        torch.manual_seed(seed)
        update, client_state = work(x, x.clients[0])
        assert_same(update.payload, x.updates[x.clients[0].id].payload)
        assert_same(client_state, x.kept[x.clients[0].id])
    torch.set_rng_state(server_state)


@every_method
def test_the_server_is_pure_and_deterministic(name):
    for x in exchanges(name):
        before = copy.deepcopy((x.server_state, x.total.payload))
        for client in x.clients:
            assert_same(x.phase.broadcast(x.server_state, client.id), x.messages[client.id])
        total = x.phase.aggregator.aggregate(x.updates.items())
        assert_same(total.payload, x.total.payload)
        assert_same(x.phase.server_update(x.server_state, x.total), x.next)
        assert type(x.phase.phase(x.server_state)) is type(x.phase)
        assert_same(x.server_state, before[0])
        assert_same(x.total.payload, before[1])


@every_method
def test_evaluation_is_pure_and_its_scores_are_finite(name):
    method, data = subject(name)
    for x in exchanges(name):
        for client in (*x.clients, data.holdout):
            client_state = x.kept.get(client.id, {})
            message = method.broadcast(x.next, client.id)
            before = copy.deepcopy((message, client_state))
            first, second = (method.evaluate(message, client, client_state, RNG) for _ in range(2))
            assert first == second
            assert_same(message, before[0])
            assert_same(client_state, before[1])
            assert all(math.isfinite(value) for value in first.values())
            assert all(0 <= v <= 1 for n, v in first.items() if n.endswith("accuracy"))


@every_method
def test_figures_are_pure_and_may_be_saved(name, tmp_path):
    method, data = subject(name)
    server_state = exchanges(name)[-1].next
    before, global_stream = copy.deepcopy(server_state), torch.get_rng_state()
    first, second = (method.figures(server_state, data) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), global_stream)
    assert_same(server_state, before)
    assert first.keys() == second.keys()
    for label, figure in first.items():
        assert_same(vars(figure), vars(second[label]))
    RunFolder(tmp_path).save_figures(first)
    assert {file.stem for file in RunFolder(tmp_path).figures()} == first.keys()


@every_method
def test_the_order_of_clients_does_not_matter(name):
    for x in exchanges(name):
        backwards = x.clients[::-1]
        results = Sequential().run(x.phase, x.messages, backwards, x.client_states, x.rng)
        for client, update, client_state in results:
            assert_same(update.payload, x.updates[client.id].payload)
            assert_same(client_state, x.kept[client.id])


@every_method
def test_memory_stays_at_its_client(name):
    for x in exchanges(name):
        for client in x.clients:
            payload, client_state = x.updates[client.id].payload, x.kept[client.id]
            assert not storages(payload) & storages(client_state)
            assert not flat(payload).keys() & flat(client_state).keys()
            assert not storages(x.next, *x.messages.values()) & storages(client_state)


@every_method
@pytest.mark.parametrize("engine", [Sequential(), Batched()])
def test_what_a_client_received_and_kept_is_not_stepped(name, engine):
    for x in exchanges(name):
        before = copy.deepcopy((x.messages, x.client_states))
        list(engine.run(x.phase, x.messages, x.clients, x.client_states, x.rng))
        assert_same(x.messages, before[0])
        assert_same(x.client_states, before[1])


@every_method
def test_what_a_client_keeps_holds_nobody_elses(name):
    for x in exchanges(name):
        results = list(Batched().run(x.phase, x.messages, x.clients, x.client_states, x.rng))
        for _, update, client_state in results:
            for leaf in (*flat(update.payload).values(), *flat(client_state).values()):
                if isinstance(leaf, torch.Tensor):
                    assert leaf.untyped_storage().nbytes() == leaf.nbytes


@every_method
def test_no_row_of_a_payload_is_an_input(name):
    for x in exchanges(name):
        for client in x.clients:
            if not isinstance(client.train, Examples):
                continue
            inputs = client.train.tensors["x"].flatten(1).double()
            assert inputs.shape[1] > 1
            for leaf in flat(x.updates[client.id].payload).values():
                if isinstance(leaf, torch.Tensor):
                    assert not holds_a_row(leaf.double().flatten(), inputs)
                    assert not holds_a_row(-leaf.double().flatten(), inputs)


@every_method
def test_trees_hold_tensors_numbers_and_strings_and_survive_the_wire(name):
    for x in exchanges(name):
        payloads = [update.payload for update in x.updates.values()]
        for tree in (x.server_state, x.next, *x.messages.values(), *payloads, *x.kept.values()):
            for path, leaf in flat(tree).items():
                assert isinstance(leaf, torch.Tensor | int | float | str), path
                assert not getattr(leaf, "requires_grad", False), path
            assert_same(saved_and_loaded(tree), tree)
            assert_same(pickle.loads(pickle.dumps(tree)), tree)


@every_method
def test_payloads_have_the_form_that_was_declared(name):
    def forms(tree):
        return {
            path: (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf)
            for path, leaf in flat(tree).items()
        }

    for x in exchanges(name):
        form = x.phase.aggregator.form
        found = {i: forms(form(update.payload)) for i, update in x.updates.items()}
        if isinstance(x.phase.aggregator, Additive):
            assert all(one == found[0] for one in found.values())
        for client in x.clients:
            template = x.phase.template(x.messages[client.id])
            if template is not None:
                assert found[client.id] == forms(template)


@every_method
def test_weights_and_metrics_are_finite_numbers(name):
    for x in exchanges(name):
        for update in x.updates.values():
            assert math.isfinite(update.weight)
            assert update.weight >= 0
            assert all(math.isfinite(value) for value in update.metrics.values())
        assert all(math.isfinite(value) for value in x.total.metrics.values())
        assert x.total.clients == tuple(client.id for client in x.clients)


@every_method
def test_something_is_learned_or_at_least_changed(name):
    log = exchanges(name)
    before, after = (flat({"s": x}) for x in (log[0].server_state, log[-1].next))
    changed = any(
        isinstance(after[p], torch.Tensor)
        and (p not in before or not torch.equal(before[p], after[p]))
        for p in after
    )
    assert changed or any(log[-1].kept.values())


@every_method
def test_a_client_with_a_single_example_takes_part(name):
    x = exchanges(name)[0]
    client = x.clients[0]
    if not isinstance(client.train, Examples):
        pytest.skip("its data are no plain examples")
    one = dataclasses.replace(client, train=Examples(client.train.at(torch.arange(1))))
    update, client_state = x.phase.local_update(x.messages[client.id], one, {}, RNG)
    leaves = [*flat(update.payload).values(), *flat(client_state).values()]
    assert all(leaf.isfinite().all() for leaf in leaves if isinstance(leaf, torch.Tensor))


@every_method
def test_a_run_is_resumed_to_the_last_bit_and_every_client_is_tuned_and_calibrated(name):
    method, data = subject(name)
    evaluation = Evaluation(fine_tuning=FineTune(1), ridge_head=RidgeHead())
    positions, rows = train(method, data, RNG, evaluation=evaluation)
    assert_same(
        positions[-1].server_state, exchanges(name)[-1].next
    )  # the loop in subjects equals the trainer
    for state in positions[:-1]:
        loaded = TrainerState.restore(saved_and_loaded(state.checkpoint()))
        rest, new = train(method, data, RNG, loaded, evaluation=evaluation)
        assert_same(rest[-1].server_state, positions[-1].server_state)
        for i, client_state in positions[-1].client_states.items():
            assert_same(rest[-1].client_states[i], client_state)
        assert new == rows[len(rows) - len(new) :]
    assert all(math.isfinite(row.value) for row in rows)
    assert not any(row.value for row in rows if row.name == "clients/failed")
    gradients = isinstance(method, GradientMethod)
    if gradients and method.fine_tuning(1, None) is not None:
        tuned = {row.client for row in rows if row.name == "fine_tuned/accuracy"}
        assert tuned == {None, *(client.id for client in data.clients)}
    calibrated = {row.client for row in rows if row.name == "ridge_head/accuracy"}
    common = gradients and method.ridge_head is not None
    assert calibrated == ({None, *(client.id for client in data.clients)} if common else set())
    assert sum(row.name == "ridge_head/holdout/accuracy" for row in rows) == common


@every_method
def test_a_stepped_method_with_a_global_classifier_can_be_calibrated(name):
    method, data = subject(name)
    message = method.broadcast(method.init(data.meta, RNG), data.holdout.id)
    has_global_classifier = "test/accuracy" in method.evaluate(message, data.holdout, {}, RNG)
    # networks on graphs have no features of single examples, whether they are global or not
    if isinstance(method, GradientMethod) and not isinstance(method, GraphMethod):
        assert (method.ridge_head is not None) == has_global_classifier
