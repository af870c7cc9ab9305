"""Triton functions of ArgMax, ArgMin and Sample (maximum.py): the best score and its lowest column, in any order of the columns."""

import triton
import triton.language as tl
from triton.experimental.gluon.language import convert_layout

from .parts_jit import NO_COLUMN, across, column_of, nan_max, row_max, split_pairs

UNIT = True
UNSETTLED = tl.constexpr(
    1 << 30
)  # a column from here on: the one that holds m is the first such from UNSETTLED less on


def state(fold):
    return (("m", -float("inf")), ("i", 2147483647))


def bind(fold):
    return {"finish": "finish" if fold.sign > 0 else "finish_negated"}


def quick(fold):
    """For loops that are neither flattened nor compiled for sm_100, where triton 3.6 fails on a branch and on the reshape."""
    return {"step": "step_quick"}


def specialised(fold):
    """For loops that fold strips of a row, each in a thread of its own, and look again at rows that this leaves unsettled."""
    return {"step": "step_strips", "finish": "finish_strips" if fold.sign > 0 else "finish_strips_negated"}


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
    return merge(state, (best, first_of(s, best, across(cols), visible)), unit)


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
def better(a, i, b, j):
    """The larger value and its place, of equals the first argument's, which stands first; NaN wins, without its place."""
    return nan_max(a, b), tl.where(b > a, j, i)


@triton.jit
def better_anywhere(a, i, b, j):
    """The same in any order of the places: of equals the lower one."""
    return nan_max(a, b), tl.where((b > a) | ((b == a) & (j < i)), j, i)


@triton.jit
def best_of_few(s, place):
    """Each row's largest value and the lowest of its places, of rows in the hand of one thread; NaN without its place."""
    for _ in tl.static_range(2):
        a, b = split_pairs(s)
        i_a, i_b = split_pairs(place)
        s, place = better(a, i_a, b, i_b)
    return tl.reduce((s, place), 1, better_anywhere)


@triton.jit
def step_strips(
    state, s, cols, first, visible, unit
):  # s [R, C], cols [R, C] ascending from first [R]; i twice the column
    m, i = state
    if visible is None:
        best, place = best_of_few(s, cols - first[:, None])
        best = convert_layout(best, m.type.layout)
        place = convert_layout(place, m.type.layout)
        # a first NaN, or nothing yet but -inf: its column costs a comparison per score, and is looked for afterwards
        odd = ((best != best) & (m == m)) | ((best == m) & (i == NO_COLUMN))
        i = tl.where(best > m, 2 * (first + place), tl.where(odd, 2 * first + 1, i))
        m = nan_max(m, best)
    else:
        best = row_max(s)
        c = first_of(s, best, across(cols), visible)
        m, i = merge(state, (best, tl.where(c == NO_COLUMN, c, 2 * c)), unit)
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


@triton.jit
def column_of_strips(i):
    return tl.where(i == NO_COLUMN, -1, tl.where(i % 2 == 1, UNSETTLED + i // 2, i // 2))


@triton.jit
def finish_strips(state, unit):
    return state[0] * unit, column_of_strips(state[1])


@triton.jit
def finish_strips_negated(state, unit):
    return -(state[0] * unit), column_of_strips(state[1])
