"""Count, mean and variance of each row, over its visible columns.

State of the variance: n, mean and M = sum_j (s_j - mean)^2.
    merge    d = mean_b - mean_a;  mean = mean_a + d n_b / n;  M = M_a + M_b + d^2 n_a n_b / n  (Chan et al., 1979)
    d/ds     mean: g / n;  variance: 2 g (s - mean) / (n - correction)
The mean is a differentiable result of the variance too: the merge of column shards needs its gradient.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import Expr
from .fold import Cost, Fold, Pullback, Result, State, register


def _columns(s: Tensor, visible: Tensor | None) -> Tensor:
    """How many columns of the tile each row sees, [.., BN], as a float."""
    if visible is None:
        return s.new_full(s.shape[:-1], float(s.shape[-1]))
    return visible.expand(s.shape).sum(-1).to(s.dtype)


@register
class Count(Fold):
    """How many scores of each row are not zero (of a comparison: are True), [.., N] int64."""

    name = "count"
    state = (("n", 0),)
    commutative = True
    results = (Result(type="int"),)
    differentiable = ()
    cost = Cost(registers_per_row=1, ops=2)
    jit = "tilefold.folds.count_jit"

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return (s.count_nonzero(-1),)

    def merge(self, a: State, b: State) -> State:
        return (a[0] + b[0],)


@register
class Mean(Fold):
    """The mean of each row over its visible columns, [.., N]; NaN where there is none, as in torch."""

    name = "mean"
    state = (("l", 0.0), ("n", 0.0))
    commutative = True
    results = (Result(), Result())
    cost = Cost(registers_per_row=2, ops=2)
    jit = "tilefold.folds.mean_jit"
    sees_mask = True

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return s.sum(-1), _columns(s, visible)

    def merge(self, a: State, b: State) -> State:
        return a[0] + b[0], a[1] + b[1]

    def finish(self, state: State) -> tuple[Tensor, ...]:
        return state[0] / state[1], state[1]

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        mean, n = results
        return (torch.where(n > 0, mean * n, 0.0), n), None

    def weight(self, s: Expr, b: Pullback) -> Expr:
        return b.row(lambda results, grads: grads[0] / results[1])


@register
class Variance(Fold):
    """The variance of each row over its visible columns, [.., N].

    Args:
        correction: what is subtracted from the number of columns in the divisor, as in torch.var
    """

    name = "variance"
    state = (("n", 0.0), ("mean", 0.0), ("m2", 0.0))
    commutative = True
    results = (Result(), Result(), Result())
    differentiable = (0, 1)
    cost = Cost(registers_per_row=3, ops=5)
    jit = "tilefold.folds.variance_jit"
    sees_mask = True

    def __init__(self, correction: float = 1) -> None:
        self.correction = correction

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        return (("correction", self.correction),)

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        n = _columns(s, visible)
        mean = s.sum(-1) / n.clamp(min=1)
        away = s - mean.unsqueeze(-1)
        if visible is not None:
            away = away.masked_fill_(~visible, 0.0)
        return n, mean, away.square_().sum(-1)

    def merge(self, a: State, b: State) -> State:
        n = a[0] + b[0]
        share = b[0] / n.clamp(min=1)
        d = b[1] - a[1]
        return n, torch.where(b[0] > 0, a[1] + d * share, a[1]), a[2] + b[2] + d * d * a[0] * share

    def finish(self, state: State) -> tuple[Tensor, ...]:
        n, mean, m2 = state
        return m2 / (n - self.correction).clamp(min=0), mean, n

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        variance, mean, n = results
        spread = (n - self.correction).clamp(min=0)
        return (n, mean, torch.where(spread > 0, variance * spread, 0.0)), None

    def weight(self, s: Expr, b: Pullback) -> Expr:
        of_variance, of_mean = b.grads[:2]
        mean = b.row(lambda r, g: g[1] / r[2].clamp(min=1)) if of_mean else None
        if not of_variance:
            assert mean is not None
            return mean
        slope = b.row(lambda r, g: 2.0 * g[0] / (r[2] - self.correction).clamp(min=0))
        away = slope * (s - b.row(lambda r, g: r[1]))
        return away if mean is None else away + mean
