"""What the warp-specialised loops share: rings of buffers, places in a batch, and how a tile lies in a group's registers."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier


@gluon.jit
def ring(STAGES: gl.constexpr, FILLERS: gl.constexpr, READERS: gl.constexpr):
    """Barriers "full" and "empty" of a ring of buffers."""
    full = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(STAGES):
        mbarrier.init(full.index(i), count=FILLERS)
        mbarrier.init(empty.index(i), count=READERS)
    return full, empty


@gluon.jit
def barrier(COUNT: gl.constexpr):
    b = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(b, count=COUNT)
    return b


@gluon.jit
def as_batch(buffer, RANK: gl.constexpr):
    """A part of shared memory with the leading dimensions of size 1 that a descriptor of this rank has."""
    shape: gl.constexpr = [1] * (RANK - len(buffer.shape)) + list(buffer.shape)
    return buffer.reshape(shape)


@gluon.jit
def batch_place(at, DIMS: gl.constexpr, first, RANK: gl.constexpr):
    """Coordinates for a descriptor of this rank that has these batch dimensions: of the part that starts at `first`."""
    place = ()
    for d in gl.static_range(len(DIMS)):
        place = place + (at[len(at) - 1 - DIMS[d]],)
    place = place + (first,)
    if RANK == len(DIMS) + 2:
        place = place + (first * 0,)
    return place


@gluon.jit
def narrow(p, dtype: gl.constexpr):
    """float32 to 16 bits in pairs: one packed conversion for two values."""
    if dtype == gl.bfloat16:
        h = gl.inline_asm_elementwise("cvt.rn.bf16x2.f32 $0, $2, $1;", "=r,r,r", [p], dtype=gl.bfloat16, is_pure=True, pack=2)
    else:
        h = gl.inline_asm_elementwise("cvt.rn.f16x2.f32 $0, $2, $1;", "=r,r,r", [p], dtype=gl.float16, is_pure=True, pack=2)
    return h


@gluon.jit
def lanes(s, STRETCHES: gl.constexpr):
    """[BM, BK] in the layout of a WGMMA -> [BM * 4 STRETCHES, BK / 4 STRETCHES]: a row is what a lane holds of a stretch of a row.

    Reductions along it stay in a thread. Moves nothing.
    """
    BM: gl.constexpr = s.shape[0]
    BK: gl.constexpr = s.shape[1]
    G: gl.constexpr = STRETCHES
    return s.reshape([BM, G, BK // (8 * G), 4, 2]).permute((0, 1, 3, 2, 4)).reshape([BM * 4 * G, BK // (4 * G)])
