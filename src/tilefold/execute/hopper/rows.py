"""The warp-specialised loop over columns for sm_90: rows stay in shared memory, columns stream past them.

A block is one warp that loads tiles by TMA and GROUPS groups of four warps with BM rows each. A group's products S = X Y^T run on the tensor cores
while another group folds its own; with a payload, P V of the last tile runs while the scores of this one are folded.

    traffic     X once; Y and V once a block, from the second-level cache: blocks of one batch entry run beside each other
    registers   S [BM, BK], the accumulator [BM, DV], P in 16 bits, the states
    shared      GROUPS x BM rows, STAGES tiles of Y and of V

Scores, masks and folds are the functions that the portable loop takes (generate.py). Without a payload a lane folds what it holds of a row as a row
of its own, and the lanes of a row are merged behind the loop: no exchange between lanes in it. That needs folds that commute.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ...folds.parts_jit import lane_columns
from ..triton.tile import as_value, batch_offsets, coordinates, load_scalars, load_vectors
from .names import as_shape, load_tile
from .parts import as_batch, barrier, batch_place, lanes, narrow, ring


@gluon.jit
def place(pid, row_tiles, splits, entries, group, REVERSE: gl.constexpr):
    """(row tile, split, batch entry) of a block.

    Batch entries come in sections of `group`, whose columns fit in the second-level cache together. Within one, row tiles are neighbours; of a
    causal mask the longest rows of all entries come first.
    """
    width = row_tiles * splits
    first = pid // (width * group) * group
    size = gl.minimum(entries - first, group)
    within = pid % (width * group)
    if REVERSE:
        entry = first + within % size
        rest = within // size
        tile = row_tiles - 1 - rest % row_tiles
    else:
        entry = first + within // width
        rest = within % width
        tile = rest % row_tiles
    return tile, rest // row_tiles, entry


@gluon.jit
def tile_range(lo, hi, k, BK: gl.constexpr):
    """(first, end, whole, whole end, first column, end column): tiles of columns that some row sees, those that every row sees wholly."""
    some = lo < hi
    first = gl.min(gl.where(some, lo, k), 0)
    end = gl.maximum(gl.max(gl.where(some, hi, 0), 0), first)
    t0 = first // BK
    t1 = gl.maximum(gl.cdiv(end, BK), t0)
    w0 = gl.minimum(gl.maximum(gl.cdiv(gl.max(lo, 0), BK), t0), t1)
    w1 = gl.minimum(gl.maximum(gl.minimum(gl.min(hi, 0), k) // BK, w0), t1)
    return t0, t1, w0, w1, first, end


@gluon.jit
def without_padding(v, t, first, end, BK: gl.constexpr):
    """Zeroes the rows of a payload tile that no row of the block sees: padding may hold anything, and 0 * NaN is NaN.

    Every group does it for itself before its product: they write the same.
    """
    STEP: gl.constexpr = 16
    D: gl.constexpr = v.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    if (t * BK < first) | ((t + 1) * BK > end):
        for r in gl.static_range(BK // STEP):
            part = v.slice(r * STEP, STEP, dim=0)
            j = t * BK + r * STEP + gl.arange(0, STEP, layout=gl.SliceLayout(1, layout))
            value = part.load(layout)
            part.store(gl.where(((j >= first) & (j < end))[:, None], value, gl.zeros_like(value)))
        fence_async_shared()


@gluon.jit
def work_item(item, row_tiles, splits, entries, section, kept, rows_in, shared, C: gl.constexpr, layout: gl.constexpr):
    """(first row, split, entry, its coordinates, tile range) of a piece of work: a row tile, a part of the columns, a batch entry."""
    rd, rds = rows_in
    sd, sds, F, I, unit, n, k = shared
    tile, split, entry = place(item, row_tiles, splits, entries, section, C.reverse)
    where = coordinates(entry, kept, C.kept)
    SCALARS: gl.constexpr = C.scalar_types
    sv = load_scalars(sd, batch_offsets(sds, C.scalars, 0, where, (), C.kept, 0), C.scalars, SCALARS, gl.float32)
    i0 = tile * (C.groups * C.bm)
    t0 = 0
    t1 = gl.cdiv(k, C.bk)
    w0 = 0
    w1 = k // C.bk
    first = 0
    end = k
    if C.mask:
        i1 = gl.minimum(i0 + C.groups * C.bm, n) - 1
        COVER: gl.constexpr = 128 if C.groups * C.bm <= 128 else 256
        index = gl.minimum(i0 + gl.arange(0, COVER, layout=layout), i1)
        ROWS: gl.constexpr = C.row_types
        data = load_vectors(rd, batch_offsets(rds, C.rows, 1, where, (), C.kept, 0), rds, index, n, C.rows, ROWS, gl.float32, True)
        lo, hi = C.fns.bounds(data, sv, F, I, index, n, k)
        t0, t1, w0, w1, first, end = tile_range(lo, hi, k, C.bk)
    # of the tiles that some row sees each split has an equal part
    size = gl.cdiv(t1 - t0, splits)
    t0 = gl.minimum(t0 + split * size, t1)
    t1 = gl.minimum(t0 + size, t1)
    w0 = gl.minimum(gl.maximum(w0, t0), t1)
    w1 = gl.minimum(gl.maximum(w1, w0), t1)
    return i0, split, entry, where, sv, t0, t1, w0, w1, first, end


@gluon.jit
def row_data(i0, where, rows_in, shared, C: gl.constexpr, layout: gl.constexpr):
    """What is known of BM rows: their numbers, operands, parts of expressions, and the columns that they see."""
    rd, rds = rows_in
    sv, F, I, unit, n, k = shared
    ROWS: gl.constexpr = C.row_types
    rows = gl.minimum(i0 + gl.arange(0, C.bm, layout=layout), n - 1)
    data = load_vectors(rd, batch_offsets(rds, C.rows, 1, where, (), C.kept, 0), rds, rows, n, C.rows, ROWS, gl.float32, True)
    lo = rows
    hi = rows
    if C.mask:
        lo, hi = C.fns.bounds(data, sv, F, I, rows, n, k)
    return rows, data, C.fns.row_part(data, sv, F, I, rows, n, k, gl.float32), lo, hi


@gluon.jit
def column_data(cols_in, c_s, stage, t, edge, k, C: gl.constexpr, layout: gl.constexpr):
    """The numbers of the columns of tile t, one tensor [BK] for each operand that has them."""
    cd, c_off, cds = cols_in
    cols = t * C.bk + gl.arange(0, C.bk, layout=layout)
    COLS: gl.constexpr = C.col_types
    if C.cols == 0:
        c = ()
    elif C.c_loaded:
        c = (as_value(c_s.index(stage).load(layout), COLS[0][0], gl.float32),)
    elif edge:
        c = load_vectors(cd, c_off, cds, cols, k, C.cols, COLS, gl.float32, True)
    else:
        c = load_vectors(cd, c_off, cds, cols, k, C.cols, COLS, gl.float32, False)
    return c


@gluon.jit
def fold_tile(acc, states, c, t, edge, own, shared, gate, C: gl.constexpr):
    """The states that have seen tile t; with a payload also (alpha, P).

    gate    a barrier and a phase of it that is over: the spin wait keeps ptxas from doing an edge's work in every tile
    """
    rows, rd, rv, lo, hi = own
    sv, F, I, unit, n, k = shared
    layout: gl.constexpr = acc.type.layout
    cols = t * C.bk + gl.arange(0, C.bk, layout=gl.SliceLayout(0, layout))
    zero = gl.full([C.bm, C.bk], 0, gl.float32, layout=layout)
    s = C.fns.score((acc,), rd, rv, c, (), sv, F, I, rows, cols, n, k, zero, gl.float32)
    if C.tested:
        made = fold_strips(s, states, seen(acc, c, cols, zero, own, shared, C), t, cols, unit, C)
    elif C.sees_mask:
        if edge:
            mbarrier.wait(gate[0], gate[1])
            made = fold_strips(s, states, seen(acc, c, cols, zero, own, shared, C), t, cols, unit, C)
        else:
            made = fold_strips(s, states, None, t, cols, unit, C)
    else:
        if edge:
            mbarrier.wait(gate[0], gate[1])
            s = hide(s, seen(acc, c, cols, zero, own, shared, C), C)
        made = fold_strips(s, states, None, t, cols, unit, C)
    return made


@gluon.jit
def fold_strips(s, states, visible, t, cols, unit, C: gl.constexpr):
    first = t * C.bk
    if C.stretches > 0:
        parts = ()
        for j in gl.static_range(len(s)):
            parts = parts + (lanes(s[j], C.stretches),)
        s = parts
        if visible is not None:
            visible = lanes(visible, C.stretches)
        STRIPS: gl.constexpr = s[0].type.layout
        strip = gl.arange(0, s[0].shape[0], layout=gl.SliceLayout(1, STRIPS)) % (4 * C.stretches)
        place = gl.arange(0, s[0].shape[1], layout=gl.SliceLayout(0, STRIPS))
        first += strip // 4 * (C.bk // C.stretches) + strip % 4 * 2
        cols = first[:, None] + (place // 2 * 8 + place % 2)[None, :]
    return C.fns.fold_tile(states, s, cols, first, visible, (gl.float32,), unit)


@gluon.jit
def seen(acc, c, cols, zero, own, shared, C: gl.constexpr):
    """[BM, BK], which scores of a tile are visible."""
    rows, rd, rv, lo, hi = own
    sv, F, I, unit, n, k = shared
    visible = (cols < k)[None, :] & (rows >= 0)[:, None]
    if C.mask:
        visible = (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None])
    if C.tested:
        visible = visible & C.fns.test((acc,), rd, rv, c, (), sv, F, I, rows, cols, n, k, zero, gl.float32)
    return visible


@gluon.jit
def hide(s, visible, C: gl.constexpr):
    kept = ()
    for j in gl.static_range(len(s)):
        kept = kept + (gl.where(visible, s[j], C.fills[j]),)
    return kept


@gluon.jit
def initial(C: gl.constexpr, ROWS: gl.constexpr, layout: gl.constexpr, by_lane: gl.constexpr):
    """The folds' first states: [ROWS], or [ROWS, 4] where each lane keeps its part of a row."""
    STATE: gl.constexpr = C.state
    flat = ()
    for j in gl.static_range(len(STATE)):
        if STATE[j][2]:
            flat = flat + (gl.full([ROWS, 4], STATE[j][0], gl.float32, layout=by_lane),)
        else:
            flat = flat + (gl.full([ROWS], STATE[j][0], gl.int32 if STATE[j][1] else gl.float32, layout=layout),)
    return flat


@gluon.jit
def halve(flat, NEST: gl.constexpr, FLAT: gl.constexpr, MERGE: gl.constexpr, unit):
    """[R, W] states to [R]."""
    W: gl.constexpr = flat[0].shape[1]
    R: gl.constexpr = flat[0].shape[0]
    out = ()
    if W == 1:
        for j in gl.static_range(len(flat)):
            out = out + (flat[j].reshape([R]),)
    else:
        left = ()
        right = ()
        for j in gl.static_range(len(flat)):
            a, b = gl.split(flat[j].reshape([R, 2, W // 2]).permute((0, 2, 1)))
            left = left + (a,)
            right = right + (b,)
        a_states, none = NEST(left)
        b_states, none = NEST(right)
        merged, none = MERGE(a_states, (), b_states, (), unit)
        out = halve(FLAT(merged, ()), NEST, FLAT, MERGE, unit)
    return out


@gluon.jit
def join(flat, W: gl.constexpr, NEST: gl.constexpr, FLAT: gl.constexpr, MERGE: gl.constexpr, unit):
    """One state a row from those of its W lanes and stretches."""
    R: gl.constexpr = flat[0].shape[0] // W
    whole: gl.constexpr = gl.BlockedLayout([1, W], [32, 1], [4, 1], [1, 0])
    wide = ()
    for j in gl.static_range(len(flat)):
        wide = wide + (gl.convert_layout(flat[j].reshape([R, W]), whole),)
    return halve(wide, NEST, FLAT, MERGE, unit)


@gluon.jit
def store_one(ptr, value, first, i0, n, DV: gl.constexpr):
    """At rows first + i0 ..: a number per row, or the first DV columns of an accumulator."""
    value = value.to(ptr.dtype.element_ty)
    if len(value.shape) == 1:
        rows = i0 + gl.arange(0, value.shape[0], layout=value.type.layout)
        gl.store(ptr + (first + rows), value, mask=rows < n)
    else:
        rows = i0 + gl.arange(0, value.shape[0], layout=gl.SliceLayout(1, value.type.layout))
        e = gl.arange(0, value.shape[1], layout=gl.SliceLayout(0, value.type.layout))
        at = ((first + rows) * DV)[:, None] + e[None, :]
        gl.store(ptr + at, value, mask=(rows < n)[:, None] & (e < DV)[None, :])


@gluon.jit
def store_all(states, accs, out, at, i0, unit, n, C: gl.constexpr):
    """The results of BM rows, or their states where others have seen other columns."""
    if C.stretches > 0:
        flat = join(C.fns.flat(states, ()), 4 * C.stretches, C.fns.nest, C.fns.flat, C.fns.merge, unit)
        states, none = C.fns.nest(flat)
    if C.split:
        values = C.fns.flat(states, accs)
    else:
        values = C.fns.finish(states, accs, unit)
    for r in gl.static_range(len(values)):
        store_one(out[r], values[r], at, i0, n, C.dv)


@gluon.jit
def fold_rows(buffers, barriers, rows_in, cols_in, shared, work, out, WG: gl.constexpr, C: gl.constexpr):
    """What one group of four warps does: BM rows of each piece of work."""
    cd, cds = cols_in
    sd, sds, F, I, unit, n, k = shared
    items, row_tiles, splits, entries, section, kept = work
    spread: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bk, 16])
    srow: gl.constexpr = gl.SliceLayout(1, smma)
    count = 0
    done = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        i0, split, entry, where, sv, t0, t1, w0, w1, first, end = work_item(
            item, row_tiles, splits, entries, section, kept, rows_in, shared, C, spread
        )
        c_off = batch_offsets(cds, C.cols, 1, where, (), C.kept, 0)
        at = entry.to(gl.int64) * n
        if C.split:
            at += split.to(gl.int64) * entries * n
        span = (t0, t1, w0, w1, first, end)
        i1 = i0 + WG * C.bm
        known = (sv, F, I, unit, n, k)
        own = row_data(i1, where, rows_in, known, C, srow)
        if C.payload:
            states, acc = fold_payload(buffers, barriers, (cd, c_off, cds), span, own, known, count, done, WG, C)
            store_all(states, (acc,), out, at, i1, unit, n, C)
        else:
            states = fold_plain(buffers, barriers, (cd, c_off, cds), span, own, known, count, done, WG, C)
            store_all(states, (), out, at, i1, unit, n, C)
        count += gl.maximum(t1 - t0, 0)
        done += 1


@gluon.jit
def await_turn(turns, i, WG: gl.constexpr, C: gl.constexpr):
    """Groups that multiply at once end at once, and then fold at once: with C.turns S of a group waits for that of the one before."""
    if C.turns:
        if WG == 0:
            mbarrier.wait(turns.index(0), i & 1 ^ 1)
        else:
            mbarrier.wait(turns.index(WG), i & 1)


@gluon.jit
def pass_turn(turns, WG: gl.constexpr, C: gl.constexpr):
    if C.turns:
        mbarrier.arrive(turns.index((WG + 1) % C.groups), count=1)


@gluon.jit
def fold_payload(buffers, barriers, cols_in, span, own, shared, count, done, WG: gl.constexpr, C: gl.constexpr):
    """S of this tile and P V of the last one run beside each other, and P V beside the fold of this one."""
    x_s, y_s, v_s, c_s, ones_s = buffers
    x_full, x_empty, y_full, y_empty, v_full, v_empty, turns = barriers
    t0, t1, w0, w1, first, end = span
    k = shared[5]
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bk, 16])
    amma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bdv, 16])
    scol: gl.constexpr = gl.SliceLayout(0, smma)
    arow: gl.constexpr = gl.SliceLayout(1, amma)
    pdot: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=amma, k_width=2)
    zero = gl.full([C.bm, C.bk], 0, gl.float32, layout=smma)
    acc = gl.full([C.bm, C.bdv], 0, gl.float32, layout=amma)
    # a product with ones adds up the weights as they are rounded: no conversion back, and the tensor cores have the time
    tmma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, 8, 16])
    total = gl.full([C.bm, 8], 0, gl.float32, layout=tmma)
    if C.rounded >= 0:
        ones = ones_s.permute((1, 0))
    by_lane: gl.constexpr = gl.SliceLayout(2, lane_columns(zero).type.layout)
    states, none = C.fns.nest(initial(C, C.bm, gl.SliceLayout(1, smma), by_lane) + (acc,))
    x = x_s.index(WG)
    mbarrier.wait(x_full, done & 1)
    if t0 < t1:
        stage = count % C.stages
        phase = count // C.stages & 1
        edge = (t0 < w0) | (t0 >= w1)
        if not C.c_loaded:
            c = column_data(cols_in, c_s, stage, t0, edge, k, C, scol)
        mbarrier.wait(y_full.index(stage), phase)
        await_turn(turns, count, WG, C)
        s = warpgroup_mma(x, y_s.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        if C.c_loaded:
            c = column_data(cols_in, c_s, stage, t0, edge, k, C, scol)
        s = warpgroup_mma_wait(0, deps=(s,))
        pass_turn(turns, WG, C)
        mbarrier.arrive(y_empty.index(stage), count=1)
        states, alpha, p = fold_tile(s, states, c, t0, edge, own, shared, (x_full, done & 1), C)
        p16 = gl.convert_layout(narrow(p[0], v_s.dtype), pdot)
        mbarrier.wait(v_full.index(stage), phase)
        for t in range(t0 + 1, t1):
            i = count + t - t0
            last = (i - 1) % C.stages
            stage = i % C.stages
            phase = i // C.stages & 1
            edge = (t < w0) | (t >= w1)
            if not C.c_loaded:
                c = column_data(cols_in, c_s, stage, t, edge, k, C, scol)
            if C.mask:
                without_padding(v_s.index(last), t - 1, first, end, C.bk)
            mbarrier.wait(y_full.index(stage), phase)
            await_turn(turns, i, WG, C)
            s = warpgroup_mma(x, y_s.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
            acc = warpgroup_mma(p16, v_s.index(last), acc, is_async=True)
            if C.rounded >= 0:
                total = warpgroup_mma(p16, ones, total, is_async=True)
            if C.c_loaded:
                c = column_data(cols_in, c_s, stage, t, edge, k, C, scol)
            s = warpgroup_mma_wait(2 if C.rounded >= 0 else 1, deps=(s,))
            pass_turn(turns, WG, C)
            mbarrier.arrive(y_empty.index(stage), count=1)
            states, alpha, p = fold_tile(s, states, c, t, edge, own, shared, (x_full, done & 1), C)
            # a spin wait keeps ptxas from moving the wait for P V above the arithmetic of the fold
            mbarrier.wait(v_full.index(stage), phase)
            if C.rounded >= 0:
                acc, total = warpgroup_mma_wait(0, deps=(acc, total))
                total = total * gl.convert_layout(alpha[0], gl.SliceLayout(1, tmma))[:, None]
            else:
                acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(v_empty.index(last), count=1)
            if len(alpha) > 0:
                acc = acc * gl.convert_layout(alpha[0], arow)[:, None]
            p16 = gl.convert_layout(narrow(p[0], v_s.dtype), pdot)
        mbarrier.arrive(x_empty, count=1)
        last = (count + t1 - 1 - t0) % C.stages
        if C.mask:
            without_padding(v_s.index(last), t1 - 1, first, end, C.bk)
        acc = warpgroup_mma(p16, v_s.index(last), acc, is_async=True)
        if C.rounded >= 0:
            total = warpgroup_mma(p16, ones, total, is_async=True)
            acc, total = warpgroup_mma_wait(0, deps=(acc, total))
        else:
            acc = warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(v_empty.index(last), count=1)
    else:
        mbarrier.arrive(x_empty, count=1)
    kept = C.fns.flat(C.fns.close(states), (acc,))
    flat = ()
    for j in gl.static_range(len(kept) - 1):
        if j == C.rounded:
            flat = flat + (gl.convert_layout(gl.max(total, 1), arow),)  # its columns are the same
        else:
            flat = flat + (gl.convert_layout(kept[j], arow),)
    states, none = C.fns.nest(flat + (acc,))
    return states, acc


@gluon.jit
def first_states(C: gl.constexpr, layout: gl.constexpr):
    if C.stretches > 0:
        strips: gl.constexpr = lanes(gl.full([C.bm, C.bk], 0, gl.float32, layout=layout), C.stretches).type.layout
        flat = initial(C, C.bm * 4 * C.stretches, gl.SliceLayout(1, strips), gl.SliceLayout(1, strips))
    else:
        flat = initial(C, C.bm, gl.SliceLayout(1, layout), gl.SliceLayout(1, layout))
    states, none = C.fns.nest(flat)
    return states


@gluon.jit
def fold_plain(buffers, barriers, cols_in, span, own, shared, count, done, WG: gl.constexpr, C: gl.constexpr):
    x_s, y_s, v_s, c_s, ones_s = buffers
    x_full, x_empty, y_full, y_empty, v_full, v_empty, turns = barriers
    t0, t1, w0, w1, first, end = span
    k = shared[5]
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bk, 16])
    zero = gl.full([C.bm, C.bk], 0, gl.float32, layout=smma)
    states = first_states(C, smma)
    mbarrier.wait(x_full, done & 1)
    for t in range(t0, t1):
        i = count + t - t0
        stage = i % C.stages
        edge = (t < w0) | (t >= w1)
        if not C.c_loaded:
            c = column_data(cols_in, c_s, stage, t, edge, k, C, gl.SliceLayout(0, smma))
        mbarrier.wait(y_full.index(stage), i // C.stages & 1)
        s = warpgroup_mma(x_s.index(WG), y_s.index(stage).permute((1, 0)), zero, use_acc=False, is_async=True)
        if C.c_loaded:
            c = column_data(cols_in, c_s, stage, t, edge, k, C, gl.SliceLayout(0, smma))
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(y_empty.index(stage), count=1)
        states, alpha, p = fold_tile(s, states, c, t, edge, own, shared, (x_full, done & 1), C)
    mbarrier.arrive(x_empty, count=1)
    return states


@gluon.jit
def pages_of(tables, where, t, k, C: gl.constexpr):
    """The pages that hold tile t. Those behind the last column that a row sees may be any number: what lies outside is loaded as 0."""
    pt, pts = tables
    ROWS: gl.constexpr = min(C.page, C.bk)
    numbers = ()
    if C.page > 0:
        at = pt[0] + batch_offsets(pts, 1, 2, where, (), C.kept, 0)[0]
        for r in gl.static_range(C.bk // ROWS):
            j = gl.minimum(t * C.bk + r * ROWS, k - 1)
            numbers = numbers + (gl.load(at + (j // C.page).to(gl.int64) * pts[0][1]).to(gl.int32),)
    return numbers


@gluon.jit
def load_columns(desc, where, DIMS: gl.constexpr, t, pages, full, tile, C: gl.constexpr):
    """Tile t of the columns. In pages: a part for each, in strips as wide as the tile's swizzle, which lie one behind the other."""
    if C.page == 0:
        load_tile(desc, batch_place(where, DIMS, t * C.bk, len(DIMS) + 2), full, as_batch(tile, len(DIMS) + 2))
    else:
        PARTS: gl.constexpr = len(pages)
        ROWS: gl.constexpr = C.bk // PARTS
        WIDTH: gl.constexpr = desc.block_type.shape[-1]
        STRIPS: gl.constexpr = tile.shape[1] // WIDTH
        parts = as_shape(tile, tile.dtype, [STRIPS * PARTS, ROWS, WIDTH], gl.NVMMASharedLayout.get_default_for([ROWS, WIDTH], tile.dtype))
        for r in gl.static_range(PARTS):
            first = (t * C.bk + r * ROWS) % C.page
            for s in gl.static_range(STRIPS):
                at = batch_place(where, DIMS, pages[r], len(DIMS) + 1) + (first, first * 0 + s * WIDTH)
                load_tile(desc, at, full, as_batch(parts.index(s * PARTS + r), len(DIMS) + 3))


@gluon.jit
def load_all(x_d, y_d, v_d, c_d, buffers, barriers, rows_in, tables, shared, work, C: gl.constexpr):
    """What the loading warp does."""
    x_s, y_s, v_s, c_s, ones_s = buffers
    x_full, x_empty, y_full, y_empty, v_full, v_empty, turns = barriers
    items, row_tiles, splits, entries, section, kept = work
    ROW_TILES: gl.constexpr = C.groups
    XD: gl.constexpr = C.x_dims
    YD: gl.constexpr = C.y_dims
    VD: gl.constexpr = C.v_dims
    CD: gl.constexpr = C.c_dims
    Y_BYTES: gl.constexpr = C.bk * C.bd * 2
    k = shared[6]
    count = 0
    done = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        i0, split, entry, where, sv, t0, t1, w0, w1, first, end = work_item(
            item, row_tiles, splits, entries, section, kept, rows_in, shared, C, gl.BlockedLayout([1], [32], [1], [0])
        )
        mbarrier.wait(x_empty, done & 1 ^ 1)
        mbarrier.expect(x_full, ROW_TILES * x_d.block_type.nbytes)
        for g in gl.static_range(ROW_TILES):
            load_tile(x_d, batch_place(where, XD, i0 + g * C.bm, len(XD) + 2), x_full, as_batch(x_s.index(g), len(XD) + 2))
        for t in range(t0, t1):
            i = count + t - t0
            stage = i % C.stages
            free = i // C.stages & 1 ^ 1
            pages = pages_of(tables, where, t, k, C)
            mbarrier.wait(y_empty.index(stage), free)
            if C.c_loaded:
                mbarrier.expect(y_full.index(stage), Y_BYTES + c_d.block_type.nbytes)
                load_tile(c_d, batch_place(where, CD, t * C.bk, len(CD) + 1), y_full.index(stage), as_batch(c_s.index(stage), len(CD) + 1))
            else:
                mbarrier.expect(y_full.index(stage), Y_BYTES)
            load_columns(y_d, where, YD, t, pages, y_full.index(stage), y_s.index(stage), C)
            if C.payload:
                mbarrier.wait(v_empty.index(stage), free)
                mbarrier.expect(v_full.index(stage), C.bk * C.bdv * 2)
                load_columns(v_d, where, VD, t, pages, v_full.index(stage), v_s.index(stage), C)
        count += gl.maximum(t1 - t0, 0)
        done += 1


@gluon.jit
def rows_kernel(
    x_d, y_d, v_d, c_d, rd, rds, cd, cds, sd, sds, pt, pts, out, F, I, unit, n, k, kept, items, entries, row_tiles, splits, section, C: gl.constexpr
):
    """One block a unit, which takes pieces of work in turn. Results, or with C.split the states of each split, go to `out`."""
    XB: gl.constexpr = 4 if C.groups == 3 else C.groups
    x_s = gl.allocate_shared_memory(x_d.dtype, [XB, C.bm, C.bd], gl.NVMMASharedLayout.get_default_for([C.bm, C.bd], x_d.dtype))
    y_s = gl.allocate_shared_memory(y_d.dtype, [C.stages, C.bk, C.bd], gl.NVMMASharedLayout.get_default_for([C.bk, C.bd], y_d.dtype))
    y_full, y_empty = ring(C.stages, 1, C.groups)
    v_s = y_s
    v_full = y_full
    v_empty = y_empty
    if C.payload:
        v_s = gl.allocate_shared_memory(v_d.dtype, [C.stages, C.bk, C.bdv], gl.NVMMASharedLayout.get_default_for([C.bk, C.bdv], v_d.dtype))
        v_full, v_empty = ring(C.stages, 1, C.groups)
    c_s = y_s
    if C.c_loaded:
        c_s = gl.allocate_shared_memory(c_d.dtype, [C.stages, C.bk], gl.NVMMASharedLayout(0, c_d.dtype.primitive_bitwidth, 1))
    ones_s = y_s
    if C.rounded >= 0:
        lines: gl.constexpr = gl.BlockedLayout([1, 8], [2, 16], [4, 1], [1, 0])
        ones_s = gl.allocate_shared_memory(v_d.dtype, [8, C.bk], gl.NVMMASharedLayout.get_default_for([8, C.bk], v_d.dtype))
        ones_s.store(gl.full([8, C.bk], 1.0, v_d.dtype, layout=lines))
        fence_async_shared()
    turns = y_full
    if C.turns:
        TURNS: gl.constexpr = 4 if C.groups == 3 else C.groups
        turns = gl.allocate_shared_memory(gl.int64, [TURNS, 1], mbarrier.MBarrierLayout())
        for g in gl.static_range(TURNS):
            mbarrier.init(turns.index(g), count=1)
    buffers = (x_s, y_s, v_s, c_s, ones_s)
    barriers = (barrier(1), barrier(C.groups), y_full, y_empty, v_full, v_empty, turns)
    shared = (sd, sds, F, I, unit, n, k)
    work = (items, row_tiles, splits, entries, section, kept)
    rows_in = (rd, rds)
    cols_in = (cd, cds)
    if C.groups == 2:
        gl.warp_specialize(
            [
                (fold_rows, (buffers, barriers, rows_in, cols_in, shared, work, out, 0, C)),
                (fold_rows, (buffers, barriers, rows_in, cols_in, shared, work, out, 1, C)),
                (load_all, (x_d, y_d, v_d, c_d, buffers, barriers, rows_in, (pt, pts), shared, work, C)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (fold_rows, (buffers, barriers, rows_in, cols_in, shared, work, out, 0, C)),
                (fold_rows, (buffers, barriers, rows_in, cols_in, shared, work, out, 1, C)),
                (fold_rows, (buffers, barriers, rows_in, cols_in, shared, work, out, 2, C)),
                (load_all, (x_d, y_d, v_d, c_d, buffers, barriers, rows_in, (pt, pts), shared, work, C)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )
