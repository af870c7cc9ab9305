"""A fold of your own: the mean of the three largest scores of each row, in a file of its own.

The maths: a state of the three best scores; a tile brings its three best, and two states merge by keeping
the best of both. What the class gives:

    state     its initial values, which must be neutral for `merge`
    step      one tile of scores into the state, hidden columns hold `fill`
    merge     two states that saw different columns: from this come shards, streams and split columns
    finish    the results
    weight    dL/ds of a score as an expression, for the gradient

Run it: python examples/own_fold.py
"""

from __future__ import annotations

import torch
from torch import Tensor

import tilefold as tf
from tilefold.folds import Pullback, Result, State
from tilefold.program import Expr, op

INF = float("inf")


@tf.register
class MeanOfTop3(tf.Fold):
    """The mean of the three largest scores of each row, [.., N].

    A row that sees fewer has the mean of those; one that sees none NaN.
    """

    name = "example.mean_of_top3"
    fill = -INF
    state = (("first", -INF), ("second", -INF), ("third", -INF))
    results = (Result(), Result(), Result(type="int"))  # the mean; the lowest score in it; how many scores it has

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        best = s.topk(min(3, s.shape[-1]), -1).values
        missing = best.new_full((*best.shape[:-1], 3 - best.shape[-1]), -INF)
        return self.merge(state, torch.cat((best, missing), -1).unbind(-1))

    def merge(self, a: State, b: State) -> State:
        return torch.stack((*a, *b), -1).topk(3, -1).values.unbind(-1)

    def finish(self, state: State) -> tuple[Tensor, ...]:
        best = torch.stack(state, -1)
        count = (best > -INF).sum(-1)
        total = best.where(best > -INF, 0.0).sum(-1)
        lowest = best.gather(-1, (count - 1).clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return total / count, lowest, count

    def weight(self, s: Expr, b: Pullback) -> Expr:
        # each score that is among the three gets its share of the row's gradient
        share = b.row(lambda results, grads: grads[0] / results[2])
        return op("where", op("ge", s, b.row(lambda results, grads: results[1])), share, 0.0)


def main() -> None:
    torch.manual_seed(0)
    queries, documents = torch.randn(1000, 64, requires_grad=True), torch.randn(5000, 64)
    scores = tf.scores(queries, documents, metric="cosine")

    closeness = tf.fold(scores, MeanOfTop3())
    closeness.mean().backward()
    print(f"mean of the three best cosines of the first queries: {[round(v, 3) for v in closeness[:4].tolist()]}")

    expected = scores.materialize().topk(3, -1).values.mean(-1)
    print(f"largest difference from the materialised matrix: {(closeness - expected).abs().max().item():.1e}")

    both = tf.fold(scores, top=MeanOfTop3(), lse=tf.LogSumExp())  # beside a built-in fold, in the same pass
    assert torch.equal(both.top, closeness)


if __name__ == "__main__":
    main()
