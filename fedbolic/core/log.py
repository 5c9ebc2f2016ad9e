"""The logger of all packages."""

import logging

logger = logging.getLogger("fedbolic")


def log_fallback(text: str, *values: object) -> None:
    """Log that work is done in a slower way because the usual one failed.

    The record has the attribute ``is_fallback``, so that a benchmark can refuse its times.

    Args:
        text: Message, with places for ``values`` as in the module ``logging``.
        *values: Values of the message.
    """
    logger.info(text, *values, extra={"is_fallback": True})
