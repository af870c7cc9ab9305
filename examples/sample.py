"""Drawing tokens from a language model's head without its logits; draws depend on seed, stream and position alone."""

from __future__ import annotations

import torch

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    sequences, vocabulary, width = 8, 5000, 32
    hidden, head = torch.randn(sequences, width), torch.randn(vocabulary, width) / width**0.5

    # a temperature for each sequence (0 is greedy), and a number that names it wherever it stands in a batch
    temperature = torch.tensor([0.0, 0.0, 0.5, 0.5, 0.8, 0.8, 1.0, 1.0])
    names = torch.arange(100, 100 + sequences)
    tokens = tf.sample(hidden, head, temperature=temperature, seed=42, stream=names, position=7)
    assert torch.equal(tokens[:2], (hidden @ head.T)[:2].argmax(-1))

    # the same draws from a batch in another order
    order = torch.randperm(sequences)
    again = tf.sample(hidden[order], head, temperature=temperature[order], seed=42, stream=names[order], position=7)
    assert torch.equal(again, tokens[order])

    # 20000 draws from one distribution have its frequencies
    draws = tf.sample(hidden[:1].expand(20000, width), head[:20], seed=1)
    p = (hidden[0] @ head[:20].T).softmax(-1)
    error = (torch.bincount(draws, minlength=20) / 20000 - p).abs().max()
    assert error < 5 * (0.25 / 20000) ** 0.5
    print(f"sample: tokens {tokens.tolist()}; 20000 draws are off by at most {error:.4f}")


if __name__ == "__main__":
    main()
