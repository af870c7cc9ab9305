"""A Program: what a streaming kernel computes, with no sizes and no data types in it.

Operands are tensors of these kinds, broadcast over leading batch dimensions b:

    rows   [*b, N, D]     cols   [*b, K, D]      the two sides of a product
    row    [*b, N, 1]     col    [*b, 1, K]      a number per row, per column
    tile   [*b, N, K]     scalar [*b, 1, 1]      a number per pair, per batch entry
    block  [*b, N/bn, K/bk]                      a boolean per block of the mask
    pages  [*b, 1, K/size]                       a number per page of the columns

Of a Program with `pages` the columns lie in pages: "cols" operands are [pages, *c, size, D], c the batch dimensions
behind the first, and column j of an entry is row j % size of the page that its table of pages names in place j // size.

Each Output folds an expression along one axis: axis "row" gives a result per row (the columns are streamed), axis "col"
a sum per column, which is what a backward pass needs. A gradient Program is a Program.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .expr import Const, Data, Expr, Index, Leaf, Op, Size, operands_of, remap, transpose, walk

KINDS = ("rows", "cols", "row", "col", "tile", "block", "scalar", "pages")


@dataclass(frozen=True)
class Mask:
    """Which scores are visible; all conditions hold together.

    lo, hi    visible indices of the streamed axis, lo <= j < hi: integer expressions that vary with `axis` only.
              Causal masks, windows, lengths and packed segments are such intervals.
    block     number of a "block" operand, True where a block of block_size = (rows, columns) is visible
    test      a boolean expression, evaluated pointwise
    """

    axis: str = "row"
    lo: Expr | None = None
    hi: Expr | None = None
    block: int | None = None
    block_size: tuple[int, int] = (0, 0)
    test: Expr | None = None

    @property
    def roots(self) -> tuple[Expr, ...]:
        return tuple(e for e in (self.lo, self.hi, self.test) if e is not None)

    def operands(self) -> set[int]:
        return operands_of(*self.roots) | ({self.block} if self.block is not None else set())

    def remap(self, numbers: dict[int, int]) -> Mask:
        def move(e: Expr | None) -> Expr | None:
            return None if e is None else remap(e, numbers)

        block = None if self.block is None else numbers[self.block]
        return Mask(self.axis, move(self.lo), move(self.hi), block, self.block_size, move(self.test))

    def transpose(self) -> Mask:
        def turn(e: Expr | None) -> Expr | None:
            return None if e is None else transpose(e)

        axis = {"row": "col", "col": "row"}[self.axis]
        return Mask(axis, turn(self.lo), turn(self.hi), self.block, self.block_size[::-1], turn(self.test))


@dataclass(frozen=True)
class Output:
    """One reduction: the registered name of a fold, its options, the scores it folds, and its payload operand.

    like    an operand: the result is summed over the batch dimensions that this operand does not have
            (gradients of operands that were broadcast); only for sums
    axis    "row", "col", or "tile": no reduction, the expression itself is written. Only the gradient of an
            [N, K] operand, which is that large anyway, is such an output.
    """

    fold: str
    expr: Expr
    options: tuple[tuple[str, Any], ...] = ()
    payload: int | None = None
    axis: str = "row"
    like: int | None = None


@dataclass(frozen=True)
class Program:
    """Operands, outputs, mask and the number of the "pages" operand.

    `text` is its JSON form, `Program.parse` reads it back.
    """

    operands: tuple[str, ...]
    outputs: tuple[Output, ...]
    mask: Mask | None = None
    pages: int | None = None
    _text: list[str] = field(default_factory=list, compare=False, repr=False)

    def roots(self) -> tuple[Expr, ...]:
        return tuple(o.expr for o in self.outputs) + (self.mask.roots if self.mask else ())

    def leaves(self) -> tuple[Leaf, ...]:
        return tuple(n for n in walk(*self.roots()) if isinstance(n, Leaf))

    def prune(self) -> tuple[Program, tuple[int, ...]]:
        """The Program over only the operands it reads, and their old numbers in order."""
        used = operands_of(*self.roots()) | (self.mask.operands() if self.mask else set())
        used |= {i for o in self.outputs for i in (o.payload, o.like) if i is not None}
        used |= {self.pages} if self.pages is not None else set()
        kept = tuple(sorted(used))
        numbers = {old: new for new, old in enumerate(kept)}
        outputs = tuple(
            Output(
                o.fold,
                remap(o.expr, numbers),
                o.options,
                None if o.payload is None else numbers[o.payload],
                o.axis,
                None if o.like is None else numbers[o.like],
            )
            for o in self.outputs
        )
        mask = None if self.mask is None else self.mask.remap(numbers)
        pages = None if self.pages is None else numbers[self.pages]
        return Program(tuple(self.operands[i] for i in kept), outputs, mask, pages), kept

    def transpose(self) -> Program:
        """Rows and columns exchanged; operands keep their numbers (their tensors change shape with their kind)."""
        swap = {"rows": "cols", "cols": "rows", "row": "col", "col": "row"}
        axis = {"row": "col", "col": "row"}
        return Program(
            tuple(swap.get(k, k) for k in self.operands),
            tuple(
                Output(o.fold, transpose(o.expr), o.options, o.payload, axis.get(o.axis, o.axis), o.like)
                for o in self.outputs
            ),
            None if self.mask is None else self.mask.transpose(),
        )

    @property
    def text(self) -> str:
        if not self._text:
            self._text.append(_dump(self))
        return self._text[0]

    @staticmethod
    @functools.lru_cache(maxsize=4096)
    def parse(text: str) -> Program:
        return _load(text)

    def __str__(self) -> str:
        lines = [f"operands  {', '.join(f'{i}: {k}' for i, k in enumerate(self.operands))}"]
        for o in self.outputs:
            options = "".join(f", {k}={v}" for k, v in o.options)
            payload = "" if o.payload is None else f" with payload {o.payload}"
            lines.append(f"per {o.axis:<5} {o.fold}({o.expr}{options}){payload}")
        if self.mask:
            m = self.mask
            parts = [f"{m.lo} <= j" if m.lo else "", f"j < {m.hi}" if m.hi else "", str(m.test) if m.test else ""]
            parts.append(f"block {m.block} of {m.block_size}" if m.block is not None else "")
            lines.append(f"visible   {' and '.join(p for p in parts if p)} (per {m.axis})")
        if self.pages is not None:
            lines.append(f"columns   in the pages of {self.pages}")
        return "\n".join(lines)


def dump_nodes(*roots: Expr) -> tuple[list[list[Any]], dict[Expr, int]]:
    """The nodes below the roots as JSON values, arguments by number, and the number of each node."""
    numbers: dict[Expr, int] = {}
    nodes: list[list[Any]] = []
    for node in walk(*roots):
        numbers[node] = len(nodes)
        match node:
            case Leaf():
                nodes.append(["leaf", node.rows, node.cols])
            case Data():
                nodes.append(["data", node.operand, node.kind, node.type])
            case Const():
                value = node.value.hex() if isinstance(node.value, float) else node.value
                nodes.append(["const", node.type, value])
            case Index():
                nodes.append(["index", node.axis])
            case Size():
                nodes.append(["size", node.axis])
            case Op():
                nodes.append(["op", node.name, [numbers[a] for a in node.operands]])
    return nodes, numbers


def load_nodes(raw: list[list[Any]]) -> list[Expr]:
    """The nodes that `dump_nodes` wrote. Raises ValueError for an unknown kind of node."""
    nodes: list[Expr] = []
    for tag, *rest in raw:
        match tag:
            case "leaf":
                nodes.append(Leaf(*rest))
            case "data":
                nodes.append(Data(*rest))
            case "const":
                kind, value = rest
                nodes.append(Const(float.fromhex(value) if kind == "float" else value))
            case "index":
                nodes.append(Index(*rest))
            case "size":
                nodes.append(Size(*rest))
            case "op":
                nodes.append(Op(rest[0], tuple(nodes[i] for i in rest[1])))
            case _:
                raise ValueError(f"unknown node {tag!r} in a program")
    return nodes


def _dump(program: Program) -> str:
    nodes, numbers = dump_nodes(*program.roots())
    m = program.mask
    at: Callable[[Expr | None], int | None] = lambda e: None if e is None else numbers[e]
    return json.dumps(
        {
            "operands": program.operands,
            "nodes": nodes,
            "outputs": [[o.fold, numbers[o.expr], o.options, o.payload, o.axis, o.like] for o in program.outputs],
            "mask": None if m is None else [m.axis, at(m.lo), at(m.hi), m.block, m.block_size, at(m.test)],
            "pages": program.pages,
        },
        separators=(",", ":"),
    )


def _load(text: str) -> Program:
    raw = json.loads(text)
    nodes = load_nodes(raw["nodes"])
    outputs = tuple(
        Output(fold, nodes[e], tuple((k, v) for k, v in options), payload, axis, like)
        for fold, e, options, payload, axis, like in raw["outputs"]
    )
    mask = None
    if raw["mask"] is not None:
        axis, lo, hi, block, size, test = raw["mask"]
        at: Callable[[int | None], Expr | None] = lambda i: None if i is None else nodes[i]
        mask = Mask(axis, at(lo), at(hi), block, tuple(size), at(test))
    return Program(tuple(raw["operands"]), outputs, mask, raw["pages"])
