"""Kernels of rows in place of torch's operators and back, for tensors of the CPU."""

import pytest
from torch.autograd import gradcheck, gradgradcheck

from fedbolic import kernels
from fedbolic.formulas import fused, registrar


def count_calls(monkeypatch, kernel, switch="replace_operators"):
    """Let kernels replace the operators, and return the settings of calls of one of them."""
    calls, launcher = [], registrar._launcher
    monkeypatch.setattr(kernels, switch, lambda *tensors: True)
    monkeypatch.setattr(fused, "_is_eager", lambda *given: False)  # it is for the CPU alone

    def noted(name):
        def counted(*tensors, **settings):
            calls.append(settings)
            return launcher(name)(*tensors, **settings)

        return counted if name == kernel else launcher(name)

    monkeypatch.setattr(registrar, "_launcher", noted)
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
