"""Expressions of one score: a small graph of frozen nodes.

A node is interned: equal nodes are one object, so that equality and hashing cost nothing and a shared part is shared.
Every node has a type ("float", "int", "bool") and an extent: whether it varies with the row, with the column, or both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from typing import Any
from weakref import WeakValueDictionary

# name: (arguments, result type; "same" keeps the type of the arguments)
OPS: dict[str, tuple[int, str]] = {
    **dict.fromkeys(("add", "sub", "mul", "maximum", "minimum"), (2, "same")),
    **dict.fromkeys(("div", "pow"), (2, "float")),
    **dict.fromkeys(("neg", "abs", "square"), (1, "same")),
    **dict.fromkeys(
        "exp exp2 log log2 log1p expm1 sqrt rsqrt reciprocal tanh sigmoid relu erf sin cos sign float".split(),
        (1, "float"),
    ),
    **dict.fromkeys(("eq", "ne", "lt", "le", "gt", "ge"), (2, "bool")),
    **dict.fromkeys(("and", "or", "xor"), (2, "bool")),
    **dict.fromkeys(("not", "isnan", "isinf"), (1, "bool")),
    "where": (3, "same"),
    "floordiv": (2, "int"),
    "gumbel": (4, "float"),  # seed, stream of the row, position, column
}


class Expr:
    """A node; see the subclasses. Python's operators build new nodes."""

    __slots__ = ("__weakref__",)
    type: str
    varies: frozenset[str]

    @property
    def args(self) -> tuple[Expr, ...]:
        return ()

    def __add__(self, other: Any) -> Expr:
        return op("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return op("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return op("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return op("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return op("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return op("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return op("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return op("div", other, self)

    def __neg__(self) -> Expr:
        return op("neg", self)


_nodes: WeakValueDictionary[tuple[Any, ...], Expr] = WeakValueDictionary()


def _intern(cls: type[Expr], *fields: Any) -> Any:
    # floats by their bits: 0.0 and -0.0 differ, NaN equals itself
    key = (cls, *((f.hex() if isinstance(f, float) else (type(f), f)) for f in fields))
    node = _nodes.get(key)
    if node is None:
        node = object.__new__(cls)
        for name, value in zip(cls.__slots__, fields, strict=True):
            object.__setattr__(node, name, value)
        _nodes[key] = node
    return node


class Leaf(Expr):
    """x_i . y_j, the product of a "rows" and a "cols" operand."""

    __slots__ = ("rows", "cols")
    rows: int
    cols: int
    type = "float"
    varies = frozenset(("row", "col"))

    def __new__(cls, rows: int, cols: int) -> Leaf:
        return _intern(cls, rows, cols)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return f"dot({self.rows}, {self.cols})"


class Data(Expr):
    """An element of a "row", "col", "tile", "block" or "scalar" operand."""

    __slots__ = ("operand", "kind", "type")
    operand: int
    kind: str
    type: str

    def __new__(cls, operand: int, kind: str, type: str = "float") -> Data:
        return _intern(cls, operand, kind, type)  # type: ignore[no-any-return]

    @property
    def varies(self) -> frozenset[str]:  # type: ignore[override]
        return {
            "row": frozenset(("row",)),
            "col": frozenset(("col",)),
            "scalar": frozenset(),
        }.get(self.kind, frozenset(("row", "col")))

    def __repr__(self) -> str:
        return f"{self.kind}({self.operand})"


class Const(Expr):
    """A number."""

    __slots__ = ("value",)
    value: float | int | bool
    varies = frozenset()

    def __new__(cls, value: float | int | bool) -> Const:
        return _intern(cls, value)  # type: ignore[no-any-return]

    @property
    def type(self) -> str:  # type: ignore[override]
        return {bool: "bool", int: "int", float: "float"}[type(self.value)]

    def __repr__(self) -> str:
        return repr(self.value)


class Index(Expr):
    """The number of the row or of the column."""

    __slots__ = ("axis",)
    axis: str
    type = "int"

    def __new__(cls, axis: str) -> Index:
        return _intern(cls, axis)  # type: ignore[no-any-return]

    @property
    def varies(self) -> frozenset[str]:  # type: ignore[override]
        return frozenset((self.axis,))

    def __repr__(self) -> str:
        return f"{self.axis}_index"


class Size(Expr):
    """The number of rows (N) or of columns (K)."""

    __slots__ = ("axis",)
    axis: str
    type = "int"
    varies = frozenset()

    def __new__(cls, axis: str) -> Size:
        return _intern(cls, axis)  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        return {"row": "N", "col": "K"}[self.axis]


class Op(Expr):
    """A pointwise operation of OPS."""

    __slots__ = ("name", "operands", "type", "varies")
    name: str
    operands: tuple[Expr, ...]
    type: str
    varies: frozenset[str]

    def __new__(cls, name: str, operands: tuple[Expr, ...]) -> Op:
        arity, kind = OPS[name]
        if len(operands) != arity:
            raise TypeError(f"{name} takes {arity} arguments, got {len(operands)}")
        if kind == "same":
            values = operands[1:] if name == "where" else operands
            kinds = {o.type for o in values}
            kind = "float" if "float" in kinds else "int" if "int" in kinds or name != "where" else "bool"
        return _intern(cls, name, operands, kind, frozenset().union(*(o.varies for o in operands)))  # type: ignore[no-any-return]

    @property
    def args(self) -> tuple[Expr, ...]:
        return self.operands

    def __repr__(self) -> str:
        return f"{self.name}({', '.join(map(repr, self.operands))})"


def lift(value: Any) -> Expr:
    """A Python number as a node; nodes pass through."""
    return value if isinstance(value, Expr) else Const(value)


def _fold_constants(name: str, args: tuple[Expr, ...]) -> Expr | None:
    values = [a.value for a in args if isinstance(a, Const)]
    if len(values) != len(args) or any(isinstance(v, bool) for v in values):
        return None
    a, b = (values + [0])[:2]
    try:
        match name:
            case "add":
                return Const(a + b)
            case "sub":
                return Const(a - b)
            case "mul":
                return Const(a * b)
            case "div":
                return Const(a / b)
            case "neg":
                return Const(-a)
            case "maximum":
                return Const(max(a, b)) if a == a and b == b else None
            case "minimum":
                return Const(min(a, b)) if a == a and b == b else None
    except (ZeroDivisionError, OverflowError):
        return None
    return None


def _neutral(a: Expr, value: int, other: Expr) -> bool:
    """Whether `a` is that number and drops out without changing the type of the other operand."""
    return isinstance(a, Const) and a.type != "bool" and a.value == value and other.type in ("float", a.type)


def _negated(e: Op) -> Expr:
    """-e with the sign moved inwards, which is exact but for the sign of a zero."""
    a, *rest = e.operands
    if e.name == "neg":
        return a
    if e.name == "sub":
        return op("sub", rest[0], a)
    if e.name == "add" and any(isinstance(x, Op) and x.name in ("mul", "neg") for x in e.operands):
        return op("sub", op("neg", a), rest[0])
    if e.name == "mul" and isinstance(rest[0], Const) and e.type == "float":
        return op("mul", a, -rest[0].value)
    return Op("neg", (e,))


def op(name: str, *operands: Any) -> Expr:
    """The node `name(*operands)`, simplified where the value stays the same for any input, be it infinite or NaN."""
    args = tuple(map(lift, operands))
    folded = _fold_constants(name, args)
    if folded is not None:
        return folded
    if name in ("mul", "div") and _neutral(args[1], 1, args[0]):
        return args[0]
    if name == "mul" and _neutral(args[0], 1, args[1]):
        return args[1]
    if name in ("add", "sub") and args[0].type == "int" and _neutral(args[1], 0, args[0]):
        return args[0]
    if name == "add" and args[1].type == "int" and _neutral(args[0], 0, args[1]):
        return args[1]
    if name == "float" and args[0].type == "float":
        return args[0]
    if name == "neg" and isinstance(args[0], Op):
        return _negated(args[0])
    if name == "div" and isinstance(args[1], Const):
        # a division by a power of two is an exact product
        value = float(args[1].value)
        if value and math.isfinite(value) and abs(math.frexp(value)[0]) == 0.5 and 2.0**-100 < abs(value) < 2.0**100:
            return op("mul", args[0], Const(1.0 / value))
    return Op(name, args)


def walk(*roots: Expr) -> Iterator[Expr]:
    """Every node below the roots once, arguments before their users."""
    seen: set[Expr] = set()
    stack: list[tuple[Expr, bool]] = [(r, False) for r in reversed(roots)]
    while stack:
        node, done = stack.pop()
        if node in seen:
            continue
        if done:
            seen.add(node)
            yield node
        else:
            stack.append((node, True))
            stack.extend((a, False) for a in reversed(node.args) if a not in seen)


def rewrite(root: Expr, change: Callable[[Expr], Expr | None]) -> Expr:
    """The graph with `change` applied to every node that it does not answer None for, arguments first."""
    done: dict[Expr, Expr] = {}
    for node in walk(root):
        new = node
        if isinstance(node, Op) and any(done[a] is not a for a in node.operands):
            new = op(node.name, *(done[a] for a in node.operands))
        answer = change(new)
        done[node] = new if answer is None else answer
    return done[root]


def remap(root: Expr, numbers: Mapping[int, int]) -> Expr:
    """The same expression over operands that were renumbered."""

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Leaf):
            return Leaf(numbers[node.rows], numbers[node.cols])
        if isinstance(node, Data):
            return Data(numbers[node.operand], node.kind, node.type)
        return None

    return rewrite(root, change)


_SWAP = {"row": "col", "col": "row"}


def transpose(root: Expr) -> Expr:
    """The expression of the transposed scores: rows become columns."""

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Leaf):
            return Leaf(node.cols, node.rows)
        if isinstance(node, Data):
            return Data(node.operand, _SWAP.get(node.kind, node.kind), node.type)
        if isinstance(node, Index):
            return Index(_SWAP[node.axis])
        if isinstance(node, Size):
            return Size(_SWAP[node.axis])
        return None

    return rewrite(root, change)


def operands_of(*roots: Expr) -> set[int]:
    """The numbers of the operands that an expression reads."""
    found: set[int] = set()
    for node in walk(*roots):
        if isinstance(node, Leaf):
            found |= {node.rows, node.cols}
        elif isinstance(node, Data):
            found.add(node.operand)
    return found
