"""Rates of the device that bound every step, and the three numbers of the model of step times."""

import torch

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.workloads import Size
from benchmarks.timing import captured, median_seconds

PART = "roofline"
REPEATS = 10


def roofline(report: Report, device: torch.device, size: Size) -> None:
    """Measure the rates of copies and matrix products, and the costs of launches."""
    report.add(PART, "copy", lambda: copy_bandwidth(device, size.copied))
    for name, (dtype, precision) in MATRICES.items():
        report.add(
            PART, f"matrix {name}", lambda d=dtype, p=precision: matrix_rate(device, size, d, p)
        )
    report.add(PART, "launches", lambda: launch_costs(device, size.launches))


MATRICES: dict[str, tuple[torch.dtype, str]] = {
    "bfloat16": (torch.bfloat16, "highest"),
    "TF32": (torch.float32, "high"),
    "float32": (torch.float32, "highest"),
    "float64": (torch.float64, "highest"),
}
"""Type of the matrices, and the precision that torch may use for products of float32."""


def copy_bandwidth(device: torch.device, numbers: int) -> Row:
    """Bytes read and written per second by a copy of float32 numbers."""
    x = torch.zeros(numbers, device=device)
    y = torch.empty_like(x)
    seconds = median_seconds(lambda: y.copy_(x), device, REPEATS)
    return {"TB_per_s": 2 * x.nbytes / seconds / 1e12}


def matrix_rate(device: torch.device, size: Size, dtype: torch.dtype, precision: str) -> Row:
    """Floating-point operations per second of a square matrix product."""
    n = size.matrix
    a, b = (torch.randn(n, n, device=device).to(dtype) for _ in range(2))
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        seconds = median_seconds(lambda: a @ b, device, REPEATS)
    finally:
        torch.set_float32_matmul_precision(before)
    return {"TFLOP_per_s": 2 * n**3 / seconds / 1e12}


def launch_costs(device: torch.device, num: int) -> Row:
    """Microseconds of an eager launch, of a kernel within a graph, and of the launch of a graph.

    The kernel adds to one number. A long chain of them gives the first two; a chain of replays of
    one kernel gives the third.
    """
    x = torch.zeros(1, device=device)

    def chain() -> None:
        for _ in range(num):
            x.add_(1.0)

    one, whole = captured(lambda: x.add_(1.0), device), captured(chain, device)

    def replays() -> None:
        for _ in range(num):
            one()

    cases = {"launch_us": chain, "graph_kernel_us": whole, "graph_launch_us": replays}
    return {n: 1e6 * median_seconds(case, device, REPEATS) / num for n, case in cases.items()}
