"""Convolutions with an axis of clients, each of which has its own kernels."""

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.func import vmap
from torch.nn import functional
from typing_extensions import override

from fedbolic import kernels
from fedbolic.formulas.registrar import replaced_by, with_kernel

KERNEL_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)


class StackableConv2d(nn.Conv2d):
    """A 2D convolution of many clients, each with its kernel, as a matrix product.

    Without an axis of clients it is ``nn.Conv2d``. Under ``vmap`` over kernels, torch calls a
    convolution with one group per client, and cuDNN is slow at training many groups: on a CUDA
    device, :func:`stacked_convolution` takes its place. On a CPU the grouped convolution stays,
    which is the faster one in most layers; ``benchmarks.gpu`` measures both on either device.

    Args:
        in_channels: Channels of the input, at least 1.
        out_channels: Channels of the output, at least 1.
        kernel_size: Height and width of a kernel, at least 1.
        stride: Step between two windows, at least 1.
        padding: Rows and columns of zeros on each side, at least 0.
        bias: Whether to add a bias to each output channel.

    Example:
        >>> layer = StackableConv2d(3, 8, 5, padding=2)
        >>> layer(torch.zeros(4, 3, 28, 28)).shape
        torch.Size([4, 8, 28, 28])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int,
        stride: int = 1,
        *,
        padding: int = 0,
        bias: bool = True,
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, bias=bias)

    @override
    def forward(self, input: Tensor) -> Tensor:
        """Feature maps of a batch of images."""
        stride, padding = int(self.stride[0]), int(self.padding[0])
        if prefers_im2col(self.weight):
            return stacked_convolution(
                input, self.weight, self.bias, stride=stride, padding=padding
            )
        if self.kernel_size == (1, 1) and stride > 1 and is_channels_last(input, self.weight):
            pixels = strided_pixels(input, stride=stride, padding=padding)
            return functional.conv2d(pixels, self.weight, self.bias)
        return super().forward(input)


def prefers_im2col(weight: Tensor) -> bool:
    """True if ``vmap`` would turn a convolution with these kernels into cuDNN's groups."""
    return weight.is_cuda and is_batchedtensor(weight)


def is_channels_last(x: Tensor, weight: Tensor) -> bool:
    """True if a CPU would compute the convolution with 1x1 kernels in channels-last order."""
    return not x.is_cuda and (x.stride(1) == 1 or weight.stride(3) > 1)


def strided_pixels(
    x: Float[Tensor, "n inputs height width"], *, stride: int, padding: int
) -> Float[Tensor, "n inputs _ _"]:
    """Pixels that a 1x1 kernel reads with a stride, so that a convolution needs none.

    In channels-last order, with fewer than 8 input channels and sides that are multiples of the
    stride, the weight gradient of oneDNN's AVX2 code (torch 2.13) writes past its buffer.
    ``tests/nn/functional/test_convolution_memory.py`` has the smallest case.

    Args:
        x: Images.
        stride: Step between two pixels, at least 1.
        padding: Rows and columns of zeros on each side, at least 0.
    """
    if padding:
        x = functional.pad(x, (padding,) * 4)
    return x[..., ::stride, ::stride]


@with_kernel("convolution.client_convolution", axes=4)
def _convolution(
    x: Tensor, weight: Tensor, *bias: Tensor, stride: int, padding: int, precision: str
) -> Tensor:
    """Convolutions of each client's images; a bias has an axis for each of a kernel's."""
    del precision  # of the kernel's products

    def convolve(x: Tensor, weight: Tensor, *bias: Tensor) -> Tensor:
        of_channels = bias[0].flatten() if bias else None
        return functional.conv2d(x, weight, of_channels, stride, padding)

    lead = torch.broadcast_shapes(*(t.shape[:-4] for t in (x, weight, *bias)))
    for _ in lead:
        convolve = vmap(convolve)
    return convolve(*(t.expand(*lead, *t.shape[-4:]) for t in (x, weight, *bias)))


def kernel_convolution(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, stride: int, padding: int
) -> Tensor:
    """Convolution as one matrix product of all windows and all kernels, which stores no window.

    ``vmap`` over clients gives one launch for all of them. The result is in channels-last layout.
    Products of float32 are exact, unless torch's setting for matrix products allows TF32; half
    types are summed in float32, and autocast applies. First derivatives are kernels, too; higher
    ones are those of torch's operators. Arguments are those of :func:`im2col_convolution`.
    """
    given = [x, weight, *([] if bias is None else [bias.reshape(1, 1, 1, -1)])]
    if _casts(x, weight):
        dtype = torch.get_autocast_dtype(x.device.type)
        given = [t.to(dtype) for t in given]
    exact = torch.get_float32_matmul_precision() == "highest"
    precision = "ieee" if exact else "tf32"
    return _convolution(*given, stride=stride, padding=padding, precision=precision)


def takes_images(x: Tensor, weight: Tensor, *bias: Tensor | None, **window: int) -> bool:
    """True if convolutions of images can be computed by a kernel, also under ``vmap``."""
    del bias, window
    if not (kernels.run_on(x) and kernels.run_on(weight)):
        return False
    return weight.dtype == x.dtype in KERNEL_DTYPES or _casts(x, weight)


def _casts(*tensors: Tensor) -> bool:
    """True if autocast applies, which leaves float64 as it is."""
    on = torch.is_autocast_enabled(tensors[0].device.type)
    return on and all(t.dtype in KERNEL_DTYPES and t.dtype != torch.float64 for t in tensors)


def im2col_convolution(
    x: Float[Tensor, "n inputs height width"],
    weight: Float[Tensor, "outputs inputs size size"],
    bias: Float[Tensor, " outputs"] | None,
    *,
    stride: int,
    padding: int,
) -> Float[Tensor, "n outputs _ _"]:
    r"""Convolution as one matrix product of all windows and all kernels.

    .. math:: y_{nij} = b + \sum_{u, v, c} x_{n, c, s i + u - p, s j + v - p} \, w_{c u v}

    Windows are copied with their channels last, so that the result is in channels-last layout, too.
    ``vmap`` over clients gives batched matrix products. The copies take ``size ** 2 / stride ** 2``
    times the memory of ``x``, and are kept for the backward pass.

    Args:
        x: Images.
        weight: Kernels.
        bias: One number for each output channel; ``None`` for zeros.
        stride: Step between two windows, at least 1.
        padding: Rows and columns of zeros on each side, at least 0.

    References:
        Chellapilla et al. (2006), High Performance Convolutional Neural Networks for Document
        Processing.

    Example:
        >>> x, weight = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 5, 5)
        >>> y = im2col_convolution(x, weight, None, stride=1, padding=2)
        >>> torch.allclose(y, functional.conv2d(x, weight, padding=2), atol=1e-4)
        True
    """
    if padding:
        x = functional.pad(x, (padding,) * 4)
    outputs, _, size, _ = weight.shape
    windows = x.unfold(2, size, stride).unfold(3, size, stride)
    n, _, height, width = windows.shape[:4]
    rows = windows.permute(0, 2, 3, 4, 5, 1).flatten(3).flatten(0, 2)
    kernels = weight.permute(2, 3, 1, 0).flatten(0, 2)
    products = rows @ kernels if bias is None else torch.addmm(bias, rows, kernels)
    return products.view(n, height, width, outputs).permute(0, 3, 1, 2)


stacked_convolution = replaced_by(kernel_convolution, takes_images)(im2col_convolution)
"""Convolution as a matrix product: by a kernel where there is one, else of copied windows."""
