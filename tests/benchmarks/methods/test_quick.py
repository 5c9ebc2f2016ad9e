"""Configurations read with PyYAML alone are those of the command line."""

import pytest

from benchmarks.methods import quick
from tests.subjects import QUICK, settings


@pytest.mark.parametrize("name", QUICK)
def test_a_configuration_is_that_of_the_command_line(name):
    method, data = quick.settings(name)
    assert repr(method) == repr(settings(name)["method"])
    assert repr(data) == repr(settings(name)["data"])
