"""The loss of a language model's head, from hidden states and the head's weight: no [tokens, vocabulary] logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    tokens, vocabulary, width = 1024, 8000, 64
    hidden = torch.randn(2, tokens // 2, width, requires_grad=True)
    head = torch.nn.Linear(width, vocabulary)
    labels = torch.randint(0, vocabulary, (2, tokens // 2))
    labels[:, :50] = -100  # the prompt does not count

    loss = tf.linear_cross_entropy(hidden, head.weight, labels, linear_bias=head.bias, label_smoothing=0.1)
    loss.backward()
    found = hidden.grad, head.weight.grad, head.bias.grad

    # the same in plain PyTorch: 33 MB of logits, and as much again for their gradient
    logits = head(hidden)
    plain = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1)
    right = torch.autograd.grad(plain, (hidden, head.weight, head.bias))
    torch.testing.assert_close(loss, plain)
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-7)

    # library code that calls F.cross_entropy on logits needs no change: give it lazy ones
    lazy = tf.scores(hidden, head.weight) + head.bias
    shifted = F.cross_entropy(lazy[:, :-1].reshape(-1, vocabulary), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(shifted, F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()))
    print(f"linear_cross_entropy: {tokens} tokens, {vocabulary} classes; loss {loss:.4f}, PyTorch {plain:.4f}")


if __name__ == "__main__":
    main()
