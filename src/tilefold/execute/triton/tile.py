"""Tiles: how operands come in, how they are multiplied. Parts of the loops in rows.py.

A "matrix" operand [.., length, D] is read as tiles [B, BD], a "vector" operand (a number per row or per column) as [B]. Strides come as a
tuple: those of the last two dimensions (of the one, for a vector), then the batch dimensions'.
"""

import triton
import triton.language as tl


@triton.jit
def coordinates(number, sizes, COUNT: tl.constexpr):
    """The coordinates of a linear batch number, last dimension fastest, reversed."""
    at = ()
    for d in tl.static_range(COUNT):
        if d == COUNT - 1:
            at = at + (number,)
        else:
            at = at + (number % sizes[COUNT - 1 - d],)
            number = number // sizes[COUNT - 1 - d]
    return at


@triton.jit
def batch_offset(strides, FIRST: tl.constexpr, kept, summed, NK: tl.constexpr, NS: tl.constexpr):
    """Where a batch entry starts; its coordinates come reversed. Strides: kept dimensions, then summed ones."""
    offset = 0
    for d in tl.static_range(NK):
        offset += tl.cast(kept[NK - 1 - d], tl.int64) * strides[FIRST + d]
    for d in tl.static_range(NS):
        offset += tl.cast(summed[NS - 1 - d], tl.int64) * strides[FIRST + NK + d]
    return offset


@triton.jit
def load_matrix(ptr, offset, strides, first, local, limit, d0, D: tl.constexpr, BD: tl.constexpr, DMASK: tl.constexpr,
                CONTIG: tl.constexpr, BIG: tl.constexpr, EDGE: tl.constexpr, pages=None, PAGE: tl.constexpr = 0):
    """[B, BD] of rows first + local and features d0 + 0..BD; with EDGE rows from `limit` on give 0.

    pages    of rows in pages of PAGE the page of each; its stride is the last
    """
    d = tl.arange(0, BD)
    base = ptr + (offset if PAGE > 0 else offset + tl.cast(first, tl.int64) * strides[0])
    if CONTIG:
        base += d0
        along = d
    else:
        base += tl.cast(d0, tl.int64) * strides[1]
        along = d.to(tl.int64) * strides[1]
        if not BIG:
            along = along.to(tl.int32)
    if PAGE > 0:
        down = pages * strides[len(strides) - 1] + ((first + local) % PAGE).to(tl.int64) * strides[0]
    else:
        down = local.to(tl.int64) * strides[0] if BIG else local * tl.cast(strides[0], tl.int32)
    at = base + (down[:, None] + along[None, :])
    if EDGE:
        if DMASK:
            t = tl.load(at, mask=(first + local < limit)[:, None] & (d0 + d < D)[None, :], other=0.0)
        else:
            t = tl.load(at, mask=(first + local < limit)[:, None], other=0.0)
    elif DMASK:
        t = tl.load(at, mask=(d0 + d < D)[None, :], other=0.0)
    else:
        t = tl.load(at)
    return t


@triton.jit
def as_value(t, TYPE: tl.constexpr, WIDE: tl.constexpr):
    """An element of an operand as expressions see it. TYPE: 0 float, 1 integer, 2 boolean."""
    if TYPE == 0:
        v = t.to(WIDE)
    elif TYPE == 1:
        v = t.to(tl.int64)
    else:
        v = t != 0
    return v


@triton.jit
def load_vectors(ptrs, offsets, strides, index, limit, COUNT: tl.constexpr, TYPES: tl.constexpr, WIDE: tl.constexpr, EDGE: tl.constexpr):
    """The numbers [B] of every vector operand at `index`; with EDGE 0 from `limit` on. TYPES: (type, whether they lie side by side)."""
    values = ()
    for v in tl.static_range(COUNT):
        if TYPES[v][1]:
            at = ptrs[v] + offsets[v] + index
        else:
            at = ptrs[v] + (offsets[v] + index.to(tl.int64) * strides[v][0])
        if EDGE:
            t = tl.load(at, mask=index < limit, other=0)
        else:
            t = tl.load(at)
        values = values + (as_value(t, TYPES[v][0], WIDE),)
    return values


@triton.jit
def load_scalars(ptrs, offsets, COUNT: tl.constexpr, TYPES: tl.constexpr, WIDE: tl.constexpr):
    values = ()
    for v in tl.static_range(COUNT):
        values = values + (as_value(tl.load(ptrs[v] + offsets[v]), TYPES[v][0], WIDE),)
    return values


@triton.jit
def load_tiles(ptrs, offsets, strides, rows, first, local, n, k, COUNT: tl.constexpr, TYPES: tl.constexpr, WIDE: tl.constexpr, EDGE: tl.constexpr):
    """The [BN, BK] part of every [N, K] operand, columns first + local; with EDGE columns from k on give 0."""
    values = ()
    for v in tl.static_range(COUNT):
        down = ptrs[v] + (offsets[v] + rows.to(tl.int64) * strides[v][0])
        if TYPES[v][1]:
            at = (down + first)[:, None] + local[None, :]
        else:
            at = down[:, None] + ((first + local).to(tl.int64) * strides[v][1])[None, :]
        if EDGE:
            t = tl.load(at, mask=(rows < n)[:, None] & (first + local < k)[None, :], other=0)
        else:
            t = tl.load(at)
        values = values + (as_value(t, TYPES[v][0], WIDE),)
    return values


@triton.jit
def batch_offsets(strides, COUNT: tl.constexpr, FIRST: tl.constexpr, kept, summed, NK: tl.constexpr, NS: tl.constexpr):
    offsets = ()
    for v in tl.static_range(COUNT):
        offsets = offsets + (batch_offset(strides[v], FIRST, kept, summed, NK, NS),)
    return offsets


@triton.jit
def product(a, b, acc, CAST: tl.constexpr, PRECISION: tl.constexpr):
    """acc + a @ b. CAST: 0 as they are, 1 in float32, 2 in float64."""
    if CAST == 1:
        a = a.to(tl.float32)
        b = b.to(tl.float32)
    if CAST == 2:
        a = a.to(tl.float64)
        b = b.to(tl.float64)
    if acc is None:
        r = tl.dot(a, b, input_precision=PRECISION, out_dtype=tl.float64 if CAST == 2 else tl.float32)
    elif PRECISION == "ieee" and a.dtype == tl.float32:
        # one chain of roundings a tile, not one over all columns; the last argument keeps the compiler from joining the two again
        r = acc + tl.dot(a, b, input_precision=PRECISION, max_num_imprecise_acc=a.shape[1])
    else:
        r = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=tl.float64 if CAST == 2 else tl.float32)
    return r


@triton.jit
def product_onto(acc, p, v, CAST: tl.constexpr, PRECISION: tl.constexpr):
    """acc + p @ v, the second product of a fold with a payload."""
    return product(p, v, acc, CAST, PRECISION)
