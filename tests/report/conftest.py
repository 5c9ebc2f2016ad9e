"""Fixtures of the tests of reports."""

import pytest


@pytest.fixture
def drawn(monkeypatch):
    """The matplotlib figures that were saved, in order."""
    figures = pytest.importorskip("matplotlib.figure")
    made = []
    save = figures.Figure.savefig
    monkeypatch.setattr(
        figures.Figure,
        "savefig",
        lambda self, *arguments, **named: (made.append(self), save(self, *arguments, **named)),
    )
    return made
