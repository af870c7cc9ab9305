"""An attention implementation for the models of Hugging Face's transformers."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ..errors import OptionError, explain
from ..ops import attention


def register_transformers(name: str = "tilefold") -> None:
    """Makes `attn_implementation=name` and `model.set_attn_implementation(name)` run `tilefold.attention`.

    Masks are those of "sdpa": None where a causal mask or no mask is all there is, else booleans [B, 1, Sq, Sk].
    Softcap, attention sinks, a position bias and dropout work; weights (`output_attentions`) are never in memory.

    Raises:
        ImportError: without transformers >= 4.53
    """
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    AttentionInterface.register(name, attention_forward)
    AttentionMaskInterface.register(name, sdpa_mask)


def attention_forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    position_bias: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The signature that transformers calls: query [B, H, Sq, D], key and value [B, Hkv, Sk, ..] -> [B, Sq, H, Dv].

    Args:
        attention_mask: booleans, True = visible, or numbers that are added to the scores; None: causal if the module is
        is_causal: default: what the module says
        s_aux: attention sinks [H]
        position_bias: added to the scores
        kwargs: what models pass along for other implementations, as `sliding_window`: the mask says it
    Raises:
        OptionError: for output_attentions=True or a head_mask
    """
    if kwargs.get("output_attentions"):
        raise OptionError(explain("output_attentions", "True", "False; attn_implementation='eager' has the weights"))
    if kwargs.get("head_mask") is not None:
        raise OptionError(explain("head_mask", "a tensor", "None; attn_implementation='eager' has it"))
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    mask, bias = attention_mask, position_bias
    if attention_mask is not None and attention_mask.is_floating_point():
        mask, bias = None, attention_mask if bias is None else attention_mask + bias
    out = attention(
        query, key, value,
        # without a mask, one query is the last one, and a cache with room behind the queries is aligned at its start
        causal="top_left" if causal and attention_mask is None and query.shape[2] > 1 else False,
        scale=scaling, softcap=softcap, mask=mask, bias=bias, sinks=s_aux, dropout_p=dropout,
    )  # fmt: skip
    return out.transpose(1, 2).contiguous(), None
