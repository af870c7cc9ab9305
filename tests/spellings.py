"""What users write, once: each entry is a function of scores and data, for lazy scores and for a plain matrix alike.

`SPELLINGS[name](scores, e)`: `scores(x, y)` makes the scores, lazily or as x @ y.T; e holds the tensors.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import tilefold as tf


@dataclass
class Env:
    """Tensors of one problem: x [N, D], y [K, D], payload v [K, 5], and data that broadcasts to [N, K]."""

    x: Tensor
    y: Tensor
    v: Tensor
    u: Tensor  # [N, 3], a payload of the transposed scores
    row: Tensor  # [N, 1]
    col: Tensor  # [K]
    tile: Tensor  # [N, K]
    t: Tensor  # scalar
    mask: Tensor  # [N, K] boolean, True hides
    labels: Tensor  # [N]

    def floats(self) -> dict[str, Tensor]:
        every = {f.name: getattr(self, f.name) for f in fields(self)}
        return {name: t for name, t in every.items() if t.is_floating_point()}

    def to(self, dtype: torch.dtype) -> Env:
        return replace(self, **{name: t.detach().to(dtype).requires_grad_() for name, t in self.floats().items()})


def env(n: int = 13, k: int = 21, d: int = 7, dtype: torch.dtype = torch.float32, seed: int = 0) -> Env:
    g = torch.Generator().manual_seed(seed)
    r = lambda *shape: torch.randn(*shape, generator=g)
    labels = torch.randint(0, k, (n,), generator=g)
    return Env(r(n, d), r(k, d), r(k, 5), r(n, 3), r(n, 1), r(k), r(n, k), torch.tensor(0.7), r(n, k) > 0.3, labels).to(
        dtype
    )


def dense(x: Tensor, y: Tensor) -> Tensor:
    return x @ y.mT


Make = Callable[[Tensor, Tensor], Any]
SPELLINGS: dict[str, Callable[[Make, Env], Any]] = {
    # log-sum-exp
    "s.logsumexp(-1)": lambda s, e: s(e.x, e.y).logsumexp(-1),
    "torch.logsumexp": lambda s, e: torch.logsumexp(s(e.x, e.y), -1),
    "torch.logsumexp(dim=)": lambda s, e: torch.logsumexp(s(e.x, e.y), dim=1, keepdim=True),
    "logsumexp of columns": lambda s, e: s(e.x, e.y).logsumexp(-2),
    "logsumexp of columns, keepdim": lambda s, e: torch.logsumexp(s(e.x, e.y), 0, keepdim=True),
    "logsumexp of all": lambda s, e: s(e.x, e.y).logsumexp((0, 1)),
    "s.mT.logsumexp": lambda s, e: s(e.x, e.y).mT.logsumexp(-1),
    "s.T.logsumexp": lambda s, e: s(e.x, e.y).T.logsumexp(-1),
    "transpose": lambda s, e: s(e.x, e.y).transpose(0, 1).logsumexp(-1),
    # softmax
    "s.softmax(-1) @ v": lambda s, e: s(e.x, e.y).softmax(-1) @ e.v,
    "matmul(F.softmax)": lambda s, e: torch.matmul(F.softmax(s(e.x, e.y) / 0.7 + e.tile, -1), e.v),
    "F.softmax(dim=)": lambda s, e: F.softmax(s(e.x, e.y), dim=-1) @ e.v,
    "torch.softmax @ vector": lambda s, e: torch.softmax(s(e.x, e.y), -1) @ e.col,
    "softmax of columns": lambda s, e: s(e.x, e.y).softmax(0).sum(-1),
    "softmax mT": lambda s, e: s(e.x, e.y).softmax(-1).mT @ e.u,
    "softmax squared": lambda s, e: s(e.x, e.y).softmax(-1).square().sum(-1),
    "entropy": lambda s, e: -(s(e.x, e.y).softmax(-1) * s(e.x, e.y).log_softmax(-1)).sum(-1),
    "torch.log_softmax gather": lambda s, e: F.log_softmax(s(e.x, e.y), -1).gather(-1, e.labels[:, None]),
    "torch.gather(log_softmax)": lambda s, e: torch.gather(
        torch.log_softmax(s(e.x, e.y), dim=-1), -1, e.labels[:, None]
    ).squeeze(-1),
    "dropout(p=0)": lambda s, e: F.dropout(s(e.x, e.y).softmax(-1), 0.0) @ e.v,
    # cross-entropy
    "F.cross_entropy": lambda s, e: F.cross_entropy(s(e.x, e.y), e.labels),
    "F.cross_entropy(sum)": lambda s, e: F.cross_entropy(s(e.x, e.y) * 2, e.labels, reduction="sum"),
    "F.cross_entropy(none)": lambda s, e: F.cross_entropy(s(e.x, e.y), e.labels, reduction="none"),
    "F.cross_entropy(label_smoothing)": lambda s, e: F.cross_entropy(s(e.x, e.y), e.labels, label_smoothing=0.1),
    "F.cross_entropy(ignore_index)": lambda s, e: F.cross_entropy(s(e.x, e.y), e.labels.where(e.labels > 3, -100)),
    "F.nll_loss": lambda s, e: F.nll_loss(F.log_softmax(s(e.x, e.y), -1), e.labels),
    "nn.CrossEntropyLoss": lambda s, e: torch.nn.CrossEntropyLoss()(s(e.x, e.y), e.labels),
    # selection
    "s.argmax(-1)": lambda s, e: s(e.x, e.y).argmax(-1),
    "torch.argmax": lambda s, e: torch.argmax(s(e.x, e.y), dim=-1, keepdim=True),
    "argmax of columns": lambda s, e: s(e.x, e.y).argmax(0),
    "s.argmin(-1)": lambda s, e: s(e.x, e.y).argmin(-1),
    "s.topk": lambda s, e: s(e.x, e.y).topk(4)[0],
    "s.topk indices": lambda s, e: s(e.x, e.y).topk(4).indices,
    "torch.topk smallest": lambda s, e: torch.topk(s(e.x, e.y), 3, largest=False).values,
    "topk of columns": lambda s, e: s(e.x, e.y).topk(2, dim=0).values,
    "s.amax(-1)": lambda s, e: s(e.x, e.y).amax(-1),
    "torch.amin(0)": lambda s, e: torch.amin(s(e.x, e.y), 0),
    "s.max(-1)": lambda s, e: s(e.x, e.y).max(-1)[0],
    "torch.max(dim)": lambda s, e: torch.max(s(e.x, e.y), dim=-1).values,
    "s.max()": lambda s, e: s(e.x, e.y).max(),
    "s.min(-1) indices": lambda s, e: s(e.x, e.y).min(-1).indices,
    "s.gather": lambda s, e: s(e.x, e.y).gather(-1, torch.stack((e.labels, e.labels.flip(0)), -1)),
    # sums and moments
    "s @ v": lambda s, e: s(e.x, e.y) @ e.v,
    "torch.matmul(s, v)": lambda s, e: torch.matmul(s(e.x, e.y).tanh(), e.v),
    "torch.mm(s, v)": lambda s, e: torch.mm(s(e.x, e.y), e.v),
    "u.T @ s": lambda s, e: e.u.mT @ s(e.x, e.y).cos(),
    "vector @ s": lambda s, e: e.row[:, 0] @ s(e.x, e.y),
    "einsum": lambda s, e: torch.einsum("nk,kd->nd", s(e.x, e.y).exp(), e.v),
    "einsum of columns": lambda s, e: torch.einsum("nk,nd->dk", s(e.x, e.y).sigmoid(), e.u),
    "einsum with a vector": lambda s, e: torch.einsum("nk,k->n", s(e.x, e.y).exp(), e.col),
    "einsum without output": lambda s, e: torch.einsum("nk,kd", s(e.x, e.y).exp(), e.v),
    "torch.mv": lambda s, e: torch.mv(s(e.x, e.y), e.col),
    "s.mm": lambda s, e: s(e.x, e.y).mm(e.v),
    "F.linear": lambda s, e: F.linear(s(e.x, e.y).tanh(), e.v.mT, e.v[0]),
    "s.sum()": lambda s, e: (s(e.x, e.y) * 2).sum(),
    "s.sum(-1)": lambda s, e: s(e.x, e.y).exp().sum(-1),
    "torch.sum(dim=0)": lambda s, e: torch.sum(s(e.x, e.y), dim=0),
    "s.mean()": lambda s, e: s(e.x, e.y).relu().mean(),
    "torch.mean(-1)": lambda s, e: torch.mean(s(e.x, e.y), -1),
    "s.var(-1)": lambda s, e: s(e.x, e.y).var(-1),
    "s.var(unbiased=False)": lambda s, e: s(e.x, e.y).var(-1, unbiased=False),
    "s.std(-1)": lambda s, e: s(e.x, e.y).std(-1),
    "(s > 0).to + s": lambda s, e: ((s(e.x, e.y) > 0).to(e.x.dtype) - 0.5 + s(e.x, e.y)).sum(-1),
    "torch.sum(input=)": lambda s, e: torch.sum(input=s(e.x, e.y), dim=-1),
    "(s > 0).sum(-1)": lambda s, e: (s(e.x, e.y) > 0).sum(-1),
    "count_nonzero": lambda s, e: torch.count_nonzero(s(e.x, e.y).relu(), dim=-1),
    # data
    "s + row": lambda s, e: (s(e.x, e.y) + e.row).logsumexp(-1),
    "s * col": lambda s, e: (s(e.x, e.y) * e.col).logsumexp(-1),
    "tile + s": lambda s, e: (e.tile + s(e.x, e.y)).logsumexp(-1),
    "tile - s": lambda s, e: (e.tile - s(e.x, e.y)).logsumexp(-1),
    "s / t": lambda s, e: (s(e.x, e.y) / e.t).logsumexp(-1),
    "t * s": lambda s, e: (e.t.exp() * s(e.x, e.y)).softmax(-1) @ e.v,
    "torch.add(alpha)": lambda s, e: torch.add(s(e.x, e.y), e.tile, alpha=0.5).logsumexp(-1),
    "1 - s": lambda s, e: (1 - s(e.x, e.y)).exp().log1p().sum(-1),
    "1 / s": lambda s, e: (1 / (s(e.x, e.y) * s(e.x, e.y) + 1)).sum(-1),
    "2 ** s": lambda s, e: (2 ** s(e.x, e.y)).sum(-1),
    "s.pow(1.5)": lambda s, e: (s(e.x, e.y).abs() + 1).pow(1.5).sum(-1),
    "s ** 3": lambda s, e: (s(e.x, e.y) ** 3).sum(-1),
    "maximum(s, tile)": lambda s, e: torch.maximum(s(e.x, e.y), e.tile).sum(-1),
    "minimum(tile, s)": lambda s, e: torch.minimum(e.tile, s(e.x, e.y)).sum(-1),
    "torch.max(s, tile)": lambda s, e: torch.max(s(e.x, e.y), e.tile).sum(-1),
    "torch.min(tile, s)": lambda s, e: torch.min(e.tile, s(e.x, e.y)).sum(-1),
    "tile.where(s > 0, number)": lambda s, e: (e.tile.where(s(e.x, e.y) > 0, 0.5) * s(e.x, e.y)).sum(-1),
    "tile.masked_fill(s > 0)": lambda s, e: (e.tile.masked_fill(s(e.x, e.y) > 0, 0.5) * s(e.x, e.y)).sum(-1),
    "where(mask, s, number)": lambda s, e: torch.where(e.mask, s(e.x, e.y), torch.tensor(-1e9)).logsumexp(-1),
    "where(s > 0, s, s / 10)": lambda s, e: torch.where(s(e.x, e.y) > 0, s(e.x, e.y), s(e.x, e.y) * 0.1).sum(-1),
    "masked_fill": lambda s, e: s(e.x, e.y).masked_fill(e.mask, float("-inf")).logsumexp(-1),
    "masked_fill softmax": lambda s, e: F.softmax(torch.masked_fill(s(e.x, e.y), e.mask, -1e4), -1) @ e.v,
    # pointwise functions
    "exp": lambda s, e: torch.exp(s(e.x, e.y)).sum(-1),
    "log of positive": lambda s, e: torch.log(s(e.x, e.y).square() + 1).sum(-1),
    "tanh": lambda s, e: (30.0 * torch.tanh(s(e.x, e.y) / 30.0)).logsumexp(-1),
    "sigmoid": lambda s, e: torch.sigmoid(s(e.x, e.y)).sum(-1),
    "relu": lambda s, e: F.relu(s(e.x, e.y)) @ e.v,
    "gelu": lambda s, e: F.gelu(s(e.x, e.y)).sum(-1),
    "gelu tanh": lambda s, e: F.gelu(s(e.x, e.y), approximate="tanh").sum(-1),
    "silu": lambda s, e: F.silu(s(e.x, e.y)).sum(-1),
    "softplus": lambda s, e: F.softplus(s(e.x, e.y)).sum(-1),
    "logsigmoid": lambda s, e: F.logsigmoid(s(e.x, e.y)).sum(-1),
    "square sqrt": lambda s, e: torch.sqrt(torch.square(s(e.x, e.y)) + 1).sum(-1),
    "rsqrt": lambda s, e: torch.rsqrt(s(e.x, e.y).square() + 1).sum(-1),
    "abs": lambda s, e: (2 - s(e.x, e.y)).abs().sum(-1),
    "clamp": lambda s, e: torch.clamp(s(e.x, e.y), -1, 1).sum(-1),
    "clamp(min=)": lambda s, e: s(e.x, e.y).clamp(min=0.5).sum(-1),
    "clip": lambda s, e: torch.clip(s(e.x, e.y), -1, 1).sum(-1) + s(e.x, e.y).clip(max=0.5).sum(-1),
    "clamp_min": lambda s, e: s(e.x, e.y).clamp_min(0.1).sum(-1) + torch.clamp_max(s(e.x, e.y), 0.2).sum(-1),
    "other names": lambda s, e: (+s(e.x, e.y)).absolute().add(1).divide(2).subtract(3).multiply(s(e.x, e.y)).sum(-1),
    "erf sin": lambda s, e: (s(e.x, e.y).erf() + torch.sin(s(e.x, e.y))).sum(-1),
    "neg": lambda s, e: (-s(e.x, e.y)).logsumexp(-1),
    # views
    "rows sliced": lambda s, e: s(e.x, e.y)[:-1].logsumexp(-1),
    "both sliced": lambda s, e: s(e.x, e.y)[1:-1, 3:].logsumexp(-1),
    "strided slice with data": lambda s, e: (s(e.x, e.y) + e.tile + e.row)[::2, 1::3].logsumexp(-1),
    "rows by index": lambda s, e: (s(e.x, e.y) + e.row)[torch.tensor([3, 0, 3])].logsumexp(-1),
    "rows by mask": lambda s, e: s(e.x, e.y)[e.labels > 5].logsumexp(-1),
    "rows from the end by index": lambda s, e: (s(e.x, e.y) + e.row)[torch.tensor([-1, 0])].logsumexp(-1),
    "s.t()": lambda s, e: torch.t(s(e.x, e.y)).logsumexp(-1) + s(e.x, e.y).t().sum(-1),
    "squeeze": lambda s, e: s(e.x, e.y).unsqueeze(0).squeeze().logsumexp(-1),
    "columns by index": lambda s, e: s(e.x, e.y)[:, torch.tensor([3, 0, 5])].logsumexp(-1),
    "unsqueeze": lambda s, e: s(e.x, e.y).unsqueeze(0).logsumexp(-1),
    "float contiguous": lambda s, e: s(e.x, e.y).float().contiguous().logsumexp(-1),
    # several leaves
    "sum of two products": lambda s, e: (s(e.x, e.y) + s(e.x.cos(), e.y.sin())).logsumexp(-1),
    "difference of two products": lambda s, e: (s(e.x, e.y) - 0.5 * s(e.x.cos(), e.y)).softmax(-1) @ e.v,
    "product of two products": lambda s, e: (s(e.x, e.y).tanh() * s(e.x.cos(), e.y)).sum(-1),
    "three products": lambda s, e: (s(e.x, e.y) + s(e.row, e.v[:, :1]) * s(e.u, e.v[:, 1:4])).logsumexp(-1),
}
# names whose result has no gradient
DISCRETE = frozenset(
    (
        "s.argmax(-1)",
        "torch.argmax",
        "argmax of columns",
        "s.argmin(-1)",
        "s.topk indices",
        "s.min(-1) indices",
        "(s > 0).sum(-1)",
        "count_nonzero",
    )
)

# spellings that only lazy scores know; the second function is the same on a matrix
LAZY: dict[str, tuple[Callable[[Env], Any], Callable[[Env], Any]]] = {
    "fold of several": (
        lambda e: (lambda r: r.lse + r.hit)(tf.fold(tf.scores(e.x, e.y), lse=tf.LogSumExp(), hit=tf.Gather(e.labels))),
        lambda e: dense(e.x, e.y).logsumexp(-1) + dense(e.x, e.y).gather(-1, e.labels[:, None])[:, 0],
    ),
    "softmax sum with lse": (
        lambda e: (lambda o, lse: o * lse[:, None])(
            *tf.fold(tf.scores(e.x, e.y) * e.t, tf.SoftmaxSum(e.v, return_lse=True))
        ),
        lambda e: ((dense(e.x, e.y) * e.t).softmax(-1) @ e.v) * (dense(e.x, e.y) * e.t).logsumexp(-1)[:, None],
    ),
    "index arithmetic": (
        lambda e: (tf.scores(e.x, e.y) - 0.1 * (tf.row_index() - tf.col_index()).abs()).logsumexp(-1),
        lambda e: (dense(e.x, e.y) - 0.1 * (torch.arange(len(e.x))[:, None] - torch.arange(len(e.y))).abs()).logsumexp(
            -1
        ),
    ),
    "cosine": (
        lambda e: (tf.scores(e.x, e.y, metric="cosine") / e.t).logsumexp(-1),
        lambda e: (F.normalize(e.x, dim=-1) @ F.normalize(e.y, dim=-1).mT / e.t).logsumexp(-1),
    ),
    "sqeuclidean": (
        lambda e: torch.exp(-tf.scores(e.x, e.y, metric="sqeuclidean") / 9) @ e.v,
        lambda e: torch.exp(-(e.x[:, None] - e.y).square().sum(-1) / 9) @ e.v,
    ),
    "euclidean": (
        lambda e: tf.scores(e.x, e.y, metric="euclidean").neg().exp() @ e.v,
        lambda e: (e.x[:, None] - e.y).norm(dim=-1).neg().exp() @ e.v,
    ),
    "euclidean amin": (
        lambda e: tf.scores(e.x, e.y, metric="euclidean").amin(-1),
        lambda e: (e.x[:, None] - e.y).norm(dim=-1).amin(-1),
    ),
    "outer L1": (
        lambda e: tf.outer(lambda a, b: (a - b).abs().sum(-1), e.x[:, :3], e.y[:, :3]).neg().exp() @ e.v,
        lambda e: (e.x[:, None, :3] - e.y[:, :3]).abs().sum(-1).neg().exp() @ e.v,
    ),
    "outer of coordinates": (
        lambda e: tf.outer(lambda a, b: (a[0] * b[1] - a[1]).tanh(), e.x[:, :2], e.y[:, :2]).sum(-1),
        lambda e: (e.x[:, None, 0] * e.y[:, 1] - e.x[:, None, 1]).tanh().sum(-1),
    ),
    "outer amax": (
        lambda e: tf.outer(lambda a, b: abs(a - b).amax(-1), e.x[:, :4], e.y[:, :4]).amin(-1),
        lambda e: (e.x[:, None, :4] - e.y[:, :4]).abs().amax(-1).amin(-1),
    ),
}
