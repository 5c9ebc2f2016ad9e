"""Without CUDA, torch's operators run and triton is not imported."""

import subprocess
import sys

import torch

from fedbolic import kernels


def test_tensors_of_the_cpu_take_operators():
    assert not kernels.replace_operators(torch.zeros(2, 3))


def test_distances_and_layers_do_not_import_triton():
    text = (
        "import sys, torch\n"
        "from fedbolic.manifolds import Lorentz\n"
        "import fedbolic.nn, fedbolic.federated\n"
        "x = Lorentz().origin(2, 3)\n"
        "Lorentz().cdist(x, x)\n"
        "print('fedbolic.kernels.pairs' in sys.modules)"
    )
    command = [sys.executable, "-c", text]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "False\n"
