"""Triton functions of Mean (moments.py)."""

import triton
import triton.language as tl


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    if visible is None:
        n = state[1] + s.shape[1]
    else:
        n = state[1] + tl.sum(visible.to(s.dtype), 1)
    return state[0] + tl.sum(s, 1), n


@triton.jit
def merge(a, b, unit):
    return a[0] + b[0], a[1] + b[1]


@triton.jit
def finish(state, unit):
    return state[0] / state[1], state[1]
