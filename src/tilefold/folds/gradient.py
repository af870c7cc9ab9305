"""The gradient of a Program: again a Program, with sums along both axes.

With w = dL/ds of each output's scores (`Fold.weight`) and the chain rule, leaf g = dL/d(x_i . y_j) gives
dx_i = sum_j g y_j (per row) and dy_j = sum_i g x_i (per column); a row vector's gradient is sum_j, a column vector's
sum_i, a scalar's both.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from torch import Tensor

from ..errors import GradientError
from ..program import Data, Expr, Leaf, Output, Program, gradients
from .fold import Fold, Pullback, RowFunction, lookup


@dataclass(frozen=True)
class Source:
    """A row operand of the gradient Program: a function of one output's results and their gradients.

    With `dot` it is the product of two such functions, row by row, less `fn`.
    """

    output: int
    fn: RowFunction | None
    kind: str  # "row" or "rows"
    dot: tuple[RowFunction, RowFunction] | None = None


# a_i . b_i of each row, as a Program: rows are the rows, columns the features
ROW_DOT = Program(("tile", "tile"), (Output("sum", Data(0, "tile") * Data(1, "tile")),)).text


@dataclass(frozen=True)
class Gradient:
    """A gradient Program, where its operands come from, and which operand each output belongs to.

    sources    for each operand of the Program: the number of a forward operand, or a Source
    targets    for each output: the forward operand whose gradient it is part of
    """

    program: Program
    sources: tuple[int | Source, ...]
    targets: tuple[int, ...]


class _Builder(Pullback):
    def __init__(
        self,
        first: int,
        output: int,
        payload: int | None,
        grads: tuple[bool, ...],
        sources: list[Source],
        kinds: list[str],
    ) -> None:
        self.grads, self.payload = grads, payload
        self._first, self._output, self._sources, self._kinds = first, output, sources, kinds
        self.payload_gradients: list[tuple[Expr, int]] = []

    def _add(self, fn: RowFunction | None, kind: str, dot: tuple[RowFunction, RowFunction] | None = None) -> int:
        source = Source(self._output, fn, kind, dot)
        if source not in self._sources:
            self._sources.append(source)
            self._kinds.append(kind)
        return self._first + self._sources.index(source)

    def row(self, fn: RowFunction, type: str = "float") -> Expr:
        return Data(self._add(fn, "row"), "row", type)

    def row_dot(self, a: RowFunction, b: RowFunction, minus: RowFunction | None = None) -> Expr:
        return Data(self._add(minus, "row", (a, b)), "row")

    def dot_payload(self, fn: RowFunction) -> Expr:
        assert self.payload is not None
        return Leaf(self._add(fn, "rows"), self.payload)

    def payload_gradient(self, p: Expr, fn: RowFunction) -> None:
        self.payload_gradients.append((p, self._add(fn, "rows")))


def result_slices(program: Program) -> list[slice]:
    """Where the results of each output stand in the flat list of results."""
    slices, start = [], 0
    for o in program.outputs:
        count = len(lookup(o).results) if o.axis == "row" and o.like is None else 1
        slices.append(slice(start, start + count))
        start += count
    return slices


@functools.lru_cache(maxsize=1024)
def gradient(text: str, needs: tuple[bool, ...], given: tuple[bool, ...]) -> Gradient | None:
    """The gradient Program, or None if nothing that needs a gradient has one.

    Args:
        text: of the forward Program
        needs: per operand, whether its gradient is wanted
        given: per result, whether its gradient is there
    """
    program = Program.parse(text)
    if program.pages is not None:
        raise GradientError("backward: a gradient through columns in pages was asked for; they are read forward only")
    sources: list[Source] = []
    kinds = list(program.operands)
    pairs: list[tuple[Expr, Expr]] = []
    outputs: list[Output] = []
    targets: list[int] = []

    def emit(fold: str, expr: Expr, payload: int | None, axis: str, target: int) -> None:
        outputs.append(Output(fold, expr, (), payload, axis, target))
        targets.append(target)

    for j, (o, part) in enumerate(zip(program.outputs, result_slices(program), strict=True)):
        fold: Fold = lookup(o)
        grads = tuple(g and i in fold.differentiable for i, g in enumerate(given[part]))
        if not any(grads):
            continue
        b = _Builder(len(program.operands), j, o.payload, grads, sources, kinds)
        pairs.append((o.expr, fold.weight(o.expr, b)))
        if o.payload is not None and needs[o.payload]:
            for p, rows in b.payload_gradients:
                emit("weighted_sum", p, rows, "col", o.payload)
    for node, g in gradients(pairs).items():
        if isinstance(node, Leaf):
            if needs[node.rows]:
                emit("weighted_sum", g, node.cols, "row", node.rows)
            if needs[node.cols]:
                emit("weighted_sum", g, node.rows, "col", node.cols)
        elif node.operand < len(needs) and needs[node.operand]:
            axis = {"row": "row", "scalar": "row", "col": "col", "tile": "tile"}[node.kind]
            emit("sum", g, None, axis, node.operand)
    if not outputs:
        return None
    made, kept = Program(tuple(kinds), tuple(outputs), program.mask).prune()
    count = len(program.operands)
    return Gradient(made, tuple(i if i < count else sources[i - count] for i in kept), tuple(targets))


def row_operand(
    source: Source,
    results: tuple[Tensor, ...],
    grads: tuple[Tensor | None, ...],
    dot: Callable[[Tensor, Tensor], Tensor],
) -> Tensor:
    """The tensor of a source; `dot` runs ROW_DOT."""
    given = cast("tuple[Tensor, ...]", grads)  # a fold asks only for those that are there
    value = None if source.fn is None else source.fn(results, given)
    if source.dot is not None:
        product = dot(*(fn(results, given) for fn in source.dot))
        value = product if value is None else product - value
    assert value is not None
    return value.unsqueeze(-1) if source.kind == "row" else value
