"""Folds for the interface experiment: plain triton.jit functions, shared by any template.

A tile arrives as s [BN, W, C]: W parts of a row, C columns each. A state element is declared ROW ([BN], the same in all
parts), PART ([BN, W], each part on its own) or GIVEN ([BN], its first value comes from the caller, row by row).
After the loop the template hands the parts' state to `close` and joins the parts with `merge`.
    step(state, s, cols, first, unit)    -> state, or (state, alpha [BN], P [BN, W, C]) with a payload
                                            or (state, keep [BN, W], key [BN, W]) for a fold that appends
    close(state, part)                   -> state for merge; part [BN, W] is the part's number
    merge(a, b, unit)                    -> state
    finish(state, unit)                  -> tuple of [BN] results; with a payload the last is the accumulator's factor
cols [BN, W, C] are column numbers, first is the tile's first one (a scalar), the true score is s * unit.
"""

from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

ROW, PART, GIVEN = 0, 1, 2
LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)
LN2: tl.constexpr = tl.constexpr(0.6931471805599453)


@dataclass(frozen=True)
class Fold:
    """What a template needs.

    state: (first value, dtype, ROW | PART) or (number of the given tensor, dtype, GIVEN) for each element
    groups: parts of a tile that one lane holds; W = 4 groups
    """

    state: tuple[tuple[float | int, Any, int], ...]
    groups: int
    step: Any
    close: Any
    merge: Any
    finish: Any


@triton.jit
def finite(m):
    """An infinite maximum becomes 0, so that differences from it are not NaN."""
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def max_nan(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def close_nothing(state, part):
    return state


# log-sum-exp: m the running maximum times unit log2(e), l = sum 2^(s unit log2(e) - m); every part on its own, no
# exchange between lanes in the loop. m is kept rounded, as it is subtracted: with the maximum itself in the state,
# m * c - base becomes one fused multiply-add on a GPU and leaves the rounding of base behind, so that l drifts by
# 2^-24 of |m c| a tile although the maximum stands still (7.6e-5 after 64 tiles, 1e-3 after 2048).


@triton.jit
def lse_step(state, s, cols, first, unit):
    m, l = state
    c = unit * LOG2E
    m_new = tl.maximum(m, tl.max(s, 2) * c)
    base = finite(m_new)
    l = l * tl.exp2(m - base) + tl.sum(tl.exp2(s * c - base[:, :, None]), 2)
    return m_new, l


@triton.jit
def lse_merge(a, b, unit):
    m = tl.maximum(a[0], b[0])
    base = finite(m)
    return m, a[1] * tl.exp2(a[0] - base) + b[1] * tl.exp2(b[0] - base)


@triton.jit
def lse_finish(state, unit):
    return ((state[0] + tl.log2(state[1])) * LN2,)


# arg-max: per part the best value and the first column of its tile; resolve.py rescores the part's C columns later


@triton.jit
def argmax_step(state, s, cols, first, unit):
    best, tile = state
    m = tl.reduce(s, 2, max_nan)
    return max_nan(best, m), tl.where(m > best, first, tile)


@triton.jit
def argmax_close(state, part):
    return state[0], state[1], 1 << part


@triton.jit
def argmax_merge(a, b, unit):
    tie = a[0] == b[0]
    left = (a[0] > b[0]) | (a[0] != a[0]) | (tie & (a[1] < b[1]))
    both = tie & (a[1] == b[1])
    parts = tl.where(both, a[2] | b[2], tl.where(left, a[2], b[2]))
    return max_nan(a[0], b[0]), tl.where(left, a[1], b[1]), parts


@triton.jit
def argmax_finish(state, unit):
    return state[0] * unit, state[1], state[2]


# softmax-weighted sum: m is common to the row (it scales the accumulator), l stays in parts


@triton.jit
def softmax_step(state, s, cols, first, unit):
    m, l = state
    c = unit * LOG2E
    m_new = tl.maximum(m, tl.max(tl.max(s, 2), 1) * c)
    base = finite(m_new)
    alpha = tl.exp2(m - base)
    p = tl.exp2(s * c - base[:, None, None])
    return (m_new, l * alpha[:, None] + tl.sum(p, 2)), alpha, p


@triton.jit
def softmax_finish(state, unit):
    m, l = state
    return (m + tl.log2(l)) * LN2, tl.where(l > 0, 1.0 / l, 0.0)


# top-k candidates: keep what may be among the k best of a row, by a threshold that the caller found on a sample of
# the columns; selection follows in another kernel


@triton.jit
def above_step(state, s, cols, first, unit):
    """-> state, which parts to keep, their best value. NaN is kept."""
    m = tl.reduce(s, 2, max_nan)
    return state, (m > state[0][:, None]) | (m != m), m


# scores


@triton.jit
def score_plain(acc, row, col):
    return acc


@triton.jit
def score_add_col(acc, row, col):
    return acc + col


# weights of backward, in the order in which the products become ready; statistics come prepared by the pre-pass


@triton.jit
def softmax_weight(s, lse2, unit):
    """P = exp(s unit - lse); lse2 = lse log2(e), +inf for a row without visible columns."""
    return tl.exp2(s * (unit * LOG2E) - lse2)


@triton.jit
def softmax_dscore(p, t, delta, unit):
    """dS = P (dP - delta), without the unit, which the caller applies to the sums."""
    return p * (t - delta)


LSE = Fold(
    ((float("-inf"), tl.float32, PART), (0.0, tl.float32, PART)), 1, lse_step, close_nothing, lse_merge, lse_finish
)
ARGMAX = Fold(
    ((float("-inf"), tl.float32, PART), (0, tl.int32, PART)), 4, argmax_step, argmax_close, argmax_merge, argmax_finish
)
SOFTMAX = Fold(
    ((float("-inf"), tl.float32, ROW), (0.0, tl.float32, PART)),
    1,
    softmax_step,
    close_nothing,
    lse_merge,
    softmax_finish,
)
ABOVE = Fold(((0, tl.float32, GIVEN),), 4, above_step, close_nothing, None, None)
