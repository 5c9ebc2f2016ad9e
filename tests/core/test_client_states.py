"""Client state on disk: only changes are written, and no committed state is lost."""

import os
import shutil
import zlib
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fedbolic.core import client_states
from fedbolic.core.client_states import RECORD_HEAD, ClientStateLog, ClientStates
from fedbolic.core.tree_bytes import tree_from_bytes, tree_to_bytes


def flat(value):
    """A tree with tensors replaced by dtype, shape, strides and bytes, for bitwise comparison."""
    if isinstance(value, dict):
        return {name: flat(branch) for name, branch in value.items()}
    if isinstance(value, torch.Tensor):
        values = value.contiguous().flatten().view(torch.uint8).tolist()
        return value.dtype, value.shape, value.stride(), values
    return type(value), repr(value)


def tensor(shape, dtype, *, turned):
    made = torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(dtype)
    return made.mT if turned and len(shape) > 1 else made


DTYPES = st.sampled_from(
    [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
TENSORS = st.builds(
    lambda shape, dtype, turned: tensor(shape, dtype, turned=turned),
    st.lists(st.integers(0, 3), max_size=3),
    DTYPES,
    st.booleans(),
)
LEAVES = TENSORS | st.text() | st.integers() | st.floats() | st.booleans()
TREES = st.recursive(
    st.dictionaries(st.text(), LEAVES, max_size=3),
    lambda branch: st.dictionaries(st.text(), branch | LEAVES, max_size=3),
    max_leaves=6,
)


@given(TREES)
def test_a_state_is_read_as_it_was_written_to_the_last_bit(server_state):
    assert flat(tree_from_bytes(tree_to_bytes(server_state))) == flat(server_state)


def test_a_part_of_a_larger_tensor_is_written_without_the_rest():
    whole = torch.arange(10_000.0).reshape(100, 100)
    part = tree_to_bytes({"x": whole[3:5, ::2]})
    assert len(part) < 1000
    assert torch.equal(tree_from_bytes(part)["x"], whole[3:5, ::2])


@pytest.mark.parametrize(
    "value",
    [
        torch.complex(torch.ones(2), torch.arange(2.0)),
        torch.complex(torch.ones(2), torch.arange(2.0)).conj(),
        torch.nn.Parameter(torch.ones(2)),
    ],
    ids=["complex", "conjugate", "parameter"],
)
def test_every_kind_of_tensor_is_read_as_it_was_written(value):
    found = tree_from_bytes(
        tree_to_bytes({"before": torch.ones(3), "x": value, "after": torch.arange(2)})
    )
    assert torch.equal(found["x"], value.detach())
    assert found["x"].dtype == value.dtype
    assert torch.equal(found["after"], torch.arange(2))


@pytest.mark.parametrize("wrong", [None, [1], {1: 2}, b"bytes", torch.eye(3).to_sparse()])
def test_what_is_no_tree_is_refused_in_words(wrong):
    with pytest.raises(ValueError, match=r"a tree holds|a tensor of .* cannot be saved"):
        tree_to_bytes({"x": wrong})


CHANGES = st.lists(
    st.dictionaries(st.integers(0, 6), st.binary(max_size=40), max_size=4), min_size=1, max_size=8
)


def server_state(content):
    return {"own": torch.tensor(list(content), dtype=torch.uint8)} if content else {}


def states_of(store):
    return {i: bytes(store[i].get("own", torch.empty(0)).tolist()) for i in store}


@given(changes=CHANGES, slack=st.sampled_from([0, 10**6]))
def test_a_store_is_a_dict_that_is_updated(changes, slack, tmp_path_factory):
    """Stores with and without compaction, each with and without closing in between."""
    folder = tmp_path_factory.mktemp("store")
    model, store = {}, ClientStateLog(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_states, "SLACK", slack)
        for changed in changes:
            store.append({i: server_state(content) for i, content in changed.items()})
            store.tidy()
            model |= {i: c for i, c in changed.items() if c or i in model}
            assert states_of(store) == model
            store = ClientStateLog.open(folder, store.commit)
            assert states_of(store) == model
            assert len(store) == len(model)
            assert [i in store for i in range(-1, 8)] == [i in model for i in range(-1, 8)]
    assert len(list(folder.iterdir())) <= 1


def test_writing_a_few_costs_as_much_among_many_as_among_few(tmp_path):
    """Bytes that one exchange adds to logs of few and of many states."""
    own = {"own": torch.zeros(450)}
    added = []
    for num_clients in (10, 1000):
        (folder := tmp_path / str(num_clients)).mkdir()
        store = ClientStateLog(folder)
        store.append(dict.fromkeys(range(num_clients), own))
        before = store.size
        store.append(dict.fromkeys(range(5), own))
        added.append(store.size - before)
    assert added[0] == added[1] < 2 * 5 * 1800


def test_a_log_never_has_more_than_twice_what_counts(tmp_path):
    own = {"own": torch.zeros(2**16)}  # 256 kB
    store = ClientStateLog(tmp_path)
    store.append(dict.fromkeys(range(8), own))
    newest = store.size
    for turn in range(40):
        store.append({turn % 8: own, (turn + 1) % 8: own})
        assert store.size <= 2 * newest + client_states.SLACK
        store.tidy()
        assert [file.stat().st_size for file in tmp_path.iterdir()] == [store.size]
    assert store.generation >= 2


def filled(folder, *, turns=3):
    """A store after some turns of four clients, and its content."""
    store = ClientStateLog(folder)
    for turn in range(turns):
        store.append({i: {"turns": turn, "own": torch.full((3,), i + turn)} for i in range(4)})
    return store, {i: flat(store[i]) for i in store}


def test_whatever_is_behind_a_commit_is_cut_off_at_every_byte(tmp_path):
    """A kill may leave any part of the last append; the commit before it is complete."""
    store, before = filled(tmp_path)
    commit, first = store.commit, store.size
    store.append({1: {"turns": 9}, 7: {"turns": 1}})
    log = store.file.read_bytes()
    for size in range(first, len(log) + 1):
        store.file.write_bytes(log[:size])
        again = ClientStateLog.open(tmp_path, commit)
        assert {i: flat(again[i]) for i in again} == before
        assert store.file.stat().st_size == first


def test_a_log_that_lost_a_byte_or_got_another_is_refused(tmp_path):
    store, _ = filled(tmp_path, turns=1)
    log = store.file.read_bytes()
    for size in range(0, len(log), 3):
        store.file.write_bytes(log[:size])
        with pytest.raises(ValueError, match="when the run was saved"):
            ClientStateLog.open(tmp_path, store.commit)
    for place in range(len(log)):
        altered = bytes([log[place] ^ 1 << place % 8])
        store.file.write_bytes(log[:place] + altered + log[place + 1 :])
        with pytest.raises(ValueError, match="damaged"):
            ClientStateLog.open(tmp_path, store.commit)
    store.file.write_bytes(log)
    ClientStateLog.open(tmp_path, store.commit)


def test_whole_records_of_another_log_are_refused(tmp_path):
    store, _ = filled(tmp_path)
    log = bytearray(store.file.read_bytes())
    length = len(log) // 12  # there are twelve records of equal length
    log[:length], log[length : 2 * length] = log[length : 2 * length], log[:length]
    store.file.write_bytes(log)
    with pytest.raises(ValueError, match="damaged"):
        ClientStateLog.open(tmp_path, store.commit)


def test_a_record_that_is_damaged_during_a_run_is_not_given(tmp_path):
    store, _ = filled(tmp_path)
    log = bytearray(store.file.read_bytes())
    log[-1] ^= 4
    store.file.write_bytes(log)
    assert store[0]["turns"] == 2
    with pytest.raises(ValueError, match="damaged"):
        store[3]


def test_a_record_is_as_documented(tmp_path):
    """Head: CRC-32 of what follows, id, length. Body: length of the text, JSON text, raw bytes."""
    store = ClientStateLog(tmp_path)
    store.append({5: {"n": 1, "x": torch.tensor([1.0, -2.0])}})
    record = store.file.read_bytes()
    checksum, client_id, length = RECORD_HEAD.unpack_from(record)
    text = b'{"n": 1, "x": ["float32", [2], [1]]}'
    body = len(text).to_bytes(4, "little") + text + bytes.fromhex("0000803f000000c0")
    assert (client_id, length, record[RECORD_HEAD.size :]) == (5, len(body), body)
    assert checksum == zlib.crc32(record[4:])


class PowerError(BaseException):
    """An exception that the code does not catch, like a kill."""


def test_a_kill_while_the_log_is_written_anew_leaves_the_old_one(tmp_path, monkeypatch):
    """The kill comes at every sync, rename and removal in turn."""
    store, before = filled(tmp_path)
    monkeypatch.setattr(client_states, "SLACK", 0)
    commit, old = store.commit, store.file.read_bytes()
    changed = {i: {"turns": 9, "own": torch.zeros(1)} for i in range(2)}
    for moment in range(3):
        for file in tmp_path.iterdir():
            file.unlink()
        (tmp_path / f"clients-{commit['generation']}.log").write_bytes(old)
        store = ClientStateLog.open(tmp_path, commit)
        with monkeypatch.context() as patch:
            steps = iter(range(10))
            for owner, name in ((os, "fsync"), (Path, "unlink")):
                patch.setattr(owner, name, dying(getattr(owner, name), steps, moment))
            with pytest.raises(PowerError):
                committed(store, changed)
        assert store.generation == commit["generation"] + 1
        if moment < 2:  # the checkpoint was not replaced, or its folder not synced
            again = ClientStateLog.open(tmp_path, commit)
            assert {i: flat(again[i]) for i in again} == before
        else:
            again = ClientStateLog.open(tmp_path, store.commit)
            assert again[0]["turns"] == 9
            assert flat(again[3]) == before[3]
        assert [file.name for file in tmp_path.iterdir()] == [again.file.name]


def committed(store, changed):
    store.append(changed)
    store.tidy()


def dying(function, steps, moment):
    def step(*arguments):
        if next(steps) == moment:
            raise PowerError
        return function(*arguments)

    return step


def test_states_are_what_changed_over_what_is_stored(tmp_path):
    first = ClientStates(ClientStateLog(tmp_path))
    second = first | {3: {"n": 1}, 0: {}}
    third = second | {3: {"n": 2}}
    assert dict(second) == {0: {}, 3: {"n": 1}}
    assert (len(first), len(second), list(third)) == (0, 2, [0, 3])
    second.save()
    assert dict(second) == {3: {"n": 1}}  # empty states are not written
    assert second.changed == {}
    fourth = second | {5: {"n": 7}}
    assert dict(fourth) == {3: {"n": 1}, 5: {"n": 7}}


def test_states_of_an_earlier_exchange_are_refused_once_others_are_stored(tmp_path):
    first = ClientStates(ClientStateLog(tmp_path)) | {3: {"n": 1}}
    second = first | {3: {"n": 2}}
    second.save()
    for read in (lambda: first[3], lambda: list(first), lambda: len(first), lambda: first | {}):
        with pytest.raises(RuntimeError, match="of an earlier exchange"):
            read()
    with pytest.raises(RuntimeError, match="of an earlier exchange"):
        first.save()
    assert second[3] == {"n": 2}


def test_a_store_that_was_moved_is_opened_where_it_is(tmp_path):
    (tmp_path / "a").mkdir()
    store, before = filled(tmp_path / "a")
    shutil.move(tmp_path / "a", tmp_path / "b")
    again = ClientStateLog.open(tmp_path / "b", store.commit)
    assert {i: flat(again[i]) for i in again} == before
