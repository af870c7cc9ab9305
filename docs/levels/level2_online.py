"""Level 2: a tile of columns at a time, and a state of two numbers a row."""

import torch
from torch import Tensor

TILE = 1024  # columns of a tile: each has N x TILE scores


def logsumexp(x: Tensor, y: Tensor) -> Tensor:
    """[N, D], [K, D] -> float32 [N]."""
    m = torch.full(x.shape[:1], -torch.inf, device=x.device)  # the largest score so far
    l = torch.zeros_like(m)  # sum of exp(s - m) so far
    for part in y.split(TILE):
        s = (x @ part.T).float()
        m_new = torch.maximum(m, s.amax(-1))
        l = l * (m - m_new).exp() + (s - m_new[:, None]).exp().sum(-1)
        m = m_new
    return m + l.log()
