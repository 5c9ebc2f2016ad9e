"""The script of shells completes what the parser and the index of classes have."""

import os
import pty
import select
import shutil
import subprocess

import pytest

from fedbolic.cli.completion import completion


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    file = tmp_path_factory.mktemp("completion") / "fedbolic.sh"
    file.write_text(completion())
    return file


def completed(script, *words):
    """Words that bash offers for the last word of a command."""
    given = " ".join(f"'{word}'" for word in ("fedbolic", *words))
    code = f"source {script}; COMP_WORDS=({given}); COMP_CWORD={len(words)}; _fedbolic; "
    done = subprocess.run(
        ["bash", "-c", code + 'printf "%s\\n" "${COMPREPLY[@]}"'],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["r"], {"run", "resume", "report", "runs", "ready"}),
        (["run", "--method", "Hy"], {"HyperFed"}),
        (["run", "--data", "Dig"], {"Digits"}),
        (["sweep", "--ba"], {"--base"}),
        (["run", "--config", "fedavg/q"], {"fedavg/quick"}),
        (["run", "--data.partition", "Dir"], {"Dirichlet"}),
        (["account", "c"], {"create"}),
        (["export", "runs/a", "--t"], {"--to"}),
        (["export", "runs/a", "--to", "no-such-f"], set()),
    ],
)
def test_bash_offers_what_there_is(words, offered, script):
    found = set(completed(script, *words))
    assert offered <= found
    assert all(word.startswith(words[-1]) for word in found)
    assert bool(found) == bool(offered)


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("zsh") is None, reason="needs zsh")
def test_zsh_completes_the_name_of_a_class(script, tmp_path):
    keyboard, terminal = pty.openpty()
    home = {**os.environ, "HOME": str(tmp_path), "TERM": "dumb"}
    streams = {"stdin": terminal, "stdout": terminal, "stderr": terminal}
    with subprocess.Popen(["zsh", "-fi"], **streams, env=home, start_new_session=True) as shell:
        os.close(terminal)
        told = b""
        try:
            for keys, shown in {f"source {script}; print 'sour''ced'\n": b"sourced",
                                "fedbolic run --method Hyp\t": b"HyperFed"}.items():  # fmt: skip
                os.write(keyboard, keys.encode())
                while shown not in told:
                    assert select.select([keyboard], [], [], 60)[0], told
                    told += os.read(keyboard, 1024)
        finally:  # else a test that fails waits for the shell for ever
            shell.kill()
            os.close(keyboard)
