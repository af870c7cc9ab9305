"""Maximum and arg-max of each row; minimum and arg-min fold the negated score.

State: m, the running maximum; i, its lowest column; for the plain maximum also c, how many columns tie.
    step     a tile's maximum replaces m where it is larger (NaN counts as larger than anything, as in torch)
    d/ds     of amax: g / c at each column that ties; of max and arg-max's value: g at the saved column
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..program import Expr, Index, op
from .fold import Cost, Fold, Pullback, Result, State, register

NO_COLUMN = -1


def beats(new: Tensor, old: Tensor) -> Tensor:
    """Where `new` replaces `old` as a maximum: strictly larger, or the first NaN."""
    return (new > old) | (new.isnan() & ~old.isnan())


def holders(s: Tensor, m: Tensor, visible: Tensor | None) -> Tensor:
    """Where a row of s [.., BN, BK] holds its maximum m [.., BN], visible columns only."""
    m = m.unsqueeze(-1)
    hit = s == m
    if bool(m.isnan().any()):
        hit |= s.isnan() & m.isnan()
    return hit if visible is None else hit.logical_and_(visible)


def first_column(hit: Tensor, cols: Tensor) -> Tensor:
    """The lowest of the columns [BK] that is set in each row of hit [.., BN, BK]; -1 where none is."""
    return torch.where(hit.any(-1), cols.take(hit.view(torch.uint8).argmax(-1)), NO_COLUMN)


def largest(s: Tensor, cols: Tensor, visible: Tensor | None) -> tuple[Tensor, Tensor]:
    """The largest score of each row of s [.., BN, BK] (NaN: the first one) and the lowest column that holds it."""
    top = s.amax(-1)
    columns = cols.take(s.argmax(-1))  # the first of equals; torch.max(dim) wakes every thread, for a few numbers too
    if visible is not None:
        # hidden scores are -inf: where nothing is larger, the first visible column
        columns = torch.where(top == -float("inf"), first_column(visible.expand(s.shape), cols), columns)
    return top, columns


class _Extreme(Fold):
    commutative = True
    fill = -float("inf")
    neutral_result = False
    sees_mask = True
    sees_columns = True
    sign = 1.0

    def lower(self, s: Expr, *extras: Expr | None) -> Expr:
        return -s if self.sign < 0 else s

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        return (self._signed(results[0]), *results[1:]), None

    def _signed(self, m: Tensor) -> Tensor:
        return -m if self.sign < 0 else m


@register
class Max(_Extreme):
    """The largest score of each row, [.., N]; as in torch.amax, columns that tie share its gradient equally."""

    name = "max"
    state = (("m", -float("inf")), ("i", NO_COLUMN), ("c", 0))
    columns = (1,)
    results = (Result(), Result(type="int"), Result(type="int"))
    cost = Cost(registers_per_row=3, ops=5)
    jit = "tilefold.folds.max_jit"

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        top = s.amax(-1)
        hit = holders(s, top, visible)
        return top, first_column(hit, cols), hit.sum(-1)

    def merge(self, a: State, b: State) -> State:
        larger = beats(b[0], a[0])
        ties = torch.where(larger, b[2], a[2] + torch.where(b[0] == a[0], b[2], 0))
        # a column of value -inf is still a column
        replaced = larger | ((a[1] < 0) & (b[1] >= 0) & (b[0] == a[0]))
        return torch.where(larger, b[0], a[0]), torch.where(replaced, b[1], a[1]), ties

    def finish(self, state: State) -> tuple[Tensor, ...]:
        return self._signed(state[0]), state[1], state[2]

    def weight(self, s: Expr, b: Pullback) -> Expr:
        # a lone winner is known by its column: a score that is recomputed with other bits still gets its gradient
        single = op(
            "and", op("le", b.row(lambda r, g: r[2], "int"), 1), op("eq", Index("col"), b.row(lambda r, g: r[1], "int"))
        )
        tied = op(
            "and", op("gt", b.row(lambda r, g: r[2], "int"), 1), op("eq", s, b.row(lambda r, g: self._signed(r[0])))
        )
        share = b.row(lambda r, g: self._signed(g[0] / r[2].clamp(min=1)))
        return op("where", op("or", single, tied), share, 0.0)


@register
class Min(Max):
    """The smallest score of each row, [.., N]; see Max."""

    name = "min"
    sign = -1.0


@register
class ArgMax(_Extreme):
    """The column of the largest score of each row, [.., N] int64; ties go to the lowest column.

    Args:
        return_value: give (value, column) as torch.max(dim) does; the value's gradient goes to that column
    """

    name = "argmax"
    state = (("m", -float("inf")), ("i", NO_COLUMN))
    columns = (1,)
    results = (Result(), Result(type="int"))
    cost = Cost(registers_per_row=2, ops=3)
    jit = "tilefold.folds.argmax_jit"

    def __init__(self, *, return_value: bool = False) -> None:
        self.return_value = return_value

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        top = s.amax(-1)  # several times faster than its place, which is looked for in rows that need it
        rows = (beats(top, state[0]) | ((state[1] < 0) & (top == state[0]))).nonzero(as_tuple=True)
        if rows[0].numel() == 0:
            return state
        m, i = state[0].clone(), state[1].clone()
        m[rows], i[rows] = largest(s[rows], cols, None if visible is None else visible.expand(s.shape)[rows])
        return m, i

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return largest(s, cols, visible)

    def merge(self, a: State, b: State) -> State:
        larger = beats(b[0], a[0]) | ((a[1] < 0) & (b[0] == a[0]))
        return torch.where(larger, b[0], a[0]), torch.where(larger, b[1], a[1])

    def finish(self, state: State) -> tuple[Tensor, ...]:
        return self._signed(state[0]), state[1]

    def public(self, results: tuple[Any, ...]) -> Any:
        return results if self.return_value else results[1]

    def weight(self, s: Expr, b: Pullback) -> Expr:
        here = op("eq", Index("col"), b.row(lambda r, g: r[1], "int"))
        return op("where", here, b.row(lambda r, g: self._signed(g[0])), 0.0)


@register
class ArgMin(ArgMax):
    """The column of the smallest score of each row, [.., N] int64; see ArgMax."""

    name = "argmin"
    sign = -1.0


@register
class Gather(Fold):
    """The score at one given column of each row, [.., N]; -inf where that column is hidden.

    Args:
        index: [.., N] integer columns, 0 <= index < K
    """

    name = "gather"
    commutative = True
    fill = -float("inf")
    state = (("m", -float("inf")),)
    cost = Cost(registers_per_row=1, ops=2)
    jit = "tilefold.folds.gather_jit"
    extra_names = ("index",)

    def __init__(self, index: Tensor | None = None) -> None:
        self.index = index

    @property
    def extras(self) -> tuple[Tensor | int | None, ...]:
        return (self.index,)

    def lower(self, s: Expr, *extras: Expr | None) -> Expr:
        return op("where", op("eq", Index("col"), extras[0]), s, -float("inf"))

    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return self.merge(state, self.lift(s, cols, visible, own))

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> State:
        return (s.amax(-1),)

    def merge(self, a: State, b: State) -> State:
        return (torch.maximum(a[0], b[0]),)

    def weight(self, s: Expr, b: Pullback) -> Expr:
        return b.row(lambda results, grads: grads[0])
