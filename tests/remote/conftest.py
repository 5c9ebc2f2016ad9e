import pytest


@pytest.fixture(autouse=True)
def _polls_often(monkeypatch):
    """A server that waits for nodes looks again at once: here nodes answer at once."""
    monkeypatch.setattr("fedbolic.remote.nodes.POLL_SECONDS", 1e-3)
