"""Scaled dot-product attention, without the [Sq, Sk] scores (Dao et al., FlashAttention, 2022)."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict, overload

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..execute.operator import fold_directly, is_plain, type_names
from ..folds import Fold, LogSumExp, SoftmaxSum
from ..scores import Scores
from ..scores.api import DTYPES, Assembled, assemble, run, run_assembled
from ..scores.core import autocast
from ..scores.dropout import dropped
from ..scores.mask import Mask
from ..scores.merge import fold_shards
from .attention_scores import Causal, Layout, Rule, check_operands, check_packing, check_tensor, heads_first, score_rule
from .heads import Heads
from .paged import check_pages, over_pages, stand_in

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    causal: Causal
    scale: float | Tensor | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    bias: Tensor | None
    alibi_slopes: Tensor | None
    mask: Tensor | Mask | None
    score_mod: Callable[[Scores], Scores] | None
    sinks: Tensor | None
    dropout_p: float
    seed: int | Tensor | None
    cu_seqlens_q: Tensor | None
    cu_seqlens_k: Tensor | None
    block_table: Tensor | None
    layout: Layout
    out_dtype: torch.dtype | None


Shards = Tensor | Sequence[Tensor]


@overload
def attention(
    q: Tensor, k: Shards, v: Shards, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Shards, v: Shards, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Shards,
    v: Shards,
    *,
    causal: Causal = False,
    scale: float | Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    mask: Tensor | Mask | None = None,
    score_mod: Callable[[Scores], Scores] | None = None,
    sinks: Tensor | None = None,
    dropout_p: float = 0.0,
    seed: int | Tensor | None = None,
    cu_seqlens_q: Tensor | None = None,
    cu_seqlens_k: Tensor | None = None,
    block_table: Tensor | None = None,
    layout: Layout = "bhsd",
    out_dtype: torch.dtype | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale q k^T + bias) v of each head, [B, H, Sq, Dv] in q's type.

    Args:
        q: [B, H, Sq, D]
        k: [B, Hkv, Sk, D]; H is a multiple of Hkv, and head h reads key head h // (H / Hkv)
        v: [B, Hkv, Sk, Dv]. k and v may also be lists of shards of the keys, in order: the result is that of the whole.
        causal: "top_left": query i sees keys j <= i; "bottom_right": the last query sees all keys.
            True: either, for Sq = Sk only. With `mask.lengths` or cu_seqlens the last key is that of the own sequence.
        scale: factor of q.k, any number or a tensor broadcastable to [B, H, Sq, Sk] (differentiable);
            default 1 / sqrt(D), 1 for D = 0
        window: (left, right) keys visible beside a query's own place, both inclusive; None: no bound on that side.
            Aligned as `causal`, top_left without it.
        softcap: c tanh(s / c) in the place of the scaled s
        bias: added to the scores, broadcastable to [B, H, Sq, Sk]; differentiable
        alibi_slopes: [H] or [B, H]; -slope |i + Sk - Sq - j| is added, aligned as in flash-attention; differentiable
            (Press et al., ALiBi, 2022)
        mask: a boolean tensor broadcastable to [B, H, Sq, Sk], True = visible, or one of `tilefold.mask`:
            lengths [B] or [B, H]; segments or intervals [S], [B, S] or [B, H, S]; a block table [(B, H,) ..]
        score_mod: a function from scores to scores, `lambda s: s - 0.1 * tf.col_index()`, called before any mask with
            lazy scores [B, H, Sq, Sk], or [B, Hkv, H / Hkv, Sq, Sk] for grouped heads
        sinks: [H], one more logit per head that has no value (Xiao et al., 2024); differentiable
        dropout_p: probability with which a weight becomes 0; the others are divided by 1 - dropout_p. Which ones do
            depends on seed, batch entry, head, query and key number alone; it is made again in backward, not stored.
        seed: of the dropout, an int or a tensor of one integer; default: drawn from torch's generator
        cu_seqlens_q, cu_seqlens_k: packed sequences, [n + 1] integers: sequence i is tokens cu[i] <= t < cu[i + 1] of q
            and of k and v (default: those of q), and sees only itself. Any may be empty. For layout "thd".
        block_table: [B, P] int32 or int64, keys and values in pages: k and v are then caches [pages, Hkv, page_size, D]
            ("bshd": [pages, page_size, Hkv, D]), and keys j of entry b lie in page block_table[b, j // page_size].
            Sk is P page_size; `mask.lengths` says how many there are, and numbers of pages without a visible key
            are not looked at. Forward only. Other numbers have to be those of pages: that is not checked.
        layout: "bhsd"; "bshd": q, k, v and the result are [B, S, H, D]; "thd": [T, H, D], log-sum-exp [H, T]
        out_dtype: of the result; torch.float32 from 16-bit operands is not rounded to them in between
        return_lse: also give the log-sum-exp of each query's scores (and sink), [B, H, Sq] float32, differentiable
    Returns:
        A query that sees no key gives 0 (log-sum-exp -inf, or its sink) and gets gradient 0.
    Raises:
        ShapeError: for shapes, devices or data types that do not go together
        OptionError: for an unknown alignment or layout, causal=True with Sq != Sk, or an option out of its range
    """
    others = (bias, alibi_slopes, mask, score_mod, sinks, cu_seqlens_q, cu_seqlens_k, block_table, out_dtype)
    key = None
    if layout == "bhsd" and dropout_p == 0 and not [o for o in others if o is not None]:
        key = _key(q, k, v, causal, scale, window, softcap)
        known = _programs.get(key)
        if known is not None:
            out, lse = _as_heads(fold_directly(_in_groups(q, k, v), *known, (True, return_lse)))
            out = out if out.dtype == q.dtype else out.to(q.dtype)
            return (out, lse) if return_lse else out
    keys, values = _shards(k), _shards(v)
    caches: list[Tensor] = []
    if block_table is not None:
        check_pages(q, keys, values, block_table, mask, layout)
        caches = [heads_first(t, layout) for t in (*keys, *values)]
        keys, values = ([heads_first(stand_in(t, block_table), layout)] for t in caches)
    check_operands(q, keys, values, layout)
    check_packing(q, keys, layout, cu_seqlens_q, cu_seqlens_k)
    q, *keys = (autocast(heads_first(t, layout)) for t in (q, *keys))
    values = [autocast(heads_first(t, layout)) for t in values]
    heads = Heads(q.shape[1], keys[0].shape[1], (q.shape[0], q.shape[1], q.shape[2], sum(t.shape[2] for t in keys)))
    _check_sinks(sinks, heads, q.device)
    _check_dropout(dropout_p, seed, q.device)
    if out_dtype is not None and out_dtype not in DTYPES:
        may_be = "torch.float16, bfloat16, float32 or float64, or None for that of q"
        raise OptionError(explain("out_dtype", repr(out_dtype), may_be))
    rule = score_rule(
        heads, q.shape[-1], q.device, causal=causal, scale=scale, window=window, softcap=softcap, bias=bias,
        alibi_slopes=alibi_slopes, mask=mask, score_mod=score_mod, cu_seqlens=(cu_seqlens_q, cu_seqlens_k),
        shards=len(keys),
    )  # fmt: skip
    dropout = None if dropout_p == 0 else _dropout(dropout_p, seed, heads, q.device)
    dtype = q.dtype if out_dtype is None else out_dtype
    rescaled = dropout is not None or sinks is not None
    wide = torch.promote_types(dtype, torch.float32) if rescaled or out_dtype is not None else None

    parts, folds = _parts(q, keys, values, rule, dropout, wide)
    if key is not None:
        _remember(key, assemble(parts[0], folds))
    if block_table is not None:
        results = run_assembled(over_pages(assemble(parts[0], folds), caches, block_table), folds)
    else:
        results = fold_shards(parts, folds) if len(keys) > 1 else run(parts[0], folds)
    out, own, lse = _as_heads((*results[0], results[-1][-1]))
    if sinks is not None:
        lse = _with_sink(lse, sinks)
    if rescaled:
        # of all weights, the share of those that the sum is made of
        share = (own - torch.where(lse == -math.inf, 0.0, lse)).exp()
        out = out * (share / (1.0 - dropout_p)).unsqueeze(-1)
    if out.dtype != dtype:
        out = out.to(dtype)
    out = _as_given(out, layout)
    if not return_lse:
        return out
    return out, lse.squeeze(0) if layout == "thd" else lse


def _shards(t: Any) -> list[Any]:
    return list(t) if isinstance(t, (list, tuple)) else [t]


def _as_given(out: Tensor, layout: Layout) -> Tensor:
    """[B, H, S, Dv] in the caller's layout, contiguous."""
    if layout == "bhsd":
        return out
    out = out.transpose(1, 2).contiguous()
    return out.squeeze(0) if layout == "thd" else out


def _parts(
    q: Tensor, keys: list[Tensor], values: list[Tensor], rule: Rule, dropout: Dropout | None, wide: torch.dtype | None
) -> tuple[list[Any], list[Fold]]:
    """The scores of each shard of the keys, for each fold; and the folds."""
    q, *both = _in_groups(q, *keys, *values)
    keys, values = both[: len(keys)], both[len(keys) :]
    parts: list[Any] = []
    start = 0
    for k in keys:
        s = rule.scores(q, k, start)
        s = s if wide is None else s.to(wide)
        each = (s,) if dropout is None else dropped(s, *dropout)
        parts.append(tuple(rule.numbered(one, start) for one in each) if len(keys) > 1 else each)
        start += k.shape[-2]
    payload = values if len(keys) > 1 else values[0]
    return parts, [SoftmaxSum(payload, return_lse=True), *([] if dropout is None else [LogSumExp()])]


def _in_groups(q: Tensor, *others: Any) -> list[Tensor]:
    """[B, Hkv, H / Hkv, S, ..] where heads share keys."""
    heads, kv_heads = q.shape[1], others[0].shape[1]
    if heads == kv_heads:
        return [q, *others]
    return [q.reshape(q.shape[0], kv_heads, heads // kv_heads, *q.shape[2:]), *[t.unsqueeze(2) for t in others]]


def _as_heads(results: Sequence[Tensor]) -> Sequence[Tensor]:
    """[B, H, S, ..] of results, the output first, whose heads may be in groups."""
    return [t if t is None else t.flatten(1, 2) for t in results] if results[0].dim() == 5 else results


KEPT = 1024  # Programs of calls
HASHED = frozenset((type(None), bool, int, float, str, tuple))
_programs: dict[Any, tuple[str, list[int], str]] = {}  # what decides a call's Program: the Program, sizes, types


def _remember(key: Any, made: Assembled) -> None:
    if len(_programs) == KEPT:
        _programs.clear()
    _programs[key] = made.program, made.sizes, type_names(*made.dtypes)


def _key(q: Any, k: Any, v: Any, *options: Any) -> Any:
    """What decides the Program of a call without other tensors; None: more than that does."""
    window = options[2]
    if not is_plain((q, k, v)) or torch._C._is_any_autocast_enabled():
        return None
    types = tuple(map(type, options))
    if type(window) is tuple:
        types += tuple(map(type, window))
    if not HASHED.issuperset(types):
        return None
    known = (
        q.shape,
        k.shape,
        v.shape,
        q.dtype,
        k.dtype,
        v.dtype,
        q.device,
        k.device,
        v.device,
        q.layout,
        k.layout,
        v.layout,
    )
    return *known, *options, types


def _check_sinks(sinks: Any, heads: Heads, device: torch.device) -> None:
    if sinks is None:
        return
    if not isinstance(sinks, Tensor):
        raise TypeError(explain("sinks", type(sinks).__name__, "a tensor [H]"))
    if sinks.dim() != 1 or sinks.shape[0] != heads.heads or not sinks.is_floating_point() or sinks.device != device:
        was = f"{sinks.dtype} of shape {tuple(sinks.shape)} on {sinks.device}"
        raise ShapeError(
            explain("sinks", was, f"floating-point numbers [{heads.heads}] on {device}, one for each head")
        )


def _with_sink(lse: Tensor, sinks: Tensor) -> Tensor:
    """log(exp(lse) + exp(sink)), with gradients where either is -inf."""
    sink = sinks.to(lse.dtype).unsqueeze(-1)
    nothing = lse == -math.inf
    return torch.where(nothing, sink, torch.logaddexp(torch.where(nothing, 0.0, lse), sink))


Dropout = tuple[float, Tensor, Tensor]  # p, seed, number of each batch entry and head


def _check_dropout(p: Any, seed: Any, device: torch.device) -> None:
    if not isinstance(p, (int, float)) or not 0 <= p < 1:
        raise OptionError(explain("dropout_p", repr(p), "a probability, 0 <= p < 1"))
    if not isinstance(seed, (int, Tensor, type(None))):
        raise TypeError(explain("seed", type(seed).__name__, "an int, a tensor of one integer, or None"))
    if isinstance(seed, Tensor):
        check_tensor("seed", seed, device)
        if seed.numel() != 1 or seed.is_floating_point() or seed.is_complex():
            was = f"{seed.dtype} of shape {tuple(seed.shape)}"
            raise ShapeError(explain("seed", was, "one integer"))


def _dropout(p: float, seed: int | Tensor | None, heads: Heads, device: torch.device) -> Dropout:
    if seed is None:
        seed = torch.randint(2**63 - 1, (1,), device=device)
    elif isinstance(seed, int):
        # any int, as the 64 bits of a key; filled in on the device, which a copy would wait for
        seed = torch.full((1,), (seed + 2**63) % 2**64 - 2**63, device=device)
    batch, groups = heads.shape[0], heads.groups if heads.grouped else (heads.heads,)
    return float(p), seed, torch.arange(batch * heads.heads, device=device).reshape(batch, *groups)
