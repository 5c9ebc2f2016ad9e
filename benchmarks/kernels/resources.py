# pyright: reportMissingImports=false
"""Registers and memory that a kernel takes on a device, found without the device."""

import re
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import triton
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


class Resources(NamedTuple):
    """Resources of a compiled kernel.

    Args:
        registers: Registers per thread; 255 at most.
        spilled: Bytes of stack per thread, which hold what registers do not.
        shared: Bytes of shared memory per program.
    """

    registers: int
    spilled: int
    shared: int


def compiled_resources(
    kernel: Any,
    pointers: Collection[str],
    constants: Mapping[str, Any],
    *,
    element: str = "fp32",
    integers: Collection[str] = (),
    warps: int = 4,
    architecture: int = 90,
) -> Resources:
    """Compile a kernel for a CUDA device that need not be there.

    Args:
        kernel: Function decorated by ``triton.jit``, with integers besides its pointers, or numbers
            whose type is annotated.
        pointers: Names of its arguments that are tensors.
        constants: Values of the arguments that are known to the compiler.
        element: Type of the tensors, such as ``fp32``, ``fp64`` or ``i32``.
        integers: Names of tensors of 64-bit integers instead.
        warps: Warps per program.
        architecture: Compute capability of the device times 10; 90 is the H100 and the H200.

    Raises:
        RuntimeError: If triton interprets its kernels, or the tool gives no numbers.
    """
    if knobs.runtime.interpret:
        raise RuntimeError("a kernel that is interpreted is not compiled: unset TRITON_INTERPRET")
    types = {
        **dict.fromkeys(pointers, f"*{element}"),
        **dict.fromkeys(integers, "*i64"),
        **dict.fromkeys(constants, "constexpr"),
    }
    signature = {p.name: types.get(p.name, p.annotation_type or "i32") for p in kernel.params}
    source = ASTSource(fn=kernel, signature=signature, constexprs=dict(constants))
    options = {"num_warps": warps, "enable_fp_fusion": True}
    made = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options=options)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "kernel.cubin")
        file.write_bytes(made.asm["cubin"])
        command = [knobs.nvidia.cuobjdump.path, "-res-usage", str(file)]
        text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    found = re.search(r"REG:(\d+) STACK:(\d+)", text)
    if found is None:
        raise RuntimeError(f"cuobjdump gives no registers: {text!r}")
    return Resources(int(found[1]), int(found[2]), made.metadata.shared)
