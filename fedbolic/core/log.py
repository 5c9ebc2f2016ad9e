"""The logger of all packages."""

import contextlib
import logging
import re
from collections.abc import Iterator

logger = logging.getLogger("fedbolic")


def log_fallback(text: str, *values: object) -> None:
    """Log that work is done in a slower way because the usual one failed.

    The record has the attribute ``is_fallback``, so that a benchmark can refuse its times.

    Args:
        text: Message, with places for ``values`` as in the module ``logging``.
        *values: Values of the message.
    """
    logger.info(text, *values, extra={"is_fallback": True})


@contextlib.contextmanager
def without_repetition() -> Iterator[None]:
    """Context manager in which every message is logged once, without a traceback, as in audits.

    Messages that differ in their numbers alone, such as those about two clients, are one.
    """
    seen = set[str]()

    def is_new(record: logging.LogRecord) -> bool:
        num, record.exc_info = len(seen), None
        seen.add(re.sub(r"\d+", "0", record.getMessage()))
        return len(seen) > num

    logger.addFilter(is_new)
    try:
        yield
    finally:
        logger.removeFilter(is_new)
