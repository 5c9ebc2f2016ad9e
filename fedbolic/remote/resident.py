"""The process of a node that stays between the requests of a run, with its data loaded."""

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

IDLE = 600.0
"""Seconds without a request after which the process ends."""

_POLL = 1.0
"""Seconds between two looks at whether the SuperNode is still there."""

_PAUSE = 0.05
"""Seconds between two attempts to reach a process that starts."""

_LONGEST = 103
"""Bytes of a socket's address that every system takes."""

_started: list[subprocess.Popen] = []
"""Processes that outlive the requests of this one."""


def connect(*facts: object, parent: int, module: str = __name__) -> Connection:
    """Connection to the process for some facts, which is started if there is none.

    Args:
        *facts: All that the process is for, such as the configurations of the run and the node.
        parent: Process with which it ends.
        module: Module that is run.

    Raises:
        RuntimeError: If it does not start.
        OSError: If others could reach it, or the address is too long for a socket.
    """
    name = hashlib.sha256(json.dumps([parent, *facts], sort_keys=True).encode()).hexdigest()[:16]
    address = _private_folder() / name
    if len(os.fsencode(address)) > _LONGEST:
        raise OSError(f"{address} is too long for a socket: set TMPDIR to a shorter path")
    with (address.parent / "lock").open("w") as lock:  # one file, which may stay
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return Client(str(address))
        address.unlink(missing_ok=True)
        forked = None if module != __name__ else shutil.which("fedbolic-resident")
        program = [forked] if forked else [sys.executable, "-m", module]
        words = [*program, str(address), str(parent)]
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, start_new_session=True)
        _started.append(process)
        while process.poll() is None:
            with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
                return Client(str(address))
            time.sleep(_PAUSE)
    raise RuntimeError("the resident process of this node did not start")


def _private_folder() -> Path:
    """Folder of the addresses, which only this user can read: whoever reaches one may run code."""
    folder = Path(tempfile.gettempdir()) / f"fedbolic-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise PermissionError(
            f"{folder} must be a folder of yours that nobody else can read: remove it, or set "
            "TMPDIR to another place"
        )
    return folder


def serve(address: Path, parent: int, load: Callable[[], Callable[..., Any]]) -> None:
    """Answer one caller after the other until a process ends or nobody has asked for long.

    Args:
        address: Unix socket to create, in a folder that only this user can read.
        parent: Process with which this one ends.
        load: Gives the function that answers; called once callers can connect, since its imports
            take seconds.
    """
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(address))
        try:
            listener.listen()
            listener.settimeout(_POLL)
            answer, last = load(), time.monotonic()
            while _runs(parent) and time.monotonic() - last < IDLE:
                with contextlib.suppress(TimeoutError):
                    caller, _ = listener.accept()
                    caller.setblocking(True)
                    _reply(Connection(caller.detach()), answer)
                    last = time.monotonic()
        finally:
            address.unlink(missing_ok=True)


def _reply(caller: Connection, answer: Callable[..., Any]) -> None:
    """Send the answer to a caller, or its error in one text; a caller may have gone."""
    with caller, contextlib.suppress(EOFError, OSError):
        request = caller.recv()
        try:
            result = "", answer(*request)
        except Exception as error:  # one request must not end the process
            result = f"{type(error).__name__}: {error}", None
        caller.send(result)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # another user's
        return True
    return True


def _load() -> Callable[..., Any]:
    from fedbolic.remote.app import answer

    return answer


def main() -> None:
    """Serve at an address until a process ends: the two arguments of this one."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # so that the address is removed
    serve(Path(sys.argv[1]), int(sys.argv[2]), _load)


if __name__ == "__main__":
    main()
