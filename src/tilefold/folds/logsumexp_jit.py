"""Triton functions of logsumexp.py, on scores s with s * unit the true score."""

import triton
import triton.language as tl

from .parts_jit import LN2, LOG2E, finite, nan_max, row_max

UNIT = True


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    m, l = state
    c = unit * LOG2E
    m_new = nan_max(m, row_max(s))
    base = finite(m_new) * c
    return m_new, l * tl.exp2(m * c - base) + tl.sum(tl.exp2(s * c - base[:, None]), 1)


@triton.jit
def merge(a, b, unit):
    m = nan_max(a[0], b[0])
    c = unit * LOG2E
    base = finite(m) * c
    return m, a[1] * tl.exp2(a[0] * c - base) + b[1] * tl.exp2(b[0] * c - base)


@triton.jit
def finish(state, unit):
    m, l = state
    return (tl.where(tl.abs(m) == float("inf"), m, m * unit + tl.log2(l) * LN2),)
