"""Triton functions of ArgMax, ArgMin and Sample (maximum.py): the best score and its lowest column, in any order of the columns."""

import triton
import triton.language as tl

from .parts_jit import NO_COLUMN, column_of, row_max

UNIT = True
# for loops that are neither flattened nor compiled for sm_100, where triton 3.6 fails on a branch and on the reshape
QUICK = {"step": "step_quick"}


def state(fold):
    return (("m", -float("inf")), ("i", 2147483647))


def bind(fold):
    return {"finish": "finish" if fold.sign > 0 else "finish_negated"}


@triton.jit
def first_of(s, m, cols, visible):
    """The lowest column at which a row holds its maximum m, NaN included; cols [1 or BN, BK]."""
    hit = (s == m[:, None]) | ((s != s) & (m != m)[:, None])
    if visible is not None:
        hit = hit & visible
    return tl.min(tl.where(hit, cols, NO_COLUMN), 1)


@triton.jit
def first_set(hit, first):
    """The lowest set column of each row of a tile whose first column is `first`."""
    # residue classes first: within one the column is a constant of the register that holds it
    W: tl.constexpr = 8
    BN: tl.constexpr = hit.shape[0]
    BK: tl.constexpr = hit.shape[1]
    j = tl.arange(0, BK // W)
    c = tl.min(tl.where(tl.reshape(hit, [BN, BK // W, W]), j[None, :, None], NO_COLUMN), 1)  # [BN, W]
    w = tl.arange(0, W)
    return tl.min(tl.where(c == NO_COLUMN, NO_COLUMN, first + c * W + w[None, :]), 1)


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    best = row_max(s)
    return merge(state, (best, first_of(s, best, cols[None, :], visible)), unit)


@triton.jit
def step_quick(state, s, cols, first, visible, unit):  # s [BN, BK]
    m, i = state
    best = row_max(s)
    # 0: no row improves, so no column matters; 2: some row has a NaN, whose column an equality does not find
    kind = tl.max(tl.where(best != best, 2, (best >= m).to(tl.int32)), 0)
    if kind > 0:
        hit = s == best[:, None]
        if visible is not None:
            hit = hit & visible
        c = first_set(hit, first)
        if kind > 1:
            c = tl.where(best != best, first_set(s != s, first), c)
        m, i = merge((m, i), (best, c), unit)
    return m, i


@triton.jit
def merge(a, b, unit):
    tie = (a[0] == b[0]) | ((a[0] != a[0]) & (b[0] != b[0]))
    right = (b[0] > a[0]) | ((b[0] != b[0]) & (a[0] == a[0])) | (tie & (b[1] < a[1]))
    return tl.where(right, b[0], a[0]), tl.where(right, b[1], a[1])


@triton.jit
def finish(state, unit):
    return state[0] * unit, column_of(state[1])


@triton.jit
def finish_negated(state, unit):
    return -(state[0] * unit), column_of(state[1])
