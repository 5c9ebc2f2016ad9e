"""Kernels of rows in place of torch's operators and back, for tensors of the CPU."""

import pytest

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
