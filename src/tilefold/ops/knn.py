"""k nearest neighbours by brute force, exact, without the [N, K] distances."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import OptionError, explain
from ..folds import BottomK, TopK
from ..scores import fold, scores
from ..scores.api import METRICS

CANDIDATE_ELEMENTS = 1 << 20  # differences held at a time on the CPU
GPU_FACTOR = 4  # as many on a GPU, where a piece costs launches


def knn(x: Tensor, y: Tensor, k: int, *, metric: str = "sqeuclidean") -> tuple[Tensor, Tensor]:
    """The k nearest rows of y for each row of x: (distances [.., N, k], indices [.., N, k] int64), nearest first.

    Distances are computed again from the differences x_i - y_j of the k winners, and ordered by them.

    Args:
        x: [.., N, D]
        y: [.., K, D]
        k: 1 <= k <= min(K, 2048)
        metric: "sqeuclidean", "euclidean"; "dot" and "cosine" are similarities: the largest come first
    Returns:
        distances in float32 (float64 for float64 operands), differentiable in x and y; ties go to the lowest index
    Raises:
        ShapeError, OptionError: naming the argument
    """
    if metric not in METRICS:
        raise OptionError(explain("metric", repr(metric), ", ".join(map(repr, METRICS))))
    near = BottomK(k) if metric in ("sqeuclidean", "euclidean") else TopK(k)
    with torch.no_grad():
        s = scores(x, y, metric)
        _, index = fold(s if s._order is None else s._order, near)
        index = index.sort(-1).values  # so that a stable sort leaves ties in the order of their indices
    value = _direct(x, y, index, metric)
    order = value.detach().sort(dim=-1, stable=True, descending=metric in ("dot", "cosine")).indices
    return value.gather(-1, order), index.gather(-1, order)


def _direct(x: Tensor, y: Tensor, index: Tensor, metric: str) -> Tensor:
    """The scores of x_i with the rows index[i] of y, [.., N, k]."""
    wide = torch.float64 if torch.float64 in (x.dtype, y.dtype) else torch.float32
    batch = index.shape[:-2]
    x, y = x.expand(*batch, *x.shape[-2:]), y.expand(*batch, *y.shape[-2:])
    k, d = index.shape[-1], x.shape[-1]
    elements = CANDIDATE_ELEMENTS * (1 if x.device.type == "cpu" else GPU_FACTOR)
    chunk = max(1, elements // max(1, k * d * batch.numel()))
    parts = []
    for start in range(0, x.shape[-2], chunk):
        at = index[..., start : start + chunk, :]
        picked = torch.take_along_dim(y, at.flatten(-2).unsqueeze(-1), -2).reshape(*at.shape, d).to(wide)
        row = x[..., start : start + chunk, :].unsqueeze(-2).to(wide)
        parts.append(_METRIC[metric](row, picked))
    return torch.cat(parts, -1 - 1) if parts else index.new_zeros(index.shape, dtype=wide)


def _root(square: Tensor) -> Tensor:
    apart = square != 0  # NaN too
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), 0.0)


_METRIC: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "dot": lambda a, b: (a * b).sum(-1),
    "cosine": lambda a, b: torch.nn.functional.cosine_similarity(a, b, dim=-1),
    "sqeuclidean": lambda a, b: (a - b).square().sum(-1),
    "euclidean": lambda a, b: _root((a - b).square().sum(-1)),
}
