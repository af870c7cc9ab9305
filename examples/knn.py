"""Exact nearest neighbours by brute force, differentiable, without the [N, K] distances."""

from __future__ import annotations

import torch

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    queries, index = torch.randn(500, 64, requires_grad=True), torch.randn(20000, 64)
    distance, nearest = tf.knn(queries, index, 10)

    # the same in plain PyTorch: 40 MB of distances
    whole = torch.cdist(queries.double(), index.double()).square()
    right = whole.topk(10, largest=False)
    torch.testing.assert_close(distance.double(), right.values, rtol=1e-5, atol=1e-5)
    agree = (nearest == right.indices).double().mean()
    assert agree > 0.999
    distance[:, 0].sum().backward()
    torch.testing.assert_close(queries.grad, 2 * (queries - index[nearest[:, 0]]).detach())

    # the most similar ones by angle come first
    similarity, _ = tf.knn(queries, index, 3, metric="cosine")
    assert (similarity.diff(dim=-1) <= 0).all()
    print(f"knn: 500 queries, {len(index)} points; {agree:.2%} of the neighbours are PyTorch's own (the rest tie)")


if __name__ == "__main__":
    main()
