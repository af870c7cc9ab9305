"""Level 3: the loop of level 2 as a Triton kernel, a program per tile of rows."""

import torch
import triton
import triton.language as tl
from torch import Tensor

BN, BK = 64, 64  # rows and columns of a tile of scores


@triton.jit
def kernel(x_ptr, y_ptr, out_ptr, n, k, D: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, BD: tl.constexpr):
    rows = tl.program_id(0) * BN + tl.arange(0, BN)
    d = tl.arange(0, BD)
    x = tl.load(x_ptr + rows.to(tl.int64)[:, None] * D + d, mask=(rows < n)[:, None] & (d < D), other=0.0)  # [BN, BD]
    m = tl.full([BN], float("-inf"), tl.float32)
    l = tl.zeros([BN], tl.float32)
    for first in range(0, k, BK):
        cols = first + tl.arange(0, BK)
        y = tl.load(y_ptr + cols.to(tl.int64)[:, None] * D + d, mask=(cols < k)[:, None] & (d < D), other=0.0)
        s = tl.where(cols < k, tl.dot(x, y.T), float("-inf"))  # [BN, BK], never in memory
        m_new = tl.maximum(m, tl.max(s, 1))
        l = l * tl.exp(m - m_new) + tl.sum(tl.exp(s - m_new[:, None]), 1)
        m = m_new
    tl.store(out_ptr + rows, m + tl.log(l), mask=rows < n)


def logsumexp(x: Tensor, y: Tensor) -> Tensor:
    """[N, D], [K, D], contiguous -> float32 [N]."""
    (n, d), k = x.shape, len(y)
    out = torch.empty(n, device=x.device)
    kernel[(triton.cdiv(n, BN),)](x, y, out, n, k, d, BN, BK, max(16, triton.next_power_of_2(d)))
    return out
