"""The laws of a fold, for every registered one: a fold added anywhere is tested here without a change.

Scores are such that float64 states are exact: small integers, or for folds with an exponential scores whose
exponentials are 0 or 1.
"""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from functools import reduce
from typing import Any

import pytest
import torch
from accuracy import close64, same
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tilefold as tf
from tilefold import folds
from tilefold.folds import Fold
from tilefold.program import Data

INF = math.inf
WIDTH = 3  # of a payload
# folds whose state is rounded even on integers: compared to a few eps
ROUNDED = frozenset(("variance",))
FOLDS = {name: cls for name, cls in sorted(folds.registered().items()) if cls.__module__.startswith("tilefold.")}
State = tuple[tuple[Tensor, ...], "Tensor | None"]


def example(cls: type[Fold], k: int) -> Fold:
    """A fold of this class; options that it needs are 3, or as many as there are columns."""
    needed = [
        p.name
        for p in inspect.signature(cls).parameters.values()
        if p.default is p.empty and p.kind == p.POSITIONAL_OR_KEYWORD
    ]
    return cls(**{name: min(3, k) for name in needed})


def has_payload(fold: Fold) -> bool:
    return any(r.kind == "payload" for r in fold.results)


def scores_of(fold: Fold, finite: bool = False) -> st.SearchStrategy[float]:
    if fold.cost.exps:
        return st.sampled_from([0.0, -4000.0, -INF]) if not finite else st.sampled_from([0.0, -4000.0])
    small = st.integers(-4, 4).map(float)
    return (
        small if finite or has_payload(fold) or fold.name in ROUNDED else st.one_of(small, st.sampled_from([INF, -INF]))
    )


class Row:
    """Scores [1, N, K] of one fold, a payload, and which columns each row sees."""

    def __init__(self, data: Any, cls: type[Fold], n: int = 2, largest: int = 9, hide: bool = True) -> None:
        k = data.draw(st.integers(1, largest), label="K")
        self.fold = example(cls, k)
        draw = st.lists(st.lists(scores_of(self.fold), min_size=k, max_size=k), min_size=n, max_size=n)
        self.s = torch.tensor(data.draw(draw, label="s"), dtype=torch.float64)[None]
        seen = st.lists(st.lists(st.booleans(), min_size=k, max_size=k), min_size=n, max_size=n)
        self.seen = torch.tensor(data.draw(seen, label="seen"))[None] if hide and data.draw(st.booleans()) else None
        self.v = torch.arange(k * WIDTH, dtype=torch.float64).reshape(1, k, WIDTH) % 5 - 2
        self.n, self.k = n, k

    def init(self) -> State:
        state = self.fold.init((1, self.n), torch.float64, torch.device("cpu"))
        return state, torch.zeros(1, self.n, WIDTH, dtype=torch.float64) if has_payload(self.fold) else None

    def step(self, before: State, start: int, stop: int) -> State:
        if start == stop:
            return before
        s = self.s[..., start:stop].clone()
        seen = None if self.seen is None else self.seen[..., start:stop]
        if seen is not None:
            s = s.masked_fill(~seen, self.fold.fill)
        cols = torch.arange(start, stop)
        made = self.fold.step(before[0], s, cols, seen if self.fold.sees_mask else None, True)
        if before[1] is None:
            return made, None
        state, alpha, p = made
        acc = before[1] if alpha is None else before[1] * alpha.unsqueeze(-1)
        return state, acc + p @ self.v[:, start:stop]

    def lift(self) -> State:
        s = self.s.clone() if self.seen is None else self.s.masked_fill(~self.seen, self.fold.fill)
        made = self.fold.lift(s, torch.arange(self.k), self.seen if self.fold.sees_mask else None, True)
        return (made[0], made[2] @ self.v) if has_payload(self.fold) else (made, None)

    def whole(self) -> tuple[Tensor, ...]:
        s = self.s.clone() if self.seen is None else self.s.masked_fill(~self.seen, self.fold.fill)
        made = self.fold.whole(s, torch.arange(self.k), self.seen if self.fold.sees_mask else None, True)
        if has_payload(self.fold):
            (factor, *others), p = made
            acc = p @ self.v
            made = (acc if factor is None else acc * factor, *others)
        return tuple(r.reshape(1, self.n) if e.kind == "row" else r for r, e in zip(made, self.fold.results))

    def merge(self, a: State, b: State) -> State:
        made = self.fold.merge(a[0], b[0])
        if a[1] is None or b[1] is None:
            return made, None
        state, alpha, beta = made
        left = a[1] if alpha is None else a[1] * alpha.unsqueeze(-1)
        return state, left + (b[1] if beta is None else b[1] * beta.unsqueeze(-1))

    def finish(self, part: State) -> tuple[Tensor, ...]:
        made = list(self.fold.finish(part[0]))
        for j, r in enumerate(self.fold.results):
            if r.kind == "payload":
                assert part[1] is not None
                made[j] = part[1] if made[j] is None else part[1] * made[j].unsqueeze(-1)
        return tuple(made)

    def equal(self, a: Sequence[Tensor], b: Sequence[Tensor]) -> None:
        assert len(a) == len(b)
        for x, y in zip(a, b):
            assert x.dtype == y.dtype
            if self.fold.name in ROUNDED and x.is_floating_point():
                close64(x, y, self.fold.name, 1e-13)
            else:
                same(x, y)


def cuts(row: Row, data: Any) -> list[tuple[int, int]]:
    inner = data.draw(st.lists(st.integers(0, row.k), max_size=4), label="cuts")
    return list(itertools.pairwise([0, *sorted(inner), row.k]))


every_fold = pytest.mark.parametrize("cls", FOLDS.values(), ids=FOLDS.keys())


@every_fold
@given(st.data())
def test_any_split_of_the_columns_gives_the_same_bits(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    whole = row.finish(row.step(row.init(), 0, row.k))
    parts = cuts(row, data)
    stepped = reduce(lambda state, part: row.step(state, *part), parts, row.init())
    row.equal(row.finish(stepped), whole)
    merged = reduce(row.merge, (row.step(row.init(), *part) for part in parts))
    row.equal(row.finish(merged), whole)


@every_fold
@given(st.data())
def test_first_tile_needs_no_initial_state(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    row.equal(row.finish(row.lift()), row.finish(row.step(row.init(), 0, row.k)))


@every_fold
@given(st.data())
def test_one_tile_needs_no_state(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    for found, right in zip(row.whole(), row.finish(row.lift()), strict=True):
        same(found, right)


@every_fold
@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_first_tile_takes_every_float(cls: type[Fold], value: float) -> None:
    """Beside a finite score, alone in a row, and in a row of its own kind."""
    fold = example(cls, 3)
    s = torch.tensor([[[0.5, value, value], [value, 1.0, -2.0], [value] * 3]], dtype=torch.float64)
    cols, start = torch.arange(3), fold.init((1, 3), torch.float64, torch.device("cpu"))
    made = [fold.lift(s.clone(), cols, None, True), fold.step(start, s.clone(), cols, None, True)]
    if has_payload(fold):
        same(made[0][2], made[1][2])
        made = [state for state, _, _ in made]
    whole = fold.whole(s.clone(), cols, None, True)
    for a, b, c in zip(fold.finish(made[0]), fold.finish(made[1]), whole[0] if has_payload(fold) else whole):
        if a is not None:
            same(a, b)
            same(c.reshape(a.shape), a)


@every_fold
@given(st.data())
def test_merge_is_associative(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    i, j = sorted(data.draw(st.tuples(st.integers(0, row.k), st.integers(0, row.k))))
    a, b, c = (row.step(row.init(), *part) for part in ((0, i), (i, j), (j, row.k)))
    left, right = row.merge(row.merge(a, b), c), row.merge(a, row.merge(b, c))
    row.equal(row.finish(left), row.finish(right))


@every_fold
@given(st.data())
def test_initial_state_is_neutral(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    state = row.step(row.init(), 0, row.k)
    want = row.finish(state)
    row.equal(row.finish(row.merge(row.init(), state)), want)
    row.equal(row.finish(row.merge(state, row.init())), want)


@every_fold
@given(st.data())
def test_hidden_columns_do_not_change_a_state(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls, hide=False)
    state = row.step(row.init(), 0, row.k)
    want = row.finish(state)
    row.seen = torch.zeros(1, row.n, row.k, dtype=torch.bool)
    row.equal(row.finish(row.step(state, 0, row.k)), want)


@every_fold
@given(st.data())
def test_result_is_a_state_again(cls: type[Fold], data: Any) -> None:
    """`resume` is what merges the results of column shards."""
    row = Row(data, cls)
    middle = data.draw(st.integers(0, row.k))
    a, b = row.step(row.init(), 0, middle), row.step(row.init(), middle, row.k)
    again = [row.fold.resume(row.finish(p)) for p in (a, b)]
    got, want = row.finish(row.merge(*again)), row.finish(row.merge(a, b))
    for x, y in zip(got, want):
        close64(x, y, row.fold.name, 1e-13) if x.is_floating_point() else same(x, y)


@pytest.mark.parametrize(
    "cls", [c for c in FOLDS.values() if c.columns], ids=[n for n, c in FOLDS.items() if c.columns]
)
@given(st.data())
def test_ties_go_to_the_lowest_column(cls: type[Fold], data: Any) -> None:
    row = Row(data, cls)
    for part in (cuts(row, data), [(i, i + 1) for i in range(row.k)]):
        results = row.finish(reduce(lambda state, p: row.step(state, *p), part, row.init()))
        for number in row.fold.columns:
            columns = results[number].reshape(row.n, -1)
            for i in range(row.n):
                seen = [True] * row.k if row.seen is None else row.seen[0, i].tolist()
                s = row.s[0, i].tolist()
                chosen = [c for c in columns[i].tolist() if c >= 0]
                assert all(seen[c] for c in chosen) and len(set(chosen)) == len(chosen)
                assert len(chosen) == min(columns.shape[-1], sum(seen))
                lower = [j for c in chosen for j in range(c) if seen[j] and s[j] == s[c]]
                assert set(lower) <= set(chosen)


@every_fold
def test_a_step_may_not_write_scores_it_does_not_own(cls: type[Fold]) -> None:
    fold = example(cls, 8)
    s = torch.randn(1, 2, 8, dtype=torch.float64)
    before = s.clone()
    fold.step(fold.init((1, 2), torch.float64, torch.device("cpu")), s, torch.arange(8), None, False)
    same(s, before)


@every_fold
def test_fold_is_made_again_from_its_options(cls: type[Fold]) -> None:
    fold = example(cls, 8)
    again = cls.from_options(fold.options)
    assert again.options == fold.options and type(again) is cls
    assert all(isinstance(v, (int, float, str, bool)) for _, v in fold.options)


@every_fold
def test_declarations_are_complete(cls: type[Fold]) -> None:
    fold = example(cls, 8)
    state = fold.init((2, 3), torch.float32, torch.device("cpu"))
    assert all(t.shape[:2] == (2, 3) for t in state)
    assert all(i < len(fold.results) for i in (*fold.differentiable, *fold.columns))
    assert fold.cost.registers_per_row >= 0 and fold.cost.ops > 0
    assert cls.__doc__ and inspect.getmodule(cls).__doc__


@every_fold
@pytest.mark.parametrize("k", [1, 5, 1023, 1024, 1025])
def test_fold_through_the_executor_equals_its_laws(cls: type[Fold], k: int) -> None:
    """The public way over tiles: integer scores, whole against two shards."""
    if cls.name in ("gather", "sample"):
        pytest.skip("needs a row operand; see test_scores")
    g = torch.Generator().manual_seed(k)
    x = torch.randint(-2, 3, (3, 2), generator=g).double()
    y = torch.randint(-2, 3, (k, 2), generator=g).double()
    fold, v = example(cls, k), torch.randint(-2, 3, (k, WIDTH), generator=g).double()
    if has_payload(fold):
        fold.payload = v
    s = (x @ y.mT)[None]
    state = fold.init((1, 3), torch.float64, torch.device("cpu"))
    lowered = -s if fold.lower(Data(0, "tile")) is not Data(0, "tile") else s
    made = fold.step(state, lowered, torch.arange(k), None, False)
    got = tf.fold(tf.scores(x, y), fold)
    if has_payload(fold):
        state, _, p = made
        factor = fold.finish(state)[0]
        want = (p @ v) if factor is None else (p @ v) * factor.unsqueeze(-1)
        close64(got if isinstance(got, Tensor) else got[0], want[0])
    else:
        want = fold.public(fold.finish(made))
        for a, b in zip(got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,)):
            close64(a, b[0]) if a.is_floating_point() else same(a, b[0])


def test_two_folds_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'max' is taken"):

        @folds.register
        class Other(folds.Max):
            name = "max"


def test_unknown_fold_in_a_program_names_the_known_ones() -> None:
    from tilefold.program import Output

    with pytest.raises(ValueError, match="not registered; known: .*logsumexp"):
        folds.lookup(Output("surprise", Data(0, "tile")))
