"""The door of the command line: light enough to answer Ctrl-C while all else is imported."""

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

INTERRUPTED = 130
"""The exit code that shells know for Ctrl-C."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Its words; by default those of the process.

    Returns:
        The exit code: 0, 1 if the command stopped on its way, 2 if it could not begin, 130 if it
        was interrupted.
    """
    with _leaving_on_interrupt():
        from fedbolic.commands import execute
    return execute(sys.argv[1:] if arguments is None else arguments)


@contextlib.contextmanager
def _leaving_on_interrupt() -> Iterator[None]:
    """End the process at Ctrl-C, in one line.

    An exception would not do: packages that are halfway through their import turn it into others.
    """
    before = signal.getsignal(signal.SIGINT)
    alone = threading.current_thread() is threading.main_thread()
    if not alone or before is not signal.default_int_handler:  # whoever changed it decides
        yield
        return
    signal.signal(signal.SIGINT, _leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _leave(*_: object) -> None:
    os.write(2, b"fedbolic: interrupted before anything began\n")
    os._exit(INTERRUPTED)


if __name__ == "__main__":
    sys.exit(main())
