"""The command line in tests: a configuration that trains in an instant, and refusals."""

import signal
from pathlib import Path

ROOT = Path(__file__).parents[1]

TINY = """
method:
  class_path: fedbolic.methods.FedAvg
  init_args:
    rounds: 2
    backbone: {class_path: fedbolic.nn.network.backbone.MLP, init_args: {widths: [4]}}
    local: {epochs: 1, batch_size: 16}
data:
  class_path: fedbolic.data.Partitioned
  init_args:
    num_train: 60
    num_test: 20
    partition: {class_path: fedbolic.data.IID, init_args: {num_clients: 3}}
"""


def hear_interrupts():
    """Restore Ctrl-C: background jobs of a shell, possibly pytest itself, ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def refused(answer, *, names):
    """Assert exit code 2 and a single line on standard error that contains all of ``names``."""
    code, out, err = answer
    assert code == 2, answer
    assert out == ""
    assert err.startswith("fedbolic: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    for name in names:
        assert name in err
    assert "Traceback" not in err
    return True
