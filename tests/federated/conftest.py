"""Fixtures of the engine tests."""

import pytest

from fedbolic.federated.engines import batched as engine


@pytest.fixture
def together(monkeypatch):
    """Sizes of the groups of clients that were advanced together, in order."""
    groups, advance = [], engine.advance

    def noted(method, tasks):
        groups.append(len(tasks))
        return advance(method, tasks)

    monkeypatch.setattr(engine, "advance", noted)
    return groups
