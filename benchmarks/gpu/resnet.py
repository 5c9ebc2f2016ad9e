"""A residual network, which fills a device alone: one client after another, by arithmetic."""

import contextlib
from collections.abc import Iterator

import torch
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.gpu.report import Report, Row
from benchmarks.gpu.steps import Case, engine_case, plain_case
from benchmarks.gpu.workloads import GpuPlainLoop, GpuWorkload, Size, one_by_one, resnet
from fedbolic.data import FederatedData

PART = "ResNet-18"
PLAIN = "plain loop"
NUM_CLIENTS = 2
ARITHMETICS = ("float32", "TF32", "bf16")
DEFAULT = "torch's defaults"
"""Arithmetic of a loop that sets nothing: TF32 in convolutions, float32 in matrix products."""


@contextlib.contextmanager
def arithmetic(name: str, device: torch.device) -> Iterator[None]:
    """Context with a kind of arithmetic, one of :data:`ARITHMETICS` or :data:`DEFAULT`."""
    cudnn = torch.backends.cudnn
    before = cudnn.allow_tf32, torch.get_float32_matmul_precision()
    cudnn.allow_tf32 = name != "float32"
    torch.set_float32_matmul_precision("high" if name in ("TF32", "bf16") else "highest")
    casts = {"enabled": name == "bf16", "cache_enabled": False}
    try:
        with torch.autocast(device.type, torch.bfloat16, **casts):
            yield
    finally:
        cudnn.allow_tf32 = before[0]
        torch.set_float32_matmul_precision(before[1])


def residual(report: Report, device: torch.device, size: Size) -> None:
    """Measure a client's step in every arithmetic, with the plain loop and the engines."""
    work = resnet(device, size)
    data = work.data(NUM_CLIENTS)
    flops = float(step_flops(work, data))
    plain: dict[str, Row | None] = {}
    for name in (DEFAULT, *ARITHMETICS):
        with arithmetic(name, device):
            plain[name] = report.add(
                PART,
                f"{name}: {PLAIN}",
                lambda: _figures(plain_case(work, data), work, size, flops, {}),
            )
            if name == DEFAULT:
                continue
            against = {"plain": plain[DEFAULT], "plain_alike": plain[name]}
            for of, engine in one_by_one().items():

                def measured(engine=engine, against=against) -> Row:
                    with engine.open(data.clients) as opened:
                        case = engine_case(work, data, opened)
                        return _figures(case, work, size, flops, against)

                report.add(PART, f"{name}: {of}", measured)


def step_flops(work: GpuWorkload, data: FederatedData) -> int:
    """Floating-point operations of one step of one client, forward and backward."""
    loop = GpuPlainLoop(work, data)
    batch = work.method.local.batch_size
    examples = data.clients[0].train.at(torch.arange(batch or data.clients[0].size))
    with FlopCounterMode(display=False) as counter:
        loop.loss(examples, {}).backward()
    return counter.get_total_flops()


def _figures(
    case: Case, work: GpuWorkload, size: Size, flops: float, against: dict[str, Row | None]
) -> Row:
    """Time of a client's step, its rates, and how many times faster it is than other rows."""
    seconds = case.step_seconds(size) / NUM_CLIENTS
    batch = work.method.local.batch_size or 0
    found: Row = {
        "ms": 1e3 * seconds,
        "images_per_s": batch / seconds,
        "TFLOP_per_s": flops / seconds / 1e12,
    }
    times = {f"times_{n}": of["ms"] / found["ms"] for n, of in against.items() if of is not None}
    return found | times
