"""The k largest scores of each row and their columns; the k smallest fold the negated score.

State: a list of k (value, column), best first, ties by column; value -inf and column -1 where fewer columns are seen.
    step     a tile whose maximum beats the k-th value of no row is skipped; else the tile's own k best are merged in
    d/ds     the gradient of value r goes to its saved column
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import Expr, Index, op
from .fold import Cost, Fold, Pullback, Result, State, register
from .maximum import NO_COLUMN

MAX_K = 2048
COMBINABLE_K = 32  # a longer list does not fit in registers beside other folds


@register
class TopK(Fold):
    """The k largest scores of each row: (values, columns int64) [.., N, k], best first, ties to the lowest column.

    Args:
        k: 1 <= k <= 2048; up to 32 combines with other folds in one pass
    """

    name = "topk"
    fill = -float("inf")
    results = (Result("list"), Result("list", "int"))
    columns = (1,)
    jit = "tilefold.folds.topk_jit"
    sign = 1.0

    def __init__(self, k: int) -> None:
        self.k = k

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        return (("k", self.k),)

    @property
    def cost(self) -> Cost:  # type: ignore[override]
        return Cost(registers_per_row=2 * self.k, ops=3)

    def lower(self, s: Expr, *extras: Expr | None) -> Expr:
        return -s if self.sign < 0 else s

    def init(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> State:
        values = torch.full((*shape, self.k), self.fill, dtype=dtype, device=device)
        return values, torch.full((*shape, self.k), NO_COLUMN, dtype=torch.int64, device=device)

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        floor = state[0][..., -1]
        # an unfilled list takes anything, -inf too; "not <=" lets NaN through
        if bool(((s.amax(-1) <= floor) & (state[1][..., -1] >= 0)).all()):
            return state
        values, where = _best(s, min(self.k, s.shape[-1]), visible)
        columns = cols[where]
        if visible is not None:
            columns = torch.where(visible.expand(s.shape).gather(-1, where), columns, NO_COLUMN)
        return self.merge(state, (values, columns))

    sees_mask = True
    sees_columns = True

    def merge(self, a: State, b: State) -> State:
        values, columns = torch.cat((a[0], b[0]), -1), torch.cat((a[1], b[1]), -1)
        # empty places go last, behind a real column of value -inf
        real = (columns < 0).to(torch.uint8).sort(dim=-1, stable=True).indices
        values, columns = values.gather(-1, real), columns.gather(-1, real)
        values, order = values.sort(dim=-1, descending=True, stable=True)
        return values[..., : self.k], columns.gather(-1, order)[..., : self.k]

    def finish(self, state: State) -> tuple[Tensor, ...]:
        return (-state[0] if self.sign < 0 else state[0]), state[1]

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        return (self.sign * results[0], results[1]), None

    def public(self, results: tuple[Any, ...]) -> Any:
        return torch.return_types.topk(results)

    def weight(self, s: Expr, b: Pullback) -> Expr:
        total: Expr | None = None
        for r in range(self.k):
            here = op("eq", Index("col"), b.row(lambda results, grads, r=r: results[1][..., r], "int"))  # type: ignore[misc]
            grad = b.row(lambda results, grads, r=r: self.sign * grads[0][..., r])  # type: ignore[misc]
            term = op("where", here, grad, 0.0)
            total = term if total is None else total + term
        assert total is not None
        return total


def _best(s: Tensor, k: int, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """The k best of each row, ties to the lowest column: torch.topk's own choice among equals is arbitrary."""
    values, where = s.topk(k, -1)
    if (
        visible is not None
        and bool((values[..., -1] == -float("inf")).any())
        and bool((visible & (s == -float("inf"))).any())
    ):
        # a visible score of -inf comes before the hidden columns, which hold the same value
        shown = visible.expand(s.shape).to(torch.uint8).sort(dim=-1, descending=True, stable=True).indices
        values, order = s.gather(-1, shown).sort(dim=-1, descending=True, stable=True)
        return values[..., :k], shown.gather(-1, order[..., :k])
    edge = values[..., -1:]
    # a tie matters only where an equal score stayed outside, or between equals inside
    tied = (
        bool((s >= edge).sum(-1).gt(k).any())
        or bool((values[..., 1:] == values[..., :-1]).any())
        or bool(edge.isnan().any())
    )
    if not tied and not bool(values.isnan().any()):
        return values, where
    values, where = s.sort(dim=-1, descending=True, stable=True)
    return values[..., :k], where[..., :k]


@register
class BottomK(TopK):
    """The k smallest scores of each row: (values, columns), smallest first; see TopK. Free places hold +inf and -1."""

    name = "bottomk"
    sign = -1.0
