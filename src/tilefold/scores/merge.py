"""One result from column shards: each is folded by itself, and the fold's own merge joins the states.

The merge is plain torch on O(N) numbers, so it is differentiable wherever the fold is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..errors import FoldError, OptionError, ShapeError, explain
from ..folds.fold import Fold, State
from ..folds.topk import TopK
from .core import Scores

Part = tuple[State, "Tensor | None"]


def fold_shards(shards: list[Any], every: Sequence[Fold]) -> list[tuple[Tensor, ...]]:
    """The results of all folds over shards of the columns, in order.

    A payload belongs to all shards' columns together, [.., K, Dv], and is cut here; so is a `Gather` index.
    """
    from .api import run

    if not shards or not all(isinstance(s, Scores) for s in shards):
        raise TypeError(explain("s", "a list with something else than scores, or none", "a list of scores"))
    rows = shards[0].shape[:-1]
    if any(s.shape[:-1] != rows for s in shards):
        raise ShapeError(
            explain("s", f"shards of shapes {[tuple(s.shape) for s in shards]}", "shards that differ only in K")
        )
    total = sum(s._k for s in shards)
    merged: list[Part | None] = [None] * len(every)
    start = 0
    for s in shards:
        local = [_shard(f, start, s._k, total) for f in every]
        results = run(s, local, wide=True)
        _join(merged, every, results, start)
        start += s._k
    return [_finish(f, p) for f, p in zip(every, merged, strict=True)]


def _shard(f: Fold, start: int, size: int, total: int) -> Fold:
    """The fold as one shard sees it."""
    if f.name in ("gather", "sample"):
        raise FoldError(
            explain(
                "fold",
                f"{f.name} over a list of shards",
                "LogSumExp, SoftmaxSum, Sum, Max, ArgMax, TopK, Mean, Variance, Count",
            )
        )
    if f.payload is None:
        return f
    if f.payload.shape[-2] != total:
        raise ShapeError(
            explain("payload", f"shape {tuple(f.payload.shape)}", f"[.., K, Dv] with K = {total} over all shards")
        )
    local = type(f).from_options(f.options)
    local.payload = f.payload.narrow(-2, start, size)
    return local


def _join(merged: list[Part | None], every: Sequence[Fold], results: Sequence[tuple[Tensor, ...]], start: int) -> None:
    for i, (f, r) in enumerate(zip(every, results, strict=True)):
        moved = tuple(torch.where(t >= 0, t + start, t) if j in f.columns else t for j, t in enumerate(r))
        state, acc = f.resume(moved)
        before = merged[i]
        if before is None:
            merged[i] = state, acc
        elif acc is None:
            merged[i] = f.merge(before[0], state), None
        else:
            joined, alpha, beta = f.merge(before[0], state)
            assert before[1] is not None
            old = before[1] if alpha is None else before[1] * alpha.unsqueeze(-1)
            merged[i] = joined, old + (acc if beta is None else acc * beta.unsqueeze(-1))


def _finish(f: Fold, part: Part | None) -> tuple[Tensor, ...]:
    assert part is not None
    state, acc = part
    finished = f.finish(state)
    made: list[Any] = list(finished)
    for j, r in enumerate(f.results):
        if r.kind == "payload":
            assert acc is not None
            made[j] = acc if made[j] is None else acc * made[j].unsqueeze(-1)
            if f.payload is not None:
                made[j] = made[j].to(f.payload.dtype)
    return tuple(made)


@torch.no_grad()
def fold_stream(
    x: Tensor,
    chunks: Iterable[Any],
    every: Sequence[Fold],
    metric: str,
    transform: Callable[[Scores], Scores] | None,
) -> list[tuple[Tensor, ...]]:
    """The results of all folds over chunks of the columns that an iterator brings."""
    from .api import run, scores

    if any(f.payload is not None for f in every):
        raise OptionError(
            explain("fold", "a fold with its payload", "a fold without it; the chunks bring (y, payload) pairs")
        )
    merged: list[Part | None] = [None] * len(every)
    start = 0
    for chunk in chunks:
        y, payload = chunk if isinstance(chunk, tuple) else (chunk, None)
        s = scores(x, y, metric)
        s = s if transform is None else transform(s)
        local = []
        for f in every:
            if not f.results[0].kind == "payload":
                local.append(_shard(f, 0, 0, 0))
                continue
            if payload is None:
                raise ShapeError(explain("chunks", "a tensor", f"(y, payload) pairs, which {f.name} needs"))
            one = type(f).from_options(f.options)
            one.payload = payload
            local.append(one)
        for f in local:
            # a list longer than a chunk has columns is filled by later chunks
            if isinstance(f, TopK) and f.k > s._k:
                raise OptionError(
                    explain("chunks", f"a chunk of {s._k} columns", f"at least k = {f.k} columns in each chunk")
                )
        _join(merged, every, run(s, local, wide=True), start)
        start += s._k
    if start == 0:
        raise OptionError(explain("chunks", "an empty iterator", "at least one chunk"))
    return [_finish(f, p) for f, p in zip(every, merged, strict=True)]
