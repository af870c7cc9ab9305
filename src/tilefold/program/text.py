"""Expressions and Programs as text: what a traced function may hold, and what is cached by structure.

torch.compile treats a string as a constant. Every function here takes and gives strings, numbers and tuples of them, is
run at trace time (`assume_constant_result`) and remembers its answers, so that a warmed call costs a look-up.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from typing import Any, TypeVar

from .expr import Const, Data, Expr, Index, Leaf, Size, op, remap, rewrite, transpose, walk
from .program import Mask, Output, Program, dump_nodes, load_nodes

F = TypeVar("F", bound=Callable[..., Any])
MaskText = tuple[str, "str | None", "str | None", "int | None", tuple[int, int], "str | None"]


def constant(fn: F) -> F:
    """Remembers answers, and is a constant to torch.compile."""
    cached = functools.lru_cache(maxsize=8192)(fn)

    @functools.wraps(fn)
    def call(*args: Any) -> Any:
        return cached(*args)

    # torch.compiler.assume_constant_result sets this mark, and imports the compiler (seconds) to do so
    call._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return call  # type: ignore[return-value]


@functools.lru_cache(maxsize=8192)
def parse(text: str) -> Expr:
    return load_nodes(json.loads(text))[-1]


def dump(expr: Expr) -> str:
    return json.dumps(dump_nodes(expr)[0], separators=(",", ":"))


def _maybe(text: str | None, fn: Callable[[Expr], Expr]) -> str | None:
    return None if text is None else dump(fn(parse(text)))


@constant
def listing(text: str) -> tuple[tuple[Any, ...], ...]:
    """The nodes in order, arguments by number: ("leaf", rows, cols), ("data", operand, ..), ("const", value),
    ("index", axis), ("size", axis), ("op", name, numbers)."""
    made: list[tuple[Any, ...]] = []
    for tag, *rest in json.loads(text):
        if tag == "const":
            made.append((tag, float.fromhex(rest[1]) if rest[0] == "float" else rest[1]))
        elif tag == "op":
            made.append((tag, rest[0], tuple(rest[1])))
        else:
            made.append((tag, *rest))
    return tuple(made)


@constant
def leaf(rows: int, cols: int) -> str:
    return dump(Leaf(rows, cols))


@constant
def data(operand: int, kind: str, type: str) -> str:
    return dump(Data(operand, kind, type))


@constant
def number(value: float | int | bool, type: str) -> str:
    """type stands beside the value because 1, 1.0 and True are equal keys."""
    return dump(Const({"float": float, "int": int, "bool": bool}[type](value)))


@constant
def index(axis: str) -> str:
    return dump(Index(axis))


@constant
def size(axis: str) -> str:
    return dump(Size(axis))


@constant
def apply(name: str, *args: str) -> str:
    return dump(op(name, *map(parse, args)))


@constant
def renumber(text: str | None, numbers: tuple[int, ...]) -> str | None:
    """Operand i becomes numbers[i]."""
    return _maybe(text, lambda e: remap(e, dict(enumerate(numbers))))


@constant
def transposed(text: str | None) -> str | None:
    return _maybe(text, transpose)


@constant
def moved(text: str | None, axis: str, offset: int, step: int) -> str | None:
    """The expression after taking a slice of the rows or columns: its index i is offset + step * i of the old one."""

    def change(node: Expr) -> Expr | None:
        return Index(axis) * step + offset if node is Index(axis) else None

    return _maybe(text, lambda e: rewrite(e, change))


@constant
def indexed(text: str | None, axis: str, operand: int) -> str | None:
    """The expression with the index of an axis read from an operand."""
    return _maybe(text, lambda e: rewrite(e, lambda n: Data(operand, axis, "int") if n is Index(axis) else None))


@constant
def places(text: str | None, axis: str) -> bool:
    """Whether the expression reads the index or the size of an axis."""
    return text is not None and any(n is Index(axis) or n is Size(axis) for n in walk(parse(text)))


@constant
def sized(text: str | None, axis: str, value: int) -> str | None:
    """The expression with the size of an axis fixed, before a slice changes it."""
    return _maybe(text, lambda e: rewrite(e, lambda n: Const(value) if n is Size(axis) else None))


@constant
def type_of(text: str) -> str:
    return parse(text).type


@constant
def varies_with(text: str) -> tuple[str, ...]:
    return tuple(sorted(parse(text).varies))


def _both(name: str, x: str | None, y: str | None) -> str | None:
    return apply(name, x, y) if x is not None and y is not None else x if y is None else y


@constant
def pointwise(mask: MaskText) -> MaskText:
    """The mask with its interval as a pointwise test."""
    axis, lo, hi, block, block_size, test = mask
    here = index({"row": "col", "col": "row"}[axis])
    for name, bound in (("ge", lo), ("lt", hi)):
        if bound is not None:
            test = _both("and", test, apply(name, here, bound))
    return axis, None, None, block, block_size, test


@constant
def interval_of_slice(mask: MaskText, axis: str, offset: int, step: int) -> MaskText:
    """The mask after a slice of `axis`, whose index j was offset + step * j: an interval along it moves with it."""
    own, lo, hi, block, block_size, test = mask
    if own == axis:
        return mask

    def bound(e: Expr) -> Expr:
        # offset + step * j >= e  <=>  j >= ceil((e - offset) / step), and so for <
        return e - offset if step == 1 else op("floordiv", e - (offset - step + 1), step)

    return own, _maybe(lo, bound), _maybe(hi, bound), block, block_size, test


@constant
def mask_and(a: MaskText, b: MaskText) -> MaskText:
    """Both masks at once. An interval along the other axis becomes a pointwise test."""
    axis, lo, hi, block, block_size, test = a
    if lo is None and hi is None:
        axis = b[0]
    elif b[0] != axis:
        b = pointwise(b)
    _, other_lo, other_hi, other_block, other_size, other_test = b
    if block is not None and other_block is not None:
        raise ValueError("mask: two block masks on one score; combine them into one table")
    if block is None:
        block, block_size = other_block, other_size
    return (
        axis,
        _both("maximum", lo, other_lo),
        _both("minimum", hi, other_hi),
        block,
        block_size,
        _both("and", test, other_test),
    )


@constant
def program(
    kinds: tuple[str, ...],
    outputs: tuple[tuple[str, str, tuple[tuple[str, Any], ...], int | None], ...],
    mask: MaskText | None,
) -> tuple[str, tuple[int, ...]]:
    """The text of a Program over the operands it reads, and their numbers.

    Args:
        outputs: (fold, expression, options, payload operand) each
    """
    made = tuple(Output(fold, parse(e), options, payload) for fold, e, options, payload in outputs)
    m = None
    if mask is not None:
        axis, lo, hi, block, block_size, test = mask
        at: Callable[[str | None], Expr | None] = lambda t: None if t is None else parse(t)
        m = Mask(axis, at(lo), at(hi), block, block_size, at(test))
    pruned, kept = Program(kinds, made, m).prune()
    return pruned.text, kept


@constant
def scalar_to_row(text: str | None, operand: int) -> str | None:
    """The expression with a scalar operand read per row."""

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Data) and node.operand == operand:
            return Data(operand, "row", node.type)
        return None

    return _maybe(text, lambda e: rewrite(e, change))


@constant
def paged(text: str) -> tuple[str, tuple[int, ...]]:
    """A Program's text with its columns in pages, which one more operand names; and the numbers of those operands."""
    p = Program.parse(text)
    columns = tuple(i for i, kind in enumerate(p.operands) if kind == "cols")
    return Program((*p.operands, "pages"), p.outputs, p.mask, len(p.operands)).text, columns
