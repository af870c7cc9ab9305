"""Triton functions of Gather (maximum.py): of a row's scores only the wanted one is not -inf."""

import triton

from .parts_jit import nan_max, row_max

UNIT = True


@triton.jit
def step(state, s, cols, visible, unit):  # s [BN, BK]
    return (nan_max(state[0], row_max(s)),)


@triton.jit
def merge(a, b, unit):
    return (nan_max(a[0], b[0]),)


@triton.jit
def finish(state, unit):
    return (state[0] * unit,)
