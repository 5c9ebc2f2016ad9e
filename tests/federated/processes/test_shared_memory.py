import pickle
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from fedbolic.data import Examples
from fedbolic.federated import Update
from fedbolic.federated.processes.shared_memory import LINE, SharedMemory

GRID = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)

TENSORS = {
    "a matrix": GRID,
    "a number": torch.tensor(3.5, dtype=torch.float64),
    "nothing": torch.empty(0, 4),
    "truth": torch.tensor([True, False]),
    "bytes": torch.arange(5, dtype=torch.uint8),
    "halves": torch.ones(3, dtype=torch.bfloat16),
    "complex": torch.tensor([1 + 2j]),
    "transposed": GRID.permute(2, 0, 1),
    "channels last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "every other": GRID.flatten()[1::2],
    "a part that begins off a boundary": GRID.flatten()[3:],
    "expanded": torch.tensor([1.0, 2.0])[:, None].expand(2, 5),
    "of an expression": (2 * GRID).requires_grad_(),
}


@pytest.mark.parametrize("name", TENSORS)
@pytest.mark.parametrize("copy", [True, False])
def test_a_tensor_arrives_as_it_was(name, copy):
    memory, tensor = SharedMemory(), TENSORS[name]
    (extent,), _ = memory.write([{"before": torch.ones(3), "it": tensor}])
    found = memory.read(extent, copy=copy)[0]["it"]
    assert torch.equal(found, tensor)
    assert (found.dtype, found.stride(), found.requires_grad) == (
        tensor.dtype,
        tensor.stride(),
        False,
    )
    if not copy and tensor.numel():
        assert found.data_ptr() % LINE == tensor.data_ptr() % LINE


def test_what_is_not_a_plain_tensor_arrives_in_its_own_way():
    memory = SharedMemory()
    sparse = torch.eye(3).to_sparse_coo()
    update = Update({"a": {"b": GRID}, "n": 1, "s": "text"}, 2.0, {"loss": 0.5})
    value = {
        "parameter": nn.Parameter(GRID),
        "sparse": sparse,
        "split": Examples({"x": GRID}),
        "update": update,
        "error": KeyError("x"),
    }
    (extent,), copied = memory.write([value])
    found, _ = memory.read(extent)
    assert isinstance(found["parameter"], nn.Parameter)
    assert torch.equal(found["parameter"], GRID)
    assert torch.equal(found["sparse"].to_dense(), torch.eye(3))
    assert torch.equal(found["split"].tensors["x"], GRID)
    assert torch.equal(found["update"].payload["a"]["b"], GRID)
    assert (found["update"].weight, found["update"].metrics) == (2.0, {"loss": 0.5})
    assert found["error"].args == ("x",)
    assert len([tensor for tensor in copied.values() if tensor is GRID]) == 1


def test_a_tensor_that_all_share_is_copied_once_and_stays_one():
    memory = SharedMemory()
    values = [
        {i: {"global_parameters": GRID, "own": torch.full((2,), int(i))} for i in ids}
        for ids in ("01", "2")
    ]
    extents, copied = memory.write(values)
    assert len(copied) == 4
    first, second = (memory.read(extent)[0] for extent in extents)
    assert first["0"]["global_parameters"] is first["1"]["global_parameters"]
    assert [v["own"].tolist() for v in (first["0"], first["1"], second["2"])] == [
        [0, 0],
        [1, 1],
        [2, 2],
    ]
    assert torch.equal(second["2"]["global_parameters"], GRID)


def test_what_the_reader_has_already_is_not_sent_back():
    down, up = SharedMemory(), SharedMemory()
    memory = {"kept": GRID, "changed": GRID.clone()}
    (extent,), given = down.write([memory])
    at_client, lent = down.read(extent)
    at_client["changed"] = at_client["changed"] + 1
    (answer,), copied = up.write([at_client], lent)
    assert [tensor.tolist() for tensor in copied.values()] == [(GRID + 1).tolist()]
    found, _ = up.read(answer, given, copy=True)
    assert found["kept"] is GRID
    assert torch.equal(found["changed"], GRID + 1)


def test_a_copy_outlives_the_next_write_and_memory_grows():
    memory = SharedMemory()
    (extent,), _ = memory.write([torch.ones(3)])
    kept = memory.read(extent, copy=True)[0]
    lent = memory.read(extent)[0]
    (extent,), _ = memory.write([torch.zeros(3)])
    assert kept.tolist() == [1, 1, 1]
    assert lent.tolist() == [0, 0, 0]
    large = torch.rand(100_000)
    (extent,), _ = memory.write([large])
    assert torch.equal(memory.read(extent)[0], large)
    assert lent.numel() == 3  # the memory stays mapped while a tensor refers to it


@dataclass
class Locked:
    """An object that cannot be pickled."""

    def __reduce__(self):
        raise pickle.PicklingError("locked")


def test_memory_is_of_use_after_a_value_that_cannot_be_written():
    memory = SharedMemory()
    with pytest.raises(pickle.PicklingError, match="locked"):
        memory.write([[GRID, Locked()]])
    (extent,), _ = memory.write([[GRID]])
    assert isinstance(memory.read(extent)[0][0], Tensor)
