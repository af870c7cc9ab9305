"""Large-k selection: a threshold per row, then every chunk of columns whose maximum reaches it is kept, then the best of those.

    sample_kernel    a share of the columns, spread over all of them: the largest score of each of many groups of it
    tau_kernel       tau = the r-th largest group: more than k scores of the row reach it, all but surely
    append_kernel    all columns: (maximum, tile) of each chunk with maximum >= tau, to the chunk place's own segment of the row
    select_kernel    the chunks with maximum >= that of the k-th best chunk; ties included
    rescore_kernel   their members' scores again, as keys that sort by score, then by column
    sort_kernel      the k best keys

Exact whatever tau is, if it is not -inf: where at least k chunks were kept, k scores reach tau, so the k best do, and each lies in a kept
chunk. A row with fewer, a full segment, or more ties than there is room for is flagged and made again by other means (lists.py).
NaN goes before all scores and hits every threshold.

A chunk is C columns of a tile that one thread holds after a matrix product: pairs 8 columns apart. So nothing crosses threads, no step
depends on data, and loads run ahead: about two instructions a score. Traffic beside the product's: 8 bytes for each kept chunk.
"""

import triton
import triton.language as tl

from ...folds.parts_jit import INTERPRETED, nan_max
from .rows import column_range, leaf_products, see
from .tile import batch_offsets, coordinates, load_matrix, load_scalars, load_tiles, load_vectors

LOWEST = tl.constexpr(-(2**31))  # below the key of -inf: no score
HIGHEST = tl.constexpr(2**31 - 1)  # NaN
EMPTY = tl.constexpr(-(2**63))


@triton.jit
def key_of(v):
    """A float32 as an int32 of the same order; NaN above all, -0 as 0."""
    b = tl.where(v == 0.0, 0.0, v).to(tl.int32, bitcast=True)
    return tl.where(v != v, HIGHEST, tl.where(b < 0, b ^ HIGHEST, b))


@triton.jit
def score_of(key):
    v = tl.where(key < 0, key ^ HIGHEST, key).to(tl.float32, bitcast=True)
    return tl.where(key == LOWEST, -float("inf"), v)


@triton.jit
def kth_key(keys, k):
    """The k-th largest of each row of keys [B, L], bit by bit; LOWEST where fewer are there."""
    found = tl.full([keys.shape[0]], LOWEST, tl.int32)
    for bit in range(32):
        step = tl.full((), 1, tl.int32) << (31 - bit)
        tried = found + step  # wraps to 0 in the first step
        enough = tl.sum((keys >= tried[:, None]).to(tl.int32), 1) >= k
        found = tl.where(enough, tried, found)
    return found


# The interpreter runs scans and sorts element by element: there, counts over all pairs.
@triton.jit
def running_count(taken, L: tl.constexpr):
    if INTERPRETED:
        e = tl.arange(0, 16)
        b = tl.arange(0, L // 16)
        parts = tl.reshape(taken, [L // 16, 16])
        inside = tl.sum(tl.where(e[None, None, :] <= e[None, :, None], parts[:, None, :], 0), 2)
        before = tl.sum(tl.where(b[None, :] < b[:, None], tl.sum(parts, 1)[None, :], 0), 1)
        count = tl.reshape(inside + before[:, None], [L])
    else:
        count = tl.cumsum(taken, 0)
    return count


@triton.jit
def places(keys, L: tl.constexpr):
    """(keys, the place of each, from the largest on)."""
    e = tl.arange(0, L)
    if INTERPRETED:
        before = (keys[None, :] > keys[:, None]) | ((keys[None, :] == keys[:, None]) & (e[None, :] < e[:, None]))
        e = tl.sum(before.to(tl.int32), 1)
    else:
        keys = tl.sort(keys, descending=True)
    return keys, e


@triton.jit
def chunk_max(s, C: tl.constexpr):
    """[BN, BK] -> [BN, BK / 4C, 4]: the maximum over columns 4C g + 8 e + 2 t + p of e and p; NaN wins."""
    parts = tl.reshape(s, [s.shape[0], s.shape[1] // (4 * C), C // 2, 4, 2])
    if INTERPRETED:
        m = tl.where(tl.max(tl.max((parts != parts).to(tl.int32), 4), 2) > 0, float("nan"), tl.max(tl.max(parts, 4), 2))
    else:
        m = tl.reduce(tl.reduce(parts, 4, nan_max), 2, nan_max)
    return m


@triton.jit
def pair_max(s):
    parts = tl.reshape(s, [s.shape[0], s.shape[1] // 2, 2])
    if INTERPRETED:
        m = tl.where(tl.max((parts != parts).to(tl.int32), 2) > 0, float("nan"), tl.max(parts, 2))
    else:
        m = tl.reduce(parts, 2, nan_max)
    return m


@triton.jit
def append(base, at, m, tau, t, limit, step: tl.constexpr, ASM: tl.constexpr):
    """Stores (m, t) at base + at where m reaches tau, if at < limit; gives where the next entry goes.

    A tl.store goes through shared memory to a layout that the compiler thinks better, which here costs more than it saves: hence ASM.
    """
    if ASM:
        # setp.geu: "not below" lets NaN through
        at = tl.inline_asm_elementwise(
            """
            {
            .reg .pred p, q;
            .reg .b64 a;
            setp.geu.f32 p, $2, $3;
            setp.lt.and.s32 q, $1, $6, p;
            mad.wide.s32 a, $1, 8, $5;
            @q st.global.v2.b32 [a], {$4, $2};
            mov.b32 $0, $1;
            @q add.s32 $0, $1, $7;
            }
            """,
            "=&r,r,r,r,r,l,r,r", [at, m.to(tl.int32, bitcast=True), tau.to(tl.int32, bitcast=True), t, base.to(tl.int64), limit, step],
            dtype=tl.int32, is_pure=False, pack=1)
    else:
        hit = ((m < tau) == 0) & (at < limit)
        tl.store(base + at, (m.to(tl.int32, bitcast=True).to(tl.int64) << 32) | t, mask=hit)
        at = tl.where(hit, at + step, at)
    return at


@triton.jit
def operands_of(entry, rows, xs, ys, rd, rds, cds, tds, sd, sds, bs, F, I, n, k, kept, ROW: tl.constexpr, NX: tl.constexpr, NY: tl.constexpr,
                NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, NT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr,
                NK: tl.constexpr, WIDE: tl.constexpr):
    """Where a batch entry's operands start, and what varies with its rows alone."""
    at = coordinates(entry, kept, NK)
    b_off = batch_offsets(bs, len(bs), 2, at, (), NK, 0)
    sv = load_scalars(sd, batch_offsets(sds, NSC, 0, at, (), NK, 0), NSC, TSC, WIDE)
    rdv = load_vectors(rd, batch_offsets(rds, NR, 1, at, (), NK, 0), rds, rows, n, NR, TR, WIDE, True)
    rv = ROW(rdv, sv, F, I, rows, n, k, WIDE)
    return (batch_offsets(xs, NX, 2, at, (), NK, 0), batch_offsets(ys, NY, 2, at, (), NK, 0), batch_offsets(cds, NC, 1, at, (), NK, 0),
            batch_offsets(tds, NT, 2, at, (), NK, 0), b_off, sv, rdv, rv)


@triton.jit
def load_side(ptrs, offsets, strides, first, local, limit, DIMS: tl.constexpr, RESIDENT: tl.constexpr, BIG: tl.constexpr, EDGE: tl.constexpr):
    tiles = ()
    if RESIDENT:
        for v in tl.static_range(len(DIMS)):
            tiles = tiles + (load_matrix(ptrs[v], offsets[v], strides[v], first, local, limit, 0, DIMS[v][0], DIMS[v][1], DIMS[v][2],
                                         DIMS[v][3], BIG, EDGE),)
    return tiles


@triton.jit
def score_tile(x_tiles, x, xs, x_off, y, ys, y_off, rd, rv, cd, cds, c_off, td, tds, t_off, sd, block, bs, b_off, F, I, i0, i_local, rows,
               j0, j_local, n, k, lo, hi,
               BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr, XDIM: tl.constexpr,
               YDIM: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr, TT: tl.constexpr, MASK: tl.constexpr,
               BLOCK: tl.constexpr, RESIDENT: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr, WIDE: tl.constexpr,
               PRECISION: tl.constexpr, EDGE: tl.constexpr, SEE: tl.constexpr):
    """Scores of the columns j0 + j_local and which are visible. EDGE: some lie behind the last; SEE: some may be hidden."""
    cols = j0 + j_local
    y_tiles = load_side(y, y_off, ys, j0, j_local, k, YDIM, RESIDENT, BIG, EDGE)
    leaves = leaf_products(None, None, x, xs, x_off, x_tiles, y, ys, y_off, y_tiles, i0, i_local, j0, j_local, k, LEAF, XDIM, YDIM, RESIDENT, BD, BIG,
                           PRECISION, EDGE)
    c = load_vectors(cd, c_off, cds, cols, k, NC, TC, WIDE, EDGE)
    t = load_tiles(td, t_off, tds, rows, j0, j_local, n, k, NT, TT, WIDE, True)
    zero = tl.zeros([rows.shape[0], j_local.shape[0]], WIDE)
    s = SCORE(leaves, rd, rv, c, t, sd, F, I, rows, cols, n, k, zero, WIDE)[0]
    visible = zero == 0
    if SEE:
        visible = see(zero, rows, cols, n, k, lo, hi, c, sd, F, I, block, bs, b_off, BOUNDS, MASK, BLOCK, True)
    if TESTED:
        visible = visible & TEST(leaves, rd, rv, c, t, sd, F, I, rows, cols, n, k, zero, WIDE)
    if SEE or TESTED:
        s = tl.where(visible, s, -float("inf"))
    return s, visible


@triton.jit
def sample_kernel(x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, best, F, I, n, k, kept, tile0, row_tiles, round_tiles,
                  groups, each, stride,
                  ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr,
                  XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr,
                  NT: tl.constexpr, TT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
                  NK: tl.constexpr, RESIDENT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr,
                  WIDE: tl.constexpr, PRECISION: tl.constexpr):
    """best [rows of the round, groups, BK / 2]: maxima over pairs of columns of `each` sampled tiles, one column of every `stride`."""
    here = tl.program_id(0) % round_tiles
    group = tl.program_id(0) // round_tiles
    i0 = (tile0 + here) % row_tiles * BN
    i_local = tl.minimum(tl.arange(0, BN), n - 1 - i0)
    rows = i0 + i_local
    x_off, y_off, c_off, t_off, b_off, sv, rdv, rv = operands_of(
        (tile0 + here) // row_tiles, rows, xs, ys, rd, rds, cds, tds, sd, sds, bs, F, I, n, k, kept, ROW, len(XDIM), len(YDIM), NR, TR, NC, NT,
        NSC, TSC, NK, WIDE)
    lo = None
    hi = None
    if MASK == 1:
        lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
    x_tiles = load_side(x, x_off, xs, i0, i_local, 0, XDIM, RESIDENT, BIG, False)
    HALF: tl.constexpr = BK // 2
    m = tl.full([BN, HALF], -float("inf"), tl.float32)
    for t in range(group * each, (group + 1) * each):
        p = t * BK + tl.arange(0, BK)
        # a place in each stretch that no period of the columns meets
        cols = p * stride + (((p.to(tl.uint32) * 2654435761) >> 8) % tl.cast(stride, tl.uint32)).to(tl.int32)
        s, visible = score_tile(x_tiles, x, xs, x_off, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs, b_off, F, I, i0,
                                i_local, rows, 0, cols, n, k, lo, hi, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NC, TC, NT, TT, MASK,
                                BLOCK, RESIDENT, BD, True, WIDE, PRECISION, False, MASK > 0 or BLOCK[0] > 0)
        m = nan_max(m, pair_max(s))
    first = (here * BN).to(tl.int64) * groups + group
    at = (tl.arange(0, BN) * groups)[:, None] * HALF + tl.arange(0, HALF)[None, :]
    tl.store(best + first * HALF + at, m)


@triton.jit
def tau_kernel(best, tau, count, width, r, B: tl.constexpr, L: tl.constexpr):
    """The r-th largest of `width` numbers a row; +inf where there are not as many, or no finite one: such rows keep no chunk or few."""
    row = tl.program_id(0) * B + tl.arange(0, B)
    e = tl.arange(0, L)
    v = tl.load(best + row.to(tl.int64)[:, None] * width + e[None, :], mask=(row < count)[:, None] & (e < width)[None, :], other=-float("inf"))
    found = score_of(kth_key(key_of(v), r))
    found = tl.where((found == -float("inf")) | (found != found), float("inf"), found)
    tl.store(tau + row, found, mask=row < count)


@triton.jit
def append_tile(at, t, tau, base, cap, x_tiles, x, xs, x_off, y, ys, y_off, rd, rv, cd, cds, c_off, td, tds, t_off, sd, block, bs, b_off,
                F, I, i0, i_local, rows, n, k, lo, hi,
                BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr, XDIM: tl.constexpr,
                YDIM: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr, NT: tl.constexpr, TT: tl.constexpr, MASK: tl.constexpr,
                BLOCK: tl.constexpr, RESIDENT: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr, WIDE: tl.constexpr,
                PRECISION: tl.constexpr, C: tl.constexpr, ASM: tl.constexpr, EDGE: tl.constexpr):
    """Appends the chunks of one tile that reach tau; `at` [BN, BK / 4C, 4], where each place's next entry goes."""
    s, visible = score_tile(x_tiles, x, xs, x_off, y, ys, y_off, rd, rv, cd, cds, c_off, td, tds, t_off, sd, block, bs, b_off, F, I, i0,
                            i_local, rows, t * BK, tl.arange(0, BK), n, k, lo, hi, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NC, TC, NT,
                            TT, MASK, BLOCK, RESIDENT, BD, BIG, WIDE, PRECISION, EDGE, EDGE)
    m = chunk_max(s, C)
    step: tl.constexpr = s.shape[0] * (BK // C)
    return append(base, at, m, tau, t, cap * step, step, ASM)


@triton.jit
def append_kernel(x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, tau, segments, counts, F, I, n, k, kept, tile0, row_tiles,
                  round_tiles, splits, chunk, cap,
                  ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr,
                  XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr,
                  NT: tl.constexpr, TT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
                  NK: tl.constexpr, RESIDENT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr,
                  WIDE: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, ASM: tl.constexpr):
    """segments [round tiles, splits, cap, BN, BK / C] of (maximum, tile), counts [round tiles, splits, BN, BK / C]."""
    here = tl.program_id(0) % round_tiles
    split = tl.program_id(0) // round_tiles
    i0 = (tile0 + here) % row_tiles * BN
    i1 = tl.minimum(i0 + BN, n)
    i_local = tl.minimum(tl.arange(0, BN), n - 1 - i0)
    rows = i0 + i_local
    c0 = split * chunk
    c1 = tl.minimum(c0 + chunk, k)
    x_off, y_off, c_off, t_off, b_off, sv, rdv, rv = operands_of(
        (tile0 + here) // row_tiles, rows, xs, ys, rd, rds, cds, tds, sd, sds, bs, F, I, n, k, kept, ROW, len(XDIM), len(YDIM), NR, TR, NC, NT,
        NSC, TSC, NK, WIDE)
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

    x_tiles = load_side(x, x_off, xs, i0, i_local, 0, XDIM, RESIDENT, BIG, False)
    ROWS: tl.constexpr = BK // C
    local = tl.arange(0, BN)
    place = (local * ROWS)[:, None, None] + (tl.arange(0, ROWS // 4) * 4)[None, :, None] + tl.arange(0, 4)[None, None, :]
    limit = tl.load(tau + here * BN + local)[:, None, None]
    base = segments + ((here * splits + split).to(tl.int64) * cap) * (BN * ROWS)
    at = place
    for t in range(whole, whole_end):
        at = append_tile(at, t, limit, base, cap, x_tiles, x, xs, x_off, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs,
                         b_off, F, I, i0, i_local, rows, n, k, lo, hi, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NC, TC, NT, TT, MASK,
                         BLOCK, RESIDENT, BK, BD, BIG, WIDE, PRECISION, C, ASM, False)
    for e in range(whole - first + end - whole_end):
        t = first + e
        t = tl.where(t < whole, t, t - whole + whole_end)
        at = append_tile(at, t, limit, base, cap, x_tiles, x, xs, x_off, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs,
                         b_off, F, I, i0, i_local, rows, n, k, lo, hi, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NC, TC, NT, TT, MASK,
                         BLOCK, RESIDENT, BK, BD, BIG, WIDE, PRECISION, C, ASM, True)
    tl.store(counts + (here * splits + split).to(tl.int64) * (BN * ROWS) + place, at // (BN * ROWS))


@triton.jit
def select_kernel(segments, counts, chosen, flags, n, row_tiles, tile0, splits, k, CAP: tl.constexpr, BN: tl.constexpr, SLOTS: tl.constexpr,
                  L: tl.constexpr, Q: tl.constexpr):
    """chosen [rows of the round, Q]: numbers (tile * SLOTS + place) of the chunks that can hold the k best, -1 behind the last.

    L positions hold a row's segments, (split, entry, place).
    """
    pid = tl.program_id(0)
    here = pid // BN
    local = pid % BN
    p = tl.arange(0, L)
    slot = p % SLOTS
    c = p // SLOTS % CAP
    split = p // (SLOTS * CAP)
    there = split < splits
    of = (here * splits + split).to(tl.int64)
    count = tl.load(counts + (of * BN + local) * SLOTS + slot, mask=there, other=0)
    held = c < count
    entry = tl.load(segments + ((of * CAP + c) * BN + local) * SLOTS + slot, mask=held, other=0)
    v = (entry >> 32).to(tl.int32).to(tl.float32, bitcast=True)
    key = tl.where(held, key_of(v), LOWEST)
    full = tl.max((count >= CAP).to(tl.int32), 0)
    total = tl.sum(held.to(tl.int32), 0)
    edge = tl.max(kth_key(key[None, :], k), 0)
    take = held & (key >= edge)
    number = running_count(take.to(tl.int32), L)
    chunks = entry.to(tl.int32) * SLOTS + slot
    row = pid.to(tl.int64) * Q
    tl.store(chosen + row + number - 1, chunks, mask=take & (number <= Q))
    taken = tl.sum(take.to(tl.int32), 0)
    q = tl.arange(0, Q)
    tl.store(chosen + row + q, q * 0 - 1, mask=q >= taken)
    bad = (full > 0) | (total < k) | (taken > Q)
    tl.store(flags + pid, bad & ((tile0 + here) % row_tiles * BN + local < n))


@triton.jit
def rescore_kernel(x, xs, y, ys, rd, rds, cd, cds, td, tds, sd, sds, block, bs, chosen, keys, F, I, n, k, kept, tile0, row_tiles, members,
                   ROW: tl.constexpr, BOUNDS: tl.constexpr, SCORE: tl.constexpr, TEST: tl.constexpr, TESTED: tl.constexpr, LEAF: tl.constexpr,
                   XDIM: tl.constexpr, YDIM: tl.constexpr, NR: tl.constexpr, TR: tl.constexpr, NC: tl.constexpr, TC: tl.constexpr,
                   NT: tl.constexpr, TT: tl.constexpr, NSC: tl.constexpr, TSC: tl.constexpr, MASK: tl.constexpr, BLOCK: tl.constexpr,
                   NK: tl.constexpr, RESIDENT: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr, BIG: tl.constexpr,
                   WIDE: tl.constexpr, PRECISION: tl.constexpr, C: tl.constexpr, B: tl.constexpr):
    """keys [rows of the round, members]: (score, column) of B members of a row's chosen chunks; EMPTY where there is none."""
    parts = members // B
    pid = tl.program_id(0) // parts
    m0 = tl.program_id(0) % parts * B
    here = pid // BN
    row = (tile0 + here) % row_tiles * BN + pid % BN
    e = m0 + tl.arange(0, B)
    q = tl.load(chosen + pid.to(tl.int64) * (members // C) + e // C)
    slot = q % (BK // C)
    member = e % C
    cols = q // (BK // C) * BK + slot // 4 * (4 * C) + member // 2 * 8 + slot % 4 * 2 + member % 2
    real = (q >= 0) & (cols < k) & (row < n)
    cols = tl.where(real, cols, k)
    key = tl.full([B], EMPTY, tl.int64)
    if tl.max(real.to(tl.int32), 0) > 0:
        i_local = tl.arange(0, 16) * 0  # a product takes 16 rows: one, repeated
        rows = row + i_local
        x_off, y_off, c_off, t_off, b_off, sv, rdv, rv = operands_of(
            (tile0 + here) // row_tiles, rows, xs, ys, rd, rds, cds, tds, sd, sds, bs, F, I, n, k, kept, ROW, len(XDIM), len(YDIM), NR, TR, NC,
            NT, NSC, TSC, NK, WIDE)
        lo = None
        hi = None
        if MASK == 1:
            lo, hi = BOUNDS(rdv, sv, F, I, rows, n, k)
            hi = tl.minimum(hi, k)
        x_tiles = load_side(x, x_off, xs, row, i_local, 0, XDIM, RESIDENT, BIG, False)
        s, visible = score_tile(x_tiles, x, xs, x_off, y, ys, y_off, rdv, rv, cd, cds, c_off, td, tds, t_off, sv, block, bs, b_off, F, I, row,
                                i_local, rows, 0, cols, n, k, lo, hi, BOUNDS, SCORE, TEST, TESTED, LEAF, XDIM, YDIM, NC, TC, NT, TT, MASK,
                                BLOCK, RESIDENT, BD, True, WIDE, PRECISION, True, True)
        each = (key_of(s).to(tl.int64) << 32) | (~cols & HIGHEST).to(tl.int64)[None, :]
        key = tl.max(tl.where(visible & real[None, :], each, EMPTY), 0)
    tl.store(keys + pid.to(tl.int64) * members + e, key)


@triton.jit
def sort_kernel(keys, values, columns, n, row_tiles, tile0, members, k, BN: tl.constexpr, L: tl.constexpr, NEGATED: tl.constexpr):
    """values, columns [entries, n, k]: the k best keys of a row, best first."""
    pid = tl.program_id(0)
    tile = tile0 + pid // BN
    row = tile % row_tiles * BN + pid % BN
    e = tl.arange(0, L)
    key, e = places(tl.load(keys + pid.to(tl.int64) * members + e, mask=e < members, other=EMPTY), L)
    v = score_of((key >> 32).to(tl.int32))
    column = tl.where(key == EMPTY, -1, ~key & HIGHEST)
    at = ((tile // row_tiles).to(tl.int64) * n + row) * k + e
    inside = (e < k) & (e * 0 + row < n)
    tl.store(values + at, -v if NEGATED else v, mask=inside)
    tl.store(columns + at, column, mask=inside)
