"""Triton functions of Max and Min (maximum.py): the best score, its lowest column, and how many columns tie."""

import triton
import triton.language as tl

from .argmax_jit import first_of
from .parts_jit import across, column_of, row_max

UNIT = True


def state(fold):
    return (("m", -float("inf")), ("i", 2147483647), ("c", 0))


def bind(fold):
    return {"finish": "finish" if fold.sign > 0 else "finish_negated"}


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    best = row_max(s)
    hit = (s == best[:, None]) | ((s != s) & (best != best)[:, None])
    if visible is not None:
        hit = hit & visible
    return merge(state, (best, first_of(s, best, across(cols), visible), tl.sum(hit.to(tl.int32), 1)), unit)


@triton.jit
def merge(a, b, unit):
    a_nan = a[0] != a[0]
    b_nan = b[0] != b[0]
    tie = (a[0] == b[0]) | (a_nan & b_nan)
    larger = (b[0] > a[0]) | (b_nan & (a[0] == a[0]))
    right = larger | (tie & (b[1] < a[1]))
    count = tl.where(larger, b[2], a[2] + tl.where(tie, b[2], 0))
    return tl.where(larger, b[0], a[0]), tl.where(right, b[1], a[1]), count


@triton.jit
def finish(state, unit):
    return state[0] * unit, column_of(state[1]), state[2]


@triton.jit
def finish_negated(state, unit):
    return -(state[0] * unit), column_of(state[1]), state[2]
