# pyright: reportMissingImports=false, reportIndexIssue=false
r"""Functions of numbers of 0 or more that kernels are built from.

The logarithm of the device has an absolute error near 1, and its exponential near 0, so small
lengths take those of libdevice, right to one unit in the last place by NVIDIA's tables. The
interpreter of triton has no libdevice; there the same functions are quotients whose rounding errors
cancel.
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
def expm1(s):
    """``exp(s) - 1`` for ``s >= 0``."""
    if INTERPRETED:
        u = tl.exp(s)
        grown = u > 1.0
        value = tl.where(grown, (u - 1.0) * (s / tl.log(tl.where(grown, u, 2.0))), s)
    else:
        value = libdevice.expm1(s)
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
def largest(x):
    """The largest finite number of the dtype of ``x``."""
    return (2.0 - 2.0**-23) * 2.0**127 if x.dtype == tl.float32 else (2.0 - 2.0**-52) * 2.0**1023


@triton.jit
def asinhc(t):
    """``asinh(sqrt t) / sqrt t`` for ``t >= 0``."""
    s = tl.sqrt(tl.maximum(t, tiny(t)))
    return asinh_of(s) / s


@triton.jit
def asinhc_slope(t, value):
    """The derivative of ``value = asinhc(t)``, by its series near 0 where the quotient cancels."""
    bound = series_limit(t)
    far = tl.maximum(t, bound)
    quotient = (1.0 / tl.sqrt(1.0 + far) - value) / (2.0 * far)
    return tl.where(t < bound, asinhc_series(tl.minimum(t, bound)), quotient)


@triton.jit
def series_limit(t):
    """The largest ``t`` for which a derivative is computed by its series.

    It is a number of float32, to which triton rounds the numbers in a kernel.
    """
    return 0.1 if t.dtype == tl.float32 else 2.0**-7


@triton.jit
def asinhc_series(t):
    """The derivative of ``asinhc`` at ``t`` below the bound of its series."""
    series = 6435.0 / 69632.0
    series = series * t - 1001.0 / 10240.0
    series = series * t + 693.0 / 6656.0
    series = series * t - 315.0 / 2816.0
    series = series * t + 35.0 / 288.0
    series = series * t - 15.0 / 112.0
    series = series * t + 3.0 / 20.0
    return series * t - 1.0 / 6.0


@triton.jit
def largest_sinh(x):
    """The root of the largest ``c |x|^2`` on the hyperboloid, in the dtype of ``x``."""
    return 10.0**17.5 if x.dtype == tl.float32 else 1e150


@triton.jit
def sinhc_series(t):
    """The derivative of ``sinh(sqrt t) / sqrt t`` near 0."""
    series = 8.0 / 355687428096000.0
    series = series * t + 7.0 / 1307674368000.0
    series = series * t + 6.0 / 6227020800.0
    series = series * t + 5.0 / 39916800.0
    series = series * t + 4.0 / 362880.0
    series = series * t + 3.0 / 5040.0
    series = series * t + 2.0 / 120.0
    return series * t + 1.0 / 6.0
