"""Without CUDA, torch's operators run and triton is not imported."""

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fedbolic import kernels
from tests.rehearsal import rehearsal


@pytest.fixture
def switch(monkeypatch):
    """Set the variable of the environment, as if triton were installed."""
    monkeypatch.setattr(kernels, "find_spec", lambda name: name)
    yield lambda value: monkeypatch.setenv(kernels.SWITCH, value) or kernels.are_on.cache_clear()
    kernels.are_on.cache_clear()


@pytest.mark.parametrize(("value", "runs"), [("0", False), ("1", True)])
def test_a_variable_turns_kernels_off_on_every_device(switch, value, runs):
    switch(value)
    with FakeTensorMode():
        on_device = torch.empty(2, device="cuda")
    assert kernels.run_on(on_device) is runs
    assert not kernels.run_on(torch.zeros(2))


def test_another_value_of_the_variable_is_refused(switch):
    switch("off")
    with pytest.raises(ValueError, match=r"FEDBOLIC_KERNELS must be 0 .* got 'off'"):
        kernels.are_on()


@pytest.mark.parametrize(
    ("masked", "reason"),
    [
        (lambda *x, **settings: no_compiler(), "RuntimeError: Failed to find C compiler"),
        (lambda x, seed, **settings: x, r"ArithmeticError: a kernel gave \[1.0, 1.0, 1.0\]"),
    ],
)
def test_where_no_kernel_runs_operators_do_with_one_message(masked, reason, monkeypatch, caplog):
    with rehearsal():
        assert kernels._is_launched()
        assert not caplog.records
        monkeypatch.setattr(sys.modules["fedbolic.kernels.dropout"], "masked", masked)
        assert not kernels._is_launched()
    (record,) = caplog.records
    assert re.fullmatch(f"no kernel runs, and torch's operators .*: {reason}", record.getMessage())


def no_compiler():
    raise RuntimeError("Failed to find C compiler")


def test_annotations_of_kernels_are_classes():
    """Types of triton are objects, which a checker of types refuses where triton is installed."""
    seen = {
        ast.unparse(argument.annotation)
        for file in Path(kernels.__file__).parent.glob("*.py")
        for argument in ast.walk(ast.parse(file.read_text()))
        if isinstance(argument, ast.arg) and argument.annotation
    }
    assert {name for name in seen if name.startswith("tl.")} == {"tl.constexpr"}


def test_tensors_of_the_cpu_take_operators():
    assert not kernels.replace_operators(torch.zeros(2, 3))


@pytest.mark.processes
def test_distances_and_layers_do_not_import_triton():
    text = (
        "import sys, torch\n"
        "from fedbolic.manifolds import Lorentz\n"
        "from fedbolic.nn import MLR\n"
        "from fedbolic.nn.functional.convolution import stacked_convolution\n"
        "from fedbolic.nn.layers.dropout import Dropout\n"
        "from fedbolic.optim import Adam\n"
        "import fedbolic.federated\n"
        "x = Lorentz().origin(2, 3).requires_grad_()\n"
        "found = Lorentz().cdist(x, x), Lorentz().dist(x, x), Lorentz().logmap0(x)\n"
        "found = *found, Lorentz().expmap(x, Lorentz().logmap(x, x))\n"
        "found = *found, MLR(Lorentz(), 2, 3)(x), Dropout()(x)\n"
        "sum(t.sum() for t in found).backward()\n"
        "images, kernels = torch.zeros(2, 1, 1, 3, 3), torch.zeros(2, 4, 1, 3, 3)\n"
        "convolve = lambda x, w: stacked_convolution(x, w, None, stride=1, padding=0)\n"
        "state = {**Adam().init({'x': images}), 'step': torch.zeros(2, dtype=torch.int64)}\n"
        "torch.func.vmap(convolve)(images, kernels)\n"
        "Adam().step({'x': images}, {'x': images}, state, lr=0.1)\n"
        "print([m for m in sys.modules if m.startswith(('fedbolic.kernels.', 'triton'))])"
    )
    command = [sys.executable, "-c", text]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"
