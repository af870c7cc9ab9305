"""CLIP's and SigLIP's losses over all pairs of a batch, with a learnable scale, without the [N, N] similarities."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    n, width = 2000, 32
    image = torch.randn(n, width, requires_grad=True)
    words = (image.detach() + torch.randn(n, width)).requires_grad_()
    log_scale = torch.tensor(math.log(10.0), requires_grad=True)

    loss = tf.contrastive_loss(image, words, scale=log_scale.exp())
    loss.backward()

    # the same in plain PyTorch, on the whole matrix
    s = F.normalize(image, dim=-1) @ F.normalize(words, dim=-1).T * log_scale.exp()
    plain = (F.cross_entropy(s, torch.arange(n)) + F.cross_entropy(s.T, torch.arange(n))) / 2
    right = torch.autograd.grad(plain, (image, words, log_scale))
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close([image.grad, words.grad, log_scale.grad], list(right), rtol=1e-3, atol=1e-6)

    pairwise = tf.contrastive_loss(image, words, scale=10.0, bias=-10.0, kind="siglip")
    sign = 2 * torch.eye(n) - 1
    torch.testing.assert_close(pairwise, -F.logsigmoid(sign * (s - 10)).sum() / n, rtol=1e-4, atol=1e-5)
    print(f"contrastive: {n} pairs; CLIP {loss:.4f} (PyTorch {plain:.4f}), SigLIP {pairwise:.4f}")


if __name__ == "__main__":
    main()
