"""The process whose forks are the processes of nodes, as far as it works without Flower."""

import subprocess
import sys

import pytest

from fedbolic.remote import fork_server


@pytest.mark.processes
@pytest.mark.skipif(sys.platform != "linux", reason="nodes are forks on Linux alone")
def test_a_program_is_a_fork_with_its_own_arguments_and_streams(tmp_path, monkeypatch):
    monkeypatch.setattr(fork_server, "_PROGRAMS", {"tell": "telling:tell"})
    (tmp_path / "telling.py").write_text(
        "import os, sys, time\nstarted = os.getpid()\n\n\n"
        "def tell():\n    time.sleep(0.1)\n    print(started, os.getpid(), *sys.argv[1:])\n"
    )
    programs = tmp_path / ("long name " * 15)
    code = (
        f"import sys; sys.path.append({str(tmp_path)!r}); from fedbolic.remote import fork_server"
    )
    words = [sys.executable, "-c", f"{code}; fork_server.main()", "telling"]
    listener = fork_server.write_programs(programs)
    assert programs.stat().st_mode & 0o777 == 0o700
    with listener, subprocess.Popen(words, stdin=listener) as server:
        try:
            program = [programs / "tell", "--to", "two words"]
            told = [subprocess.check_output(program, text=True).split(" ", 2) for _ in range(2)]
        finally:
            server.kill()
    (one, first, words), (another, second, _) = told
    assert words == "--to two words\n"
    assert one == another == str(server.pid) != first  # what was imported once is there
    assert first != second
