"""Names of Gluon that move between versions of Triton, and the one instruction that it does not export."""

from triton._C.libtriton import ir
from triton.experimental.gluon import language
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import tma

_shared = language.shared_memory_descriptor
as_shape = getattr(_shared, "reinterpret", None) or _shared._reinterpret
load_tile = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared


@builtin
def reduce_add_tile(desc, coord, src, _semantic=None):
    """Adds a tile of shared memory to device memory through the TMA unit."""
    coord = _semantic._convert_to_ir_values(coord, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, desc.handle, coord, src.handle)
