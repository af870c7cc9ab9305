"""Triton functions of softmax_sum.py.

l is the sum of the weights before they are rounded for the product with the payload: the log-sum-exp needs that one. Dividing the output by it
leaves the bias of the roundings, where weights tie. The specialised loop adds up the rounded weights too, r, by a product with ones, and
divides by them; in the portable loop that would cost a quarter of the time (a conversion each way on the pipe of the exponentials).
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
    finish = "finish_rounded" if fold.neutral else "finish_rounded_strict"
    return {"step": "step_lanes", "close": "close", "merge": "merge_rounded", "finish": finish}


def specialised_state(fold):
    return (("m", -float("inf")), ("l", 0.0), ("r", 0.0))


LANES = ("l",)  # there, of each lane
ROUNDED = "r"  # there, what the loop makes: the sum of the weights as the payload is multiplied by them


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
    m, l, r = state
    c = unit * LOG2E
    m_new = nan_max(m, row_max_wide(s, m) * c)
    base = finite(m_new)
    alpha = tl.exp2(m - base)
    p = tl.exp2(s * c - base[:, None])
    part = convert_layout(lane_sum(p), l.type.layout)
    return (m_new, l * convert_layout(alpha[:, None], l.type.layout) + part, r), alpha, p.to(dtype)


@triton.jit
def close(state):
    return state[0], convert_layout(tl.sum(state[1], 1), state[0].type.layout), state[2]


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


@triton.jit
def merge_rounded(a, b, unit):
    both, alpha, beta = merge((a[0], a[1]), (b[0], b[1]), unit)
    return (both[0], both[1], a[2] * alpha + b[2] * beta), alpha, beta


@triton.jit
def finish_rounded(state, unit):
    m, l, r = state
    return result(m, l), tl.where(m == -float("inf"), 0.0, 1.0 / r)


@triton.jit
def finish_rounded_strict(state, unit):
    m, l, r = state
    return result(m, l), 1.0 / r
