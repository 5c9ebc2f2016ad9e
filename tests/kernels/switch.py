"""Kernels of rows in place of torch's operators and back, for tensors of the CPU."""

import pytest
from torch.autograd import gradcheck, gradgradcheck

from fedbolic import kernels


def count_calls(monkeypatch, function):
    """Let a kernel's function replace the operators, and return the settings of its calls."""
    calls, values = [], function.values
    monkeypatch.setattr(kernels, "replace_operators", lambda *tensors: True)

    def counted(settings, tensors, *, kept):
        calls.append(settings)
        return values(settings, tensors, kept=kept)

    monkeypatch.setattr(function, "values", staticmethod(counted))
    return calls


def by_operators(call):
    """Result of a call with the operators of torch."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "replace_operators", lambda *tensors: False)
        return call()


def check_derivatives(call, given):
    """Check first and second derivatives against differences in random directions."""
    assert gradcheck(call, given, fast_mode=True)
    assert gradgradcheck(call, given, fast_mode=True, check_undefined_grad=False)
