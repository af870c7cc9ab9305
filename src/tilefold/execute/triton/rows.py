"""The portable loop: for a tile of rows, stream the columns, make their scores, fold them.

    rows_kernel    S = X Y^T, s = score(S, ..), state = step(state, s), acc = acc alpha + P V; results, or states where columns are split
    merge_kernel   the states of the parts of a row become one, then results
    tiles_kernel   the scores themselves, summed over batch entries: the gradient of an [N, K] operand

Traffic: X once; Y and V once a row tile, from the second-level cache as long as many row tiles run beside one another.
Backward is this loop too, on a Program's transpose for the other side: no atomics, the same bits each time.

What a Program is comes in as functions (generate.py makes them): ROW what varies with the row alone, BOUNDS the visible interval,
SCORE the scores, START, STEP, MERGE, FINISH the folds.
"""

import triton
import triton.language as tl

from .tile import (
    batch_offsets,
    coordinates,
    load_matrix,
    load_scalars,
    load_tiles,
    load_vectors,
    product,
)

SCAN = tl.constexpr(1024)  # columns whose bounds are looked at together
AHEAD = tl.constexpr(4)  # states of splits that are on their way while another is joined
TOGETHER = tl.constexpr(16)  # row tiles of scores that share their columns in the cache


@triton.jit
def place(rem, row_tiles, splits, group, REVERSE: tl.constexpr):
    """(row tile, split) of a block: `group` row tiles by all splits, row tiles fastest, so that columns are shared in the cache."""
    width = group * splits
    first = rem // width * group
    size = tl.minimum(row_tiles - first, group)
    within = rem % width
    tile = first + within % size
    if REVERSE:
        tile = row_tiles - 1 - tile
    return tile, within // size


@triton.jit
def streamed_product(x, xs, x_off, y, ys, y_off, i0, i_local, j0, j_local, k, CAST: tl.constexpr, D: tl.constexpr, XCONTIG: tl.constexpr,
                     YCONTIG: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr, PRECISION: tl.constexpr, EDGE: tl.constexpr, pages,
                     PAGE: tl.constexpr):
    """x_i . y_j [BN, BK] from both sides in steps of BD features."""
    s = tl.zeros([i_local.shape[0], j_local.shape[0]], tl.float64 if CAST == 2 else tl.float32)
    for d0 in range(0, D, BD):
        a = load_matrix(x, x_off, xs, i0, i_local, 0, d0, D, BD, D % BD != 0, XCONTIG, BIG, False)
        b = load_matrix(y, y_off, ys, j0, j_local, k, d0, D, BD, D % BD != 0, YCONTIG, BIG, EDGE, pages, PAGE)
        s = product(a, tl.trans(b), s, CAST, PRECISION)
    return s


@triton.jit
def described_product(x_desc, y_desc, i0, j0, D: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, PRECISION: tl.constexpr):
    """The same through tensor descriptors: rows, columns and features outside give 0."""
    s = tl.zeros([BN, BK], tl.float32)
    for d0 in range(0, D, BD):
        s = product(x_desc.load([i0, d0]), y_desc.load([j0, d0]).T, s, 0, PRECISION)
    return s


@triton.jit
def leaf_products(x_desc, y_desc, x, xs, x_off, x_tiles, y, ys, y_off, y_tiles, i0, i_local, j0, j_local, k, LEAF: tl.constexpr, XDIM: tl.constexpr,
                  YDIM: tl.constexpr, RESIDENT: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr, PRECISION: tl.constexpr,
                  EDGE: tl.constexpr, pages=None, PAGE: tl.constexpr = 0):
    """The products x_i . y_j [BN, BK] of all leaves: LEAF has (x, y, cast) each; XDIM, YDIM (features, block, masked, contiguous)."""
    leaves = ()
    for f in tl.static_range(len(LEAF)):
        if RESIDENT:
            leaves = leaves + (product(x_tiles[LEAF[f][0]], tl.trans(y_tiles[LEAF[f][1]]), None, LEAF[f][2], PRECISION),)
        elif f == 0 and x_desc is not None:
            leaves = leaves + (described_product(x_desc, y_desc, i0, j0, XDIM[LEAF[0][0]][0], i_local.shape[0], j_local.shape[0], BD,
                                                 PRECISION),)
        else:
            leaves = leaves + (
                streamed_product(x[LEAF[f][0]], xs[LEAF[f][0]], x_off[LEAF[f][0]], y[LEAF[f][1]], ys[LEAF[f][1]], y_off[LEAF[f][1]], i0,
                                 i_local, j0, j_local, k, LEAF[f][2], XDIM[LEAF[f][0]][0], XDIM[LEAF[f][0]][3], YDIM[LEAF[f][1]][3], BD,
                                 BIG, PRECISION, EDGE, pages, PAGE),
            )
    return leaves


@triton.jit
def pages_of(table, strides, offset, cols, k, lo, hi, MASK: tl.constexpr, PAGE: tl.constexpr, EDGE: tl.constexpr):
    """The page of each column. With EDGE 0 for those that no row sees: their pages may have any number."""
    at = table + (offset + (cols // PAGE).to(tl.int64) * strides[1])
    if EDGE:
        inside = cols < k
        if MASK == 1:
            some = lo < hi
            inside = inside & (cols >= tl.min(tl.where(some, lo, k), 0)) & (cols < tl.max(tl.where(some, hi, 0), 0))
        page = tl.load(at, mask=inside, other=0)
    else:
        page = tl.load(at)
    return page.to(tl.int64)


@triton.jit
def see(s, rows, cols, n, k, lo, hi, c, sd, F, I, block, bs, b_off, BOUNDS: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
        EDGE: tl.constexpr):
    """The tile of visible columns, or None where all are. MASK: 0 none, 1 an interval per row, 2 an interval of rows per column."""
    visible = None
    if EDGE:
        visible = ((cols < k)[None, :]) & ((rows >= 0)[:, None])
        if MASK == 1:
            visible = (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None])
        if MASK == 2:
            first, last = BOUNDS(c, sd, F, I, cols, n, k)
            visible = visible & (rows[:, None] >= first[None, :]) & (rows[:, None] < last[None, :])
        if BLOCK[0] > 0:
            at = b_off[0] + (rows // BLOCK[0]).to(tl.int64)[:, None] * bs[0][0] + (cols // BLOCK[1]).to(tl.int64)[None, :] * bs[0][1]
            visible = visible & (tl.load(block[0] + at, mask=((rows < n)[:, None]) & ((cols < k)[None, :]), other=0) != 0)
    return visible


@triton.jit
def column_range(i0, i1, c0, c1, cd, c_off, cds, sd, F, I, n, k, BOUNDS: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr,
                 WIDE: tl.constexpr):
    """Of columns with an interval of rows each: first and end of those that meet rows i0..i1, and of a stretch that holds all of them."""
    first = c1
    end = c0
    whole = c1
    whole_end = c1
    for j0 in range(c0, c1, SCAN):
        j = j0 + tl.arange(0, SCAN)
        inside = j < c1
        lo, hi = BOUNDS(load_vectors(cd, c_off, cds, j, k, NC, TC, WIDE, True), sd, F, I, j, n, k)
        meets = inside & (lo < hi) & (lo < i1) & (hi > i0)
        first = tl.minimum(first, tl.min(tl.where(meets, j, c1), 0))
        end = tl.maximum(end, tl.max(tl.where(meets, j + 1, c0), 0))
        holds = inside & (lo <= i0) & (hi >= i1)
        whole = tl.minimum(whole, tl.min(tl.where(holds, j, c1), 0))
        whole_end = tl.minimum(whole_end, tl.min(tl.where(inside & (holds == 0) & (j > whole), j, c1), 0))
    return first, end, whole, whole_end


@triton.jit
def store_row(ptr, value, first, local, inside, d0, KIND: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    """At rows first + local: a number (KIND 0), a list of which STRIDE places count, or a slice of an accumulator (KIND < 0)."""
    value = value.to(ptr.dtype.element_ty)
    if KIND == 0:
        tl.store(ptr + first + local, value, mask=inside)
    else:
        e = tl.arange(0, WIDTH)
        base = ptr + (first * STRIDE + d0)
        tl.store(base + (local[:, None] * STRIDE + e[None, :]), value, mask=inside[:, None] & (d0 + e < STRIDE)[None, :])


@triton.jit
def store_results(results, out, first, local, inside, d0, slice_number, RESULTS: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
                  SLICES: tl.constexpr):
    """RESULTS, for each: 0 a number per row, k > 0 a list of k, -1 - a accumulator a."""
    once = inside & (local * 0 + slice_number == 0) if SLICES else inside
    for r in tl.static_range(len(RESULTS)):
        if RESULTS[r] < 0:
            store_row(out[r], results[r], first, local, inside, d0[-1 - RESULTS[r]], RESULTS[r], BDV[-1 - RESULTS[r]], DV[-1 - RESULTS[r]])
        else:
            store_row(out[r], results[r], first, local, once, 0, RESULTS[r], results[r].shape[len(results[r].shape) - 1], RESULTS[r])


@triton.jit
def store_states(flat, part, first, local, inside, d0, STATES: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr):
    """STATES, for each: 0 a number per row, L > 0 a list of L, -1 - a accumulator a."""
    for r in tl.static_range(len(STATES)):
        if STATES[r] < 0:
            store_row(part[r], flat[r], first, local, inside, d0[-1 - STATES[r]], STATES[r], BDV[-1 - STATES[r]], DV[-1 - STATES[r]])
        else:
            store_row(part[r], flat[r], first, local, inside, 0, STATES[r], STATES[r], STATES[r])


@triton.jit
def slice_starts(slice_number, BDV: tl.constexpr):
    starts = ()
    for a in tl.static_range(len(BDV)):
        starts = starts + (slice_number * BDV[a],)
    return starts


@triton.jit
def visit(j0, states, accs, x_desc, y_desc, x, xs, x_off, x_tiles, y, ys, y_off, rd, rv, cd, cds, c_off, td, tds, t_off, sd, block, bs, b_off, F, I, unit,
          i0, i_local, rows, n, k, lo, hi, d0,
          BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, STEP: tl.constexpr, LEAF: tl.constexpr, XDIM: tl.constexpr, YDIM: tl.constexpr,
          NY: tl.constexpr, PAY: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr, TT: tl.constexpr,
          MASK: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, RESIDENT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr,
          WIDE: tl.constexpr, PRECISION: tl.constexpr, EDGE: tl.constexpr):
    """One tile of columns: load, score, fold."""
    j_local = tl.arange(0, BK)
    cols = j0 + j_local
    pages = None
    if PAGE > 0:
        pages = pages_of(block[len(block) - 1], bs[len(block) - 1], b_off[len(block) - 1], cols, k, lo, hi, MASK, PAGE, EDGE)
    y_tiles = ()
    if RESIDENT:
        for v in tl.static_range(NY):
            y_tiles = y_tiles + (load_matrix(y[v], y_off[v], ys[v], j0, j_local, k, 0, YDIM[v][0], YDIM[v][1], YDIM[v][2],
                                             YDIM[v][3], BIG, EDGE, pages, PAGE),)
    leaves = leaf_products(x_desc, y_desc, x, xs, x_off, x_tiles, y, ys, y_off, y_tiles, i0, i_local, j0, j_local, k, LEAF, XDIM, YDIM, RESIDENT, BD, BIG,
                           PRECISION, EDGE, pages, PAGE)
    c = load_vectors(cd, c_off, cds, cols, k, NC, TC, WIDE, EDGE)
    t = load_tiles(td, t_off, tds, rows, j0, j_local, n, k, NT, TT, WIDE, EDGE)
    zero = tl.zeros([rows.shape[0], BK], WIDE)
    visible = see(zero, rows, cols, n, k, lo, hi, c, sd, F, I, block, bs, b_off, BOUNDS, MASK, BLOCK, EDGE)
    s = SCORE(leaves, rd, rv, c, t, sd, F, I, rows, cols, n, k, zero, WIDE)
    if TESTED:
        test = TEST(leaves, rd, rv, c, t, sd, F, I, rows, cols, n, k, zero, WIDE)
        visible = test if visible is None else visible & test
    pay = ()
    for a in tl.static_range(len(PAY)):
        if RESIDENT and PAY[a][1]:
            pay = pay + (y_tiles[PAY[a][0]],)
        else:
            pay = pay + (load_matrix(y[PAY[a][0]], y_off[PAY[a][0]], ys[PAY[a][0]], j0, j_local, k, d0[a], DV[a], BDV[a], PAY[a][3],
                                     YDIM[PAY[a][0]][3], BIG, EDGE, pages, PAGE),)
    HIDES: tl.constexpr = MASK > 0 or TESTED or BLOCK[0] > 0
    if visible is not None and HIDES and len(PAY) > 0:
        # padding that no row sees may hold anything, and 0 * NaN is NaN
        seen = (tl.max(visible.to(tl.int32), 0) > 0)[:, None]  # [BK, 1]
        kept = ()
        for a in tl.static_range(len(PAY)):
            kept = kept + (tl.where(seen, pay[a], tl.zeros_like(pay[a])),)
        pay = kept
    return STEP(states, accs, s, cols, j0, visible, pay, unit, PAY, PRECISION)


@triton.jit
def rows_kernel(x_desc, y_desc, x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, out, part, F, I, unit, n, k, kept, summed, kept_count,
                row_tiles, splits, chunk, group,
                ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, START: tl.constexpr, STEP: tl.constexpr,
                FLAT: tl.constexpr, FINISH: tl.constexpr,
                LEAF: tl.constexpr, XDIM: tl.constexpr, YDIM: tl.constexpr, NY: tl.constexpr, PAY: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr,
                NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr, TT: tl.constexpr,
                NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr, PAGE: tl.constexpr, RESULTS: tl.constexpr,
                STATES: tl.constexpr, NK: tl.constexpr, NS: tl.constexpr, SLICES: tl.constexpr, SPLIT: tl.constexpr,
                RESIDENT: tl.constexpr, FLATTEN: tl.constexpr, REVERSE: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
                BIG: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    pid = tl.program_id(0)
    tile, split = place(pid % (row_tiles * splits), row_tiles, splits, group, REVERSE)
    rest = pid // (row_tiles * splits)
    entry = rest % kept_count
    slice_number = rest // kept_count
    d0 = slice_starts(slice_number, BDV)
    at_kept = coordinates(entry, kept, NK)

    i0 = tile * BN
    i_local = tl.minimum(tl.arange(0, BN), n - 1 - i0)  # rows behind the last repeat it and are not stored
    rows = i0 + i_local
    i1 = tl.minimum(i0 + BN, n)
    c0 = split * chunk
    c1 = tl.minimum(c0 + chunk, k)

    states, accs = START(BN, BDV, WIDE)
    entries = 1
    for d in tl.static_range(NS):
        entries *= summed[d]
    for e in range(entries):
        at_summed = coordinates(e, summed, NS)
        x_off = batch_offsets(xs, len(XDIM), 2, at_kept, at_summed, NK, NS)
        y_off = batch_offsets(ys, len(YDIM), 2, at_kept, at_summed, NK, NS)
        c_off = batch_offsets(cds, NC, 1, at_kept, at_summed, NK, NS)
        t_off = batch_offsets(tds, NT, 2, at_kept, at_summed, NK, NS)
        r_off = batch_offsets(rds, NR, 1, at_kept, at_summed, NK, NS)
        s_off = batch_offsets(sds, NSC, 0, at_kept, at_summed, NK, NS)
        b_off = batch_offsets(bs, len(bs), 2, at_kept, at_summed, NK, NS)
        sv = load_scalars(sd, s_off, NSC, TSC, WIDE)
        rdv = load_vectors(rd, r_off, rds, rows, n, NR, TR, WIDE, True)
        rv = ROW(rdv, sv, F, I, rows, n, k, WIDE)
        x_tiles = ()
        if RESIDENT:
            for v in tl.static_range(len(XDIM)):
                x_tiles = x_tiles + (load_matrix(x[v], x_off[v], xs[v], i0, i_local, 0, 0, XDIM[v][0], XDIM[v][1], XDIM[v][2],
                                                 XDIM[v][3], BIG, False),)

        # which columns some row sees, and which of them every row sees
        lo = None
        hi = None
        first = c0
        end = c1
        whole = c0
        whole_end = c1
        if MASK == 1:
            lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
            lo = tl.maximum(lo, c0)
            hi = tl.minimum(hi, c1)
            some = lo < hi
            first = tl.min(tl.where(some, lo, c1), 0)
            end = tl.max(tl.where(some, hi, c0), 0)
            whole = tl.max(lo, 0)
            whole_end = tl.min(hi, 0)
        if MASK == 2:
            first, end, whole, whole_end = column_range(i0, i1, c0, c1, cd, c_off, cds, sv, F, I, n, k, BOUNDS, NC, TC, WIDE)
        first = first // BK
        end = tl.maximum(tl.cdiv(end, BK), first)
        if BLOCK[0] > 0:
            whole = end
            whole_end = end
        else:
            whole = tl.minimum(tl.maximum(tl.cdiv(whole, BK), first), end)
            whole_end = tl.minimum(tl.maximum(whole_end // BK, whole), end)

        for t in tl.range(whole, whole_end, flatten=FLATTEN):
            states, accs = visit(
                t * BK, states, accs, x_desc, y_desc, x, xs, x_off, x_tiles, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs, b_off,
                F, I, unit, i0, i_local, rows, n, k, lo, hi, d0, BOUNDS, SCORE, TEST, TESTED, STEP, LEAF, XDIM, YDIM, NY, PAY, DV, BDV, NC, TC, NT, TT,
                MASK, BLOCK, PAGE, RESIDENT, BK, BD, BIG, WIDE, PRECISION, False)
        for e2 in range(whole - first + end - whole_end):
            t = first + e2
            t = tl.where(t < whole, t, t - whole + whole_end)
            go = True
            if BLOCK[0] > 0:
                jj = t * BK + tl.arange(0, BK)
                table = b_off[0] + (rows // BLOCK[0]).to(tl.int64)[:, None] * bs[0][0] + (jj // BLOCK[1]).to(tl.int64)[None, :] * bs[0][1]
                seen = tl.load(block[0] + table, mask=(jj < k)[None, :] & (rows >= 0)[:, None], other=0) != 0
                go = tl.max(tl.max(seen.to(tl.int32), 1), 0) > 0
            if go:
                states, accs = visit(
                    t * BK, states, accs, x_desc, y_desc, x, xs, x_off, x_tiles, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs,
                    b_off, F, I, unit, i0, i_local, rows, n, k, lo, hi, d0, BOUNDS, SCORE, TEST, TESTED, STEP, LEAF, XDIM, YDIM, NY, PAY, DV, BDV, NC, TC,
                    NT, TT, MASK, BLOCK, PAGE, RESIDENT, BK, BD, BIG, WIDE, PRECISION, True)

    at = entry.to(tl.int64) * n + i0
    local = tl.arange(0, BN)
    inside = i0 + local < n
    if SPLIT:
        at += split.to(tl.int64) * kept_count * n
        store_states(FLAT(states, accs), part, at, local, inside, d0, STATES, DV, BDV)
    else:
        store_results(FINISH(states, accs, unit), out, at, local, inside, d0, slice_number, RESULTS, DV, BDV, SLICES)


@triton.jit
def load_row(ptr, first, local, inside, d0, KIND: tl.constexpr, WIDTH: tl.constexpr, STRIDE: tl.constexpr):
    if KIND == 0:
        value = tl.load(ptr + first + local, mask=inside, other=0)
    else:
        e = tl.arange(0, WIDTH)
        base = ptr + (first * STRIDE + d0)
        value = tl.load(base + (local[:, None] * STRIDE + e[None, :]), mask=inside[:, None] & (d0 + e < STRIDE)[None, :], other=0)
    return value


@triton.jit
def load_states(part, first, local, inside, d0, STATES: tl.constexpr, DV: tl.constexpr, BDV: tl.constexpr):
    flat = ()
    for r in tl.static_range(len(STATES)):
        if STATES[r] < 0:
            flat = flat + (load_row(part[r], first, local, inside, d0[-1 - STATES[r]], STATES[r], BDV[-1 - STATES[r]], DV[-1 - STATES[r]]),)
        else:
            flat = flat + (load_row(part[r], first, local, inside, 0, STATES[r], STATES[r], STATES[r]),)
    return flat


@triton.jit
def merge_kernel(out, part, unit, count, splits, NEST: tl.constexpr, MERGE: tl.constexpr, FINISH: tl.constexpr, DV: tl.constexpr,
                 BDV: tl.constexpr, RESULTS: tl.constexpr, STATES: tl.constexpr, SLICES: tl.constexpr, BN: tl.constexpr, WIDE: tl.constexpr):
    """Joins the states of the splits of `count` rows."""
    row_tiles = tl.cdiv(count, BN)
    slice_number = tl.program_id(0) // row_tiles
    d0 = slice_starts(slice_number, BDV)
    first = (tl.program_id(0) % row_tiles).to(tl.int64) * BN
    local = tl.arange(0, BN)
    inside = first + local < count
    states, accs = NEST(load_states(part, first, local, inside, d0, STATES, DV, BDV))
    for s in tl.range(1, splits, num_stages=AHEAD):
        other = tl.cast(s, tl.int64) * count + first
        more, more_accs = NEST(load_states(part, other, local, inside, d0, STATES, DV, BDV))
        states, accs = MERGE(states, accs, more, more_accs, unit)
    store_results(FINISH(states, accs, unit), out, first, local, inside, d0, slice_number, RESULTS, DV, BDV, SLICES)


@triton.jit
def tiles_kernel(x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, out, seen, F, I, n, k, row0, rows_end, col0, cols_end,
                 kept, summed, kept_count, row_tiles, col_tiles,
                 ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr, XDIM: tl.constexpr,
                 YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr,
                 TT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr, FILL: tl.constexpr,
                 SEEN: tl.constexpr, NK: tl.constexpr, NS: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr,
                 BIG: tl.constexpr, WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """Scores of rows row0..rows_end and columns col0..cols_end, into out[e] [*, rows, columns] and their visibility into seen."""
    pid = tl.program_id(0)
    tile, col_tile = place(pid % (row_tiles * col_tiles), row_tiles, col_tiles, TOGETHER, False)
    entry = pid // (row_tiles * col_tiles)
    at_kept = coordinates(entry, kept, NK)
    i0 = row0 + tile * BN
    i_local = tl.minimum(tl.arange(0, BN), n - 1 - i0)
    rows = i0 + i_local
    j0 = col0 + col_tile * BK
    j_local = tl.arange(0, BK)
    cols = j0 + j_local
    zero = tl.zeros([BN, BK], WIDE)
    sums = ()
    for _ in tl.static_range(len(FILL)):
        sums = sums + (zero,)
    visible = (cols < k)[None, :] & (rows >= 0)[:, None]
    entries = 1
    for d in tl.static_range(NS):
        entries *= summed[d]
    for e in range(entries):
        at_summed = coordinates(e, summed, NS)
        x_off = batch_offsets(xs, len(XDIM), 2, at_kept, at_summed, NK, NS)
        y_off = batch_offsets(ys, len(YDIM), 2, at_kept, at_summed, NK, NS)
        c_off = batch_offsets(cds, NC, 1, at_kept, at_summed, NK, NS)
        t_off = batch_offsets(tds, NT, 2, at_kept, at_summed, NK, NS)
        r_off = batch_offsets(rds, NR, 1, at_kept, at_summed, NK, NS)
        s_off = batch_offsets(sds, NSC, 0, at_kept, at_summed, NK, NS)
        b_off = batch_offsets(bs, len(bs), 2, at_kept, at_summed, NK, NS)
        sv = load_scalars(sd, s_off, NSC, TSC, WIDE)
        rdv = load_vectors(rd, r_off, rds, rows, n, NR, TR, WIDE, True)
        rv = ROW(rdv, sv, F, I, rows, n, k, WIDE)
        lo = None
        hi = None
        if MASK == 1:
            lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
            hi = tl.minimum(hi, k)
        leaves = leaf_products(None, None, x, xs, x_off, (), y, ys, y_off, (), i0, i_local, j0, j_local, k, LEAF, XDIM, YDIM, False, BD, BIG,
                               PRECISION, True)
        c = load_vectors(cd, c_off, cds, cols, k, NC, TC, WIDE, True)
        t = load_tiles(td, t_off, tds, rows, j0, j_local, n, k, NT, TT, WIDE, True)
        visible = see(zero, rows, cols, n, k, lo, hi, c, sv, F, I, block, bs, b_off, BOUNDS, MASK, BLOCK, True)
        s = SCORE(leaves, rdv, rv, c, t, sv, F, I, rows, cols, n, k, zero, WIDE)
        if TESTED:
            visible = visible & TEST(leaves, rdv, rv, c, t, sv, F, I, rows, cols, n, k, zero, WIDE)
        more = ()
        for o in tl.static_range(len(FILL)):
            more = more + (sums[o] + tl.where(visible, s[o], FILL[o]),)
        sums = more
    r_at = i0 - row0 + tl.arange(0, BN)
    inside = (i0 + tl.arange(0, BN) < rows_end)[:, None] & (cols < cols_end)[None, :]
    at = (entry.to(tl.int64) * (rows_end - row0) + r_at)[:, None] * (cols_end - col0) + (cols - col0)[None, :]
    for o in tl.static_range(len(FILL)):
        tl.store(out[o] + at, sums[o].to(out[o].dtype.element_ty), mask=inside)
    if SEEN:
        tl.store(seen + at, visible.to(tl.int8), mask=inside)
