"""Triton functions of TopK and BottomK (topk.py), k <= 32: an unsorted list [BN, L] in registers, L the next power of two.

State: values v, columns i (NO_COLUMN in an empty place), the numbers 0, 1, .. L-1 of the places, of which the first k are used, and the
list's worst value w.
    step     while a row's best score beats its list's worst, swap them; most tiles beat no row's and cost one maximum
    order    x beats y: larger, NaN largest of all; among equals the lower column
"""

import triton
import triton.language as tl

from .argmax_jit import first_of
from .parts_jit import NO_COLUMN, column_of, row_max

UNIT = True


def bind(fold):
    return {"finish": "finish" if fold.sign > 0 else "finish_negated"}


def state(fold):
    width = max(2, 1 << (fold.k - 1).bit_length())
    return (
        ("v", -float("inf"), width),
        ("i", 2147483647, width),
        ("place", "place", width),
        ("k", fold.k),
        ("w", -float("inf")),
    )


@triton.jit
def beats(v, i, w, j):
    """Whether score v of column i goes before score w of column j."""
    v_nan = v != v
    w_nan = w != w
    return (v > w) | (v_nan & (w == w)) | (((v == w) | (v_nan & w_nan)) & (i < j))


@triton.jit
def worst_of(v, used):
    # tl.min passes over NaN, the largest of all; a list of nothing else gives +inf, which no NaN of a higher column need replace
    return tl.min(tl.where(used, v, float("inf")), 1)


@triton.jit
def insert(state, s, cols, left):
    """Swaps scores into the list until none is better than its worst; cols [1 or BN, BK], left [BN, BK] the columns that are there."""
    v, i, place, k, w = state
    used = place < k[:, None]
    best = row_max(s)
    go = tl.max((~(best < w)).to(tl.int32), 0)
    while go > 0:
        w_holds = used & ((v == w[:, None]) | ((v != v) & (w != w)[:, None]))
        j = tl.max(tl.where(w_holds, i, -1), 1)
        at = tl.min(tl.where(w_holds & (i == j[:, None]), place, NO_COLUMN), 1)
        c = first_of(s, best, cols, left)
        enters = (c != NO_COLUMN) & beats(best, c, w, j)
        put = enters[:, None] & (place == at[:, None])
        v = tl.where(put, best[:, None], v)
        i = tl.where(put, c[:, None], i)
        w = worst_of(v, used)
        gone = cols == c[:, None]
        s = tl.where(gone, -float("inf"), s)
        left = left & (gone == 0)
        best = row_max(s)
        go = tl.max(enters.to(tl.int32), 0)
    return v, i, place, k, w


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    if visible is None:
        left = (s == s) | (s != s)
    else:
        left = visible
    return insert(state, s, cols[None, :], left)


@triton.jit
def merge(a, b, unit):
    return insert(a, b[0], b[1], b[1] != NO_COLUMN)


@triton.jit
def ordered(state):
    """The list, best first."""
    v, i, place, k, w = state
    out_v = tl.where(place < 0, v, -float("inf"))
    out_i = tl.where(place < 0, i, NO_COLUMN)
    for r in range(v.shape[1]):
        best = row_max(tl.where(i >= 0, v, -float("inf")))
        holds = (i >= 0) & ((v == best[:, None]) | ((v != v) & (best != best)[:, None]))
        c = tl.min(tl.where(holds, i, NO_COLUMN), 1)
        out_v = tl.where(place == r, best[:, None], out_v)
        out_i = tl.where(place == r, c[:, None], out_i)
        i = tl.where(i == c[:, None], -2, i)
    return out_v, out_i


@triton.jit
def finish(state, unit):
    v, i = ordered(state)
    return v * unit, column_of(i)


@triton.jit
def finish_negated(state, unit):
    v, i = ordered(state)
    return -(v * unit), column_of(i)
