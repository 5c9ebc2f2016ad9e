# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Kernels of convolutions whose clients have their own kernels, as matrix products of windows.

A row of a product is a window of an image, a column an output channel. A program gathers the pixels
of its windows as it multiplies them, so that no matrix of windows is in memory. The gradient with
respect to images is such a product, too: one for every remainder of the pixels by the stride, with
the kernel's elements that meet these pixels. The gradient with respect to kernels is the product of
the output's gradient with the windows, whose sum over positions is split among programs. Lengths
by which indices are divided in a loop are constants, which the compiler makes products of.
"""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
import triton
from torch import Tensor
from triton import language as tl

from fedbolic.kernels.functions import INTERPRETED
from fedbolic.kernels.launch import Tile, launch, splits_of

CONVOLUTION_TILE, WIDE_CONVOLUTION_TILE = Tile(64, 16, 8), Tile(32, 16, 4)
"""Side of a tile of the result, which is square, and elements that are summed at a time.

The second is that of float64. A tile has fewer channels if the result has fewer.
"""

Precision: TypeAlias = Literal["ieee", "tf32"]
"""Products of float32: exact, or of numbers rounded to 10 bits."""


@triton.jit
def _positions(i, down, along):
    """Image, row and column of positions, which are counted image by image and row by row."""
    image, rest = i // (down * along), i % (down * along)
    return image.to(tl.int64), rest // along, rest % along


@triton.jit
def _sums(out, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """A tile of sums of 0: in float64 if the result is, else in float32."""
    double: tl.constexpr = out.dtype.element_ty == tl.float64
    return tl.zeros([ROWS, COLUMNS], tl.float64 if double else tl.float32)


@triton.jit
def _inside(row, column, height, width):
    """True for pixels of an image, False for its padding."""
    return (row >= 0) & (row < height) & (column >= 0) & (column < width)


@triton.jit
def _pixels(x, place, row, column, real, height, width):
    """Elements of windows; those of the padding are 0."""
    return tl.load(x + place, mask=real & _inside(row, column, height, width), other=0.0)


@triton.jit
def _taps(u, v, above, before, TAPS: tl.constexpr, STRIDE: tl.constexpr, TURNED: tl.constexpr):
    """Rows and columns of a kernel that meet those of a window."""
    if TURNED:
        u, v = above + STRIDE * (TAPS - 1 - u), before + STRIDE * (TAPS - 1 - v)
    return u, v


@triton.jit
def _plus_product(total, left, right, PRECISION: tl.constexpr):
    """Sums and a matrix product; the interpreter would multiply the bits of bfloat16."""
    if INTERPRETED:
        left, right = left.to(total.dtype), right.to(total.dtype)
    return tl.dot(left, right, total, input_precision=PRECISION, out_dtype=total.dtype)


@triton.jit
def convolution_kernel(
    x, weight, bias, out, n, outputs, height, width, down, along, out_height, out_width,
    padding, x_client, x_image, x_channel, x_row, x_column,
    w_client, w_output, w_channel, w_row, w_column,
    out_client, out_image, out_channel, out_row, out_column,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, TURNED: tl.constexpr,
    BIASED: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A tile of a convolution or, if turned, of its gradient with respect to the images."""
    CLASSES: tl.constexpr = STRIDE if TURNED else 1
    TAPS: tl.constexpr = (SIZE + CLASSES - 1) // CLASSES
    across = tl.cdiv(outputs, COLUMNS)
    tiles = tl.cdiv(n * down * along, ROWS) * across
    tile, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    client, of_class = (rest // (CLASSES * CLASSES)).to(tl.int64), rest % (CLASSES * CLASSES)
    i = tile // across * ROWS + tl.arange(0, ROWS)
    j = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    image, row, column = _positions(i, down, along)
    above, before = of_class // STRIDE, of_class % STRIDE
    if TURNED:  # pixels with these remainders meet every STRIDE-th element of a kernel
        top, left = row - (TAPS - 1), column - (TAPS - 1)
        row, column = row * STRIDE + above - padding, column * STRIDE + before - padding
    else:
        top, left = row * STRIDE - padding, column * STRIDE - padding
    start = client * x_client + image * x_image + top * x_row + left * x_column
    top = tl.where(i < n * down * along, top, -SIZE)  # other windows lie above the image
    total = _sums(out, ROWS, COLUMNS)
    for first in range(0, TAPS * TAPS * CHANNELS, DEPTH):
        k = first + tl.arange(0, DEPTH)
        channel, u, v = k % CHANNELS, k // CHANNELS // TAPS, k // CHANNELS % TAPS
        tap_row, tap_column = _taps(u, v, above, before, TAPS, STRIDE, TURNED)
        real = (u < TAPS) & (tap_row < SIZE) & (tap_column < SIZE)
        windows = _pixels(
            x, start[:, None] + (channel * x_channel + u * x_row + v * x_column)[None, :],
            top[:, None] + u[None, :], left[:, None] + v[None, :], real[None, :], height, width,
        )  # fmt: skip
        place = client * w_client + channel * w_channel + tap_row * w_row + tap_column * w_column
        taps = tl.load(
            weight + place[:, None] + j[None, :] * w_output,
            mask=real[:, None] & (j < outputs)[None, :], other=0.0,
        )  # fmt: skip
        total = _plus_product(total, windows, taps, PRECISION)
    if BIASED:
        total += tl.load(bias + client * outputs + j, mask=j < outputs, other=0.0)[None, :]
    real = _inside(row, column, out_height, out_width) & (i < n * down * along)
    place = client * out_client + image * out_image + row * out_row + column * out_column
    place = place[:, None] + j[None, :] * out_channel
    tl.store(out + place, total, mask=real[:, None] & (j < outputs)[None, :])


@triton.jit
def weight_gradient_kernel(
    x, g, out, n, outputs, height, width, padding, clients, span,
    x_client, x_image, x_channel, x_row, x_column,
    g_client, g_image, g_channel, g_row, g_column,
    CHANNELS: tl.constexpr, SIZE: tl.constexpr, STRIDE: tl.constexpr, DOWN: tl.constexpr,
    ALONG: tl.constexpr, PRECISION: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """Sums over a span of positions, for a tile of output channels and elements of kernels."""
    across = tl.cdiv(SIZE * SIZE * CHANNELS, COLUMNS)
    tiles = tl.cdiv(outputs, ROWS) * across
    tile, rest = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    client, part = (rest % clients).to(tl.int64), rest // clients
    j = tile // across * ROWS + tl.arange(0, ROWS)
    k = tile % across * COLUMNS + tl.arange(0, COLUMNS)
    channel, u, v = k % CHANNELS, k // CHANNELS // SIZE, k // CHANNELS % SIZE
    within = channel * x_channel + u * x_row + v * x_column
    total = _sums(out, ROWS, COLUMNS)
    for first in range(part * span, tl.minimum(part * span + span, n * DOWN * ALONG), DEPTH):
        i = first + tl.arange(0, DEPTH)
        image, row, column = _positions(i, DOWN, ALONG)
        real = i < n * DOWN * ALONG
        place = client * g_client + image * g_image + row * g_row + column * g_column
        given = tl.load(
            g + place[None, :] + j[:, None] * g_channel,
            mask=real[None, :] & (j < outputs)[:, None], other=0.0,
        )  # fmt: skip
        top, left = row * STRIDE - padding, column * STRIDE - padding
        start = client * x_client + image * x_image + top * x_row + left * x_column
        windows = _pixels(
            x, start[:, None] + within[None, :],
            top[:, None] + u[None, :], left[:, None] + v[None, :],
            real[:, None] & (u < SIZE)[None, :], height, width,
        )  # fmt: skip
        total = _plus_product(total, given, windows, PRECISION)
    row = ((part.to(tl.int64) * clients + client) * outputs + j) * (CHANNELS * SIZE * SIZE)
    place = row[:, None] + (channel * SIZE * SIZE + u * SIZE + v)[None, :]
    tl.store(out + place, total, mask=(j < outputs)[:, None] & (u < SIZE)[None, :])


def _side(length: int, most: int) -> int:
    """Length of the side of a tile; 16 is the least of a matrix product."""
    return max(16, min(most, triton.next_power_of_2(length)))


def tile_of(dtype: torch.dtype) -> Tile:
    """The largest tile of a dtype."""
    return WIDE_CONVOLUTION_TILE if dtype == torch.float64 else CONVOLUTION_TILE


class Windows(NamedTuple):
    """Windows of a convolution, equal for height and width.

    Args:
        stride: Step between two windows, at least 1.
        padding: Rows and columns of zeros on each side, at least 0.
        precision: ``ieee`` for exact products of float32, ``tf32`` for rounded ones.
    """

    stride: int
    padding: int
    precision: Precision

    def along(self, length: int, size: int) -> int:
        """Number of windows of a size along a side of an image."""
        return (length + 2 * self.padding - size) // self.stride + 1


def client_convolution(x: Tensor, weight: Tensor, *bias: Tensor, **window: Any) -> Tensor:
    """Convolutions of the images of every client, in channels-last layout.

    Args:
        x: Images, of shape ``(..., n, inputs, height, width)`` and any strides. Leading axes
            broadcast, as they do for the other arguments.
        weight: Kernels, of shape ``(..., outputs, inputs, size, size)``, of the same dtype.
        *bias: Numbers of output channels, of shape ``(..., 1, 1, 1, outputs)``, or nothing for 0.
        **window: Arguments of :class:`Windows`.
    """
    windows, (lead, (x, weight, *biases)) = Windows(**window), _one_axis(x, weight, *bias)
    clients, n, _, *sides = x.shape
    outputs, size = weight.shape[1], weight.shape[-1]
    down, along = (windows.along(side, size) for side in sides)
    out = x.new_empty(clients, n, down, along, outputs).permute(0, 1, 4, 2, 3)
    of_channels = biases[0].flatten(1).contiguous() if biases else None
    _gather(x, weight, of_channels, out, (down, along), windows, turned=False)
    return out.reshape(*lead, *out.shape[1:])


def client_convolution_gradients(
    grad: Tensor, x: Tensor, weight: Tensor, *bias: Tensor, needed: Sequence[bool], **window: Any
) -> tuple[Tensor | None, ...]:
    """Gradients of :func:`client_convolution`, as the registrar asks for them."""
    windows, (lead, (x, weight, *biases)) = Windows(**window), _one_axis(x, weight, *bias)
    flat = grad.reshape(lead.numel(), *grad.shape[-4:])
    by_x = _image_gradients(flat, x, weight, windows) if needed[0] else None
    by_weight = _weight_gradients(flat, x, weight, windows) if needed[1] else None
    by_bias = flat.sum((1, 3, 4))[:, None, None, None] if any(needed[2:]) else None
    made = by_x, by_weight, *[by_bias] * len(biases)
    return tuple(None if g is None else g.reshape(*lead, *g.shape[1:]) for g in made)


def _one_axis(*tensors: Tensor) -> tuple[torch.Size, list[Tensor]]:
    """The broadcast shape of the leading axes, and tensors with one axis in place of these."""
    lead = torch.broadcast_shapes(*(t.shape[:-4] for t in tensors))
    full = [t.expand(*lead, *t.shape[-4:]) for t in tensors]
    return lead, [t.reshape(lead.numel(), *t.shape[-4:]) for t in full]


def _image_gradients(grad: Tensor, x: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """Gradients of convolutions with respect to the images, in their layout."""
    out = torch.empty_like(x)
    positions = [(side - 1 + windows.padding) // windows.stride + 1 for side in x.shape[-2:]]
    _gather(grad, weight.transpose(1, 2), None, out, positions, windows, turned=True)
    return out


def _gather(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    out: Tensor,
    positions: Sequence[int],
    windows: Windows,
    *,
    turned: bool,
) -> None:
    """Write the products of all windows, at positions of each image and class of remainders."""
    clients, n, channels, *sides = x.shape
    outputs, size = weight.shape[1], weight.shape[-1]
    rows, depth, warps = tile_of(x.dtype)
    columns = _side(outputs, rows)
    tiles = triton.cdiv(n * positions[0] * positions[1], rows) * triton.cdiv(outputs, columns)
    classes = windows.stride**2 if turned else 1
    launch(
        convolution_kernel, tiles * classes * clients, out,
        x, weight, x if bias is None else bias, out, n, outputs, *sides, *positions,
        *out.shape[-2:], windows.padding, *x.stride(), *weight.stride(), *out.stride(),
        CHANNELS=channels, SIZE=size, STRIDE=windows.stride, TURNED=turned,
        BIASED=bias is not None, PRECISION=windows.precision,
        ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps,
    )  # fmt: skip


def _weight_gradients(grad: Tensor, x: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """Gradients of convolutions with respect to the kernels."""
    clients, outputs, channels, size, _ = weight.shape
    n, (down, along) = grad.shape[1], grad.shape[-2:]
    most, depth, warps = tile_of(x.dtype)
    rows, columns = (_side(length, most) for length in (outputs, size**2 * channels))
    others = triton.cdiv(outputs, rows) * triton.cdiv(size**2 * channels, columns) * clients
    splits, span = splits_of(n * down * along, depth, others)
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    new: Any = torch.empty if grad.numel() else torch.zeros
    out = new(splits, *weight.shape, dtype=wide, device=x.device)
    if grad.numel():
        launch(
            weight_gradient_kernel, splits * others, out, x, grad, out, n, outputs,
            *x.shape[-2:], windows.padding, clients, span, *x.stride(), *grad.stride(),
            CHANNELS=channels, SIZE=size, STRIDE=windows.stride, DOWN=down, ALONG=along,
            PRECISION=windows.precision, ROWS=rows, COLUMNS=columns, DEPTH=depth, num_warps=warps,
        )  # fmt: skip
    return (out[0] if splits == 1 else out.sum(0)).to(x.dtype)
