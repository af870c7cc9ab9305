"""Triton functions of softmax_sum.py.

The sum l is that of the weights before they are rounded for the product with the payload: the largest weight is exactly 1 and loses nothing,
so that a payload of ones still gives 1 in a 16-bit result; adding up rounded weights costs a quarter of the loop (sm_90: a conversion each way
on the pipe of the exponentials).
"""

import triton
import triton.language as tl
from triton.experimental.gluon.language import convert_layout

from .logsumexp_jit import result
from .parts_jit import LOG2E, finite, lane_sum, nan_max, row_max, row_max_wide

UNIT = True


def bind(fold):
    return {"finish": "finish" if fold.neutral else "finish_strict"}


def specialised(fold):
    return {"step": "step_lanes", "close": "close"}


LANES = ("l",)  # there, of each lane


@triton.jit
def step(state, s, cols, first, visible, unit, dtype: tl.constexpr):  # s [BN, BK]
    m, l = state
    c = unit * LOG2E
    m_new = nan_max(m, row_max(s) * c)
    base = finite(m_new)
    alpha = tl.exp2(m - base)
    p = tl.exp2(s * c - base[:, None])
    return (m_new, l * alpha + tl.sum(p, 1)), alpha, p.to(dtype)


@triton.jit
def step_lanes(state, s, cols, first, visible, unit, dtype: tl.constexpr):  # s [BN, BK], l [BN, 4]
    m, l = state
    c = unit * LOG2E
    m_new = nan_max(m, row_max_wide(s, m) * c)
    base = finite(m_new)
    alpha = tl.exp2(m - base)
    p = tl.exp2(s * c - base[:, None])
    part = convert_layout(lane_sum(p), l.type.layout)
    return (m_new, l * convert_layout(alpha[:, None], l.type.layout) + part), alpha, p.to(dtype)


@triton.jit
def close(state):
    return state[0], convert_layout(tl.sum(state[1], 1), state[0].type.layout)


@triton.jit
def merge(a, b, unit):
    m = nan_max(a[0], b[0])
    base = finite(m)
    alpha = tl.exp2(a[0] - base)
    beta = tl.exp2(b[0] - base)
    return (m, a[1] * alpha + b[1] * beta), alpha, beta


@triton.jit
def finish(state, unit):
    m, l = state
    return result(m, l), tl.where(m == -float("inf"), 0.0, 1.0 / l)


@triton.jit
def finish_strict(state, unit):
    m, l = state
    return result(m, l), 1.0 / l
