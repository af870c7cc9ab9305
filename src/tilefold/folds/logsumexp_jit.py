"""Triton functions of logsumexp.py, on scores s with s * unit the true score.

m is the running maximum times unit * log2(e), rounded. Were it kept unscaled, the multiply-add s * c - m * c would leave the rounding of
m * c behind, and l would drift by that factor with every tile, although the maximum stands still.
"""

import triton
import triton.language as tl

from .parts_jit import LN2, LOG2E, finite, nan_max, row_max

UNIT = True


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    m, l = state
    c = unit * LOG2E
    m_new = nan_max(m, row_max(s) * c)
    base = finite(m_new)
    return m_new, l * tl.exp2(m - base) + tl.sum(tl.exp2(s * c - base[:, None]), 1)


@triton.jit
def merge(a, b, unit):
    m = nan_max(a[0], b[0])
    base = finite(m)
    return m, a[1] * tl.exp2(a[0] - base) + b[1] * tl.exp2(b[0] - base)


@triton.jit
def result(m, l):
    return tl.where(tl.abs(m) == float("inf"), m, (m + tl.log2(l)) * LN2)


@triton.jit
def finish(state, unit):
    return (result(state[0], state[1]),)
