"""What the Triton functions of several folds share: arithmetic and reductions only, so that any loop can inline them."""

import os

import triton
import triton.language as tl

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
def column_of(i):
    """The column as results name it: -1 where there is none."""
    return tl.where(i == NO_COLUMN, -1, i)
