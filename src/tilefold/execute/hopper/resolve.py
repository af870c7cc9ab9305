"""Columns that the loop left unsettled: rows whose best score is NaN or -inf are looked at again, from where the loop met it first.

Rare, so that a kernel that reads the columns' numbers and ends costs microseconds, and the loop saves two comparisons a score.
"""

import triton
import triton.language as tl

from ...folds.argmax_jit import UNSETTLED
from ..triton.tile import batch_offsets, coordinates, load_scalars, load_vectors


@triton.jit
def resolve_kernel(index, x, xs, y, ys, rd, rds, cd, cds, sd, sds, F, I, n, k, kept, count, ROW: tl.constexpr, BOUNDS: tl.constexpr,
                   SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, MASK: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr,
                   NC: tl.constexpr, TC: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, NK: tl.constexpr, D: tl.constexpr,
                   BD: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """BN rows a program; index [count] with count = batch entries x n.

    An unsettled row gets its first visible column, from the one it names, whose score is NaN; if there is none -inf; -1 if there is none either.
    """
    first = tl.program_id(0).to(tl.int64) * BN
    at = first + tl.arange(0, BN)
    codes = tl.load(index + at, mask=at < count, other=0)
    if tl.max(codes, 0) >= UNSETTLED:
        for r in range(BN):
            row = first + r
            code = tl.load(index + row, mask=row < count, other=0)
            if code >= UNSETTLED:
                where = coordinates((row // n).to(tl.int32), kept, NK)
                x_off = batch_offsets(xs, 1, 2, where, (), NK, 0)[0]
                y_off = batch_offsets(ys, 1, 2, where, (), NK, 0)[0]
                c_off = batch_offsets(cds, NC, 1, where, (), NK, 0)
                r_off = batch_offsets(rds, NR, 1, where, (), NK, 0)
                sv = load_scalars(sd, batch_offsets(sds, NSC, 0, where, (), NK, 0), NSC, TSC, tl.float32)
                i = (row % n).to(tl.int32)
                rows = i + tl.arange(0, 1)
                rdv = load_vectors(rd, r_off, rds, rows, n, NR, TR, tl.float32, True)
                rv = ROW(rdv, sv, F, I, rows, n, k, tl.float32)
                d = tl.arange(0, BD)
                xv = tl.load(x[0] + x_off + i.to(tl.int64) * xs[0][0] + d, mask=d < D, other=0.0).to(tl.float32)
                j0 = (code - UNSETTLED).to(tl.int32)
                lowest = k + j0 * 0
                infinite = k + j0 * 0
                while (j0 < k) & (lowest == k):
                    cols = j0 + tl.arange(0, BK)
                    at_y = y_off + cols.to(tl.int64)[:, None] * ys[0][0] + d[None, :]
                    yv = tl.load(y[0] + at_y, mask=(cols < k)[:, None] & (d < D)[None, :], other=0.0)
                    leaf = tl.sum(yv.to(tl.float32) * xv[None, :], 1)[None, :]  # [1, BK]
                    zero = tl.zeros([1, BK], tl.float32)
                    c = load_vectors(cd, c_off, cds, cols, k, NC, TC, tl.float32, True)
                    s = SCORE((leaf,), rdv, rv, c, (), sv, F, I, rows, cols, n, k, zero, tl.float32)[0]
                    visible = (cols < k)[None, :] & (zero == 0)
                    if MASK:
                        lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
                        visible = visible & (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None])
                    if TESTED:
                        visible = visible & TEST((leaf,), rdv, rv, c, (), sv, F, I, rows, cols, n, k, zero, tl.float32)
                    lowest = tl.minimum(lowest, tl.min(tl.min(tl.where(visible & (s != s), cols[None, :], k), 1), 0))
                    infinite = tl.minimum(infinite, tl.min(tl.min(tl.where(visible & (s == -float("inf")), cols[None, :], k), 1), 0))
                    j0 += BK
                found = tl.minimum(lowest, tl.where(lowest == k, infinite, k))
                tl.store(index + row, tl.where(found < k, found, -1).to(tl.int64))
