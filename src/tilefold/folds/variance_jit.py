"""Triton functions of Variance (moments.py). The state carries the correction along, a number of the fold."""

import triton
import triton.language as tl


def state(fold):
    return (*fold.state, ("correction", float(fold.correction)))


@triton.jit
def step(state, s, cols, first, visible, unit):  # s [BN, BK]
    if visible is None:
        n = state[0] * 0.0 + s.shape[1]
    else:
        n = tl.sum(visible.to(s.dtype), 1)
    mean = tl.sum(s, 1) / tl.maximum(n, 1.0)
    away = s - mean[:, None]
    if visible is not None:
        away = tl.where(visible, away, 0.0)
    return merge(state, (n, mean, tl.sum(away * away, 1), state[3]), unit)


@triton.jit
def merge(a, b, unit):
    n = a[0] + b[0]
    share = b[0] / tl.maximum(n, 1.0)
    d = b[1] - a[1]
    return n, tl.where(b[0] > 0, a[1] + d * share, a[1]), a[2] + b[2] + d * d * a[0] * share, a[3]


@triton.jit
def finish(state, unit):
    return state[2] / tl.maximum(state[0] - state[3], 0.0), state[1], state[0]
