"""Kernels that must be refused: Triton 3.4.0 to 3.7.0 compile `transposed_accumulator` into wrong numbers on sm_90."""

import triton
import triton.language as tl


@triton.jit
def transposed_accumulator(x, y, out, n, B: tl.constexpr, D: tl.constexpr, CAST_FIRST: tl.constexpr):
    """sum_t P_t^T Y_t with P_t = exp2(X Y_t^T): the accumulator of one product, transposed, goes into the next one."""
    i = tl.arange(0, B)
    d = tl.arange(0, D)
    a = tl.load(x + i[:, None] * D + d[None, :])
    acc = tl.zeros([B, D], tl.float32)
    for t in range(n):
        b = tl.load(y + (t * B + i)[:, None] * D + d[None, :])
        p = tl.exp2(tl.dot(a, tl.trans(b)))
        if CAST_FIRST:
            p = tl.trans(p.to(tl.float16))
        else:
            p = tl.trans(p).to(tl.float16)
        acc = tl.dot(p, b, acc)
    tl.store(out + i[:, None] * D + d[None, :], acc)


@triton.jit
def accumulator(x, y, out, n, B: tl.constexpr, D: tl.constexpr, CAST_FIRST: tl.constexpr):
    """The same sum from transposed scores, which needs no transposition of an accumulator: S^T = Y X^T."""
    i = tl.arange(0, B)
    d = tl.arange(0, D)
    a = tl.load(x + i[:, None] * D + d[None, :])
    acc = tl.zeros([B, D], tl.float32)
    for t in range(n):
        b = tl.load(y + (t * B + i)[:, None] * D + d[None, :])
        p = tl.exp2(tl.dot(b, tl.trans(a)))
        acc = tl.dot(p.to(tl.float16), b, acc)
    tl.store(out + i[:, None] * D + d[None, :], acc)


@triton.jit
def reshaped_reduction(x, y, out, n, B: tl.constexpr, D: tl.constexpr, CAST_FIRST: tl.constexpr):
    """A reduction that reshapes the scores gets a #linear layout too, and is right: no product takes it."""
    i = tl.arange(0, B)
    d = tl.arange(0, D)
    a = tl.load(x + i[:, None] * D + d[None, :])
    best = tl.full([B], 2147483647, tl.int32)
    for t in range(n):
        b = tl.load(y + (t * B + i)[:, None] * D + d[None, :])
        hit = tl.dot(a, tl.trans(b)) > 0
        j = tl.arange(0, B // 8)
        c = tl.min(tl.where(tl.reshape(hit, [B, B // 8, 8]), t * B + j[None, :, None], 2147483647), 1)
        best = tl.minimum(best, tl.min(c * 8 + tl.arange(0, 8)[None, :], 1))
    tl.store(out + i, best)


@triton.jit
def spilling(x, y, out, n, B: tl.constexpr, D: tl.constexpr, CAST_FIRST: tl.constexpr):
    """Holds two tiles of B x B numbers while it makes a third: more than the threads have registers for."""
    i = tl.arange(0, B)
    d = tl.arange(0, D)
    a = tl.load(x + i[:, None] * D + d[None, :])
    b = tl.load(y + i[:, None] * D + d[None, :])
    first = tl.dot(a, tl.trans(b))
    second = tl.dot(b, tl.trans(a))
    for t in range(n):
        third = tl.dot(a, tl.trans(tl.load(y + (t * B + i)[:, None] * D + d[None, :])))
        first = first * third + second
        second = second * third + first
    tl.store(out + i[:, None] * B + i[None, :], first + second)
