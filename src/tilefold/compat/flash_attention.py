"""The functions of the package flash-attn, version 2.8 (Dao, FlashAttention-2, 2023).

Causal masks, windows and ALiBi are aligned at the last query and the last key. Where a query sees
no key the log-sum-exp is -inf. Dropout draws its seed from torch's generator.
"""

from __future__ import annotations

import contextlib
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..execute import select
from ..ops import attention
from ..scores import mask


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Any:
    """Attention of q [B, Sq, H, D] over k [B, Sk, Hkv, D] and v [B, Sk, Hkv, Dv]: [B, Sq, H, Dv] in q's type.

    Args:
        dropout_p: probability with which a weight becomes 0
        softmax_scale: default 1 / sqrt(D)
        causal: query i sees keys j <= i + Sk - Sq
        window_size: (left, right) keys beside i + Sk - Sq, inclusive; -1: no bound
        softcap: c tanh(s / c); 0: none
        alibi_slopes: [H] or [B, H], adds -slope |i + Sk - Sq - j|
        deterministic: gradients, too, have the same bits each time, which costs time on sm_90; not read
            under torch.compile, where torch.use_deterministic_algorithms(True) asks for it
        return_attn_probs: give (output, log-sum-exp [B, H, Sq] float32, None); the weights are never in memory
    Raises:
        ShapeError, OptionError: as `tilefold.attention`
    """
    with _order(deterministic):
        out, lse = attention(
            q, k, v, layout="bshd", scale=softmax_scale, dropout_p=dropout_p, alibi_slopes=alibi_slopes,
            return_lse=True, **_bounds(causal, window_size, softcap),
        )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Any:
    """Attention within packed sequences: q [Tq, H, D], k [Tk, Hkv, D], v [Tk, Hkv, Dv] -> [Tq, H, Dv].

    Args:
        cu_seqlens_q, cu_seqlens_k: [n + 1] integers, where each of n sequences starts and the last one ends
        max_seqlen_q, max_seqlen_k: not needed, not read
        alibi_slopes: [H] or [n, H]
        return_attn_probs: give (output, log-sum-exp [H, Tq] float32, None)
        block_table: None; there is no paged cache
        others: as for `flash_attn_func`, with each sequence's own lengths
    Raises:
        ShapeError, OptionError: as `tilefold.attention`
    """
    if block_table is not None:
        raise OptionError(
            explain("block_table", type(block_table).__name__, "None; keys in a paged cache are not read")
        )
    with _order(deterministic):
        out, lse = attention(
            q, k, v, layout="thd", cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, scale=softmax_scale,
            dropout_p=dropout_p, alibi_slopes=alibi_slopes, return_lse=True, **_bounds(causal, window_size, softcap),
        )  # fmt: skip
    return (out, lse, None) if return_attn_probs else out


def _order(deterministic: bool) -> contextlib.AbstractContextManager[None]:
    if not deterministic or torch.compiler.is_compiling():
        return contextlib.nullcontext()
    return select.using(**dict(select.forced()) | {"ordered": True})


def flash_attn_with_kvcache(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    k: Tensor | None = None,
    v: Tensor | None = None,
    rotary_cos: Tensor | None = None,
    rotary_sin: Tensor | None = None,
    cache_seqlens: int | Tensor | None = None,
    cache_batch_idx: Tensor | None = None,
    cache_leftpad: Tensor | None = None,
    block_table: Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    rotary_interleaved: bool = True,
    alibi_slopes: Tensor | None = None,
    num_splits: int = 0,
    return_softmax_lse: bool = False,
) -> Any:
    """Attention of q [B, Sq, H, D] over the keys of a cache: [B, Sq, H, Dv] in q's type. Forward only.

    Args:
        k_cache, v_cache: [B, Sk, Hkv, D]; with cache_batch_idx any number of entries; with block_table in pages,
            [pages, page_size, Hkv, D]
        k, v: [B, Snew, Hkv, D], new keys and values, which are written behind those of the cache first, in place
        rotary_cos, rotary_sin, cache_leftpad: None
        cache_seqlens: [B] integers, how many keys the cache holds (without the new ones), or one number for all;
            default: Sk
        cache_batch_idx: [B] integers, which entry of the cache is whose
        block_table: [B, P] integers, the pages of each entry; see `tilefold.attention`
        causal, window_size, alibi_slopes: aligned at the last query and each entry's last key
        rotary_interleaved, num_splits: not read
        return_softmax_lse: give (output, log-sum-exp [B, H, Sq] float32)
        others: as for `flash_attn_func`
    Raises:
        ShapeError, OptionError: as `tilefold.attention`, and for what is not served
    """
    unserved = {"rotary_cos": rotary_cos, "rotary_sin": rotary_sin, "cache_leftpad": cache_leftpad}
    for name, given in unserved.items():
        if given is not None:
            raise OptionError(explain(name, type(given).__name__, "None; it is not served"))
    if cache_batch_idx is not None:
        if block_table is not None:
            raise OptionError(explain("cache_batch_idx", "a tensor beside block_table", "one of the two"))
        block_table = cache_batch_idx.unsqueeze(-1)  # an entry of the cache is a page
    keys = k_cache.shape[1] * (1 if block_table is None else block_table.shape[1])
    lengths = cache_seqlens
    if isinstance(lengths, int) or (lengths is None and k is not None):
        lengths = torch.full(q.shape[:1], keys if lengths is None else lengths, device=q.device)
    options, held = _bounds(causal, window_size, softcap), lengths
    if k is not None:
        if v is None or lengths is None or k.shape[0] != q.shape[0] or k.shape[:2] != v.shape[:2]:
            raise ShapeError(explain("k, v", "new keys or values alone, or of other shapes", "both, [B, Snew, Hkv, D]"))
        lengths = lengths + k.shape[1]
    if lengths is not None:
        options["mask"] = _keys_of(lengths, options, q.shape[1], alibi_slopes)
    if k is not None and v is not None and held is not None:  # after what these arguments may have wrong
        _append(k_cache, v_cache, k, v, held, block_table)
    out, lse = attention(
        q, k_cache, v_cache, layout="bshd", scale=softmax_scale, alibi_slopes=alibi_slopes, block_table=block_table,
        return_lse=True, **options,
    )  # fmt: skip
    return (out, lse) if return_softmax_lse else out


def _append(
    k_cache: Tensor, v_cache: Tensor, k: Tensor, v: Tensor, lengths: Tensor, block_table: Tensor | None
) -> None:
    """Writes new keys and values behind those of each entry."""
    place = lengths.long().unsqueeze(-1) + torch.arange(k.shape[1], device=k.device)  # [B, Snew]
    entry = torch.arange(k.shape[0], device=k.device).unsqueeze(-1)
    if block_table is not None:
        size = k_cache.shape[1]
        entry, place = block_table.long()[entry, place // size], place % size
    k_cache[entry, place] = k.to(k_cache.dtype)
    v_cache[entry, place] = v.to(v_cache.dtype)


def _keys_of(lengths: Tensor, options: dict[str, Any], queries: int, alibi_slopes: Tensor | None) -> mask.Mask:
    """The visible keys of entries of these lengths; an alignment that `options` asks for is theirs then."""
    band = options.get("mask")
    if band is None:
        return mask.lengths(lengths)
    if alibi_slopes is not None:
        was = "bounds without causal, beside alibi_slopes"
        raise OptionError(explain("window_size", was, "causal=True, or no slopes"))
    here = lengths.unsqueeze(-1) + torch.arange(-queries, 0, device=lengths.device)
    end = lengths.unsqueeze(-1)
    start = here * 0 if band.left is None else here - band.left
    return mask.interval(start, end.expand_as(here) if band.right is None else (here + band.right + 1).minimum(end))


def _bounds(causal: bool, window_size: Any, softcap: float) -> dict[str, Any]:
    """What bounds the keys and the scores, as options of `attention`."""
    whole = isinstance(window_size, (tuple, list)) and len(window_size) == 2
    if not whole or not all(isinstance(w, int) and w >= -1 for w in window_size):
        raise OptionError(
            explain("window_size", repr(window_size), "(left, right), numbers of keys or -1 for no bound")
        )
    left, right = (None if w < 0 else w for w in window_size)
    given: dict[str, Any] = {"softcap": None if softcap == 0 else softcap}
    if causal:
        given |= {"causal": "bottom_right", "window": (left, right)}
    elif left is not None or right is not None:
        given["mask"] = mask.window(left, right, align="bottom_right")
    return given
