"""The operations of an expression as Triton functions, without a device library: they also run in the interpreter.

Polynomials are Chebyshev fits made for this file; the errors beside them are in units of the last place of float32.
"""

import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def maximum(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def minimum(a, b):
    return tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def relu(x):
    return tl.where(x < 0, 0.0, x)


@triton.jit
def sign(x):
    return tl.where(x > 0, 1.0, 0.0) - tl.where(x < 0, 1.0, 0.0)


@triton.jit
def expm1(x):
    """exp(x) - 1; below |x| = 1/2 by x + x^2 p(x), 1.3 ulp; float64 by Kahan's correction."""
    u = tl.exp(x)
    if x.dtype == tl.float64:
        # (u - 1) x / log u: the errors of u - 1 and of log u cancel
        near = tl.where(u == 1.0, x, (u - 1.0) * x / tl.where(u == 1.0, 1.0, tl.log(u)))
    else:
        p = 2.4939740714418034e-05
        p = p * x + 0.00019962186053778145
        p = p * x + 0.0013888672834859953
        p = p * x + 0.008333182040877796
        p = p * x + 0.04166666774738802
        p = p * x + 0.16666667139685676
        p = p * x + 0.49999999999155587
        near = x + x * x * p
    return tl.where(tl.abs(x) < 0.5, near, u - 1.0)


@triton.jit
def log1p(x):
    """log(1 + x) by Kahan's correction log(w) x / (w - 1), w = 1 + x rounded."""
    w = 1.0 + x
    exact = w == 1.0
    y = tl.log(w) * (x / tl.where(exact, 1.0, w - 1.0))
    return tl.where(exact, x, tl.where(tl.abs(w) == float("inf"), w, y))


@triton.jit
def tanh(x):
    """Below |x| = 0.6 by x + x^3 p(x^2), 1.3 ulp; above by 1 - 2 / (exp(2|x|) + 1)."""
    a = tl.abs(x)
    far = 1.0 - 2.0 / (tl.exp(2.0 * a) + 1.0)
    far = tl.where(x < 0, -far, far)
    if x.dtype == tl.float64:
        t = expm1(2.0 * x)
        near = t / (t + 2.0)
    else:
        z = x * x
        p = -0.006276389034445345
        p = p * z + 0.0211162151262067
        p = p * z - 0.05387513850863523
        p = p * z + 0.13332924009605532
        p = p * z - 0.3333333043142965
        near = x + x * z * p
    return tl.where(a < 0.6, near, far)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def power(a, b):
    """a ** b through float64: the exponent's error would be multiplied by b log a."""
    wide = tl.exp2((b + a * 0).to(tl.float64) * tl.log2(tl.abs(a).to(tl.float64)))
    wide = tl.where(b == 0, 1.0, tl.where(a == 1.0, 1.0, wide))
    whole = tl.floor(b + a * 0)
    odd = whole - 2.0 * tl.floor(whole * 0.5)
    wide = tl.where(a < 0, tl.where(whole == b, tl.where(odd == 1.0, -wide, wide), float("nan")), wide)
    return wide.to(a.dtype)


@triton.jit
def floordiv(a, b):
    """The quotient of integers, rounded down."""
    q = a // b
    r = a - q * b
    return tl.where((r != 0) & ((r < 0) != (b < 0)), q - 1, q)


@triton.jit
def saturate(i):
    """An int64 as an int32, for comparisons with a column or row number, which is below 2^31 - 1."""
    return tl.maximum(tl.minimum(i, 2147483647), -2147483648).to(tl.int32)


@triton.jit
def gumbel(seed, stream, position, column, wide: tl.constexpr):
    """Gumbel noise of folds/sample.py, from the same Philox words.

    -log E with E = -log1p(-u), u = (r + 1/2) / 2^32; for r >= 2^31 E = -log(1 - u), whose argument 2^32 - r - 1/2 is rounded once.
    """
    low = 0xFFFFFFFF
    zero = (seed + stream + position + column).to(tl.int64) * 0
    seed = (seed + zero).to(tl.int64)
    c0 = ((column + zero) & low).to(tl.uint32)
    c1 = ((stream + zero) & low).to(tl.uint32)
    c2 = ((position + zero) & low).to(tl.uint32)
    r = _philox(c0, c1, c2, (seed & low).to(tl.uint32), ((seed >> 32) & low).to(tl.uint32))
    twice = r << 1
    small = r < 0x80000000
    part = tl.where(small, twice + 1, twice ^ 0xFFFFFFFF)  # (2 r + 1) or 2 (2^32 - r) - 1, both below 2^32
    v = part.to(wide) * 1.1641532182693481e-10  # 2^-33
    e = -tl.where(small, log1p(-tl.where(small, v, 0.0)), tl.log(v))
    return -tl.log(e)


@triton.jit
def _philox(c0, c1, c2, k0, k1):
    """The first word of Philox-4x32-10 (Salmon et al., 2011), last counter word 0."""
    m0: tl.constexpr = 0xD2511F53
    m1: tl.constexpr = 0xCD9E8D57
    c3 = c0 & 0
    for _ in tl.static_range(10):
        hi0, lo0 = _multiply(c0, m0)
        hi1, lo1 = _multiply(c2, m1)
        c0 = hi1 ^ c1 ^ k0
        c1 = lo1
        c2 = hi0 ^ c3 ^ k1
        c3 = lo0
        k0 = (k0 + 0x9E3779B9).to(tl.uint32)
        k1 = (k1 + 0xBB67AE85).to(tl.uint32)
    return c0


@triton.jit
def _multiply(a, m: tl.constexpr):
    wide = a.to(tl.uint64) * m
    return (wide >> 32).to(tl.uint32), wide.to(tl.uint32)
