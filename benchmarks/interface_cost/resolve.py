"""Arg-max after the loop: rescore the columns of a row's winning parts in float32; ties go to the lowest column.

    s_j = x . y_j + col_j  over the C = BK / 4G columns of each part named in `parts`, of the tile at `first`
Traffic: C D values of Y a row, from L2. Nearly always one part a row; tied parts take another turn.
"""

import triton
import triton.language as tl


@triton.jit
def argmax_resolve(
    x_ptr,
    y_ptr,
    col_ptr,
    first_ptr,
    parts_ptr,
    out_ptr,
    N,
    BN: tl.constexpr,
    D: tl.constexpr,
    BK: tl.constexpr,
    G: tl.constexpr,
):
    C: tl.constexpr = BK // (4 * G)
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    inside = rows < N
    d = tl.arange(0, D)
    c = tl.arange(0, C)
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * D + d[None, :], mask=inside[:, None], other=0).to(tl.float32)
    first = tl.load(first_ptr + rows, mask=inside, other=0)
    parts = tl.load(parts_ptr + rows, mask=inside, other=0)
    best = tl.full([BN], float("-inf"), tl.float32)
    arg = tl.full([BN], 2147483647, tl.int32)
    while tl.max((parts != 0).to(tl.int32), 0) > 0:
        lowest = parts & -parts
        part = ((lowest.to(tl.float32).to(tl.int32, bitcast=True) >> 23) & 255) - 127  # log2 of a power of two
        live = parts != 0
        part = tl.where(live, part, 0)
        j = (first + (part // 4) * (BK // G) + 2 * (part % 4))[:, None] + (8 * (c // 2) + c % 2)[None, :]  # [BN, C]
        y = tl.load(y_ptr + j.to(tl.int64)[:, :, None] * D + d[None, None, :]).to(tl.float32)
        s = tl.sum(x[:, None, :] * y, 2) + tl.load(col_ptr + j)
        s = tl.where(live[:, None], s, float("-inf"))
        m = tl.max(s, 1)
        a = tl.min(tl.where(s == m[:, None], j, 2147483647), 1)
        better = live & ((m > best) | ((m == best) & (a < arg)))
        best = tl.where(better, m, best)
        arg = tl.where(better, a, arg)
        parts = parts & (parts - 1)
    tl.store(out_ptr + rows, arg, mask=inside)
