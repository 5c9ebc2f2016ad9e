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
        "from fedbolic.nn import LorentzMLR\n"
        "from fedbolic.nn.dropout import Dropout\n"
        "import fedbolic.federated\n"
        "x = Lorentz().origin(2, 3).requires_grad_()\n"
        "found = Lorentz().cdist(x, x), Lorentz().dist(x, x), Lorentz().logmap0(x)\n"
        "found = *found, Lorentz().expmap(x, Lorentz().logmap(x, x))\n"
        "found = *found, LorentzMLR(2, 3)(x), Dropout()(x)\n"
        "sum(t.sum() for t in found).backward()\n"
        "print([m for m in sys.modules if m.startswith(('fedbolic.kernels.', 'triton'))])"
    )
    command = [sys.executable, "-c", text]
    assert subprocess.run(command, capture_output=True, text=True).stdout == "[]\n"
