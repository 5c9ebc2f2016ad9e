"""The process that answers for a node: one start for many requests, and an end with its parent."""

import contextlib
import os
import socket
import subprocess
import sys
import threading
import time
from multiprocessing.connection import Client

import pytest

from fedbolic.remote import resident


def answer(x):
    if x < 0:
        raise ValueError("x is negative")
    return x + 1


@pytest.fixture
def serving(tmp_path, monkeypatch):
    """Function that serves in a thread, and gives the address and the thread."""
    monkeypatch.setattr(resident, "_POLL", 0.02)

    def start(parent, load=lambda: answer):
        address = tmp_path / "s"
        thread = threading.Thread(target=resident.serve, args=(address, parent, load), daemon=True)
        thread.start()
        while thread.is_alive() and not listens(address):
            time.sleep(0.005)
        return address, thread

    return start


def listens(address):
    """True if somebody can connect; a socket that is bound may not listen yet."""
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
        Client(str(address)).close()
        return True


def asked(address, *request):
    with Client(str(address)) as process:
        process.send(request)
        return process.recv()


def ended():
    """Id of a process that has ended."""
    process = subprocess.Popen([sys.executable, "-S", "-c", ""])
    process.wait()
    return process.pid


def test_what_is_loaded_once_answers_many_callers(serving):
    loads = []
    address, _ = serving(os.getpid(), lambda: loads.append(1) or answer)
    assert [asked(address, i) for i in range(3)] == [("", 1), ("", 2), ("", 3)]
    assert loads == [1]


def test_an_error_is_reported_and_a_caller_that_leaves_is_survived(serving):
    address, _ = serving(os.getpid())
    assert asked(address, -1) == ("ValueError: x is negative", None)
    Client(str(address)).close()
    with socket.socket(socket.AF_UNIX) as killed:
        killed.connect(str(address))
        killed.sendall(b"\0\0\0\7half")
    with Client(str(address)) as process:
        process.send((1,))  # and leaves before the reply
    assert asked(address, 1) == ("", 2)


def test_it_ends_with_its_parent_and_leaves_no_address(serving):
    address, thread = serving(ended())
    thread.join(600)
    assert not thread.is_alive()
    assert not address.exists()


def test_it_ends_when_nobody_asks(serving, monkeypatch):
    monkeypatch.setattr(resident, "IDLE", 0.05)
    _, thread = serving(os.getpid())
    thread.join(600)
    assert not thread.is_alive()


@pytest.fixture
def echo(tmp_path, monkeypatch):
    """Name of a module whose process tells its id."""
    monkeypatch.setattr(resident.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(resident, "_started", [])
    (tmp_path / "echo.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom fedbolic.remote import resident\n"
        "resident._POLL = 0.05\n"
        "resident.serve(Path(sys.argv[1]), int(sys.argv[2]), lambda: lambda: os.getpid())\n"
    )
    root = str(resident.__file__).removesuffix("/fedbolic/remote/resident.py")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}:{root}")
    return "echo"


def told(*facts, parent, module):
    with resident.connect(*facts, parent=parent, module=module) as process:
        process.send(())
        return process.recv()[1]


@pytest.mark.processes
def test_a_process_stays_for_its_facts_alone(echo):
    parent = subprocess.Popen([sys.executable, "-S", "-c", "input()"], stdin=subprocess.PIPE)
    first = told({"a": 1}, parent=parent.pid, module=echo)
    assert told({"a": 1}, parent=parent.pid, module=echo) == first
    assert told({"a": 2}, parent=parent.pid, module=echo) != first
    parent.communicate(b"\n")
    assert all(process.wait(600) == 0 for process in resident._started)


@pytest.mark.processes
def test_a_process_that_does_not_start_is_an_error(echo):
    with pytest.raises(RuntimeError, match="did not start"):
        resident.connect(parent=os.getpid(), module="no_such_module")


def test_a_folder_that_others_can_read_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(resident.tempfile, "gettempdir", lambda: str(tmp_path))
    resident._private_folder().chmod(0o755)
    with pytest.raises(PermissionError, match="nobody else can read"):
        resident._private_folder()


def test_a_folder_that_is_a_link_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(resident.tempfile, "gettempdir", lambda: str(tmp_path))
    (tmp_path / "own").mkdir(mode=0o700)
    (tmp_path / f"fedbolic-{os.getuid()}").symlink_to("own")
    with pytest.raises(PermissionError, match="nobody else can read"):
        resident._private_folder()


def test_an_address_too_long_for_a_socket_is_reported(tmp_path, monkeypatch):
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(resident.tempfile, "gettempdir", lambda: str(deep))
    with pytest.raises(OSError, match="set TMPDIR to a shorter path"):
        resident.connect(parent=os.getpid())
