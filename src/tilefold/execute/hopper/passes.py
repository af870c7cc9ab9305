"""Two small passes around the loop that keeps columns: which rows see the columns of a tile, and the sums per row in their own type."""

import triton
import triton.language as tl

from ..triton.tile import batch_offsets, coordinates, load_scalars, load_vectors


@triton.jit
def ranges_kernel(out, rd, rds, sd, sds, F, I, n, k, kept, tiles, BOUNDS: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NSC: tl.constexpr,
                  TSC: tl.constexpr, NK: tl.constexpr, M: tl.constexpr, BK: tl.constexpr, SCAN: tl.constexpr):
    """For each batch entry and each tile of BK columns: first and end of the tiles of M rows that see some of its columns, of those that see all
    of them, of the columns that some of these rows sees; whether some row of the entry sees nothing. The eighth number is not written."""
    pid = tl.program_id(0)
    where = coordinates(pid // tiles, kept, NK)
    r_off = batch_offsets(rds, NR, 1, where, (), NK, 0)
    sv = load_scalars(sd, batch_offsets(sds, NSC, 0, where, (), NK, 0), NSC, TSC, tl.float32)
    c0 = pid % tiles * BK
    c1 = tl.minimum(c0 + BK, k)
    first = n
    end = 0
    whole = n
    whole_end = n
    low = k
    high = 0
    blind = 0
    for i0 in range(0, n, SCAN):
        i = i0 + tl.arange(0, SCAN)
        inside = i < n
        lo, hi = BOUNDS(load_vectors(rd, r_off, rds, i, n, NR, TR, tl.float32, True), sv, F, I, i, n, k)
        meets = inside & (lo < hi) & (lo < c1) & (hi > c0)
        first = tl.minimum(first, tl.min(tl.where(meets, i, n), 0))
        end = tl.maximum(end, tl.max(tl.where(meets, i + 1, 0), 0))
        low = tl.minimum(low, tl.min(tl.where(meets, lo, k), 0)).to(tl.int32)
        high = tl.maximum(high, tl.max(tl.where(meets, hi, 0), 0)).to(tl.int32)
        blind = tl.maximum(blind, tl.max((inside & (lo >= hi)).to(tl.int32), 0))
        # rows from the first one that sees all columns up to the first one after it that does not; a ragged tile is nobody's
        holds = inside & (lo <= c0) & (hi >= c0 + BK)
        whole = tl.minimum(whole, tl.min(tl.where(holds, i, n), 0))
        whole_end = tl.minimum(whole_end, tl.min(tl.where(inside & (holds == 0) & (i > whole), i, n), 0))
    t0 = first // M
    t1 = tl.maximum(tl.cdiv(end, M), t0)
    w0 = tl.minimum(tl.maximum(tl.cdiv(whole, M), t0), t1)
    w1 = tl.minimum(tl.maximum(whole_end // M, w0), t1)
    at = out + pid.to(tl.int64) * 8
    tl.store(at, t0)
    tl.store(at + 1, t1)
    tl.store(at + 2, w0)
    tl.store(at + 3, w1)
    tl.store(at + 4, low)
    tl.store(at + 5, high)
    tl.store(at + 6, blind)


@triton.jit
def finish_kernel(out, sums, factor, count, BLOCK: tl.constexpr):
    """out = sums * factor, both of `count` elements."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, (tl.load(sums + at, mask=at < count) * factor).to(out.dtype.element_ty), mask=at < count)
