"""One result from column shards: each is folded by itself, and the fold's own merge joins the states.

The merge is plain torch on O(N) numbers, so it is differentiable wherever the fold is.
"""

from __future__ import annotations

import functools
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

    A payload belongs to all shards' columns together, [.., K, Dv], and is cut here; or is a list of its parts.
    A shard is scores, or for each fold its own (`assemble`).
    """
    from .api import run

    first = [s[0] if isinstance(s, tuple) else s for s in shards]
    if not first or not all(isinstance(s, Scores) for s in first):
        raise TypeError(explain("s", "a list with something else than scores, or none", "a list of scores"))
    rows = first[0].shape[:-1]
    if any(s.shape[:-1] != rows for s in first):
        raise ShapeError(
            explain("s", f"shards of shapes {[tuple(s.shape) for s in first]}", "shards that differ only in K")
        )
    sizes = [s._k for s in first]
    payloads = [_parts(f, sizes) for f in every]
    merged: list[Part | None] = [None] * len(every)
    start = 0
    for i, (s, size) in enumerate(zip(shards, sizes)):
        local = [_shard(f, None if parts is None else parts[i]) for f, parts in zip(every, payloads)]
        _join(merged, every, run(s, local, wide=True), start)
        start += size
    scored = functools.reduce(torch.promote_types, (s._dtype for s in first))
    finished = []
    for f, part, parts in zip(every, merged, payloads, strict=True):
        dtype = None if parts is None else functools.reduce(torch.promote_types, (v.dtype for v in parts), scored)
        finished.append(_finish(f, part, dtype))
    return finished


def _parts(f: Fold, sizes: list[int]) -> Sequence[Tensor] | None:
    """A fold's payload, cut into those of the shards."""
    v: Any = f.payload
    if v is None:
        return None
    if isinstance(v, (list, tuple)):
        if len(v) != len(sizes):
            raise ShapeError(explain("payload", f"a list of {len(v)}", f"a list of {len(sizes)}, one for each shard"))
        return list(v)
    if not isinstance(v, Tensor):
        raise TypeError(explain("payload", type(v).__name__, "a tensor [.., K, Dv], or a list of its parts"))
    if v.shape[-2] != sum(sizes):
        raise ShapeError(
            explain("payload", f"shape {tuple(v.shape)}", f"[.., K, Dv] with K = {sum(sizes)} over all shards")
        )
    return torch.split(v, sizes, -2)


def _shard(f: Fold, payload: Tensor | None) -> Fold:
    """The fold as one shard sees it."""
    if f.name in ("gather", "sample"):
        raise FoldError(
            explain(
                "fold",
                f"{f.name} over a list of shards",
                "LogSumExp, SoftmaxSum, Sum, Max, ArgMax, TopK, Mean, Variance, Count",
            )
        )
    if payload is None:
        return f
    local = type(f).from_options(f.options)
    local.payload = payload
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


def _finish(f: Fold, part: Part | None, dtype: torch.dtype | None = None) -> tuple[Tensor, ...]:
    """The results; those with a payload in `dtype`, or wide."""
    assert part is not None
    state, acc = part
    finished = f.finish(state)
    made: list[Any] = list(finished)
    for j, r in enumerate(f.results):
        if r.kind == "payload":
            assert acc is not None
            made[j] = acc if made[j] is None else acc * made[j].unsqueeze(-1)
            made[j] = made[j] if dtype is None else made[j].to(dtype)
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
                local.append(_shard(f, None))
                continue
            if payload is None:
                raise ShapeError(explain("chunks", "a tensor", f"(y, payload) pairs, which {f.name} needs"))
            local.append(_shard(f, payload))
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
