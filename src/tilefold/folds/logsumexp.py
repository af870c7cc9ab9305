"""Log-sum-exp of each row.

State: m, the running maximum, and l = sum_j exp(s_j - m); both [BN].
    lift     m = max_j s_j;  l = sum_j exp(s_j - m)
    merge    m' = max(m_a, m_b);  l' = l_a exp(m_a - m') + l_b exp(m_b - m')
    finish   m + log l;  -inf where no column is visible
    d/ds     g exp(s - result);  0 where no column is visible
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..program import Expr, op
from .fold import Cost, Fold, Pullback, State, exp_below, exp_of_rows, finite, register, seen


@register
class LogSumExp(Fold):
    """log sum_j exp(s_ij) of each row, [.., N], float32 (float64 for float64 operands)."""

    name = "logsumexp"
    commutative = True
    fill = -float("inf")
    state = (("m", -float("inf")), ("l", 0.0))
    cost = Cost(registers_per_row=2, ops=4, exps=1)
    jit = "tilefold.folds.logsumexp_jit"

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        m = s.amax(-1)
        return m, exp_below(s, finite(m), own).sum(-1)

    def whole(
        self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool, read: tuple[bool, ...] = ()
    ) -> tuple[Tensor, ...]:
        m, _, l = exp_of_rows(s, own)
        return (l.log_().add_(m),)  # an infinite maximum is in l too

    def merge(self, a: State, b: State) -> State:
        m = torch.maximum(a[0], b[0])
        base = finite(m)
        return m, a[1] * (a[0] - base).exp() + b[1] * (b[0] - base).exp()

    def finish(self, state: State) -> tuple[Tensor, ...]:
        m, l = state
        return (l.log().add_(m),)

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        (lse,) = results
        return (lse, torch.where(lse == -float("inf"), 0.0, torch.ones_like(lse))), None

    def weight(self, s: Expr, b: Pullback) -> Expr:
        return b.row(lambda results, grads: grads[0]) * op("exp", s - b.row(lambda results, grads: seen(results[0])))
