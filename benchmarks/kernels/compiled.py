"""Resources of the kernels on an H100 or H200, compiled without a device."""

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.kernels.resources import compiled_resources
from benchmarks.table import head, line
from fedbolic import kernels
from fedbolic.kernels import (
    adam,
    boosts,
    centroids,
    convolution,
    dropout,
    launch,
    logits,
    maps,
    normals,
    pairs,
    radial,
    rows,
)
from fedbolic.kernels import hash as lift

ELEMENTS = {
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.int32: "i32",
    torch.bfloat16: "bf16",
}
DTYPES = (torch.float32, torch.float64)
WIDTHS = (4, 64, kernels.MOST_DIMENSIONS)


class Compiled(NamedTuple):
    """A kernel, its tensors, constants, warps and the bound on its registers."""

    name: str
    kernel: Any
    pointers: str
    constants: dict[str, Any]
    warps: int
    most_registers: int
    integers: str = ""


def _tile(tile: Any) -> dict[str, int]:
    return {"ROWS": tile.rows, "COLUMNS": tile.columns}


def pair_cases(dtype: torch.dtype, place: str, model: dict) -> Iterator[Compiled]:
    """Pairwise distances in few and many dimensions."""
    tile, name = pairs.FORWARD[dtype], f"{place} cdist"
    sizes = model | _tile(tile)
    yield Compiled(name, pairs.pair_kernel, "x a y b c out", sizes, tile.warps, 128)
    tile = pairs.BACKWARD[dtype]
    for width in WIDTHS:
        sizes = model | _tile(tile) | {"CURVED": True, "WIDTH": width}
        pointers = "x a y b c g by_point by_radial by_c"
        name = f"{place} cdist, gradient, d <= {width}"
        yield Compiled(name, pairs.pair_gradient_kernel, pointers, sizes, tile.warps, 168)


def row_cases(dtype: torch.dtype, place: str, model: dict) -> Iterator[Compiled]:
    """Functions of rows and their gradients: distances, maps, translations of sets."""
    one, two = ("x c out", "x c g by_x by_c"), ("x y c out", "x y c g by_x by_y by_c")
    of_mean = "x mean c out", "x mean c g by_x by_mean by_c"
    dist = rows.row_distance_kernel, rows.row_gradient_kernel
    to_origin = radial.radial_kernel, radial.radial_gradient_kernel
    point_maps = maps.map_kernel, maps.map_gradient_kernel
    moves = boosts.boost_kernel, boosts.boost_gradient_kernel
    numbers = launch.VALUE_NUMBERS, launch.GRADIENT_NUMBERS
    for name, outward, both, pointers, widths, bounds in (
        ("dist", None, dist, two, WIDTHS, (128, 168)),
        ("expmap0", True, to_origin, one, (64,), (96, 128)),
        ("logmap0", False, to_origin, one, (64,), (96, 128)),
        ("expmap", True, point_maps, two, WIDTHS, (128, 168)),
        ("logmap", False, point_maps, two, WIDTHS, (128, 168)),
        ("from origin", True, moves, of_mean, (64,), (128, 168)),
        ("to origin", False, moves, of_mean, (64,), (128, 168)),
    ):
        way = {} if outward is None else {"OUTWARD": outward}
        for width in widths:
            for i, (title, curved) in enumerate((("", {}), (", gradient", {"CURVED": True}))):
                sizes = {"WIDTH": width, "ROWS": numbers[i][dtype] // width}
                yield Compiled(
                    f"{place} {name}{title}, d <= {width}", both[i], pointers[i],
                    model | way | sizes | curved, launch.WARPS, bounds[i],
                )  # fmt: skip


def centroid_cases(dtype: torch.dtype, place: str, model: dict) -> Iterator[Compiled]:
    """Centroids of sets."""
    model = model | {"WIDTH": 64}
    sizes = model | {"FIRST": int(model["HYPERBOLOID"])}
    forward = sizes | {"ROWS": launch.VALUE_NUMBERS[dtype] // 64}
    backward = sizes | {"ROWS": launch.GRADIENT_NUMBERS[dtype] // 64}
    backward |= {"POINTS": True, "WEIGHTED": True, "CURVED": True}
    for name, kernel, pointers, of, most in (
        (", sum", centroids.centroid_sum_kernel, "x w c sums", forward, 128),
        (", spread", centroids.centroid_spread_kernel, "x w c sums rests spreads", forward, 168),
        (", gradient", centroids.centroid_gradient_kernel,
         "x w c known g by_x by_w by_c", backward, 168),
        ("", centroids.centroid_kernel, "c sums rests spreads out known",
         model | {"POINTS": True}, 128),
    ):  # fmt: skip
        title = f"{place} centroid{name}, d <= 64"
        yield Compiled(title, kernel, pointers, of, launch.WARPS, most)


def normal_cases(dtype: torch.dtype, place: str, model: dict) -> Iterator[Compiled]:
    """Normals of hyperplanes."""
    tile = normals.NORMAL_TILE
    sizes = model | {"FARTHEST": normals.FARTHEST_PLANES[dtype]} | _tile(tile)
    for name, kernel, pointers in (
        ("", normals.normal_kernel, "weight offset c normals lengths"),
        (", gradient", normals.normal_gradient_kernel,
         "weight offset c lengths g by_length by_weight by_offset by_c"),
    ):  # fmt: skip
        yield Compiled(f"{place} normals{name}", kernel, pointers, sizes, tile.warps, 128)


def flat_cases(dtype: torch.dtype) -> Iterator[Compiled]:
    """Logits of few and many hyperplanes, dropout, and a step of Adam in flat space."""
    tile = logits.LOGIT_TILES[dtype]
    for columns in (16, logits.MOST_COLUMNS[dtype]):
        sizes = {"ROWS": tile.rows, "COLUMNS": columns, "DEPTH": tile.columns}
        yield Compiled(
            f"logits, {columns} columns", logits.logit_kernel, "x normals lengths c out products",
            {"FACTOR": 1.0, "KEPT": True} | sizes, tile.warps, 128,
        )  # fmt: skip
    tile = logits.LOGIT_GRADIENT_TILES[dtype]
    yield Compiled(
        "logits, gradient", logits.logit_gradient_kernel,
        "g products lengths c by_product by_length by_c",
        {"FACTOR": 1.0, "CURVED": True} | _tile(tile), tile.warps, 128,
    )  # fmt: skip
    sizes = {"FACTOR": 2.0, "WORDS": dropout.DROPOUT_WORDS}
    kernel, warps = dropout.dropout_kernel, launch.WARPS
    yield Compiled("dropout", kernel, "x out", sizes, warps, 64, "seeds")
    numbers = {"BETA1": 0.9, "BETA2": 0.999, "LOG1": math.log(0.9), "LOG2": math.log(0.999)}
    yield Compiled(
        "Adam", adam.adam_kernel, "x g mean square new_x new_mean new_square",
        numbers | {"EPS": 1e-8, "DECAY": 0.1, "NUMBERS": adam.ADAM_NUMBERS},
        launch.WARPS, 128, "step",
    )  # fmt: skip


def hash_cases(_: torch.dtype) -> Iterator[Compiled]:
    """The sparse lift of FlyHash."""
    sizes = {"BLOCKS": lift.TILE.rows, "EXAMPLES": lift.TILE.columns, "FAN_IN": 10}
    for block in (1, 4, 16):
        kernel, of = lift.block_maximum_kernel, sizes | {"BLOCK": block}
        yield Compiled(f"FlyHash, blocks of {block}", kernel, "x rows out", of, lift.TILE.warps, 96)


def convolution_cases(dtype: torch.dtype) -> Iterator[Compiled]:
    """Convolutions with an axis of clients, of 16 channels in channels-last layout."""
    tile = convolution.tile_of(dtype)
    sizes = {"ROWS": tile.rows, "COLUMNS": tile.rows, "DEPTH": tile.columns}
    sizes |= {"CHANNELS": 16, "PRECISION": "ieee", "x_channel": 1}
    for size, stride in ((5, 1), (3, 1), (3, 2)):
        name = f"convolution {size} x {size}, stride {stride}"
        model = sizes | {"SIZE": size, "STRIDE": stride}
        for turned in (False, True):
            way = {"TURNED": turned, "BIASED": not turned, "out_channel": 1}
            yield Compiled(
                f"{name}, by images" if turned else name, convolution.convolution_kernel,
                "x weight bias out", model | way, tile.warps, 128,
            )  # fmt: skip
        yield Compiled(
            f"{name}, by kernels", convolution.weight_gradient_kernel, "x g out",
            model | {"g_channel": 1, "DOWN": 14, "ALONG": 14}, tile.warps, 128,
        )  # fmt: skip


def cases() -> Iterator[tuple[torch.dtype, Compiled]]:
    """All kernels with the types of their numbers."""
    of_models = pair_cases, row_cases, centroid_cases, normal_cases
    for made in of_models:
        for dtype in DTYPES:
            for place in ("hyperboloid", "ball"):
                model = {"HYPERBOLOID": place == "hyperboloid"}
                yield from ((dtype, case) for case in made(dtype, place, model))
    flat: tuple[tuple[Callable, tuple[torch.dtype, ...]], ...] = (
        (flat_cases, DTYPES),
        (hash_cases, (torch.int32,)),
        (convolution_cases, (*DTYPES, torch.bfloat16)),
    )
    for made, dtypes in flat:
        for dtype in dtypes:
            yield from ((dtype, case) for case in made(dtype))


def compile_all() -> list[str]:
    """Print the resources of every kernel as it is compiled; return those above their bounds."""
    above = []
    print(head("kernel, for sm_90", "dtype", "registers (bound)", "spilled bytes", "shared bytes"))
    for dtype, case in cases():
        found = compiled_resources(
            case.kernel,
            case.pointers.split(),
            case.constants,
            element=ELEMENTS[dtype],
            integers=case.integers.split(),
            warps=case.warps,
        )
        registers = f"{found.registers} ({case.most_registers})"
        cells = case.name, str(dtype).removeprefix("torch."), registers
        print(line(*cells, found.spilled, found.shared), flush=True)
        if found.registers > case.most_registers or found.spilled:
            above.append(case.name)
    return above
