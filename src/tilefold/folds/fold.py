"""What a fold is, and the register of folds.

A fold reduces a row of scores. It is a monoid on a small state per row:

    init     the neutral state
    step     folds a tile of scores into a state
    lift     makes a state of a tile: step from init, which a fold may do without the neutral state
    merge    combines two states of a row that saw different columns, the first one the lower columns
    finish   the results

The same merge serves tiles, blocks that split K, shards on several GPUs and chunks streamed from the host.
A fold with a payload [K, Dv] returns from step also a factor alpha for the accumulator and a weight tile P; the
executor owns acc = alpha * acc + P @ payload.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..program import Data, Expr, Leaf, Output, op

State = tuple[Tensor, ...]


@dataclass(frozen=True)
class Result:
    """One result of a fold, per row: "row" a number, "list" k numbers, "payload" Dv numbers."""

    kind: str = "row"
    type: str = "float"


@dataclass(frozen=True)
class Cost:
    """What a fold needs on the chip, for tile selection: registers per row, operations and exponentials per score."""

    registers_per_row: int = 1
    ops: int = 1
    exps: int = 0


def finite(x: Tensor) -> Tensor:
    """x, with 0 in the place of an infinity; NaN stays."""
    return x.nan_to_num(math.nan, 0.0, 0.0)


def seen(lse: Tensor) -> Tensor:
    """A log-sum-exp, with 0 where no column is visible: exp(s - seen(lse)) is the softmax, NaN at +inf as in torch."""
    return lse.nan_to_num(math.nan, math.inf, 0.0)


class Fold(ABC):
    """A reduction of each row of scores; subclass it and `register` the class to add one.

    Class attributes:
        name            under which a Program refers to it
        fill            the score of a hidden column, which must not change the state
        state           (name, initial value) of each state tensor [.., N]; an int starts an integer tensor
        results         what finish returns, in order
        differentiable  results that have a gradient
        cost            see Cost
        jit             module with the Triton functions step, merge, finish; None: eager only
        sees_mask       step wants the boolean tile of visible columns
        sees_columns    step wants the numbers of the columns
        commutative     merge takes states whose columns lie among each other
    """

    name: ClassVar[str]
    fill: ClassVar[float] = 0.0
    state: ClassVar[tuple[tuple[str, float | int], ...]] = ()
    results: ClassVar[tuple[Result, ...]] = (Result(),)
    differentiable: ClassVar[tuple[int, ...]] = (0,)
    cost: ClassVar[Cost] = Cost()
    jit: ClassVar[str | None] = None
    sees_mask: ClassVar[bool] = False
    sees_columns: ClassVar[bool] = False
    commutative: ClassVar[bool] = False
    neutral_result: ClassVar[bool] = True  # whether a row without any column (K = 0) has a result
    columns: ClassVar[tuple[int, ...]] = ()  # results that are column numbers

    extra_names: ClassVar[tuple[str, ...]] = ()  # of `extras`, for error texts

    payload: Any = None  # a tensor [.., K, Dv]; over column shards also a list of its parts

    @property
    def extras(self) -> tuple[Tensor | float | None, ...]:
        """What `lower` needs beside the scores: row operands [.., N] (or of one element), numbers, None."""
        return ()

    @property
    def options(self) -> tuple[tuple[str, Any], ...]:
        """Numbers, strings and booleans from which `from_options` makes this fold again."""
        return ()

    @classmethod
    def from_options(cls, options: tuple[tuple[str, Any], ...]) -> Fold:
        return cls(**dict(options))

    def lower(self, s: Expr, *extras: Expr | None) -> Expr:
        """The expression that is folded, for a fold that changes the scores first; `extras` as expressions."""
        return s

    def init(self, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> State:
        return tuple(
            torch.full(shape, v, dtype=torch.int64 if isinstance(v, int) else dtype, device=device)
            for _, v in self.state
        )

    @abstractmethod
    def step(self, state: State, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
        """Folds the tile s [.., BN, BK] into the state.

        Args:
            cols: [BK] the columns' numbers where `sees_columns`, else an empty tensor
            visible: [.., BN, BK] where a column of the tile is hidden (s holds `fill` there) and `sees_mask`, else None
            own: whether s may be overwritten
        Returns:
            the state; with a payload (state, alpha [.., BN] or None for 1, P [.., BN, BK])
        """

    def lift(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
        """The state of a row's first tile: what `step` gives from `init`, where alpha has nothing to scale."""
        return self.step(self.init(s.shape[:-1], s.dtype, s.device), s, cols, visible, own)

    def whole(self, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool, read: tuple[bool, ...] = ()) -> Any:
        """The results of rows that lie in one tile: `finish` of `lift`, which a fold may do with less work.

        A number per row may be [.., N, 1]. With a payload (results, P), where the factor of the accumulator is so.
        A result of which `read` says that nobody reads it may be None.
        """
        made = self.lift(s, cols, visible, own)
        if not any(r.kind == "payload" for r in self.results):
            return self.finish(made)
        factor, *others = self.finish(made[0])
        return (None if factor is None else factor.unsqueeze(-1), *others), made[2]

    @abstractmethod
    def merge(self, a: State, b: State) -> Any:
        """The state of both; with a payload (state, factor of a's accumulator, factor of b's)."""

    def finish(self, state: State) -> tuple[Tensor, ...]:
        """The results; with a payload the "payload" result is the factor [.., N] of the accumulator."""
        return state

    def resume(self, results: tuple[Tensor, ...]) -> tuple[State, Tensor | None]:
        """A state (and accumulator) that finishes in these results, so that results of column shards can be merged."""
        return results, None

    def public(self, results: tuple[Any, ...]) -> Any:
        """What the user gets of the results."""
        return results[0]

    def weight(self, s: Expr, b: Pullback) -> Expr:
        """dL/ds of a score, as an expression; `b` brings in what is known per row."""
        raise NotImplementedError(f"the fold {self.name!r} has no gradient")


RowFunction = Callable[[tuple[Tensor, ...], tuple[Tensor, ...]], Tensor]


class Pullback(ABC):
    """What `Fold.weight` may use to build an expression.

    Functions get (results, gradients of the results) at run time, and read only gradients that `grads` says are there.
    """

    grads: tuple[bool, ...]  # which results have a gradient
    payload: int | None

    @abstractmethod
    def row(self, fn: RowFunction, type: str = "float") -> Expr:
        """A number per row, [.., N]."""

    @abstractmethod
    def row_dot(self, a: RowFunction, b: RowFunction, minus: RowFunction | None = None) -> Expr:
        """a_i . b_i - minus_i of each row, for a and b [.., N, Dv]."""

    @abstractmethod
    def dot_payload(self, fn: RowFunction) -> Expr:
        """The product of a vector per row [.., N, Dv] and the payload."""

    @abstractmethod
    def payload_gradient(self, p: Expr, fn: RowFunction) -> None:
        """States that dL/d payload_j = sum_i p_ij fn_i, fn [.., N, Dv]."""


_registry: dict[str, type[Fold]] = {}


def register(cls: type[Fold]) -> type[Fold]:
    """Class decorator: makes the fold known by its name. A second class of that name, or none, raises ValueError."""
    if not isinstance(getattr(cls, "name", None), str):
        raise ValueError(f"{cls.__qualname__}: a fold to register needs the class attribute `name`, a string")
    if cls.name in _registry and _registry[cls.name].__qualname__ != cls.__qualname__:
        raise ValueError(f"fold name {cls.name!r} is taken by {_registry[cls.name].__qualname__}; choose another")
    _registry[cls.name] = cls
    return cls


def lookup(output: Output) -> Fold:
    """The fold of an output, without its tensors."""
    try:
        cls = _registry[output.fold]
    except KeyError:
        raise ValueError(f"fold {output.fold!r} is not registered; known: {', '.join(sorted(_registry))}") from None
    return cls.from_options(output.options)


def registered() -> dict[str, type[Fold]]:
    return dict(_registry)


def exp_below(s: Tensor, m: Tensor, own: bool) -> Tensor:
    """exp(s - m) for the rows' m [.., BN], in s's memory where that may be overwritten."""
    shifted = s.sub_(m.unsqueeze(-1)) if own else s - m.unsqueeze(-1)
    return shifted.exp_()


def exp_of_rows(s: Tensor, own: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Of whole rows: m, the maximum, or 0 where that is infinite; exp(s - m); its sum. m and the sum are [.., N, 1]."""
    m = s.amax(-1, True).nan_to_num_(math.nan, 0.0, 0.0)
    p = (s.sub_(m) if own else s - m).exp_()
    return m, p, p.sum(-1, True)


__all__ = [
    "Cost",
    "Data",
    "Fold",
    "Leaf",
    "Pullback",
    "Result",
    "State",
    "exp_below",
    "exp_of_rows",
    "finite",
    "lookup",
    "op",
    "register",
    "registered",
    "seen",
]
