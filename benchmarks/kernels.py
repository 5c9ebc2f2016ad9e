"""Resources of the kernels on an H100 or H200, compiled here without a device, and their errors.

    python -m benchmarks.kernels

A kernel that takes more registers than its bound, or spills one, ends the run with the exit code 1.
Needs triton (``pip install triton``). Errors are those of triton's interpreter on the CPU.
"""

import itertools
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch

from benchmarks import kernel_launches
from fedbolic import kernels


class Compiled(NamedTuple):
    """A kernel, its tensors, constants, and the bound on its registers."""

    name: str
    kernel: Any
    pointers: str
    constants: dict[str, Any]
    dtype: torch.dtype
    warps: int
    most_registers: int
    integers: str = ""


def pair_cases() -> Iterator[Compiled]:
    """Pairwise distances in few and many dimensions."""
    from fedbolic.kernels import pairs

    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            model = {"HYPERBOLOID": hyperboloid}
            place = "hyperboloid" if hyperboloid else "ball"
            tile = pairs.FORWARD[dtype]
            sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns}
            yield Compiled(
                f"{place} cdist", pairs.pair_kernel, "x a y b c out",
                model | sizes, dtype, tile.warps, 128,
            )  # fmt: skip
            tile = pairs.BACKWARD[dtype]
            sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns, "CURVED": True}
            for width in (4, 64, kernels.MOST_DIMENSIONS):
                yield Compiled(
                    f"{place} cdist, gradient, d <= {width}", pairs.pair_gradient_kernel,
                    "x a y b c g by_point by_radial by_c",
                    model | sizes | {"WIDTH": width}, dtype, tile.warps, 168,
                )  # fmt: skip


def row_cases() -> Iterator[Compiled]:
    """Distances of rows in few and many dimensions."""
    from fedbolic.kernels import rows

    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            place = "hyperboloid" if hyperboloid else "ball"
            for width in (4, 64, kernels.MOST_DIMENSIONS):
                name = f"{place} dist, d <= {width}"
                model = {"HYPERBOLOID": hyperboloid, "WIDTH": width}
                yield Compiled(
                    name, rows.row_distance_kernel, "x y c out",
                    model | {"ROWS": rows.ROW_NUMBERS[dtype] // width}, dtype, rows.ROW_WARPS, 128,
                )  # fmt: skip
                sizes = {"ROWS": rows.ROW_GRADIENT_NUMBERS[dtype] // width, "CURVED": True}
                yield Compiled(
                    name.replace("dist", "dist, gradient"), rows.row_gradient_kernel,
                    "x y c g by_x by_y by_c", model | sizes, dtype, rows.ROW_WARPS, 168,
                )  # fmt: skip


def radial_cases() -> Iterator[Compiled]:
    """Maps at the origin."""
    from fedbolic.kernels import radial, rows

    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            for outward in (True, False):
                place = "hyperboloid" if hyperboloid else "ball"
                name = f"{place} {'expmap0' if outward else 'logmap0'}, d <= 64"
                model = {"HYPERBOLOID": hyperboloid, "OUTWARD": outward}
                model |= {"WIDTH": 64}
                sizes = model | {"ROWS": radial.RADIAL_NUMBERS[dtype] // 64}
                yield Compiled(
                    name, radial.radial_kernel, "x c out", sizes, dtype, rows.ROW_WARPS, 96
                )
                sizes = model | {"ROWS": radial.RADIAL_GRADIENT_NUMBERS[dtype] // 64}
                yield Compiled(
                    name.replace(",", ", gradient,"), radial.radial_gradient_kernel,
                    "x c g by_x by_c", sizes | {"CURVED": True}, dtype, rows.ROW_WARPS, 128,
                )  # fmt: skip


def map_cases() -> Iterator[Compiled]:
    """Maps at points."""
    from fedbolic.kernels import maps, rows

    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            for outward in (True, False):
                place = "hyperboloid" if hyperboloid else "ball"
                for width in (4, 64, kernels.MOST_DIMENSIONS):
                    name = f"{place} {'expmap' if outward else 'logmap'}, d <= {width}"
                    model = {"HYPERBOLOID": hyperboloid, "OUTWARD": outward, "WIDTH": width}
                    yield Compiled(
                        name, maps.map_kernel, "x y c out",
                        model | {"ROWS": maps.MAP_NUMBERS[dtype] // width}, dtype,
                        rows.ROW_WARPS, 128,
                    )  # fmt: skip
                    sizes = {"ROWS": maps.MAP_GRADIENT_NUMBERS[dtype] // width, "CURVED": True}
                    yield Compiled(
                        name.replace(",", ", gradient,"), maps.map_gradient_kernel,
                        "x y c g by_x by_y by_c", model | sizes, dtype, rows.ROW_WARPS, 168,
                    )  # fmt: skip


def set_cases() -> Iterator[Compiled]:
    """Centroids, and translations of sets."""
    from fedbolic.kernels import boosts, centroids, rows

    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            place = "hyperboloid" if hyperboloid else "ball"
            model = {"HYPERBOLOID": hyperboloid, "WIDTH": 64}
            for outward in (True, False):
                name = f"{place} {'from' if outward else 'to'} origin, d <= 64"
                sizes = model | {"OUTWARD": outward, "ROWS": boosts.BOOST_NUMBERS[dtype] // 64}
                yield Compiled(
                    name, boosts.boost_kernel, "x mean c out", sizes, dtype, rows.ROW_WARPS, 128
                )
                sizes |= {"CURVED": True, "ROWS": boosts.BOOST_GRADIENT_NUMBERS[dtype] // 64}
                yield Compiled(
                    name.replace(",", ", gradient,"), boosts.boost_gradient_kernel,
                    "x mean c g by_x by_mean by_c", sizes, dtype, rows.ROW_WARPS, 168,
                )  # fmt: skip
            sizes = model | {"FIRST": int(hyperboloid)}
            sizes |= {"ROWS": centroids.CENTROID_NUMBERS[dtype] // 64}
            for name, kernel, pointers, most in (
                ("sum", centroids.centroid_sum_kernel, "x w c sums", 128),
                ("spread", centroids.centroid_spread_kernel, "x w c sums rests spreads", 168),
            ):
                yield Compiled(
                    f"{place} centroid, {name}, d <= 64", kernel, pointers,
                    sizes, dtype, rows.ROW_WARPS, most,
                )  # fmt: skip
            sizes |= {"ROWS": centroids.CENTROID_GRADIENT_NUMBERS[dtype] // 64}
            yield Compiled(
                f"{place} centroid, gradient, d <= 64", centroids.centroid_gradient_kernel,
                "x w c known g by_x by_w by_c",
                sizes | {"POINTS": True, "WEIGHTED": True, "CURVED": True},
                dtype, rows.ROW_WARPS, 168,
            )  # fmt: skip
            yield Compiled(
                f"{place} centroid, d <= 64", centroids.centroid_kernel,
                "c sums rests spreads out known", model | {"POINTS": True},
                dtype, rows.ROW_WARPS, 128,
            )  # fmt: skip


def head_cases() -> Iterator[Compiled]:
    """Logits of few and many hyperplanes."""
    from fedbolic.kernels import logits

    for dtype in (torch.float32, torch.float64):
        tile = logits.LOGIT_TILES[dtype]
        for columns in (16, logits.MOST_COLUMNS[dtype]):
            sizes = {"ROWS": tile.rows, "COLUMNS": columns, "DEPTH": tile.columns}
            yield Compiled(
                f"logits, {columns} columns", logits.logit_kernel,
                "x normals lengths c out products",
                {"FACTOR": 1.0, "KEPT": True} | sizes, dtype, tile.warps, 128,
            )  # fmt: skip
        tile = logits.LOGIT_GRADIENT_TILES[dtype]
        sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns}
        yield Compiled(
            "logits, gradient", logits.logit_gradient_kernel,
            "g products lengths c by_product by_length by_c",
            {"FACTOR": 1.0, "CURVED": True} | sizes, dtype, tile.warps, 128,
        )  # fmt: skip


def normal_cases() -> Iterator[Compiled]:
    """Normals of hyperplanes."""
    from fedbolic.kernels import normals

    tile = normals.NORMAL_TILE
    sizes = {"ROWS": tile.rows, "COLUMNS": tile.columns}
    for dtype in (torch.float32, torch.float64):
        for hyperboloid in (True, False):
            farthest = normals.FARTHEST_PLANES[dtype]
            model = {"HYPERBOLOID": hyperboloid, "FARTHEST": farthest} | sizes
            name = f"{'hyperboloid' if hyperboloid else 'ball'} normals"
            yield Compiled(
                name, normals.normal_kernel, "weight offset c normals lengths",
                model, dtype, tile.warps, 128,
            )  # fmt: skip
            yield Compiled(
                f"{name}, gradient", normals.normal_gradient_kernel,
                "weight offset c lengths g by_length by_weight by_offset by_c",
                model, dtype, tile.warps, 128,
            )  # fmt: skip


def dropout_cases() -> Iterator[Compiled]:
    """Dropout, whose gradient is the same kernel."""
    from fedbolic.kernels import dropout

    for dtype in (torch.float32, torch.float64):
        constants = {"FACTOR": 2.0, "WORDS": dropout.DROPOUT_WORDS}
        yield Compiled(
            "dropout", dropout.dropout_kernel, "x out",
            constants, dtype, dropout.DROPOUT_WARPS, 64, "seeds",
        )  # fmt: skip


def hash_cases() -> Iterator[Compiled]:
    """The sparse lift of FlyHash."""
    from fedbolic.kernels import hash as lift

    for block in (1, 4, 16):
        sizes = {"BLOCKS": lift.TILE.rows, "EXAMPLES": lift.TILE.columns}
        constants = {"FAN_IN": 10, "BLOCK": block} | sizes
        yield Compiled(
            f"FlyHash, blocks of {block}", lift.block_maximum_kernel, "x rows out",
            constants, torch.int32, lift.TILE.warps, 96,
        )  # fmt: skip


def convolution_cases() -> Iterator[Compiled]:
    """Convolutions with an axis of clients, of 16 channels in channels-last layout."""
    from fedbolic.kernels import convolution

    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        tile = convolution.tile_of(dtype)
        sizes = {"ROWS": tile.rows, "COLUMNS": tile.rows, "DEPTH": tile.columns}
        sizes |= {"CHANNELS": 16, "PRECISION": "ieee", "x_channel": 1}
        for size, stride in ((5, 1), (3, 1), (3, 2)):
            name = f"convolution {size} x {size}, stride {stride}"
            model = sizes | {"SIZE": size, "STRIDE": stride}
            for turned in (False, True):
                yield Compiled(
                    f"{name}, by images" if turned else name, convolution.convolution_kernel,
                    "x weight bias out",
                    model | {"TURNED": turned, "BIASED": not turned, "out_channel": 1},
                    dtype, tile.warps, 128,
                )  # fmt: skip
            yield Compiled(
                f"{name}, by kernels", convolution.weight_gradient_kernel, "x g out",
                model | {"g_channel": 1, "DOWN": 14, "ALONG": 14}, dtype, tile.warps, 128,
            )  # fmt: skip


def adam_cases() -> Iterator[Compiled]:
    """A step of Adam in flat space."""
    from fedbolic.kernels import adam

    numbers = {"BETA1": 0.9, "BETA2": 0.999, "LOG1": math.log(0.9), "LOG2": math.log(0.999)}
    for dtype in (torch.float32, torch.float64):
        yield Compiled(
            "Adam", adam.adam_kernel, "x g mean square new_x new_mean new_square",
            numbers | {"EPS": 1e-8, "DECAY": 0.1, "NUMBERS": adam.ADAM_NUMBERS},
            dtype, adam.ADAM_WARPS, 128, "step",
        )  # fmt: skip


ELEMENTS = {torch.float32: "fp32", torch.float64: "fp64", torch.int32: "i32"}
ELEMENTS[torch.bfloat16] = "bf16"


def compile_all() -> list[str]:
    """Print the resources of every kernel as it is compiled; return those above their bounds."""
    from benchmarks.kernel_resources import compiled_resources

    above = []
    print("| kernel, for sm_90 | dtype | registers (bound) | spilled bytes | shared bytes |")
    print("|---|---|---|---|---|")
    cases = (
        pair_cases,
        row_cases,
        radial_cases,
        map_cases,
        set_cases,
        head_cases,
        normal_cases,
        dropout_cases,
        hash_cases,
        convolution_cases,
        adam_cases,
    )
    for case in itertools.chain.from_iterable(make() for make in cases):
        options = {"element": ELEMENTS[case.dtype], "warps": case.warps}
        options["integers"] = case.integers.split()
        found = compiled_resources(case.kernel, case.pointers.split(), case.constants, **options)
        registers = f"{found.registers} ({case.most_registers})"
        text = f"{case.name} | {case.dtype} | {registers} | {found.spilled} | {found.shared}"
        print(f"| {text.replace('torch.', '')} |", flush=True)
        if found.registers > case.most_registers or found.spilled:
            above.append(case.name)
    return above


def main() -> None:
    """Compile every kernel and count launches, then measure errors by triton's interpreter."""
    above = compile_all()
    tables = (
        kernel_launches.table,
        kernel_launches.adam_launches,
        kernel_launches.convolution_memory,
    )
    for line in itertools.chain.from_iterable(("", *table()) for table in tables):
        print(line, flush=True)
    print(flush=True)
    interpreted = os.environ | {"TRITON_INTERPRET": "1"}
    command = [sys.executable, "-m", "benchmarks.kernel_errors"]
    code = subprocess.run(command, env=interpreted, check=False).returncode
    if above:
        sys.exit(f"above their bounds: {', '.join(above)}")
    sys.exit(code)


if __name__ == "__main__":
    main()
