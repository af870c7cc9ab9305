"""torch.nn.functional.scaled_dot_product_attention."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor

from ..errors import ShapeError, explain
from ..ops import attention
from ..scores.api import check_points


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention of query [.., H, L, E] over key [.., Hkv, S, E] and value [.., Hkv, S, Ev]: [.., H, L, Ev].

    Args:
        attn_mask: broadcastable to [.., H, L, S]: booleans, True = visible, or numbers that are added to the scores,
            which then get a gradient
        dropout_p: probability with which a weight becomes 0, below 1; the seed is drawn from torch's generator
        is_causal: query i sees keys j <= i, whatever L and S are
        scale: default 1 / sqrt(E)
        enable_gqa: H may be a multiple of Hkv, which may be another number in key than in value
    Raises:
        ShapeError: for shapes, devices or data types that do not go together, and a mask beside is_causal=True
        OptionError: for dropout_p out of its range
    """
    check_points({"query": query, "key": key})
    if not isinstance(value, Tensor):
        raise TypeError(explain("value", type(value).__name__, "a tensor"))
    if attn_mask is not None and is_causal:
        raise ShapeError(explain("attn_mask", "a mask beside is_causal=True", "one of the two"))
    q, k, v = (t if t.dim() > 2 else t.unsqueeze(0) for t in (query, key, value))
    batch = _broadcast("query, key, value", "leading dimensions", *(t.shape[:-3] for t in (q, k, v)))
    heads = [t.shape[-3] for t in (q, k, v)]
    if not enable_gqa:
        (all_heads,) = _broadcast("query, key, value (enable_gqa=False)", "heads", *((n,) for n in heads))
        heads = [all_heads, 1, 1] if heads[1] == heads[2] == 1 else [all_heads] * 3
    elif heads[1] != heads[2]:
        k, v = _same_heads(heads, k, v)
        heads[1:] = k.shape[-3], v.shape[-3]
    q, k, v = (
        t.expand(*batch, h, *t.shape[-2:]).reshape(math.prod(batch), h, *t.shape[-2:]) for t, h in zip((q, k, v), heads)
    )
    bias = None
    if attn_mask is not None:
        attn_mask = _mask(attn_mask, batch, (heads[0], q.shape[2], k.shape[2]))
        if attn_mask.dtype != torch.bool:
            attn_mask, bias = None, attn_mask
    causal: Literal[False, "top_left"] = "top_left" if is_causal else False
    out = attention(q, k, v, causal=causal, scale=scale, mask=attn_mask, bias=bias, dropout_p=dropout_p)
    out = out.reshape(*batch, *out.shape[1:])
    return out if max(query.dim(), key.dim(), value.dim()) > 2 else out.squeeze(0)


def _broadcast(argument: str, what: str, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    try:
        return tuple(torch.broadcast_shapes(*shapes))
    except RuntimeError:
        was = ", ".join(str(list(s)) for s in shapes)
        raise ShapeError(explain(argument, f"{what} {was}", f"{what} that broadcast")) from None


def _same_heads(heads: list[int], k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with as many heads, the fewest that serve both; `heads`: of query, key and value."""
    for name, n in (("key", heads[1]), ("value", heads[2])):
        if n == 0 or heads[0] % n:
            raise ShapeError(explain(name, f"{n} heads for {heads[0]} query heads", "a number that divides query's"))
    both = math.lcm(heads[1], heads[2])
    return k.repeat_interleave(both // heads[1], -3), v.repeat_interleave(both // heads[2], -3)


def _mask(mask: Tensor, batch: tuple[int, ...], tail: tuple[int, int, int]) -> Tensor:
    """The mask with at most one batch dimension."""
    if not isinstance(mask, Tensor):
        raise TypeError(explain("attn_mask", type(mask).__name__, "a tensor"))
    if mask.dtype != torch.bool and not mask.is_floating_point():
        raise ShapeError(explain("attn_mask", f"a tensor of {mask.dtype}", "torch.bool or a floating-point tensor"))
    whole = (*batch, *tail)
    fits = mask.dim() <= len(whole) and all(m == 1 or m == n for m, n in zip(reversed(mask.shape), reversed(whole)))
    if not fits:
        raise ShapeError(
            explain("attn_mask", f"shape {tuple(mask.shape)}", f"a shape that broadcasts to {list(whole)}")
        )
    if mask.dim() > 3 and len(batch) > 1:
        mask = mask.expand(*batch, *mask.shape[-3:]).reshape(math.prod(batch), *mask.shape[-3:])
    return mask
