"""Reads files one by one, each in a process of its own with bounds on its memory and time.

Run as ``python -m tests.readers.sandbox``: lines of JSON ``[reader, path]`` come on standard input,
and for each a line ``[outcome, message, peak, returned]`` leaves on standard output. The outcome is
``read``, ``refused`` (an error of the project in one line), or else what went wrong; the peak is
that of the resident memory above the start, in bytes, and ``returned`` the size of what was read.
"""

import json
import os
import resource
import signal
import sys
import warnings
from pathlib import Path

import numpy as np
import torch

from fedbolic.core.checksums import DamagedError
from fedbolic.run.configuration import SetupError
from tests.readers.formats import FORMATS, import_everything

SECONDS = 20
"""Limit of a reader's wall time; none takes a second on the files of these tests."""

ROOM = 2**31
"""Address space beyond the bound on memory, which allocators and threads reserve."""

REFUSALS = (ValueError, FileNotFoundError, DamagedError, SetupError)


def memory(field):
    """A number of /proc/self/status in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return 1024 * int(line.split()[1])
    raise ValueError(f"/proc/self/status lacks {field}")


def size(value, seen=None):
    """Bytes of a result: of tensors and arrays their numbers, of texts their characters."""
    seen = set() if seen is None else seen
    if id(value) in seen:
        return 0
    seen.add(id(value))
    if isinstance(value, torch.Tensor):
        if value.layout != torch.strided:
            value = value.coalesce()
            return size(value.indices(), seen) + size(value.values(), seen)
        return value.numel() * value.element_size()
    if isinstance(value, np.ndarray):
        return value.nbytes
    if isinstance(value, dict):
        return sum(size(k, seen) + size(v, seen) for k, v in value.items())
    if isinstance(value, list | tuple | set):
        return sum(size(part, seen) for part in value)
    return size(vars(value), seen) if hasattr(value, "__dict__") else sys.getsizeof(value)


def outcome(reader, path):
    """End of a reader in words, with its message and the size of its result."""
    try:
        found = FORMATS[reader].read(Path(path))
    except Exception as error:
        text = str(error)
        names = Path(path).name, str(Path(path).parent)  # of a run, the file that is damaged
        if type(error) not in REFUSALS:
            return f"raised {type(error).__name__}", text, 0
        if "\n" in text or len(text) > 2000:
            return "refused in more than one line", text, 0
        if FORMATS[reader].names_the_file and not any(name in text for name in names):
            return "refused without the name of the file", text, 0
        return "refused", text, 0
    return "read", "", size(found)


def child(reader, path, told, bound):
    """Read one file and tell how it went."""
    os.environ.pop("FEDBOLIC_DATA", None)
    warnings.simplefilter("ignore")
    before = memory("VmRSS")
    limit = memory("VmSize") + bound + ROOM
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten
    found = outcome(reader, path)
    peak = max(0, memory("VmHWM") - before)
    os.write(told, json.dumps([found[0], found[1][:400], peak, found[2]]).encode())


def isolated(reader, path, bound):
    """Run ``child`` in a forked process; its death or silence is an outcome, too."""
    heard, told = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            signal.alarm(SECONDS)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            child(reader, path, told, bound)
        finally:
            os._exit(0)
    os.close(told)
    with os.fdopen(heard, "rb") as pipe:
        text = pipe.read()
    _, status = os.waitpid(process, 0)
    if os.WIFSIGNALED(status):
        hung = os.WTERMSIG(status) == signal.SIGALRM
        return ["hung" if hung else f"killed by signal {os.WTERMSIG(status)}", "", 0, 0]
    return json.loads(text) if text else ["ended without a word", "", 0, 0]


def main():
    torch.set_num_threads(1)
    import_everything()
    for line in sys.stdin:
        reader, path, bound = json.loads(line)
        print(json.dumps(isolated(reader, path, bound)), flush=True)


if __name__ == "__main__":
    main()
