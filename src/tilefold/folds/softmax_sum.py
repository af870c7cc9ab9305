"""Softmax-weighted sum of a payload: o_i = sum_j softmax(s_i)_j v_j, the heart of attention.

State: m and l of log-sum-exp; the executor keeps acc = sum_j exp(s_j - m) v_j.
    step     alpha = exp(m - m'), P = exp(s - m')
    finish   acc / l, and the log-sum-exp m + log l
    d/ds     p (dO.v - dO.O + dlse),  p = exp(s - lse)          (Dao et al., FlashAttention, 2022, appendix B)
    d/dv_j   sum_i p_ij dO_i
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ..program import Expr, op
from .fold import Cost, Fold, Pullback, Result, RowFunction, State, exp_below, exp_of_rows, finite, register, seen


@register
class SoftmaxSum(Fold):
    """softmax(s) @ payload, [.., N, Dv] in the operands' type.

    Args:
        payload: [.., K, Dv]; over column shards also a list of its parts
        neutral: a row that sees no column gives 0; False: NaN, as torch.softmax on a row of -inf
        return_lse: give (output, log-sum-exp [.., N]); both are differentiable
    """

    name = "softmax_sum"
    commutative = True
    fill = -float("inf")
    state = (("m", -float("inf")), ("l", 0.0))
    results = (Result("payload"), Result())
    differentiable = (0, 1)
    cost = Cost(registers_per_row=2, ops=4, exps=1)
    jit = "tilefold.folds.softmax_sum_jit"

    def __init__(
        self, payload: Tensor | Sequence[Tensor] | None = None, *, neutral: bool = True, return_lse: bool = False
    ) -> None:
        self.payload, self.neutral, self.return_lse = payload, neutral, return_lse

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        return (("neutral", self.neutral),)

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
        m = torch.maximum(state[0], s.amax(-1))
        base = finite(m)
        alpha = (state[0] - base).exp_()
        p = exp_below(s, base, own)
        return (m, state[1] * alpha + p.sum(-1)), alpha, p

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
        m = s.amax(-1)
        p = exp_below(s, finite(m), own)
        return (m, p.sum(-1)), None, p

    def whole(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool, read: tuple[bool, ...] = ()) -> Any:
        m, p, l = exp_of_rows(s, own)
        factor = l.reciprocal()
        if self.neutral:
            factor.nan_to_num_(math.nan, 0.0, 0.0)
        if read == (True, False):
            return (factor, None), p
        return (factor, l.log_().add_(m)), p  # an infinite maximum is in l too

    def merge(self, a: State, b: State) -> Any:
        m = torch.maximum(a[0], b[0])
        base = finite(m)
        alpha, beta = (a[0] - base).exp(), (b[0] - base).exp()
        return (m, a[1] * alpha + b[1] * beta), alpha, beta

    def finish(self, state: State) -> tuple[Tensor, ...]:
        m, l = state
        factor = l.reciprocal()  # l is 0 where no column is visible, and 1 or more elsewhere
        return finite(factor) if self.neutral else factor, l.log().add_(m)

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        out, lse = results
        empty = lse == -float("inf")
        return (lse, torch.where(empty, 0.0, torch.ones_like(lse))), torch.where(empty.unsqueeze(-1), 0.0, out)

    def public(self, results: tuple[Any, ...]) -> Any:
        return results if self.return_lse else results[0]

    def weight(self, s: Expr, b: Pullback) -> Expr:
        p = op("exp", s - b.row(lambda results, grads: seen(results[1])))
        of_output, of_lse = b.grads
        if not of_output:
            return p * b.row(lambda results, grads: grads[1])
        of_rows: RowFunction = lambda results, grads: grads[0]
        b.payload_gradient(p, of_rows)
        t = b.dot_payload(of_rows)
        minus = (lambda results, grads: grads[1]) if of_lse else None
        return p * (t - b.row_dot(of_rows, lambda results, grads: results[0], minus))
