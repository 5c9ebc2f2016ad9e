"""Registers of the kernels compiled for an H100 or H200, their launches, memory and errors.

    python -m benchmarks.kernels

A kernel that takes more registers than its bound, or spills one, ends the run with the exit code 1.
Needs triton (``pip install triton``) and no device; errors are those of triton's interpreter on the
CPU, against 60 digits.

Takes 10 minutes.
"""

import itertools
import os
import subprocess
import sys

from benchmarks.kernels import launches
from benchmarks.script import parser


def errors() -> None:
    """Print the errors of every kernel, in triton's interpreter."""
    from benchmarks.kernels import layer_errors, pair_errors
    from benchmarks.kernels.errors import tables

    for table in (
        pair_errors.lines(),
        *tables(),
        layer_errors.logits(),
        layer_errors.convolutions(),
    ):
        for line in (*table, ""):
            print(line, flush=True)


def main() -> None:
    """Compile every kernel and count launches, then measure errors by triton's interpreter."""
    options = parser(__doc__)
    options.add_argument("--errors", action="store_true", help="errors only, with TRITON_INTERPRET")
    if options.parse_args().errors:
        errors()
        return
    from benchmarks.kernels.compiled import compile_all

    above = compile_all()
    tables = launches.table(), launches.adam_launches(), launches.convolution_memory()
    for line in itertools.chain.from_iterable(("", *table) for table in tables):
        print(line, flush=True)
    print(flush=True)
    command = [sys.executable, "-m", "benchmarks.kernels", "--errors"]
    code = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, check=False)
    sys.exit(f"above their bounds: {', '.join(above)}" if above else code.returncode)


if __name__ == "__main__":
    main()
