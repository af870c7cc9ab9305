"""The algebra that the operators are made of: say how a score is made, then how each row of scores is reduced."""

from __future__ import annotations

import torch
import torch.nn.functional as F

import tilefold as tf


def main() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(600, 16, requires_grad=True), torch.randn(3000, 16, requires_grad=True)
    bias, labels = torch.randn(3000), torch.randint(0, 3000, (600,))

    # lazy [600, 3000] scores: torch's operators and functions work on them, nothing is computed yet
    s = torch.tanh(tf.scores(x, y) / 4) * 10 + bias
    plain = torch.tanh(x @ y.T / 4) * 10 + bias

    # torch's own reductions
    torch.testing.assert_close(s.logsumexp(-1), plain.logsumexp(-1))
    torch.testing.assert_close(F.softmax(s, -1) @ y, F.softmax(plain, -1) @ y, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(F.cross_entropy(s, labels), F.cross_entropy(plain, labels))
    torch.testing.assert_close(s.mT.amax(-1), plain.T.amax(-1))

    # several in one pass
    r = tf.fold(s, lse=tf.LogSumExp(), hit=tf.Gather(labels), best=tf.ArgMax(), top=tf.TopK(3), mean=tf.Mean())
    torch.testing.assert_close(r.lse - r.hit, F.cross_entropy(plain, labels, reduction="none"), rtol=1e-4, atol=1e-4)
    assert (plain.gather(1, r.best.unsqueeze(1)).squeeze(1) >= plain.amax(-1) - 1e-4).all()
    torch.testing.assert_close(r.top.values, plain.topk(3).values)

    # gradients reach every tensor of the expression
    found = torch.autograd.grad(r.lse.sum() + r.mean.sum(), (x, y))
    right = torch.autograd.grad(plain.logsumexp(-1).sum() + plain.mean(-1).sum(), (x, y))
    torch.testing.assert_close(found, right, rtol=1e-3, atol=1e-4)

    # a structured mask: hidden tiles are never computed
    near = s.visible(tf.mask.window(50, 50))
    count = tf.fold(near, tf.Count())
    assert count.tolist() == [min(3000, i + 51) - max(0, i - 50) for i in range(600)]

    # scores of coordinates, made by no product: the L1 distance
    points = torch.rand(200, 2)
    l1 = tf.outer(lambda a, b: (a - b).abs().sum(-1), points, points)
    torch.testing.assert_close(l1.mean(-1), torch.cdist(points, points, p=1).mean(-1))

    # columns that come in shards, or chunk by chunk from somewhere else
    shards = tf.fold([tf.scores(x, part) for part in y.split(1000)], tf.LogSumExp())
    streamed = tf.stream(x, y.split(1000), tf.LogSumExp())
    whole = (x @ y.T).logsumexp(-1)
    torch.testing.assert_close(shards, whole)
    torch.testing.assert_close(streamed, whole.detach())
    print(f"scores_and_folds: {s!r:.60}...; mean log-sum-exp {r.lse.mean():.4f}")


if __name__ == "__main__":
    main()
