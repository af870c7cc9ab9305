"""What the Triton functions of several folds share: arithmetic and reductions only, so that any loop can inline them."""

import os

import triton
import triton.language as tl
from triton.experimental.gluon.language import convert_layout

INTERPRETED = tl.constexpr(os.environ.get("TRITON_INTERPRET") == "1")

LOG2E = tl.constexpr(1.4426950408889634)
LN2 = tl.constexpr(0.6931471805599453)
NO_COLUMN = tl.constexpr(2147483647)  # behind every column while folding; finish makes it -1


@triton.jit
def finite(m):
    """m, with 0 in the place of an infinity, so that a difference from it is not NaN."""
    return tl.where(tl.abs(m) == float("inf"), 0.0, m)


@triton.jit
def nan_max(a, b):
    """The maximum; NaN wins, as in torch."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def row_max(s):  # [BN, BK] -> [BN]
    if INTERPRETED:
        # the interpreter runs a reduction of one's own element by element
        m = tl.where(tl.max((s != s).to(tl.int32), 1) > 0, float("nan"), tl.max(s, 1))
    else:
        m = tl.reduce(s, 1, nan_max)
    return m


@triton.jit
def split_columns(s):
    """The two halves of a tile's columns, the lower ones first. Moves nothing where a thread holds places of both."""
    return tl.split(tl.permute(tl.reshape(s, [s.shape[0], 2, s.shape[1] // 2]), [0, 2, 1]))


@triton.jit
def split_pairs(s):
    """The columns 0, 2, 4 .. and 1, 3, 5 .. of a tile: whatever is made of two neighbours stays in the order of the columns."""
    return tl.split(tl.reshape(s, [s.shape[0], s.shape[1] // 2, 2]))


@triton.jit
def row_max_wide(s, row):
    """row_max in the layout of `row`, as many short chains instead of a long one: for threads that hold 32 columns of a row and more."""
    for _ in tl.static_range(2):
        a, b = split_columns(s)
        s = nan_max(a, b)
    return convert_layout(tl.reduce(s, 1, nan_max), row.type.layout)


@triton.jit
def lane_columns(s):
    """[BN, BK] in the layout of a WGMMA as [BN, 4, BK / 4]: what each of four lanes holds of a row. Moves nothing."""
    return tl.reshape(
        tl.permute(tl.reshape(s, [s.shape[0], s.shape[1] // 8, 4, 2]), [0, 2, 1, 3]), [s.shape[0], 4, s.shape[1] // 4]
    )


@triton.jit
def lane_sum(s):
    """[BN, 4]: the sum over each lane's columns."""
    for _ in tl.static_range(2):
        a, b = split_columns(s)
        s = a + b
    return tl.sum(lane_columns(s), 2)


@triton.jit
def across(cols):
    """Column numbers as a tile broadcasts them: [1, BK], or [BN, BK] where each row has its own."""
    if len(cols.shape) == 1:
        cols = cols[None, :]
    return cols


@triton.jit
def column_of(i):
    """The column as results name it: -1 where there is none."""
    return tl.where(i == NO_COLUMN, -1, i)
