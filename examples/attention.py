"""Causal attention with grouped heads, a sliding window and a learnable scale; the scores are never written."""

from __future__ import annotations

import torch

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    batch, heads, key_heads, length, width = 1, 4, 2, 1024, 32
    q = torch.randn(batch, heads, length, width, requires_grad=True)
    k = torch.randn(batch, key_heads, length, width, requires_grad=True)
    v = torch.randn(batch, key_heads, length, width, requires_grad=True)
    scale = torch.tensor(width**-0.5, requires_grad=True)

    # query head h reads key head h // 2; a token sees itself and the 255 tokens before it
    out, lse = tf.attention(q, k, v, causal=True, window=(255, 0), scale=scale, return_lse=True)
    (out.square().mean() + 1e-3 * lse.mean()).backward()

    # the same in plain PyTorch, on the whole matrix
    at = torch.arange(length)
    visible = (at <= at.unsqueeze(1)) & (at > at.unsqueeze(1) - 256)
    s = (q @ k.repeat_interleave(2, 1).mT * scale).masked_fill(~visible, -torch.inf)
    plain = s.softmax(-1) @ v.repeat_interleave(2, 1)
    torch.testing.assert_close(out, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(lse, s.logsumexp(-1), rtol=1e-5, atol=1e-5)
    right = torch.autograd.grad(plain.square().mean() + 1e-3 * s.logsumexp(-1).mean(), (q, k, v, scale))
    torch.testing.assert_close([q.grad, k.grad, v.grad, scale.grad], list(right), rtol=1e-3, atol=1e-6)

    # packed sequences of 100, 300 and 624 tokens: each token sees the earlier ones of its own sequence
    sequence = torch.repeat_interleave(torch.arange(3), torch.tensor([100, 300, 624]))
    packed = tf.attention(q, k, v, causal=True, mask=tf.mask.segments(sequence))
    alone = tf.attention(q[:, :, 100:400], k[:, :, 100:400], v[:, :, 100:400], causal=True)
    torch.testing.assert_close(packed[:, :, 100:400], alone, rtol=1e-4, atol=1e-5)
    print(f"attention: {length} tokens, {heads} heads; largest difference to PyTorch {(out - plain).abs().max():.1e}")


if __name__ == "__main__":
    main()
