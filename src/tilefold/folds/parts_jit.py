"""What the Triton functions of several folds share: arithmetic and reductions only, so that any loop can inline them."""

import triton
import triton.language as tl

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
    return tl.reduce(s, 1, nan_max)


@triton.jit
def column_of(i):
    """The column as results name it: -1 where there is none."""
    return tl.where(i == NO_COLUMN, -1, i)
