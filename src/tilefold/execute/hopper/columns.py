"""The warp-specialised loop for sums along both axes: columns stay in shared memory, rows stream past them. Gradients are such sums.

    e = score(X Y^T, G W^T, ..)       one or two products, expressions e of them that are 0 where a score is hidden
    per column  e^T X, e^T G          accumulators of the columns, in registers
    per row     e Y, e W              a tile's share is added to device memory by the TMA unit, in float32

A block is a warp that loads, a warp that adds the rows' shares, and two groups of four warps with 64 columns each. A group makes S^T and T^T, so
that e^T is the first operand of its products as it lies in registers; for the rows' share both groups' e^T meet in shared memory.

    traffic     Y, W once; X, G once a tile of 128 columns, from the second-level cache; the rows' sums in and out of it as often, in float32
    registers   S^T, T^T [64, M], two accumulators [64, D]
    shared      Y, W; STAGES tiles of X, G; e^T; the groups' shares

Sums along the rows come in any order: its last bits may change from call to call. The portable loops add in a fixed order.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from ..triton.tile import batch_offsets, coordinates, load_scalars, load_vectors
from .names import load_tile, reduce_add_tile
from .parts import as_batch, barrier, batch_place, narrow, ring

KW = gl.constexpr(64)  # columns of a group


@gluon.jit
def place(item, tiles, entries, section, LONGEST: gl.constexpr):
    """(column tile, batch entry) of a piece of work. Entries come in sections whose rows fit in the second-level cache together."""
    first = item // (tiles * section) * section
    size = gl.minimum(entries - first, section)
    within = item % (tiles * section)
    if LONGEST:  # of a causal mask the first columns have the most rows
        tile = within // size
        entry = first + within % size
    else:
        tile = within % tiles
        entry = first + within // tiles
    return tile, entry


@gluon.jit
def work_item(item, ranges, shared, work, C: gl.constexpr):
    """(first column, entry, its coordinates, row tiles that see some of the columns, those that see all, the columns that some row sees,
    whether some row sees nothing)."""
    items, tiles, entries, row_tiles, section, kept, summed, inner = work
    n, k = shared[5], shared[6]
    tile, entry = place(item, tiles, entries, section, C.mask)
    where = coordinates(entry, kept, C.kept)
    c0 = tile * (2 * KW)
    if C.mask:
        at = ranges + (entry.to(gl.int64) * tiles + tile) * 8
        t0 = gl.load(at)
        t1 = gl.load(at + 1)
        w0 = gl.load(at + 2)
        w1 = gl.load(at + 3)
        first = gl.load(at + 4)
        end = gl.load(at + 5)
        blind = gl.load(at + 6) != 0
    else:
        t0 = row_tiles * 0
        t1 = row_tiles
        w0 = t0
        w1 = gl.where(c0 + 2 * KW <= k, n // C.m, t0)
        first = t0
        end = k
        blind = False
    return c0, entry, where, t0, t1, w0, w1, first, end, blind


@gluon.jit
def staged(vectors, stage, FIRST: gl.constexpr, LEN: gl.constexpr, layout: gl.constexpr, C: gl.constexpr):
    """(operands, parts of expressions) of LEN rows from FIRST of a tile on. C.kinds: -1 nobody reads it, 0 float, 1 integer, 2 boolean."""
    KINDS: gl.constexpr = C.kinds
    data = ()
    values = ()
    for j in gl.static_range(len(KINDS)):
        if KINDS[j] < 0:
            v = 0
        elif KINDS[j] == 2:
            v = vectors[j].index(stage).slice(FIRST, LEN).load(layout) != 0
        else:
            v = vectors[j].index(stage).slice(FIRST, LEN).load(layout)
        if j < C.rows:
            data = data + (v,)
        else:
            values = values + (v,)
    return data, values


@gluon.jit
def zero_rows(tile, keep, layout: gl.constexpr, FIRST: gl.constexpr):
    """Zeroes rows FIRST.. of a tile in shared memory that are not kept. Every group does it for itself: they write the same."""
    part = tile.slice(FIRST, keep.shape[0], dim=0)
    value = part.load(layout)
    part.store(gl.where(keep[:, None], value, gl.zeros_like(value)))


@gluon.jit
def without_padding(tile, c0, first, end):
    """Zeroes columns that no row sees: padding may hold anything, and 0 * NaN is NaN."""
    D: gl.constexpr = tile.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    if (c0 < first) | (c0 + 2 * KW > end):
        for r in gl.static_range(2 * KW // 16):
            j = c0 + r * 16 + gl.arange(0, 16, layout=gl.SliceLayout(1, layout))
            zero_rows(tile, (j >= first) & (j < end), layout, r * 16)
        fence_async_shared()


@gluon.jit
def without_blind(tile, stage, bounds):
    """Zeroes rows that see no column: their numbers may be anything as well."""
    D: gl.constexpr = tile.shape[1]
    layout: gl.constexpr = gl.BlockedLayout([1, 8], [32 * 8 // D, D // 8], [4, 1], [1, 0])
    line: gl.constexpr = gl.SliceLayout(1, layout)
    lo = bounds[0].index(stage)
    hi = bounds[1].index(stage)
    for r in gl.static_range(tile.shape[0] // 16):
        zero_rows(tile, lo.slice(r * 16, 16).load(line) < hi.slice(r * 16, 16).load(line), layout, r * 16)


@gluon.jit
def strips(s, COUNT: gl.constexpr):
    """[KW, M] as COUNT tensors of neighbouring rows [M / COUNT, KW]; moves nothing."""
    if COUNT == 1:
        parts = (s.permute((1, 0)),)
    else:
        a, b = gl.split(s.reshape([s.shape[0], 2, s.shape[1] // 2]).permute((0, 2, 1)))
        parts = strips(a, COUNT // 2) + strips(b, COUNT // 2)
    return parts


@gluon.jit
def whole(parts, COUNT: gl.constexpr):
    """The inverse, of strips [KW, M / COUNT]."""
    if COUNT == 1:
        s = parts[0]
    else:
        a = whole(parts, COUNT // 2)
        b = whole(parts[COUNT // 2 :], COUNT // 2)
        s = gl.join(a, b).permute((0, 2, 1)).reshape([a.shape[0], 2 * a.shape[1]])
    return s


@gluon.jit
def expressions(leaves, known, r0, stage, bounds, c, sv, cols, edge, shared, gate, FIRST: gl.constexpr, C: gl.constexpr):
    """The expressions of the strip [M / strips, KW] that begins at row FIRST of a tile, 0 where hidden."""
    F, I, n, k = shared[2], shared[3], shared[5], shared[6]
    rd, rv = known
    LEN: gl.constexpr = leaves[0].shape[0]
    flat: gl.constexpr = leaves[0].type.layout
    cols = gl.convert_layout(cols, gl.SliceLayout(0, flat))
    rows = r0 + FIRST + gl.arange(0, LEN, layout=gl.SliceLayout(1, flat))
    zero = gl.full([LEN, KW], 0, gl.float32, layout=flat)
    e = C.fns.score(leaves, rd, rv, c, (), sv, F, I, rows, cols, n, k, zero, gl.float32)
    if edge:
        mbarrier.wait(gate[0], gate[1])  # a phase that is over: keeps ptxas from doing an edge's work in every tile
        e = hidden(e, seen(rows, cols, stage, bounds, n, k, FIRST, C))
    return e


@gluon.jit
def seen(rows, cols, stage, bounds, n, k, FIRST: gl.constexpr, C: gl.constexpr):
    visible = (rows < n)[:, None] & (cols < k)[None, :]
    if C.mask:
        lo = bounds[0].index(stage).slice(FIRST, rows.shape[0]).load(rows.type.layout)
        hi = bounds[1].index(stage).slice(FIRST, rows.shape[0]).load(rows.type.layout)
        visible = visible & (cols[None, :] >= lo[:, None]) & (cols[None, :] < hi[:, None])
    return visible


@gluon.jit
def hidden(e, visible):
    kept = ()
    for j in gl.static_range(len(e)):
        kept = kept + (gl.where(visible, e[j], 0.0),)
    return kept


@gluon.jit
def apart(zero):
    """Keeps ptxas from making two strips together, which takes the registers of both."""
    gl.inline_asm_elementwise("bar.warp.sync 0xffffffff; mov.b32 $0, $1;", "=r,r", [zero], dtype=gl.int32, is_pure=False, pack=1)


@gluon.jit
def weights(parts, known, r0, stage, vectors, bounds, c, sv, cols, edge, shared, gate, layout: gl.constexpr, C: gl.constexpr):
    """The expressions of a tile [KW, M] in 16 bits, strip after strip; `known` of the first one, of each other one before the last is made."""
    COUNT: gl.constexpr = C.strips
    LEN: gl.constexpr = C.m // COUNT
    one: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    made = ()
    for b in gl.static_range(COUNT):
        leaf = ()
        for a in gl.static_range(len(parts)):
            leaf = leaf + (parts[a][b],)
        following = known
        if b + 1 < COUNT:
            following = staged(vectors, stage, (b + 1) * LEN, LEN, gl.SliceLayout(1, leaf[0].type.layout), C)
        e = expressions(leaf, known, r0, stage, bounds, c, sv, cols, edge, shared, gate, b * LEN, C)
        narrowed = ()
        for j in gl.static_range(len(e)):
            narrowed = narrowed + (narrow(e[j].permute((1, 0)), C.dtype),)
        made = made + (narrowed,)
        if b + 1 < COUNT:
            apart(gl.full([128], 0, gl.int32, layout=one))
        known = following
    joined = ()
    for j in gl.static_range(len(made[0])):
        of = ()
        for b in gl.static_range(COUNT):
            of = of + (made[b][j],)
        joined = joined + (gl.convert_layout(whole(of, COUNT), layout),)
    return joined


@gluon.jit
def store_sums(ptr, acc, factor, entry, first, k, D: gl.constexpr):
    j = first + gl.arange(0, acc.shape[0], layout=gl.SliceLayout(1, acc.type.layout))
    d = gl.arange(0, acc.shape[1], layout=gl.SliceLayout(0, acc.type.layout))
    at = ((entry.to(gl.int64) * k + j) * D)[:, None] + d[None, :]
    gl.store(ptr + at, (acc * factor).to(ptr.dtype.element_ty), mask=(j < k)[:, None] & (d < D)[None, :])


@gluon.jit
def fold_columns(buffers, barriers, ranges, cols_in, shared, work, out, WG: gl.constexpr, C: gl.constexpr):
    """What a group does: 64 columns of each piece of work."""
    y_s, w_s, x_s, g_s, e_s, o_s, vectors, bounds = buffers
    y_full, y_empty, x_full, x_empty, g_full, g_empty, e_full, e_empty, o_full, o_empty = barriers
    cd, cds = cols_in
    sd, sds, F, I, unit, n, k = shared
    items, tiles, entries, row_tiles, section, kept, summed, inner = work
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.m, 16])
    ymma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bd, 16])
    wmma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, C.bdv, 16])
    OD: gl.constexpr = C.bdo // 2 if C.m == 64 else C.bdo
    omma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OD, 16])
    ydot: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=ymma, k_width=2)
    wdot: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=wmma, k_width=2)
    szero = gl.full([KW, C.m], 0, gl.float32, layout=smma)
    ozero = gl.full([64, OD], 0, gl.float32, layout=omma)
    flat: gl.constexpr = szero.permute((1, 0)).type.layout
    cline: gl.constexpr = gl.SliceLayout(0, flat)
    y = y_s.slice(WG * KW, KW, dim=0)
    w = w_s.slice(WG * KW, KW, dim=0)
    if C.summed_from == 0:
        o_y = y_s
    else:
        o_y = w_s
    SCALARS: gl.constexpr = C.scalar_types
    COLS: gl.constexpr = C.col_types
    done = 0
    count = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        c0, entry, where, t0, t1, w0, w1, first, end, blind = work_item(item, ranges, shared, work, C)
        j = c0 + WG * KW + gl.arange(0, KW, layout=cline)
        acc_y = gl.full([KW, C.bd], 0, gl.float32, layout=ymma)
        acc_w = gl.full([KW, C.bdv], 0, gl.float32, layout=wmma)
        mbarrier.wait(y_full, done & 1)
        if C.mask and C.row_sum >= 0:
            without_padding(o_y, c0, first, end)
        for within in range(inner):
            inside = coordinates(within, summed, C.summed)
            sv = load_scalars(sd, batch_offsets(sds, C.scalars, 0, where, inside, C.kept, C.summed), C.scalars, SCALARS, gl.float32)
            c = load_vectors(cd, batch_offsets(cds, C.cols, 1, where, inside, C.kept, C.summed), cds, j, k, C.cols, COLS, gl.float32, True)
            for t in range(t0, t1):
                i = count + t - t0
                stage = i % C.stages
                phase = i // C.stages & 1
                edge = (t < w0) | (t >= w1)
                x = x_s.index(stage)
                g = g_s.index(stage)
                mbarrier.wait(x_full.index(stage), phase)
                if C.mask:
                    if edge & blind:
                        without_blind(x, stage, bounds)
                        if C.leaves == 2:
                            mbarrier.wait(g_full.index(stage), phase)
                            without_blind(g, stage, bounds)
                        fence_async_shared()
                s = warpgroup_mma(y, x.permute((1, 0)), szero, use_acc=False, is_async=True)
                if C.leaves == 2:
                    mbarrier.wait(g_full.index(stage), phase)
                    q = warpgroup_mma(w, g.permute((1, 0)), szero, use_acc=False, is_async=True)
                known = staged(vectors, stage, 0, C.m // C.strips, gl.SliceLayout(1, strips(szero, C.strips)[0].type.layout), C)
                if C.leaves == 2:
                    s, q = warpgroup_mma_wait(0, deps=(s, q))
                    parts = (strips(s, C.strips), strips(q, C.strips))
                else:
                    s = warpgroup_mma_wait(0, deps=(s,))
                    parts = (strips(s, C.strips),)
                e = weights(parts, known, t * C.m, stage, vectors, bounds, c, sv, j, edge, shared, (y_full, done & 1), smma, C)
                if C.g_sum >= 0:
                    acc_w = warpgroup_mma(gl.convert_layout(e[C.g_sum], wdot), g, acc_w, is_async=True)
                if C.row_sum >= 0:
                    buffer = i % C.exchanges
                    turn = i // C.exchanges & 1
                    mbarrier.wait(e_empty.index(buffer), turn ^ 1)
                    e_s.index(buffer).slice(WG * KW, KW, dim=0).store(e[C.row_sum])
                    fence_async_shared()
                    mbarrier.arrive(e_full.index(buffer), count=1)
                if C.x_sum >= 0:
                    acc_y = warpgroup_mma(gl.convert_layout(e[C.x_sum], ydot), x, acc_y, is_async=True)
                if C.row_sum >= 0:
                    mbarrier.wait(e_full.index(buffer), turn)
                    both = e_s.index(buffer)
                    if C.m == 64:
                        o = warpgroup_mma(both.permute((1, 0)), o_y.slice(WG * OD, OD, dim=1), ozero, use_acc=False, is_async=True)
                    else:
                        o = warpgroup_mma(both.slice(WG * 64, 64, dim=1).permute((1, 0)), o_y, ozero, use_acc=False, is_async=True)
                    if C.leaves == 2:
                        acc_w = warpgroup_mma_wait(2 if C.x_sum >= 0 else 1, deps=(acc_w,))
                        mbarrier.arrive(g_empty.index(stage), count=1)
                    acc_y = warpgroup_mma_wait(1, deps=(acc_y,))
                    mbarrier.arrive(x_empty.index(stage), count=1)
                    o = warpgroup_mma_wait(0, deps=(o,))
                    mbarrier.arrive(e_empty.index(buffer), count=1)
                    mbarrier.wait(o_empty.index(WG), (i & 1) ^ 1)
                    o_s.index(WG).store(o)
                    fence_async_shared()
                    mbarrier.arrive(o_full.index(WG), count=1)
                else:
                    acc_w, acc_y = warpgroup_mma_wait(0, deps=(acc_w, acc_y))
                    if C.leaves == 2:
                        mbarrier.arrive(g_empty.index(stage), count=1)
                    mbarrier.arrive(x_empty.index(stage), count=1)
            count += gl.maximum(t1 - t0, 0)
        mbarrier.arrive(y_empty, count=1)
        done += 1
        if C.x_sum >= 0:
            store_sums(out[0], acc_y, unit[C.x_sum], entry, c0 + WG * KW, k, C.d)
        if C.g_sum >= 0:
            store_sums(out[1], acc_w, unit[C.g_sum], entry, c0 + WG * KW, k, C.dv)


@gluon.jit
def load_all(x_d, g_d, y_d, w_d, buffers, barriers, ranges, rows_in, shared, work, C: gl.constexpr):
    """What the loading warp does: tiles by TMA, the rows' numbers by itself."""
    y_s, w_s, x_s, g_s, e_s, o_s, vectors, bounds = buffers
    y_full, y_empty, x_full, x_empty, g_full, g_empty, e_full, e_empty, o_full, o_empty = barriers
    rd, rds = rows_in
    sd, sds, F, I, unit, n, k = shared
    items, tiles, entries, row_tiles, section, kept, summed, inner = work
    line: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    SCALARS: gl.constexpr = C.scalar_types
    ROWS: gl.constexpr = C.row_types
    KINDS: gl.constexpr = C.kinds
    XD: gl.constexpr = C.x_dims
    GD: gl.constexpr = C.g_dims
    YD: gl.constexpr = C.y_dims
    WD: gl.constexpr = C.w_dims
    done = 0
    count = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        c0, entry, where, t0, t1, w0, w1, first, end, blind = work_item(item, ranges, shared, work, C)
        zeros = coordinates(inner * 0, summed, C.summed) + where
        mbarrier.wait(y_empty, done & 1 ^ 1)
        if C.leaves == 2:
            mbarrier.expect(y_full, y_d.block_type.nbytes + w_d.block_type.nbytes)
            load_tile(w_d, batch_place(zeros, WD, c0, len(WD) + 2), y_full, as_batch(w_s, len(WD) + 2))
        else:
            mbarrier.expect(y_full, y_d.block_type.nbytes)
        load_tile(y_d, batch_place(zeros, YD, c0, len(YD) + 2), y_full, as_batch(y_s, len(YD) + 2))
        for within in range(inner):
            inside = coordinates(within, summed, C.summed)
            at = inside + where
            sv = load_scalars(sd, batch_offsets(sds, C.scalars, 0, where, inside, C.kept, C.summed), C.scalars, SCALARS, gl.float32)
            r_off = batch_offsets(rds, C.rows, 1, where, inside, C.kept, C.summed)
            for t in range(t0, t1):
                i = count + t - t0
                stage = i % C.stages
                free = i // C.stages & 1 ^ 1
                rows = t * C.m + gl.arange(0, C.m, layout=line)
                data = load_vectors(rd, r_off, rds, rows, n, C.rows, ROWS, gl.float32, True)
                values = C.fns.row_part(data, sv, F, I, rows, n, k, gl.float32)
                mbarrier.wait(x_empty.index(stage), free)
                for v in gl.static_range(len(KINDS)):
                    if v >= C.rows:
                        vectors[v].index(stage).store(values[v - C.rows].to(vectors[v].dtype))
                    elif KINDS[v] >= 0:
                        vectors[v].index(stage).store(data[v].to(vectors[v].dtype))
                if C.mask:
                    lo, hi = C.fns.bounds(data, sv, F, I, rows, n, k)
                    bounds[0].index(stage).store(gl.where(rows < n, lo, 0).to(gl.int32))
                    bounds[1].index(stage).store(gl.where(rows < n, hi, 1).to(gl.int32))
                mbarrier.expect(x_full.index(stage), x_d.block_type.nbytes)
                load_tile(x_d, batch_place(at, XD, t * C.m, len(XD) + 2), x_full.index(stage), as_batch(x_s.index(stage), len(XD) + 2))
                if C.leaves == 2:
                    mbarrier.wait(g_empty.index(stage), free)
                    mbarrier.expect(g_full.index(stage), g_d.block_type.nbytes)
                    load_tile(g_d, batch_place(at, GD, t * C.m, len(GD) + 2), g_full.index(stage), as_batch(g_s.index(stage), len(GD) + 2))
            count += gl.maximum(t1 - t0, 0)
        done += 1


@gluon.jit
def add_rows(o_d, buffers, barriers, ranges, shared, work, C: gl.constexpr):
    """What the adding warp does: no group waits for device memory."""
    y_s, w_s, x_s, g_s, e_s, o_s, vectors, bounds = buffers
    y_full, y_empty, x_full, x_empty, g_full, g_empty, e_full, e_empty, o_full, o_empty = barriers
    items, tiles, entries, row_tiles, section, kept, summed, inner = work
    OD: gl.constexpr = C.o_dims
    count = 0
    for item in range(gl.program_id(0), items, gl.num_programs(0)):
        c0, entry, where, t0, t1, w0, w1, first, end, blind = work_item(item, ranges, shared, work, C)
        for within in range(inner):
            at = coordinates(within, summed, C.summed) + where
            for t in range(t0, t1):
                i = count + t - t0
                for group in gl.static_range(2):
                    if C.m == 64:
                        to = batch_place(at, OD, t * C.m, len(OD) + 1) + (t * 0 + group * (C.bdo // 2),)
                    else:
                        to = batch_place(at, OD, t * C.m + group * 64, len(OD) + 2)
                    mbarrier.wait(o_full.index(group), i & 1)
                    reduce_add_tile(o_d, to, as_batch(o_s.index(group), len(OD) + 2))
                    tma.store_wait(0)
                    mbarrier.arrive(o_empty.index(group), count=1)
            count += gl.maximum(t1 - t0, 0)


@gluon.jit
def columns_kernel(
    x_d, g_d, y_d, w_d, o_d, ranges, rd, rds, cd, cds, sd, sds, out, F, I, unit, n, k, kept, summed, items, tiles, entries, row_tiles, section, inner, C: gl.constexpr
):
    """One block a unit, which takes pieces of work in turn: a tile of 128 columns of a batch entry."""
    dtype: gl.constexpr = x_d.dtype
    y_s = gl.allocate_shared_memory(dtype, [2 * KW, C.bd], gl.NVMMASharedLayout.get_default_for([2 * KW, C.bd], dtype))
    x_s = gl.allocate_shared_memory(dtype, [C.stages, C.m, C.bd], gl.NVMMASharedLayout.get_default_for([C.m, C.bd], dtype))
    x_full, x_empty = ring(C.stages, 1, 2)
    w_s = y_s
    g_s = x_s
    g_full = x_full
    g_empty = x_empty
    if C.leaves == 2:
        w_s = gl.allocate_shared_memory(dtype, [2 * KW, C.bdv], gl.NVMMASharedLayout.get_default_for([2 * KW, C.bdv], dtype))
        g_s = gl.allocate_shared_memory(dtype, [C.stages, C.m, C.bdv], gl.NVMMASharedLayout.get_default_for([C.m, C.bdv], dtype))
        g_full, g_empty = ring(C.stages, 1, 2)
    e_s = x_s
    o_s = x_s
    e_full = x_full
    e_empty = x_empty
    o_full = x_full
    o_empty = x_empty
    if C.row_sum >= 0:
        OD: gl.constexpr = C.bdo // 2 if C.m == 64 else C.bdo
        e_s = gl.allocate_shared_memory(dtype, [C.exchanges, 2 * KW, C.m], gl.NVMMASharedLayout.get_default_for([2 * KW, C.m], dtype))
        o_s = gl.allocate_shared_memory(gl.float32, [2, 64, OD], gl.NVMMASharedLayout.get_default_for([64, OD], gl.float32))
        e_full, e_empty = ring(C.exchanges, 2, 2)
        o_full, o_empty = ring(2, 1, 1)
    line: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    vectors = ()
    KINDS: gl.constexpr = C.kinds
    for v in gl.static_range(len(KINDS)):
        if KINDS[v] < 0:
            vectors = vectors + (0,)
        elif KINDS[v] == 0:
            vectors = vectors + (gl.allocate_shared_memory(gl.float32, [C.stages, C.m], line),)
        else:
            vectors = vectors + (gl.allocate_shared_memory(gl.int32, [C.stages, C.m], line),)
    bounds = ()
    if C.mask:
        bounds = (gl.allocate_shared_memory(gl.int32, [C.stages, C.m], line), gl.allocate_shared_memory(gl.int32, [C.stages, C.m], line))
    buffers = (y_s, w_s, x_s, g_s, e_s, o_s, vectors, bounds)
    barriers = (barrier(1), barrier(2), x_full, x_empty, g_full, g_empty, e_full, e_empty, o_full, o_empty)
    shared = (sd, sds, F, I, unit, n, k)
    work = (items, tiles, entries, row_tiles, section, kept, summed, inner)
    rows_in = (rd, rds)
    cols_in = (cd, cds)
    if C.row_sum >= 0:
        gl.warp_specialize(
            [
                (fold_columns, (buffers, barriers, ranges, cols_in, shared, work, out, 0, C)),
                (fold_columns, (buffers, barriers, ranges, cols_in, shared, work, out, 1, C)),
                (load_all, (x_d, g_d, y_d, w_d, buffers, barriers, ranges, rows_in, shared, work, C)),
                (add_rows, (o_d, buffers, barriers, ranges, shared, work, C)),
            ],
            [4, 1, 1],
            [240, 24, 24],
        )
    else:
        gl.warp_specialize(
            [
                (fold_columns, (buffers, barriers, ranges, cols_in, shared, work, out, 0, C)),
                (fold_columns, (buffers, barriers, ranges, cols_in, shared, work, out, 1, C)),
                (load_all, (x_d, g_d, y_d, w_d, buffers, barriers, ranges, rows_in, shared, work, C)),
            ],
            [4, 1],
            [240, 24],
        )
