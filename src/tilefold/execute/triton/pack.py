"""Few rows in many batch entries that share their columns, such as one new token's query heads: the rows of all of them in one tile.

A row tile reads its columns once, however few of its rows are there. Where the last dimensions of a batch are the columns' own in no operand,
they become rows: [*b, G, N, D] is read as [*b, G N, D], and row r stands for row r % N of its entry. Results lie in memory as they would.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ...program import Const, Data, Expr, Index, Program, Size, op, rewrite

FEW = 64  # rows of an entry: half of the least tile that the specialised loop has
I32 = 2**31 - 1
Shapes = tuple[tuple[int, ...], tuple[int, ...]]


@dataclass(frozen=True)
class Packing:
    """A Program over packed rows, its sizes, and of each operand the shapes to expand it to and to read it in; None: as it is."""

    program: Program
    batch: tuple[int, ...]
    n: int
    shapes: tuple[Shapes | None, ...]

    def operands(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        return [t if s is None else t.expand(s[0]).reshape(s[1]) for t, s in zip(tensors, self.shapes, strict=True)]


@dataclass(frozen=True)
class Packed:
    """A launch over packed rows, with the operands and results of those that were packed."""

    launch: Any
    packing: Packing

    def __call__(self, operands: Sequence[Tensor], results: list[Any], device: torch.device) -> None:
        self.launch(self.packing.operands(operands), results, device)

    def __str__(self) -> str:
        return f"{self.launch}; {self.packing.n} rows that share columns in a tile"


def packing(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int) -> Packing | None:
    """How the rows of a Program are packed; None where that can't be done, or gains nothing."""
    mask = program.mask
    if n > FEW or any(o.axis != "row" or o.like is not None for o in program.outputs):
        return None
    if mask is not None and (mask.block is not None or (mask.axis == "col" and (mask.lo, mask.hi) != (None, None))):
        return None
    full = [(1,) * (len(batch) + 2 - t.dim()) + tuple(t.shape) for t in operands]
    first = 0 if program.pages is None else 1  # of the dimensions that become rows; a page stands where the first would
    for kind, shape in zip(program.operands, full, strict=True):
        if kind == "cols" or (kind == "col" and n > 1):
            first = max([first, *(d + 1 for d in range(len(batch)) if shape[d] != 1)])
    rows = math.prod(batch[first:]) * n
    if rows == n or rows > I32:
        return None
    kinds: list[str] = []
    shapes: list[Shapes | None] = []
    for kind, t, shape in zip(program.operands, operands, full, strict=True):
        lead, own, width = shape[:first], any(s != 1 for s in shape[first:-2]), shape[-1]
        if own or (kind == "row" and n > 1):
            given, made = (*lead, *batch[first:], n, width), (*lead, rows, width)
            if kind == "tile" and not _is_view(t, given, made):
                return None
            kinds.append({"scalar": "row", "col": "tile"}.get(kind, kind))
        elif kind == "rows" or (kind == "tile" and n > 1):
            return None
        else:  # one for all of them
            given, made = shape, (*lead, *shape[-2:])
            kinds.append(kind)
        shapes.append(None if given == made else (given, made))
    return Packing(_over_packed_rows(program, n, tuple(kinds)), batch[:first], rows, tuple(shapes))


def _is_view(t: Tensor, given: tuple[int, ...], made: tuple[int, ...]) -> bool:
    try:
        t.expand(given).view(made)
    except RuntimeError:
        return False
    return True


@functools.lru_cache(maxsize=1024)
def _over_packed_rows(program: Program, n: int, kinds: tuple[str, ...]) -> Program:
    """The Program over rows of which each n are an entry's, with operands of these kinds."""
    index = Index("row")
    row = Const(0) if n == 1 else index - op("floordiv", index, n) * n

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Data) and kinds[node.operand] != node.kind:
            return Data(node.operand, kinds[node.operand], node.type)
        return row if node is index else Const(n) if node is Size("row") else None

    outputs = tuple(replace(o, expr=rewrite(o.expr, change)) for o in program.outputs)
    mask = program.mask
    if mask is not None:
        lo, hi, test = (None if e is None else rewrite(e, change) for e in (mask.lo, mask.hi, mask.test))
        mask = replace(mask, lo=lo, hi=hi, test=test)
    return Program(kinds, outputs, mask, program.pages)
