"""Triton functions of Count (moments.py)."""

import triton
import triton.language as tl


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    return (state[0] + tl.sum((s != 0).to(tl.int32), 1),)


@triton.jit
def merge(a, b, unit):
    return (a[0] + b[0],)


@triton.jit
def finish(state, unit):
    return state
