# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Functions of numbers of 0 or more that kernels are built from.

The logarithm of the device has an absolute error near 1, so small lengths take that of libdevice,
right to one unit in the last place by NVIDIA's tables. The interpreter of triton has no libdevice;
there the same function is a quotient whose rounding errors cancel.
"""

import triton
from triton import knobs
from triton import language as tl
from triton.language.extra import libdevice

INTERPRETED = tl.constexpr(knobs.runtime.interpret)


@triton.jit
def log1p(s):
    """``log(1 + s)`` for ``s >= 0``."""
    if INTERPRETED:
        u = 1.0 + s
        grown = u > 1.0
        shift = tl.where(grown, u - 1.0, 1.0)
        value = tl.where(grown, tl.log(u) * (s / shift), s)
    else:
        value = libdevice.log1p(s)
    return value


@triton.jit
def asinh_of(s):
    """``asinh(s)`` for ``s >= 0``."""
    return log1p(s + s * (s / (tl.sqrt(s * s + 1.0) + 1.0)))


@triton.jit
def tiny(x):
    """The smallest normal number of the dtype of ``x``."""
    return 2.0**-126 if x.dtype == tl.float32 else 2.0**-1022


@triton.jit
def asinhc(t):
    """``asinh(sqrt t) / sqrt t`` for ``t >= 0``."""
    s = tl.sqrt(tl.maximum(t, tiny(t)))
    return asinh_of(s) / s


@triton.jit
def asinhc_slope(t, value):
    """The derivative of ``value = asinhc(t)``, by its series near 0 where the quotient cancels."""
    bound = 0.1 if t.dtype == tl.float32 else 0.01
    far = tl.maximum(t, bound)
    quotient = (1.0 / tl.sqrt(1.0 + far) - value) / (2.0 * far)
    u = tl.minimum(t, bound)
    series = 6435.0 / 69632.0
    series = series * u - 1001.0 / 10240.0
    series = series * u + 693.0 / 6656.0
    series = series * u - 315.0 / 2816.0
    series = series * u + 35.0 / 288.0
    series = series * u - 15.0 / 112.0
    series = series * u + 3.0 / 20.0
    series = series * u - 1.0 / 6.0
    return tl.where(t < bound, series, quotient)
