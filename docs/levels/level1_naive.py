"""Level 1: all scores, then torch.logsumexp."""

import torch
from torch import Tensor


def logsumexp(x: Tensor, y: Tensor) -> Tensor:
    """[N, D], [K, D] -> float32 [N]."""
    return torch.logsumexp((x @ y.T).float(), -1)
