"""Registers of the kernels compiled for an H100 or H200, their launches and memory.

    python -m benchmarks.kernels

A kernel that takes more registers than its bound, or spills one, ends the run with the exit code 1.
Needs triton (``pip install triton``) and no device.

Takes 3 minutes.
"""

import itertools
import sys

from benchmarks.kernels import launches
from benchmarks.kernels.compiled import compile_all
from benchmarks.script import parser


def main() -> None:
    """Compile every kernel, and count launches and memory."""
    parser(__doc__).parse_args()
    above = compile_all()
    tables = launches.table(), launches.adam_launches(), launches.convolution_memory()
    for line in itertools.chain.from_iterable(("", *table) for table in tables):
        print(line, flush=True)
    if above:
        sys.exit(f"above their bounds: {', '.join(above)}")


if __name__ == "__main__":
    main()
