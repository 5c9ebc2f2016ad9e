"""Entry point of the command line, which handles Ctrl-C even while packages are imported."""

import contextlib
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

INTERRUPTED, REFUSED = 130, 2
"""Exit codes: the conventional one after Ctrl-C; refused before the start."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Command-line arguments; by default those of the process.

    Returns:
        The exit code: 0 on success, 1 if the command failed after it had started, 2 if it could
        not start, 130 if it was interrupted.
    """
    words = sys.argv[1:] if arguments is None else arguments
    with _leaving_on_interrupt(), _without_collection():
        from fedbolic.core.imports import MissingExtraError

        try:
            if _is_answered(words):
                return 0
            from fedbolic.cli.commands import execute
        except MissingExtraError as error:
            sys.stderr.write(f"fedbolic: {error}\n")
            return REFUSED
    if arguments is None:
        gc.freeze()  # collections need not look at what was imported
    return execute(words)


def _is_answered(words: Sequence[str]) -> bool:
    """Print what can be said without the packages of a run, which take seconds to import."""
    from fedbolic.cli.overview import overview

    # the whole command line meets the same error, and reports it
    with contextlib.suppress(OSError, ValueError):
        text = overview(words)
        if text is not None:
            sys.stdout.write(text)
            sys.stdout.flush()
            return True
    return False


@contextlib.contextmanager
def _without_collection() -> Iterator[None]:
    """Import without looking for garbage, which takes a sixth of the time and finds nothing."""
    was = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was:
            gc.enable()


@contextlib.contextmanager
def _leaving_on_interrupt() -> Iterator[None]:
    """End the process on Ctrl-C with a one-line message instead of a traceback.

    Raising an exception is not enough: packages interrupted during their import replace it by
    other exceptions.
    """
    before = signal.getsignal(signal.SIGINT)
    alone = threading.current_thread() is threading.main_thread()
    if not alone or before is not signal.default_int_handler:  # respect a handler set by others
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
