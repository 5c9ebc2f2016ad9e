"""Fixtures of the tests of engines."""

import pytest

from fedbolic.federated.engines import batched as engine


@pytest.fixture
def together(monkeypatch):
    """The sizes of the groups that were advanced together, in their order."""
    groups, advance = [], engine.advance

    def noted(method, tasks):
        groups.append(len(tasks))
        return advance(method, tasks)

    monkeypatch.setattr(engine, "advance", noted)
    return groups
