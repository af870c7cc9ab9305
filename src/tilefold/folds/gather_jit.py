"""Triton functions of Gather (maximum.py): of a row's scores only the wanted one is not -inf."""

import triton
import triton.language as tl

from .parts_jit import row_max

UNIT = True


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    return (tl.maximum(state[0], row_max(s), propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def merge(a, b, unit):
    return (tl.maximum(a[0], b[0], propagate_nan=tl.PropagateNan.ALL),)


@triton.jit
def finish(state, unit):
    return (state[0] * unit,)
