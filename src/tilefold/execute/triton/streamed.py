"""The loop for many features: both sides of the products come in steps of BD features, and neither stays.

    streamed_kernel          states of the parts of a row, for merge_kernel in rows.py
    streamed_tiles_kernel    the scores themselves, of a part of the rows and columns

One program a unit, and one loop over all of its tiles and their steps, so that loads run ahead over the ends of tiles and of rows, and all
units end together. An item is a row tile and a part of the columns; its state starts and ends inside the loop.

Traffic of a tile: (BN + BK) D elements, from the second-level cache as long as `group` row tiles and the columns beside them fit there.
"""

import triton
import triton.language as tl

from .rows import leaf_products, place, store_states
from .tile import batch_offsets, load_scalars, load_tiles, load_vectors


@triton.jit
def items_of(pid, programs, count):
    """How many of the numbers pid, pid + programs, .. are below `count`."""
    return tl.maximum(tl.cdiv(count - pid, programs), 0)


@triton.jit
def locate(q, pid, programs, row_tiles, splits, group, size, longer):
    """Of a program's q-th tile: row tile, column tile, part, and whether the part ends with it.

    The first `longer` parts have size + 1 column tiles, the others `size`; they come in this order. Everything follows from q, because loads
    run ahead only where their addresses do not wait for the last tile's results.
    """
    ahead = row_tiles * longer
    mine = items_of(pid, programs, ahead)
    early = q < mine * (size + 1)
    length = tl.where(early, size + 1, size)
    behind = tl.where(early, q, q - mine * (size + 1))
    item = pid + programs * (tl.where(early, 0, mine) + behind // length) - tl.where(early, 0, ahead)
    tile, split = place(item, row_tiles, tl.where(early, longer, splits - longer), group, False)
    t = behind % length
    column = split * length + tl.where(early, 0, longer * (size + 1)) + t
    return tile, column, split + tl.where(early, 0, longer), t == length - 1


@triton.jit
def score_tile(i0, j0, x_desc, y_desc, x, xs, x_off, y, ys, y_off, rd, rds, r_off, cd, cds, c_off, td, tds, t_off, sv, F, I, n, k,
               ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr,
               XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr,
               TT: tl.constexpr, MASK: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr,
               EDGE: tl.constexpr):
    """The scores of a tile, in a tuple which of them are visible (empty: all), and the columns' numbers; EDGE hides what a mask or the end hides."""
    i_local = tl.minimum(tl.arange(0, BN), n - 1 - i0)  # rows behind the last repeat it and are not stored
    rows = i0 + i_local
    j_local = tl.arange(0, BK)
    cols = j0 + j_local
    leaves = leaf_products(x_desc, y_desc, x, xs, x_off, (), y, ys, y_off, (), i0, i_local, j0, j_local, k, LEAF, XDIM, YDIM, False, BD, BIG,
                           PRECISION, EDGE)
    rdv = load_vectors(rd, r_off, rds, rows, n, NR, TR, WIDE, True)
    rv = ROW(rdv, sv, F, I, rows, n, k, WIDE)
    c = load_vectors(cd, c_off, cds, cols, k, NC, TC, WIDE, EDGE)
    t = load_tiles(td, t_off, tds, rows, j0, j_local, n, k, NT, TT, WIDE, EDGE)
    zero = tl.zeros([BN, BK], WIDE)
    visible = ()
    if EDGE:
        visible = ((cols < k)[None, :] & (rows >= 0)[:, None],)
        if MASK == 1:
            lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
            visible = (visible[0] & (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None]),)
    s = SCORE(leaves, rdv, rv, c, t, sv, F, I, rows, cols, n, k, zero, WIDE)
    if TESTED:
        test = TEST(leaves, rdv, rv, c, t, sv, F, I, rows, cols, n, k, zero, WIDE)
        if EDGE:
            visible = (visible[0] & test,)
        else:
            visible = (test,)
    return s, visible, cols


@triton.jit
def streamed_kernel(x_desc, y_desc, x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, out, part, F, I, unit, n, k, row_tiles, splits, group,
                    programs,
                    ROW: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, START: tl.constexpr, STEP: tl.constexpr,
                    FLAT: tl.constexpr, NEST: tl.constexpr, LEAF: tl.constexpr, XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr,
                    TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr, TT: tl.constexpr, NSC: tl.constexpr,
                    TSC: tl.constexpr, STATES: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr,
                    WIDE: tl.constexpr, PRECISION: tl.constexpr):
    pid = tl.program_id(0)
    x_off = batch_offsets(xs, len(XDIM), 2, (), (), 0, 0)
    y_off = batch_offsets(ys, len(YDIM), 2, (), (), 0, 0)
    r_off = batch_offsets(rds, NR, 1, (), (), 0, 0)
    c_off = batch_offsets(cds, NC, 1, (), (), 0, 0)
    t_off = batch_offsets(tds, NT, 2, (), (), 0, 0)
    sv = load_scalars(sd, batch_offsets(sds, NSC, 0, (), (), 0, 0), NSC, TSC, WIDE)
    local = tl.arange(0, BN)
    whole = k // BK
    size = whole // tl.maximum(splits, 1)
    longer = whole - size * splits
    early = items_of(pid, programs, row_tiles * longer)
    total = early + items_of(pid, programs, row_tiles * splits) * size

    states, accs = START(BN, (), WIDE)
    fresh = FLAT(states, accs)
    for q in tl.range(0, total, flatten=True):
        tile, column, split, last = locate(q, pid, programs, row_tiles, splits, group, size, longer)
        i0 = tile * BN
        j0 = column * BK
        s, visible, cols = score_tile(i0, j0, x_desc, y_desc, x, xs, x_off, y, ys, y_off, rd, rds, r_off, cd, cds, c_off, td, tds, t_off, sv, F, I, n, k,
                                      ROW, None, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NR, TR, NC, TC, NT, TT, 0, BN, BK, BD, BIG, WIDE, PRECISION, False)
        seen = None
        if len(visible) > 0:
            seen = visible[0]
        states, accs = STEP(states, accs, s, cols, j0, seen, (), unit, (), PRECISION)
        # a branch does not compile in such a loop: store and start anew by mask
        flat = FLAT(states, accs)
        store_states(flat, part, split.to(tl.int64) * n + i0, local, i0 + local < tl.where(last, n, 0), (), STATES, (), ())
        anew = ()
        for r in tl.static_range(len(STATES)):
            anew = anew + (tl.where(last, fresh[r], flat[r]),)
        states, accs = NEST(anew)

    if k % BK != 0:
        for tile in range(pid, row_tiles, programs):
            i0 = tile * BN
            j0 = whole * BK
            states, accs = START(BN, (), WIDE)
            s, visible, cols = score_tile(i0, j0, x_desc, y_desc, x, xs, x_off, y, ys, y_off, rd, rds, r_off, cd, cds, c_off, td, tds, t_off, sv, F, I,
                                          n, k, ROW, None, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NR, TR, NC, TC, NT, TT, 0, BN, BK, BD, BIG, WIDE,
                                          PRECISION, True)
            states, accs = STEP(states, accs, s, cols, j0, visible[0], (), unit, (), PRECISION)
            store_states(FLAT(states, accs), part, splits.to(tl.int64) * n + i0, local, i0 + local < n, (), STATES, (), ())


@triton.jit
def streamed_tiles_kernel(x_desc, y_desc, x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, out, F, I, n, k, row0, rows_end, col0, cols_end,
                          row_tiles, col_tiles, group, programs,
                          ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr,
                          XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr,
                          NT: tl.constexpr, TT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, COUNT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
                          BD: tl.constexpr, BIG: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Rows row0..rows_end and columns col0..cols_end into out[e] [rows, columns], hidden scores as 0."""
    x_off = batch_offsets(xs, len(XDIM), 2, (), (), 0, 0)
    y_off = batch_offsets(ys, len(YDIM), 2, (), (), 0, 0)
    r_off = batch_offsets(rds, NR, 1, (), (), 0, 0)
    c_off = batch_offsets(cds, NC, 1, (), (), 0, 0)
    t_off = batch_offsets(tds, NT, 2, (), (), 0, 0)
    sv = load_scalars(sd, batch_offsets(sds, NSC, 0, (), (), 0, 0), NSC, TSC, WIDE)
    local = tl.arange(0, BN)
    for q in tl.range(tl.program_id(0), row_tiles * col_tiles, programs, flatten=True):
        tile, j = place(q, row_tiles, col_tiles, group, False)
        i0 = row0 + tile * BN
        s, visible, cols = score_tile(i0, col0 + j * BK, x_desc, y_desc, x, xs, x_off, y, ys, y_off, rd, rds, r_off, cd, cds, c_off, td, tds, t_off, sv,
                                      F, I, n, k, ROW, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NR, TR, NC, TC, NT, TT, MASK, BN, BK, BD, BIG,
                                      WIDE, PRECISION, True)
        at = (tile * BN + local).to(tl.int64)[:, None] * (cols_end - col0) + (cols - col0)[None, :]
        inside = (i0 + local < rows_end)[:, None] & (cols < cols_end)[None, :]
        for o in tl.static_range(COUNT):
            tl.store(out[o] + at, tl.where(visible[0], s[o], 0.0).to(out[o].dtype.element_ty), mask=inside)
