"""A process that has imported Flower and torch, of which the processes of local nodes are forks.

Flower starts a process for every request of every node, whose imports take a CPU second; those of
a node's resident process take two. Programs of these names in a folder that comes first in the PATH
pass their arguments and standard streams to this process and wait for the end of its fork.
"""

# pyright: reportMissingImports=false
# (the extra flower may not be installed)

import contextlib
import gc
import importlib
import json
import os
import shlex
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

_PROGRAMS = {
    "flower-superexec": "flwr.supercore.cli:flower_superexec",
    "flwr-clientapp": "flwr.supernode.cli:flwr_clientapp",
    "fedbolic-resident": "fedbolic.remote.resident:main",
}
"""Function of every program."""

MODULES = (
    "fedbolic.remote.app",
    "fedbolic.remote.client",
    "flwr.supercore.cli",
    "flwr.supernode.cli",
)
"""Modules that forks of the programs need."""

_SCRIPT = """\
import json, os, socket, sys
os.chdir(sys.argv[1])  # the address of a socket must be short
with socket.socket(socket.AF_UNIX) as server:
    server.connect("forks")
    socket.send_fds(server, [json.dumps(sys.argv[2:]).encode()], [0, 1, 2])
    server.recv(1)
"""

_LONGEST = 1 << 16
"""Bytes of the arguments of a program."""


def write_programs(folder: Path) -> socket.socket:
    """Write the programs to a folder.

    Args:
        folder: Folder to create.

    Returns:
        Socket to which they connect, the standard input of their fork server.
    """
    folder.mkdir(mode=0o700)  # whoever reaches the socket can call any function
    for name, function in _PROGRAMS.items():
        words = [sys.executable, "-IS", "-c", _SCRIPT, str(folder.absolute()), function, name]
        (folder / name).write_text(f'#!/bin/sh\nexec {shlex.join(words)} "$@"\n')
        (folder / name).chmod(0o700)
    listener = socket.socket(socket.AF_UNIX)
    opened = os.open(folder, os.O_RDONLY)
    listener.bind(f"/proc/self/fd/{opened}/forks")
    os.close(opened)
    listener.listen(64)
    return listener


def _wait_for_request(listener: socket.socket) -> tuple[str, list[str]]:
    """Fork at every request; return, in the fork alone, its function and arguments."""
    while True:
        caller, _ = listener.accept()
        with contextlib.suppress(ChildProcessError):  # there is no fork
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        text, files, *_ = socket.recv_fds(caller, _LONGEST, 3)
        if len(files) == 3 and os.fork() == 0:
            listener.detach()  # the files replace it
            for number, file in enumerate(files):
                os.dup2(file, number)
            caller.detach()  # the program that asked waits until the fork has closed its end
            function, *words = json.loads(text)
            return function, words
        for file in files:
            os.close(file)
        caller.close()


def _execute(function: str) -> NoReturn:
    """Execute a function, and end without clearing up modules, which takes a second for torch."""
    try:
        module, _, name = function.partition(":")
        getattr(importlib.import_module(module), name)()
    except SystemExit:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # nobody asks for the code


def main() -> None:
    """Serve at the standard input with the modules that are the arguments; execute the forks."""
    for module in sys.argv[1:]:
        importlib.import_module(module)
    gc.freeze()  # a collection in a fork would copy the memory of all modules
    with socket.socket(fileno=0) as listener:
        function, sys.argv = _wait_for_request(listener)
    _execute(function)


if __name__ == "__main__":
    main()
