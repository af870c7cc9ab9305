"""Sequences of different lengths in one call, with sinks and dropout; and keys that lie in shards."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import tilefold as tf
from tilefold.compat import flash_attn_varlen_func


def main() -> None:
    torch.manual_seed(0)
    lengths, heads, key_heads, width = [100, 0, 300, 624], 4, 2, 32
    cu_seqlens = torch.tensor([0, *lengths]).cumsum(0).int()
    tokens, longest = sum(lengths), max(lengths)
    q = torch.randn(tokens, heads, width, requires_grad=True)
    k = torch.randn(tokens, key_heads, width, requires_grad=True)
    v = torch.randn(tokens, key_heads, width, requires_grad=True)
    packing = {"layout": "thd", "cu_seqlens_q": cu_seqlens}

    # each token sees the earlier ones of its own sequence: the call of flash-attn, and tilefold's own
    out = flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, longest, longest, causal=True)
    torch.testing.assert_close(out, tf.attention(q, k, v, causal=True, **packing))
    third = slice(100, 400)
    part = (t[third].transpose(0, 1).unsqueeze(0) for t in (q, k, v))
    plain = F.scaled_dot_product_attention(*part, is_causal=True, enable_gqa=True)[0].transpose(0, 1)
    torch.testing.assert_close(out[third], plain, rtol=1e-4, atol=1e-5)

    # training: a learnable sink per head, and dropout that backward makes again from its seed
    sinks = torch.zeros(heads, requires_grad=True)
    loss = tf.attention(q, k, v, causal=True, sinks=sinks, dropout_p=0.1, seed=7, **packing).square().mean()
    loss.backward()
    assert all(t.grad is not None and t.grad.isfinite().all() for t in (q, k, v, sinks))

    # keys in two shards, cut anywhere, give the result of the whole
    whole = tf.attention(q, k, v, causal=True, sinks=sinks, **packing)
    shards = tf.attention(q, [k[:150], k[150:]], [v[:150], v[150:]], causal=True, sinks=sinks, **packing)
    torch.testing.assert_close(shards, whole, rtol=1e-4, atol=1e-5)
    print(f"packed attention: {tokens} tokens in {len(lengths)} sequences; difference to PyTorch "
          f"{(out[third] - plain).abs().max():.1e}, of two shards {(shards - whole).abs().max():.1e}")  # fmt: skip


if __name__ == "__main__":
    main()
