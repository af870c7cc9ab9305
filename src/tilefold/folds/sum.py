"""Sum of each row, plain or weighting a payload.

State: the sum l [BN]; with a payload nothing, the executor keeps acc = sum_j s_j v_j.
    d/ds     g;  with a payload g . v_j
    d/dv_j   sum_i s_ij g_i
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from ..program import Expr
from .fold import Cost, Fold, Pullback, Result, State, register


@register
class Sum(Fold):
    """sum_j s_ij, [.., N], float32 (float64 for float64 operands). The sum over no column is 0."""

    name = "sum"
    state = (("l", 0.0),)
    cost = Cost(registers_per_row=1, ops=1)
    jit = "tilefold.folds.sum_jit"

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return (s.sum(-1),)

    def merge(self, a: State, b: State) -> State:
        return (a[0] + b[0],)

    def weight(self, s: Expr, b: Pullback) -> Expr:
        return b.row(lambda results, grads: grads[0])


@register
class WeightedSum(Fold):
    """s @ payload, [.., N, Dv] in the operands' type.

    Args:
        payload: [.., K, Dv]; over column shards also a list of its parts
    """

    name = "weighted_sum"
    commutative = True
    results = (Result("payload"),)
    cost = Cost(registers_per_row=0, ops=1)
    jit = "tilefold.folds.weighted_sum_jit"

    def __init__(self, payload: Tensor | Sequence[Tensor] | None = None) -> None:
        self.payload = payload

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
        return (), None, s

    def merge(self, a: State, b: State) -> Any:
        return (), None, None

    def finish(self, state: State) -> tuple[Any, ...]:
        return (None,)

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        return (), results[0]

    def weight(self, s: Expr, b: Pullback) -> Expr:
        b.payload_gradient(s, lambda results, grads: grads[0])
        return b.dot_payload(lambda results, grads: grads[0])
