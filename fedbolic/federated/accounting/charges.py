"""Charges of private releases, at the place where their noise is drawn."""

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeAlias

from fedbolic.federated.accounting.ledger import PrivacyLedger

Charge: TypeAlias = Callable[[PrivacyLedger, int], tuple[str | int, ...]]
"""Books releases of a ledger and returns their name, or refuses them by an error."""


def _book_nothing(ledger: PrivacyLedger, num_releases: int) -> tuple[str | int, ...]:
    del ledger, num_releases
    return ()


_CHARGE: ContextVar[Charge] = ContextVar("charge", default=_book_nothing)


@contextlib.contextmanager
def charging(charge: Charge) -> Iterator[None]:
    """Context manager in which releases are charged by a function; without one they are free.

    Args:
        charge: Books releases durably, or raises an error, before it returns.
    """
    token = _CHARGE.set(charge)
    try:
        yield
    finally:
        _CHARGE.reset(token)


def charge_releases(ledger: PrivacyLedger, num_releases: int = 1) -> tuple[str | int, ...]:
    """Charge releases whose noise is about to be drawn.

    A mechanism calls this before it reads private data, so that neither an interruption nor an
    error gives anything away for free.

    Args:
        ledger: Ledger of a run of the mechanism; ``ledger.rounds`` is its planned number of
            releases, which are reserved together.
        num_releases: Number of releases to charge now, at least 1.

    Returns:
        A name that no other charge of the same account has, for the stream of the noise; empty in a
        simulation, where nothing is charged.

    Raises:
        ValueError: If the releases would exceed the budget of the account, or there is none.

    Example:
        >>> charge_releases(PrivacyLedger("everyone", "replace", 1.0, 1.0, 1e-6, rounds=10))
        ()
    """
    return _CHARGE.get()(ledger, num_releases)
