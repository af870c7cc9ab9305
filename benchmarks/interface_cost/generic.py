"""Two warp-specialised loops for sm_90 that know tiles and nothing of what is folded.

stream_rows  for a row tile resident in shared memory, stream the columns: S = X Y^T by WGMMA, s = score(S, ...),
             state = step(state, s); with a payload also acc = acc alpha + P V, where P V of tile i-1 runs beside
             step of tile i.
             Traffic: X once, Y and V once a row tile (from L2).
stream_cols  for a column tile resident in shared memory, stream the rows: S^T = Y X^T, T^T = W G^T, P = weight(S),
             dS = dscore(P, T); accW += P^T G and accY += dS^T X in registers, outX += dS Y by TMA reduce-add in
             float32.
Fold, score and weights are plain triton.jit functions that come in as constexpr parameters (folds.py).
"""

from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

# the name moved between versions of triton
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@builtin
def reduce_add_tile(desc, coord, src, _semantic=None):
    """Add a shared-memory tile to device memory through the TMA unit."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)


@gluon.jit
def narrow(p, dtype: gl.constexpr):
    """float32 to 16 bits in pairs: one packed conversion for two values."""
    if dtype == gl.bfloat16:
        h = gl.inline_asm_elementwise(
            "cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [p], dtype=gl.bfloat16, is_pure=True, pack=2
        )
    else:
        h = gl.inline_asm_elementwise(
            "cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [p], dtype=gl.float16, is_pure=True, pack=2
        )
    return h


@gluon.jit
def widen(h):
    """The pairs of narrow() back to float32; bf16 by shift and mask, off the conversion pipe."""
    if h.dtype == gl.bfloat16:
        p = gl.inline_asm_elementwise(
            "shl.b32 $0, $2, 16; and.b32 $1, $2, 0xffff0000;", "=r,=r,r", [h], dtype=gl.float32, is_pure=True, pack=2
        )
    else:
        p = gl.inline_asm_elementwise(
            "{.reg .f16 a, b; mov.b32 {a, b}, $2; cvt.f32.f16 $0, a; cvt.f32.f16 $1, b;}",
            "=r,=r,r",
            [h],
            dtype=gl.float32,
            is_pure=True,
            pack=2,
        )
    return p


@gluon.jit
def to_parts(s, G: gl.constexpr):
    """[BM, BK] in the WGMMA layout -> [BM, 4 G, BK / 4 G]: a part is what a lane holds of one of G stretches.

    Part w holds columns w // 4 * (BK / G) + 2 (w % 4) + 8 j + e for j < BK / 8 G, e < 2. Moves nothing.
    """
    BM: gl.constexpr = s.shape[0]
    BK: gl.constexpr = s.shape[1]
    return s.reshape([BM, G, BK // (8 * G), 4, 2]).permute((0, 1, 3, 2, 4)).reshape([BM, 4 * G, BK // (4 * G)])


@gluon.jit
def from_parts(p, G: gl.constexpr, layout: gl.constexpr):
    BM: gl.constexpr = p.shape[0]
    BK: gl.constexpr = p.shape[1] * p.shape[2]
    p = p.reshape([BM, G, 4, BK // (8 * G), 2]).permute((0, 1, 3, 2, 4)).reshape([BM, BK])
    return gl.convert_layout(p, layout)


@gluon.jit
def initial(STATE: gl.constexpr, given, row0, BM: gl.constexpr, W: gl.constexpr, LANES: gl.constexpr):
    """The fold's first state, in the layouts that reductions of a tile have."""
    state = ()
    for j in gl.static_range(len(STATE)):
        if STATE[j][2] == 2:
            rows = row0 + gl.arange(0, BM, layout=gl.SliceLayout(1, gl.SliceLayout(2, LANES)))
            state = state + (gl.load(given[STATE[j][0]] + rows),)
        elif STATE[j][2] == 0:
            state = state + (
                gl.full([BM], STATE[j][0], STATE[j][1], layout=gl.SliceLayout(1, gl.SliceLayout(2, LANES))),
            )
        else:
            state = state + (gl.full([BM, W], STATE[j][0], STATE[j][1], layout=gl.SliceLayout(2, LANES)),)
    return state


@gluon.jit
def join_parts(
    state, STATE: gl.constexpr, CLOSE: gl.constexpr, MERGE: gl.constexpr, unit, W: gl.constexpr, LANES: gl.constexpr
):
    """One state a row from one a part: give every thread whole rows, then halve log2 W times. Runs once."""
    BM: gl.constexpr = state[0].shape[0]
    part = gl.arange(0, W, layout=gl.SliceLayout(0, gl.SliceLayout(2, LANES)))[None, :]
    part = part + gl.full([BM, W], 0, gl.int32, layout=gl.SliceLayout(2, LANES))
    wide = ()
    for j in gl.static_range(len(STATE)):
        if STATE[j][2] != 1:
            wide = wide + (state[j][:, None] + gl.full([BM, W], 0, state[j].dtype, layout=gl.SliceLayout(2, LANES)),)
        else:
            wide = wide + (state[j],)
    wide = CLOSE(wide, part)
    rows: gl.constexpr = gl.BlockedLayout([1, W], [32, 1], [4, 1], [1, 0])
    whole = ()
    for j in gl.static_range(len(wide)):
        whole = whole + (gl.convert_layout(wide[j], rows),)
    return _halve(whole, MERGE, unit, W)


@gluon.jit
def _halve(state, MERGE: gl.constexpr, unit, W: gl.constexpr):
    BM: gl.constexpr = state[0].shape[0]
    if W == 1:
        out = ()
        for j in gl.static_range(len(state)):
            out = out + (state[j].reshape([BM]),)
    else:
        left = ()
        right = ()
        for j in gl.static_range(len(state)):
            a, b = gl.split(state[j].reshape([BM, 2, W // 2]).permute((0, 2, 1)))
            left = left + (a,)
            right = right + (b,)
        out = _halve(MERGE(left, right, unit), MERGE, unit, W // 2)
    return out


@gluon.jit
def await_turn(token, WG: gl.constexpr):
    """Wait until the other group has issued its products: named barrier 8 or 9, which triton does not use."""
    if WG == 0:
        token = gl.inline_asm_elementwise(
            "bar.sync 8, 256; mov.b32 $0, $1;", "=r,r", [token], dtype=gl.int32, is_pure=False, pack=1
        )
    else:
        token = gl.inline_asm_elementwise(
            "bar.sync 9, 256; mov.b32 $0, $1;", "=r,r", [token], dtype=gl.int32, is_pure=False, pack=1
        )
    return token


@gluon.jit
def pass_turn(token, WG: gl.constexpr):
    if WG == 0:
        token = gl.inline_asm_elementwise(
            "bar.arrive 9, 256; mov.b32 $0, $1;", "=r,r", [token], dtype=gl.int32, is_pure=False, pack=1
        )
    else:
        token = gl.inline_asm_elementwise(
            "bar.arrive 8, 256; mov.b32 $0, $1;", "=r,r", [token], dtype=gl.int32, is_pure=False, pack=1
        )
    return token


@gluon.jit
def column_data(col_bufs, st, first, layout: gl.constexpr, BK: gl.constexpr, HAS_COL: gl.constexpr):
    """Per-column data of a tile, [1, BK]: from shared memory, or with HAS_COL == 2 from device memory."""
    if HAS_COL == 2:
        col = gl.load(col_bufs + first + gl.arange(0, BK, layout=layout))[None, :]
    elif HAS_COL:
        col = col_bufs.index(st).load(layout)[None, :]
    else:
        col = gl.full([BK], 0, gl.float32, layout=layout)[None, :]
    return col


@gluon.jit
def rows_consumer(
    bufs,
    bars,
    outs,
    given,
    sink,
    acc_ptr,
    N,
    K,
    row0,
    batch,
    unit,
    WG: gl.constexpr,
    BM: gl.constexpr,
    BK: gl.constexpr,
    DV: gl.constexpr,
    ST: gl.constexpr,
    G: gl.constexpr,
    HAS_COL: gl.constexpr,
    HAS_V: gl.constexpr,
    APPEND: gl.constexpr,
    ORDER: gl.constexpr,
    STATE: gl.constexpr,
    SCORE: gl.constexpr,
    STEP: gl.constexpr,
    CLOSE: gl.constexpr,
    MERGE: gl.constexpr,
    FINISH: gl.constexpr,
):
    x_bufs, y_bufs, v_bufs, col_bufs = bufs
    xbar, yfull, yempty, vfull, vempty = bars
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, BK, 16])
    amma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, DV, 16])
    scol: gl.constexpr = gl.SliceLayout(0, smma)
    arow: gl.constexpr = gl.SliceLayout(1, amma)
    pdot: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=amma, k_width=2)
    W: gl.constexpr = 4 * G
    x = x_bufs.index(WG)
    zero = gl.full([BM, BK], 0, gl.float32, layout=smma)
    offs = to_parts(gl.arange(0, BK, layout=scol)[None, :] + gl.full([BM, BK], 0, gl.int32, layout=smma), G)
    LANES: gl.constexpr = offs.type.layout
    state = initial(STATE, given, batch * N + row0 + WG * BM, BM, W, LANES)
    CAP: gl.constexpr = APPEND
    n = K // BK
    mbarrier.wait(xbar, 0)
    if HAS_V:
        # tile 0 alone; from then on P V of tile i-1 runs during the fold of tile i
        mbarrier.wait(yfull.index(0), 0)
        s = warpgroup_mma(x, y_bufs.index(0).permute((1, 0)), zero, use_acc=False, is_async=True)
        col0 = column_data(col_bufs, 0, batch * K, scol, BK, HAS_COL)
        s = warpgroup_mma_wait(0, deps=(s,))
        mbarrier.arrive(yempty.index(0), count=1)
        state, alpha0, p = STEP(state, to_parts(SCORE(s, 0.0, col0), G), offs, 0, unit)
        p16 = gl.convert_layout(narrow(from_parts(p, G, smma), v_bufs.dtype), pdot)
        acc = gl.full([BM, DV], 0, gl.float32, layout=amma)
        mbarrier.wait(vfull.index(0), 0)
        for i in range(1, n):
            st = i % ST
            ph = (i // ST) & 1
            prev = (i - 1) % ST
            mbarrier.wait(yfull.index(st), ph)
            s = warpgroup_mma(x, y_bufs.index(st).permute((1, 0)), zero, use_acc=False, is_async=True)
            acc = warpgroup_mma(p16, v_bufs.index(prev), acc, is_async=True)
            col = column_data(col_bufs, st, batch * K + i * BK, scol, BK, HAS_COL)
            s = warpgroup_mma_wait(1, deps=(s,))
            mbarrier.arrive(yempty.index(st), count=1)
            state, alpha, p = STEP(state, to_parts(SCORE(s, 0.0, col), G), offs + i * BK, i * BK, unit)
            # this spin wait keeps ptxas from moving the wait for P V above the fold's arithmetic
            mbarrier.wait(vfull.index(st), ph)
            acc = warpgroup_mma_wait(0, deps=(acc,))
            mbarrier.arrive(vempty.index(prev), count=1)
            acc = acc * gl.convert_layout(alpha, arow)[:, None]
            p16 = gl.convert_layout(narrow(from_parts(p, G, smma), v_bufs.dtype), pdot)
        acc = warpgroup_mma(p16, v_bufs.index((n - 1) % ST), acc, is_async=True)
        acc = warpgroup_mma_wait(0, deps=(acc,))
    else:
        if APPEND:
            # a private segment of CAP entries for each (row, part): no atomics, and the order never varies
            key_ptr, first_ptr, count_ptr = sink
            ar = row0 + WG * BM + gl.arange(0, BM, layout=gl.SliceLayout(1, gl.SliceLayout(2, LANES)))
            at_part = (batch * N + ar)[:, None] * W + gl.arange(
                0, W, layout=gl.SliceLayout(0, gl.SliceLayout(2, LANES))
            )[None, :]
            seg = at_part * CAP
            count = gl.full([BM, W], 0, gl.int32, layout=gl.SliceLayout(2, LANES))
        if ORDER:
            token = gl.arange(0, 128, layout=gl.BlockedLayout([1], [32], [4], [0]))
            if ORDER == 1 and WG == 1:
                token = pass_turn(token, WG)
        for i in range(n):
            st = i % ST
            if HAS_COL == 2:
                col = column_data(col_bufs, st, batch * K + i * BK, scol, BK, HAS_COL)
            mbarrier.wait(yfull.index(st), (i // ST) & 1)
            if ORDER == 1:
                token = await_turn(token, WG)
            elif ORDER == 2 and WG == 1:
                if i == 0:
                    token = await_turn(token, WG)
            s = warpgroup_mma(x, y_bufs.index(st).permute((1, 0)), zero, use_acc=False, is_async=True)
            if ORDER == 1:
                token = pass_turn(token, WG)
            elif ORDER == 2 and WG == 0:
                if i == 0:
                    token = pass_turn(token, WG)
            if HAS_COL != 2:
                col = column_data(col_bufs, st, batch * K + i * BK, scol, BK, HAS_COL)
            s = warpgroup_mma_wait(0, deps=(s,))
            mbarrier.arrive(yempty.index(st), count=1)
            if APPEND:
                state, hit, key = STEP(state, to_parts(SCORE(s, 0.0, col), G), offs + i * BK, i * BK, unit)
                gl.store(key_ptr + (seg + count), key, mask=hit)
                gl.store(first_ptr + (seg + count), count * 0 + i * BK, mask=hit)
                count = gl.minimum(count + hit.to(gl.int32), CAP - 1)
            else:
                state = STEP(state, to_parts(SCORE(s, 0.0, col), G), offs + i * BK, i * BK, unit)
    if APPEND:
        gl.store(count_ptr + at_part, count)
    if not APPEND:
        result = FINISH(join_parts(state, STATE, CLOSE, MERGE, unit, W, LANES), unit)
        flat: gl.constexpr = result[0].type.layout
        rows = row0 + WG * BM + gl.arange(0, BM, layout=flat)
        for j in gl.static_range(len(outs)):
            gl.store(outs[j] + batch * N + rows, result[j], mask=rows < N)
    if HAS_V:
        acc = acc * gl.convert_layout(result[len(outs)], arow)[:, None]
        ar = row0 + WG * BM + gl.arange(0, BM, layout=arow)
        ac = gl.arange(0, DV, layout=gl.SliceLayout(0, amma))
        at = acc_ptr + (batch * N + ar).to(gl.int64)[:, None] * DV + ac[None, :]
        gl.store(at, acc.to(acc_ptr.dtype.element_ty), mask=(ar < N)[:, None])


@gluon.jit
def rows_producer(
    x_d,
    y_d,
    v_d,
    col_d,
    bufs,
    bars,
    N,
    K,
    row0,
    batch,
    BM: gl.constexpr,
    BK: gl.constexpr,
    ST: gl.constexpr,
    NWG: gl.constexpr,
    HAS_COL: gl.constexpr,
    HAS_V: gl.constexpr,
):
    x_bufs, y_bufs, v_bufs, col_bufs = bufs
    xbar, yfull, yempty, vfull, vempty = bars
    mbarrier.expect(xbar, NWG * x_d.block_type.nbytes)
    for w in gl.static_range(NWG):
        load_tile(x_d, [batch * N + row0 + w * BM, 0], xbar, x_bufs.index(w))
    for i in range(K // BK):
        st = i % ST
        free = ((i // ST) & 1) ^ 1
        at = batch * K + i * BK
        mbarrier.wait(yempty.index(st), free)
        if HAS_COL == 1:
            mbarrier.expect(yfull.index(st), y_d.block_type.nbytes + col_d.block_type.nbytes)
            load_tile(col_d, [at], yfull.index(st), col_bufs.index(st))
        else:
            mbarrier.expect(yfull.index(st), y_d.block_type.nbytes)
        load_tile(y_d, [at, 0], yfull.index(st), y_bufs.index(st))
        if HAS_V:
            mbarrier.wait(vempty.index(st), free)
            mbarrier.expect(vfull.index(st), v_d.block_type.nbytes)
            load_tile(v_d, [at, 0], vfull.index(st), v_bufs.index(st))


@gluon.jit
def ring(ST: gl.constexpr, full_count: gl.constexpr, empty_count: gl.constexpr):
    """Barriers of a ring of ST stages."""
    full = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [ST, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(ST):
        mbarrier.init(full.index(i), count=full_count)
        mbarrier.init(empty.index(i), count=empty_count)
    return full, empty


@gluon.jit
def stream_rows(
    x_d,
    y_d,
    v_d,
    col_d,
    outs,
    given,
    sink,
    acc_ptr,
    N,
    K,
    unit,
    BM: gl.constexpr,
    BK: gl.constexpr,
    DV: gl.constexpr,
    ST: gl.constexpr,
    NWG: gl.constexpr,
    G: gl.constexpr,
    HAS_COL: gl.constexpr,
    HAS_V: gl.constexpr,
    APPEND: gl.constexpr,
    ORDER: gl.constexpr,
    STATE: gl.constexpr,
    SCORE: gl.constexpr,
    STEP: gl.constexpr,
    CLOSE: gl.constexpr,
    MERGE: gl.constexpr,
    FINISH: gl.constexpr,
):
    """Grid: (row tiles of NWG * BM, batch).

    K is a multiple of BK; v_d and col_d may be any descriptor where HAS_* is false.

    HAS_COL: 1 = column data by TMA, 2 = col_d is a pointer and the groups read it themselves.
    ORDER (2 groups, no payload): 1 = the groups take turns at issuing a tile's products, so that the fold of one runs
    beside the products of the other; 2 = only the first tile is ordered. The turn is passed on once the products are
    issued, not when they are done, so that the tensor cores never idle between the groups.
    APPEND > 0: the fold says which parts of a tile to keep; sink = (keys, first columns, counts), APPEND entries a
    segment; no results beside that.
    """
    gl.static_assert(ORDER == 0 or (NWG == 2 and not HAS_V))
    XB: gl.constexpr = 2 if NWG == 2 else 4
    x_bufs = gl.allocate_shared_memory(x_d.dtype, [XB] + x_d.block_type.shape, x_d.layout)
    y_bufs = gl.allocate_shared_memory(y_d.dtype, [ST] + y_d.block_type.shape, y_d.layout)
    v_bufs = y_bufs
    col_bufs = y_bufs
    yfull, yempty = ring(ST, 1, NWG)
    vfull = yfull
    vempty = yempty
    if HAS_V:
        v_bufs = gl.allocate_shared_memory(v_d.dtype, [ST] + v_d.block_type.shape, v_d.layout)
        vfull, vempty = ring(ST, 1, NWG)
    if HAS_COL == 2:
        col_bufs = col_d
    elif HAS_COL:
        col_bufs = gl.allocate_shared_memory(col_d.dtype, [ST] + col_d.block_type.shape, col_d.layout)
    xbar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(xbar, count=1)
    row0 = gl.program_id(0) * (NWG * BM)
    batch = gl.program_id(1)
    bufs = (x_bufs, y_bufs, v_bufs, col_bufs)
    bars = (xbar, yfull, yempty, vfull, vempty)
    if NWG == 2:
        gl.warp_specialize(
            [
                (
                    rows_consumer,
                    (
                        bufs,
                        bars,
                        outs,
                        given,
                        sink,
                        acc_ptr,
                        N,
                        K,
                        row0,
                        batch,
                        unit,
                        0,
                        BM,
                        BK,
                        DV,
                        ST,
                        G,
                        HAS_COL,
                        HAS_V,
                        APPEND,
                        ORDER,
                        STATE,
                        SCORE,
                        STEP,
                        CLOSE,
                        MERGE,
                        FINISH,
                    ),
                ),
                (
                    rows_consumer,
                    (
                        bufs,
                        bars,
                        outs,
                        given,
                        sink,
                        acc_ptr,
                        N,
                        K,
                        row0,
                        batch,
                        unit,
                        1,
                        BM,
                        BK,
                        DV,
                        ST,
                        G,
                        HAS_COL,
                        HAS_V,
                        APPEND,
                        ORDER,
                        STATE,
                        SCORE,
                        STEP,
                        CLOSE,
                        MERGE,
                        FINISH,
                    ),
                ),
                (rows_producer, (x_d, y_d, v_d, col_d, bufs, bars, N, K, row0, batch, BM, BK, ST, NWG, HAS_COL, HAS_V)),
            ],
            [4, 1],
            [240, 24],
        )
    else:
        gl.warp_specialize(
            [
                (
                    rows_consumer,
                    (
                        bufs,
                        bars,
                        outs,
                        given,
                        sink,
                        acc_ptr,
                        N,
                        K,
                        row0,
                        batch,
                        unit,
                        0,
                        BM,
                        BK,
                        DV,
                        ST,
                        G,
                        HAS_COL,
                        HAS_V,
                        APPEND,
                        ORDER,
                        STATE,
                        SCORE,
                        STEP,
                        CLOSE,
                        MERGE,
                        FINISH,
                    ),
                ),
                (
                    rows_consumer,
                    (
                        bufs,
                        bars,
                        outs,
                        given,
                        sink,
                        acc_ptr,
                        N,
                        K,
                        row0,
                        batch,
                        unit,
                        1,
                        BM,
                        BK,
                        DV,
                        ST,
                        G,
                        HAS_COL,
                        HAS_V,
                        APPEND,
                        ORDER,
                        STATE,
                        SCORE,
                        STEP,
                        CLOSE,
                        MERGE,
                        FINISH,
                    ),
                ),
                (
                    rows_consumer,
                    (
                        bufs,
                        bars,
                        outs,
                        given,
                        sink,
                        acc_ptr,
                        N,
                        K,
                        row0,
                        batch,
                        unit,
                        2,
                        BM,
                        BK,
                        DV,
                        ST,
                        G,
                        HAS_COL,
                        HAS_V,
                        APPEND,
                        ORDER,
                        STATE,
                        SCORE,
                        STEP,
                        CLOSE,
                        MERGE,
                        FINISH,
                    ),
                ),
                (rows_producer, (x_d, y_d, v_d, col_d, bufs, bars, N, K, row0, batch, BM, BK, ST, NWG, HAS_COL, HAS_V)),
            ],
            [4, 4, 1],
            [160, 160, 24],
        )


@gluon.jit
def cols_consumer(
    bufs,
    bars,
    outy_ptr,
    outw_ptr,
    K,
    N,
    col0,
    batch,
    unit,
    WG: gl.constexpr,
    M: gl.constexpr,
    NK: gl.constexpr,
    D: gl.constexpr,
    ST: gl.constexpr,
    TB: gl.constexpr,
    WEIGHT: gl.constexpr,
    DSCORE: gl.constexpr,
):
    y_s, w_s, x_bufs, g_bufs, a_bufs, b_bufs, t_bufs, o_bufs = bufs
    ybar, xfull, xempty, gfull, gempty, tfull, tempty, ofull, oempty = bars
    KW: gl.constexpr = NK // 2  # this group's columns
    OM: gl.constexpr = 64  # this group's share of dX: all rows and half the features, or half the rows
    OD: gl.constexpr = D // 2 if M == 64 else D
    smma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, M, 16])
    amma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, D, 16])
    omma: gl.constexpr = gl.NVMMADistributedLayout(version=[3, 0], warps_per_cta=[4, 1], instr_shape=[16, OD, 16])
    adot: gl.constexpr = gl.DotOperandLayout(operand_index=0, parent=amma, k_width=2)
    srow: gl.constexpr = gl.SliceLayout(0, smma)
    dtype: gl.constexpr = x_bufs.dtype
    y = y_s.slice(WG * KW, KW, dim=0)
    w = w_s.slice(WG * KW, KW, dim=0)
    szero = gl.full([KW, M], 0, gl.float32, layout=smma)
    ozero = gl.full([OM, OD], 0, gl.float32, layout=omma)
    acc_y = gl.full([KW, D], 0, gl.float32, layout=amma)
    acc_w = gl.full([KW, D], 0, gl.float32, layout=amma)
    mbarrier.wait(ybar, 0)
    for i in range(N // M):
        st = i % ST
        ph = (i // ST) & 1
        tb = i % TB
        tph = (i // TB) & 1
        x = x_bufs.index(st)
        g = g_bufs.index(st)
        # S^T and T^T [KW, M]; the weight of S is made while T^T is on its way
        mbarrier.wait(xfull.index(st), ph)
        s = warpgroup_mma(y, x.permute((1, 0)), szero, use_acc=False, is_async=True)
        mbarrier.wait(gfull.index(st), ph)
        t = warpgroup_mma(w, g.permute((1, 0)), szero, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(1, deps=(s,))
        p16 = narrow(WEIGHT(s, a_bufs.index(st).load(srow)[None, :], unit), dtype)
        pd = gl.convert_layout(p16, adot)
        t = warpgroup_mma_wait(0, deps=(t,))
        acc_w = warpgroup_mma(pd, g, acc_w, is_async=True)
        # dS stays in registers for accY and goes through shared memory for dX, which needs both groups' columns
        d16 = narrow(DSCORE(widen(p16), t, b_bufs.index(st).load(srow)[None, :], unit), dtype)
        mbarrier.wait(tempty.index(tb), tph ^ 1)
        t_bufs.index(tb).slice(WG * KW, KW, dim=0).store(d16)
        fence_async_shared()
        mbarrier.arrive(tfull.index(tb), count=1)
        acc_y = warpgroup_mma(gl.convert_layout(d16, adot), x, acc_y, is_async=True)
        mbarrier.wait(tfull.index(tb), tph)
        if M == 64:
            o = warpgroup_mma(
                t_bufs.index(tb).permute((1, 0)), y_s.slice(WG * OD, OD, dim=1), ozero, use_acc=False, is_async=True
            )
        else:
            o = warpgroup_mma(
                t_bufs.index(tb).slice(WG * OM, OM, dim=1).permute((1, 0)), y_s, ozero, use_acc=False, is_async=True
            )
        acc_w = warpgroup_mma_wait(2, deps=(acc_w,))
        mbarrier.arrive(gempty.index(st), count=1)
        acc_y = warpgroup_mma_wait(1, deps=(acc_y,))
        mbarrier.arrive(xempty.index(st), count=1)
        o = warpgroup_mma_wait(0, deps=(o,))
        mbarrier.arrive(tempty.index(tb), count=1)
        mbarrier.wait(oempty.index(WG), (i & 1) ^ 1)
        o_bufs.index(WG).store(o)
        fence_async_shared()
        mbarrier.arrive(ofull.index(WG), count=1)
    r = col0 + WG * KW + gl.arange(0, KW, layout=gl.SliceLayout(1, amma))
    at = (batch * K + r).to(gl.int64)[:, None] * D + gl.arange(0, D, layout=gl.SliceLayout(0, amma))[None, :]
    gl.store(outw_ptr + at, acc_w.to(outw_ptr.dtype.element_ty), mask=(r < K)[:, None])
    gl.store(outy_ptr + at, acc_y.to(outy_ptr.dtype.element_ty), mask=(r < K)[:, None])


@gluon.jit
def cols_producer(x_d, g_d, y_d, w_d, a_d, b_d, bufs, bars, K, N, col0, batch, M: gl.constexpr, ST: gl.constexpr):
    y_s, w_s, x_bufs, g_bufs, a_bufs, b_bufs, t_bufs, o_bufs = bufs
    ybar, xfull, xempty, gfull, gempty, tfull, tempty, ofull, oempty = bars
    mbarrier.expect(ybar, y_d.block_type.nbytes + w_d.block_type.nbytes)
    load_tile(y_d, [batch * K + col0, 0], ybar, y_s)
    load_tile(w_d, [batch * K + col0, 0], ybar, w_s)
    for i in range(N // M):
        st = i % ST
        free = ((i // ST) & 1) ^ 1
        at = batch * N + i * M
        mbarrier.wait(xempty.index(st), free)
        mbarrier.expect(xfull.index(st), x_d.block_type.nbytes + a_d.block_type.nbytes)
        load_tile(a_d, [at], xfull.index(st), a_bufs.index(st))
        load_tile(x_d, [at, 0], xfull.index(st), x_bufs.index(st))
        mbarrier.wait(gempty.index(st), free)
        mbarrier.expect(gfull.index(st), g_d.block_type.nbytes + b_d.block_type.nbytes)
        load_tile(b_d, [at], gfull.index(st), b_bufs.index(st))
        load_tile(g_d, [at, 0], gfull.index(st), g_bufs.index(st))


@gluon.jit
def cols_writer(o_d, bufs, bars, N, batch, M: gl.constexpr, D: gl.constexpr):
    """Adds the groups' shares of dX to device memory, from a warp of its own so that no group waits for it."""
    y_s, w_s, x_bufs, g_bufs, a_bufs, b_bufs, t_bufs, o_bufs = bufs
    ybar, xfull, xempty, gfull, gempty, tfull, tempty, ofull, oempty = bars
    for i in range(N // M):
        for w in gl.static_range(2):
            mbarrier.wait(ofull.index(w), i & 1)
            if M == 64:
                reduce_add_tile(o_d, [batch * N + i * M, w * (D // 2)], o_bufs.index(w))
            else:
                reduce_add_tile(o_d, [batch * N + i * M + w * 64, 0], o_bufs.index(w))
            tma.store_wait(0)
            mbarrier.arrive(oempty.index(w), count=1)


@gluon.jit
def stream_cols(
    x_d,
    g_d,
    y_d,
    w_d,
    o_d,
    a_d,
    b_d,
    outy_ptr,
    outw_ptr,
    N,
    K,
    unit,
    M: gl.constexpr,
    NK: gl.constexpr,
    D: gl.constexpr,
    ST: gl.constexpr,
    TB: gl.constexpr,
    WEIGHT: gl.constexpr,
    DSCORE: gl.constexpr,
):
    """Grid: (column tiles of NK, batch). N is a multiple of M, M is 64 or 128. The caller zeroes outX.

    The wait for a free exchange buffer stands after the derivative's arithmetic. Before the wait for T it would keep
    ptxas from moving that wait above the weight's exp2, as in the loop over rows; here that measured 5 % slower.

    a and b are statistics of the rows: weight(S, a, unit), dscore(P, T, b, unit).
    """
    y_s = gl.allocate_shared_memory(y_d.dtype, y_d.block_type.shape, y_d.layout)
    w_s = gl.allocate_shared_memory(w_d.dtype, w_d.block_type.shape, w_d.layout)
    x_bufs = gl.allocate_shared_memory(x_d.dtype, [ST] + x_d.block_type.shape, x_d.layout)
    g_bufs = gl.allocate_shared_memory(g_d.dtype, [ST] + g_d.block_type.shape, g_d.layout)
    tlayout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([NK, M], x_d.dtype)
    t_bufs = gl.allocate_shared_memory(x_d.dtype, [TB, NK, M], tlayout)
    o_bufs = gl.allocate_shared_memory(gl.float32, [2] + o_d.block_type.shape, o_d.layout)
    a_bufs = gl.allocate_shared_memory(gl.float32, [ST] + a_d.block_type.shape, a_d.layout)
    b_bufs = gl.allocate_shared_memory(gl.float32, [ST] + b_d.block_type.shape, b_d.layout)
    xfull, xempty = ring(ST, 1, 2)
    gfull, gempty = ring(ST, 1, 2)
    tfull, tempty = ring(TB, 2, 2)
    ofull, oempty = ring(2, 1, 1)
    ybar = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ybar, count=1)
    col0 = gl.program_id(0) * NK
    batch = gl.program_id(1)
    bufs = (y_s, w_s, x_bufs, g_bufs, a_bufs, b_bufs, t_bufs, o_bufs)
    bars = (ybar, xfull, xempty, gfull, gempty, tfull, tempty, ofull, oempty)
    gl.warp_specialize(
        [
            (
                cols_consumer,
                (bufs, bars, outy_ptr, outw_ptr, K, N, col0, batch, unit, 0, M, NK, D, ST, TB, WEIGHT, DSCORE),
            ),
            (
                cols_consumer,
                (bufs, bars, outy_ptr, outw_ptr, K, N, col0, batch, unit, 1, M, NK, D, ST, TB, WEIGHT, DSCORE),
            ),
            (cols_producer, (x_d, g_d, y_d, w_d, a_d, b_d, bufs, bars, K, N, col0, batch, M, ST)),
            (cols_writer, (o_d, bufs, bars, N, batch, M, D)),
        ],
        [4, 1, 1],
        [240, 24, 24],
    )
