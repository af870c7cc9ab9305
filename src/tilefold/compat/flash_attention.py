"""The functions of the package flash-attn, version 2.8 (Dao, FlashAttention-2, 2023).

Causal masks, windows and ALiBi are aligned at the last query and the last key. Where a query sees
no key the log-sum-exp is -inf. Dropout draws its seed from torch's generator.
"""

from __future__ import annotations

import contextlib
from typing import Any

from torch import Tensor

from ..errors import OptionError, explain
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
        deterministic: gradients, too, have the same bits each time, which costs time on sm_90; under
            torch.compile torch.use_deterministic_algorithms(True) asks for it
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
    return select.using(**dict(select.forced()), ordered=True) if deterministic else contextlib.nullcontext()


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
