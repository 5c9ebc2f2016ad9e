"""Laws of every federated method."""

import copy
import dataclasses
import itertools
import math
import pickle
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from fedbolic.data import Examples, FederatedData
from fedbolic.federated import Additive, Batched, Method, Sequential, Update
from fedbolic.federated.contract.capabilities import Reporting
from fedbolic.federated.contract.server_states import find_other_form
from fedbolic.run.record import RunFolder
from fedbolic.testing.compare import assert_same, flat, saved_and_loaded, storages
from fedbolic.testing.fresh_process import answers, answers_elsewhere
from fedbolic.testing.recording import MethodRun


def check_method(method: Method, data: FederatedData) -> None:
    """Assert all laws of a method.

    Args:
        method: Method to test, with few rounds.
        data: Small federation of at least two clients, with a test set of the server.

    Raises:
        AssertionError: If the method breaks a law, which the traceback names.

    Example:
        >>> from fedbolic.data import IID, Digits, Partitioned
        >>> from fedbolic.methods import Majority
        >>> from fedbolic.core.rng import Rng
        >>> check_method(Majority(), Partitioned(Digits(), IID(3), num_train=30).load(Rng(0)))
    """
    run = MethodRun(method, data)
    for law in METHOD_LAWS:
        law(run)


def holds_a_row(numbers: Tensor, rows: Tensor) -> bool:
    """True if a row occurs as consecutive numbers anywhere in a vector."""
    width = rows.shape[1]
    if len(numbers) < width:
        return False
    windows = numbers.unfold(0, width, 1)
    for column in range(width):  # few windows remain after the first column
        windows = windows[torch.isin(windows[:, column], rows[:, column])]
    return bool((windows[:, None] == rows).all(-1).any())


def method_is_a_frozen_record(run: MethodRun) -> None:
    """A method is a frozen dataclass that can be copied and pickled."""
    method, kind = run.method, cast(Any, type(run.method))
    assert kind.__dataclass_params__.frozen
    assert method == copy.deepcopy(method) == pickle.loads(pickle.dumps(method))


def init_is_pure_and_follows_the_seed(run: MethodRun) -> None:
    """The initial server state depends on the seed alone."""
    method, data = run.method, run.data
    global_stream = torch.get_rng_state()
    first, second = (method.init(data.meta, run.rng.at("init")) for _ in range(2))
    assert_same(first, second)
    assert not storages(first) & storages(second)
    assert torch.equal(torch.get_rng_state(), global_stream)


def local_work_is_pure_and_deterministic(run: MethodRun) -> None:
    """Local work gives the same result twice and modifies no argument."""
    for x in run.exchanges:
        for client in x.clients:
            arguments = (x.messages[client.id], x.client_states[client.id])
            splits = {"train": client.train, "test": client.test}
            data = {n: s.tensors for n, s in splits.items() if isinstance(s, Examples)}
            before, data_before = copy.deepcopy(arguments), copy.deepcopy(data)
            global_stream = torch.get_rng_state()
            update, client_state = x.work(client)
            assert torch.equal(torch.get_rng_state(), global_stream)
            for tree, old in zip(arguments, before, strict=True):
                assert_same(tree, old)
            assert_same(data, data_before)
            expected = x.updates[client.id]
            assert_same(update.payload, expected.payload)
            assert (update.weight, update.metrics) == (expected.weight, expected.metrics)
            assert_same(client_state, x.kept[client.id])


def local_work_ignores_the_global_random_stream(run: MethodRun) -> None:
    """Local work does not depend on torch's global random stream."""
    server_state = torch.get_rng_state()
    for seed, x in enumerate(run.exchanges):
        torch.manual_seed(seed)
        update, client_state = x.work(x.clients[0])
        assert_same(update.payload, x.updates[x.clients[0].id].payload)
        assert_same(client_state, x.kept[x.clients[0].id])
    torch.set_rng_state(server_state)


def pickled_copies_answer_alike_in_another_process(run: MethodRun) -> None:
    """Pickled copies give the same results in another process: no state lies outside arguments.

    Numbers that a method draws from ``secrets`` are the same in both processes.
    """
    for x in run.exchanges:
        assert_same(answers_elsewhere(run.method, x), answers(run.method, x))


def server_is_pure_and_deterministic(run: MethodRun) -> None:
    """The server's functions give the same result twice and modify no argument."""
    for x in run.exchanges:
        before = copy.deepcopy((x.server_state, x.total.payload))
        for client in x.clients:
            assert_same(x.phase.broadcast(x.server_state, client.id), x.messages[client.id])
        total = x.phase.aggregator.aggregate(x.updates.items())
        assert_same(total.payload, x.total.payload)
        assert_same(x.phase.server_update(x.server_state, x.total), x.next)
        assert type(x.phase.phase(x.server_state)) is type(x.phase)
        assert_same(x.server_state, before[0])
        assert_same(x.total.payload, before[1])


def server_states_keep_the_entries_of_the_first(run: MethodRun) -> None:
    """Server states have the entries of the initial one, with their types and shapes."""
    initial = run.method.init(run.data.meta, run.rng.at("init"))
    for state in (*(x.server_state for x in run.exchanges), run.exchanges[-1].next):
        fault = find_other_form(state, initial)
        assert fault is None, fault


def evaluation_is_pure_and_its_scores_are_finite(run: MethodRun) -> None:
    """Scores are finite, equal twice, and accuracies lie in [0, 1]."""
    method, data = run.method, run.data
    for x in run.exchanges:
        for client in (*x.clients, *([data.holdout] if data.holdout else [])):
            client_state = x.kept.get(client.id, {})
            message = method.broadcast(x.next, client.id)
            before = copy.deepcopy((message, client_state))
            first, second = (
                method.evaluate(message, client, client_state, run.rng) for _ in range(2)
            )
            assert first == second
            assert_same(message, before[0])
            assert_same(client_state, before[1])
            assert all(math.isfinite(value) for value in first.values())
            assert all(0 <= v <= 1 for n, v in first.items() if n.endswith("accuracy"))


def figures_are_pure_and_may_be_saved(run: MethodRun) -> None:
    """Figures are equal twice and can be saved; only a method that is ``Reporting`` is asked."""
    method, data = run.method, run.data
    if not isinstance(method, Reporting):
        assert not {"costs", "figures", "node_places"} & {*dir(method)}, "make it Reporting, too"
        return
    server_state = run.exchanges[-1].next
    before, global_stream = copy.deepcopy(server_state), torch.get_rng_state()
    first, second = (method.figures(server_state, data) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), global_stream)
    assert_same(server_state, before)
    assert first.keys() == second.keys()
    for label, figure in first.items():
        assert_same(vars(figure), vars(second[label]))
    with tempfile.TemporaryDirectory() as folder:
        saved = RunFolder(Path(folder))
        saved.save_figures(first)
        assert {file.stem for file in saved.figures()} == first.keys()


def order_of_clients_does_not_matter(run: MethodRun) -> None:
    """The order in which clients work does not change their results."""
    for x in run.exchanges:
        results = Sequential().run(x.given.of(x.clients[::-1]))
        for client, update, client_state in results:
            assert isinstance(update, Update), update.error
            assert_same(update.payload, x.updates[client.id].payload)
            assert_same(client_state, x.kept[client.id])


def client_state_stays_at_its_client(run: MethodRun) -> None:
    """No payload and no server state shares storage or names with a client state."""
    for x in run.exchanges:
        for client in x.clients:
            payload, client_state = x.updates[client.id].payload, x.kept[client.id]
            assert not storages(payload) & storages(client_state)
            assert not flat(payload).keys() & flat(client_state).keys()
            assert not storages(x.next, *x.messages.values()) & storages(client_state)


def messages_and_client_states_are_not_modified(run: MethodRun) -> None:
    """Engines modify neither messages nor client states."""
    for x in run.exchanges:
        before = copy.deepcopy((x.messages, x.client_states))
        for engine in (Sequential(), Batched()):
            list(engine.run(x.given))
            assert_same(x.messages, before[0])
            assert_same(x.client_states, before[1])


def results_that_are_kept_hold_the_storage_of_one_client(run: MethodRun) -> None:
    """Client states, and payloads that are not summed, hold no other client's storage.

    Payloads that are summed may be rows of one tensor, but no two of them overlap.
    """
    for x in run.exchanges:
        summed = isinstance(x.phase.aggregator, Additive)
        ranges: list[tuple[int, int]] = []
        results = list(Batched().run(x.given))
        for _, update, client_state in results:
            assert isinstance(update, Update), update.error
            sent = [
                leaf for leaf in flat(update.payload).values() if isinstance(leaf, torch.Tensor)
            ]
            kept = [leaf for leaf in flat(client_state).values() if isinstance(leaf, torch.Tensor)]
            for leaf in kept if summed else (*sent, *kept):
                assert leaf.untyped_storage().nbytes() == leaf.nbytes
            ranges += [
                (leaf.data_ptr(), leaf.data_ptr() + leaf.nbytes) for leaf in sent if leaf.nbytes
            ]
        ranges.sort()
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ranges))


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in flat(tree).values() if isinstance(leaf, Tensor)]


def no_row_of_a_payload_is_an_input(run: MethodRun) -> None:
    """No payload contains an input of a client."""
    for x in run.exchanges:
        for client in x.clients:
            if not isinstance(client.train, Examples):
                continue
            inputs = client.train.tensors["x"].flatten(1).double()
            assert inputs.shape[1] > 1
            for leaf in flat(x.updates[client.id].payload).values():
                if isinstance(leaf, torch.Tensor):
                    assert not holds_a_row(leaf.double().flatten(), inputs)
                    assert not holds_a_row(-leaf.double().flatten(), inputs)


def trees_hold_plain_leaves_and_survive_the_wire(run: MethodRun) -> None:
    """Trees hold tensors, numbers and strings, and are equal after saving."""
    for x in run.exchanges:
        payloads = [update.payload for update in x.updates.values()]
        for tree in (x.server_state, x.next, *x.messages.values(), *payloads, *x.kept.values()):
            for path, leaf in flat(tree).items():
                assert isinstance(leaf, torch.Tensor | int | float | str), path
                assert not getattr(leaf, "requires_grad", False), path
            assert_same(saved_and_loaded(tree), tree)
            assert_same(pickle.loads(pickle.dumps(tree)), tree)


def payloads_have_the_declared_form(run: MethodRun) -> None:
    """Payloads have the form of the template, and sums one form."""

    def forms(tree):
        return {
            path: (leaf.dtype, leaf.shape) if isinstance(leaf, torch.Tensor) else type(leaf)
            for path, leaf in flat(tree).items()
        }

    for x in run.exchanges:
        form = x.phase.aggregator.form
        found = {i: forms(form(update.payload)) for i, update in x.updates.items()}
        if isinstance(x.phase.aggregator, Additive):
            assert all(one == found[0] for one in found.values())
        for client in x.clients:
            template = x.phase.template(x.messages[client.id])
            if template is not None:
                assert found[client.id] == forms(template)


def weights_and_metrics_are_finite_numbers(run: MethodRun) -> None:
    """Weights and metrics are finite numbers, and weights are at least 0."""
    for x in run.exchanges:
        for update in x.updates.values():
            assert math.isfinite(update.weight)
            assert update.weight >= 0
            assert all(math.isfinite(value) for value in update.metrics.values())
        assert all(math.isfinite(value) for value in x.total.metrics.values())
        assert x.total.clients == tuple(client.id for client in x.clients)


def some_value_is_learned(run: MethodRun) -> None:
    """A run changes the server state or a client state."""
    log = run.exchanges
    before, after = (flat({"s": x}) for x in (log[0].server_state, log[-1].next))
    changed = any(
        isinstance(after[p], torch.Tensor)
        and (p not in before or not torch.equal(before[p], after[p]))
        for p in after
    )
    assert changed or any(log[-1].kept.values())


def client_with_a_single_example_takes_part(run: MethodRun) -> None:
    """A client with one training example gives finite values."""
    x = run.exchanges[0]
    client = x.clients[0]
    if not isinstance(client.train, Examples):
        return  # its data are no plain examples
    one = dataclasses.replace(client, train=Examples(client.train.at(torch.arange(1))))
    update, client_state = x.phase.local_update(x.messages[client.id], one, {}, run.rng)
    leaves = [*flat(update.payload).values(), *flat(client_state).values()]
    assert all(leaf.isfinite().all() for leaf in leaves if isinstance(leaf, torch.Tensor))


METHOD_LAWS: tuple[Callable[[MethodRun], None], ...] = (
    method_is_a_frozen_record,
    init_is_pure_and_follows_the_seed,
    local_work_is_pure_and_deterministic,
    local_work_ignores_the_global_random_stream,
    pickled_copies_answer_alike_in_another_process,
    server_is_pure_and_deterministic,
    server_states_keep_the_entries_of_the_first,
    evaluation_is_pure_and_its_scores_are_finite,
    figures_are_pure_and_may_be_saved,
    order_of_clients_does_not_matter,
    client_state_stays_at_its_client,
    messages_and_client_states_are_not_modified,
    results_that_are_kept_hold_the_storage_of_one_client,
    no_row_of_a_payload_is_an_input,
    trees_hold_plain_leaves_and_survive_the_wire,
    payloads_have_the_declared_form,
    weights_and_metrics_are_finite_numbers,
    some_value_is_learned,
    client_with_a_single_example_takes_part,
)
"""Laws of every method, for ``pytest.mark.parametrize``."""
