"""The Triton source of what a Program makes of a tile: its pointwise expressions, and which folds take which scores.

One file per structure in the cache directory: numbers come in at run time (all but 0, 1, 2, -1 and 1/2), so another temperature is the
same file. Loops, loads, masks and products are in rows.py and tile.py; folds in folds/*_jit.py. Float64 Programs hold their numbers
in the text, because a kernel's float argument has 32 bits.
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.util
import math
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ... import folds
from ...program import Const, Data, Expr, Index, Leaf, Op, Program, Size, op, rewrite, walk

LITERALS = (0.0, 1.0, 2.0, -1.0, 0.5)
ROW, COL = frozenset(("row",)), frozenset(("col",))

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/"}
_COMPARE = {"eq": "==", "ne": "!=", "lt": "<", "le": "<=", "gt": ">", "ge": ">="}
_LOGIC = {"and": "&", "or": "|", "xor": "^"}
_TL = {name: f"tl.{name}" for name in ("exp", "exp2", "log", "log2", "sqrt", "rsqrt", "erf", "sin", "cos")}
_OWN = ("expm1", "log1p", "tanh", "sigmoid", "relu", "sign")

HEADER = '''"""{title}"""

import triton
import triton.language as tl

from tilefold.execute.triton.pointwise import {pointwise}
from tilefold.execute.triton.tile import product_onto
{imports}

'''
POINTWISE = (
    "expm1", "floordiv", "gumbel", "log1p", "maximum", "minimum", "power", "relu", "saturate", "sigmoid", "sign", "tanh",
)  # fmt: skip


@dataclass
class Source:
    """The text, and how a launch has to pack its arguments for it."""

    text: str
    floats: tuple[float, ...]
    ints: tuple[int, ...]
    unit: tuple[float, ...]
    x: tuple[int, ...]  # operand numbers, in the order in which the kernel takes them
    y: tuple[int, ...]
    row: tuple[int, ...]
    col: tuple[int, ...]
    tile: tuple[int, ...]
    scalar: tuple[int, ...]
    types: dict[int, int]  # operand: 0 float, 1 integer, 2 boolean
    leaves: tuple[tuple[int, int], ...]  # positions in x and y
    payloads: tuple[int, ...]  # positions in y
    results: tuple[int, ...]  # of each result: 0 a number, k > 0 a list, -1 - a accumulator a
    states: tuple[int, ...]
    fills: tuple[float, ...]
    mask: int  # 0 none, 1 interval per row, 2 per column
    registers: int  # of the states, per row
    lists: bool
    tested: bool
    operations: tuple[int, int]  # per score: arithmetic, exponentials
    loop: str  # whose own functions of a fold it takes
    row_values: tuple[int, ...]  # types of what row_part gives: 0 float, 1 integer, 2 boolean, 3 integer of 64 bits
    row_read: tuple[int, ...]  # positions in row of what is read per score


def jit_names(fold: folds.Fold, loop: str = "") -> dict[str, str]:
    """The names of a fold's Triton functions in its module.

    The module's `bind(fold)` may choose others by the fold's options, and a function of the loop's name for that loop.
    """
    module = importlib.import_module(str(fold.jit))
    names = {"step": "step", "merge": "merge", "finish": "finish"}
    for choose in ("bind", loop):
        names |= getattr(module, choose)(fold) if hasattr(module, choose) else {}
    return names


def jit_state(fold: folds.Fold, loop: str = "") -> tuple[tuple[Any, ...], ...]:
    """(name, initial value[, width]) of each state tensor; "place" instead of a value gives 0, 1, .. width - 1."""
    module = importlib.import_module(str(fold.jit))
    for name in (f"{loop}_state", "state"):
        if hasattr(module, name):
            return tuple(getattr(module, name)(fold))
    return fold.state


def takes_unit(fold: folds.Fold) -> bool:
    return bool(getattr(importlib.import_module(str(fold.jit)), "UNIT", False))


def scales(fold: folds.Fold) -> bool:
    """Whether a fold with a payload has a state and rescales the accumulator; one without only gives the weights P."""
    return bool(jit_state(fold))


def peel(e: Expr) -> tuple[float, Expr]:
    """e as a positive factor times an expression."""
    if isinstance(e, Op) and e.name == "mul":
        for a, b in (e.operands, e.operands[::-1]):
            if isinstance(b, Const) and b.type == "float" and 1e-30 < b.value < 1e30 and a.type == "float":
                return float(b.value), a
    if isinstance(e, Op) and e.name == "neg":
        unit, inner = peel(e.operands[0])
        if unit != 1.0:
            return unit, -inner
    return 1.0, e


_EXPS = {
    "exp": 1,
    "exp2": 1,
    "log": 1,
    "log2": 1,
    "sigmoid": 2,
    "tanh": 2,
    "sqrt": 1,
    "rsqrt": 1,
    "div": 1,
    "reciprocal": 1,
    "gumbel": 3,
    "erf": 2,
}
_OPS = {"tanh": 14, "sigmoid": 3, "gumbel": 90, "erf": 20, "expm1": 10, "log1p": 8, "pow": 30, "sin": 20, "cos": 20}


def _count(roots: list[Expr]) -> tuple[int, int]:
    """Arithmetic operations and exponentials of one score."""
    nodes = [n for n in walk(*roots) if isinstance(n, Op) and n.varies == ROW | COL]
    return sum(_OPS.get(n.name, 1) for n in nodes), sum(_EXPS.get(n.name, 0) for n in nodes)


LOG2E = math.log2(math.e)


def _scaled(e: Expr, c: float) -> Expr:
    """e * c, with c taken into constants and onto what does not vary with both axes, so that one multiply-add is left per score."""
    if isinstance(e, Const):
        return Const(e.value * c)
    if isinstance(e, Op):
        a, *rest = e.operands
        if e.name == "mul" and isinstance(rest[0], Const) and a.type == "float":
            return op("mul", a, float(rest[0].value) * c)
        if e.name == "neg":
            return op("neg", _scaled(a, c))
        if e.name in ("add", "sub") and any(o.varies != ROW | COL for o in e.operands) and e.type == "float":
            return op(e.name, _scaled(a, c), _scaled(rest[0], c))
    return op("mul", e, c)


def _exp2_form(root: Expr, precise: bool) -> Expr:
    """The expression with exp(x) of each score as exp2(x log2 e), which is what the hardware has.

    precise: x is rounded first. Else log2 e goes into its terms, which saves an operation and costs some units of x's last place: nothing
    beside 16-bit operands, too much beside float32.
    """

    def change(node: Expr) -> Expr | None:
        if isinstance(node, Op) and node.name == "exp" and node.varies == ROW | COL:
            x = node.operands[0]
            return op("exp2", x * LOG2E if precise else _scaled(x, LOG2E))
        return None

    return rewrite(root, change)


class _Writer:
    """Statements of one function; every node gets a name once."""

    def __init__(self, source: _Generator, level: str, given: dict[Expr, str]) -> None:
        self.source, self.level, self.lines, self.names = source, level, [], dict(given)

    def text(self, node: Expr) -> str:
        if node in self.names:
            return self.names[node]
        made = self._make(node)
        if isinstance(node, Op):
            name = f"v{len(self.lines)}"
            self.lines.append(f"    {name} = {made}")
            made = name
        self.names[node] = made
        return made

    def _shaped(self, text: str, node: Expr) -> str:
        if self.level != "tile":
            return text
        return f"{text}[:, None]" if node.varies == ROW else f"{text}[None, :]" if node.varies == COL else text

    def _make(self, node: Expr) -> str:
        g = self.source
        match node:
            case Leaf():
                return f"leaf[{g.leaf(node)}]"
            case Data():
                group, at = g.datum(node)
                return self._shaped(f"{group}[{at}]", node)
            case Const():
                return g.number(node.value)
            case Index():
                return self._shaped({"row": "rows", "col": "cols"}[node.axis], node)
            case Size():
                return {"row": "n", "col": "k"}[node.axis]
            case Op():
                return self._op(node)
        raise TypeError(f"a {type(node).__name__} in a program")

    def _as(self, node: Expr, kind: str) -> str:
        text = self.text(node)
        if node.type == kind:
            return text
        if isinstance(node, Const):
            return self.source.number({"float": float, "int": int, "bool": bool}[kind](node.value))
        if kind == "bool":
            return f"({text} != 0)"
        return f"tl.cast({text}, {'WIDE' if kind == 'float' else 'tl.int32'})"

    def _op(self, node: Op) -> str:
        name, args = node.name, node.operands
        if name in _INFIX:
            return f" {_INFIX[name]} ".join(self._as(a, node.type if node.type != "bool" else "int") for a in args)
        if name in _COMPARE:
            kind = (
                "float"
                if "float" in (args[0].type, args[1].type)
                else "int"
                if "int" in (args[0].type, args[1].type)
                else "bool"
            )
            left, right = (self._as(a, kind) for a in args)
            if kind == "int":
                wide = [self.source.is_wide(a) for a in args]
                if wide == [True, False]:
                    left = f"saturate({left})"
                if wide == [False, True]:
                    right = f"saturate({right})"
            return f"{left} {_COMPARE[name]} {right}"
        if name in _LOGIC:
            return f" {_LOGIC[name]} ".join(self._as(a, "bool") for a in args)
        if name == "not":
            return f"{self._as(args[0], 'bool')} == 0"
        if name == "where":
            return (
                f"tl.where({self._as(args[0], 'bool')}, {self._as(args[1], node.type)}, {self._as(args[2], node.type)})"
            )
        if name in ("maximum", "minimum"):
            function = name if node.type == "float" else f"tl.{name}"
            return f"{function}({', '.join(self._as(a, node.type) for a in args)})"
        if name == "neg":
            return f"-{self._as(args[0], node.type)}"
        if name == "abs":
            return f"tl.abs({self._as(args[0], node.type)})"
        if name == "square":
            a = self._as(args[0], node.type)
            return f"{a} * {a}"
        if name == "gumbel":
            return f"gumbel({', '.join(self._as(a, 'int') for a in args)}, WIDE)"
        if name == "floordiv":
            return f"floordiv({', '.join(self._as(a, 'int') for a in args)})"
        if name == "pow":
            return f"power({', '.join(self._as(a, 'float') for a in args)})"
        a = self._as(args[0], "float")
        if name == "float":
            return a
        if name == "isnan":
            return f"{a} != {a}"
        if name == "isinf":
            return f'tl.abs({a}) == float("inf")'
        if name == "reciprocal":
            return f"1.0 / {a}"
        if name in _TL:
            return f"{_TL[name]}({a})"
        if name in _OWN:
            return f"{name}({a})"
        raise ValueError(f"operation {name!r} is not known to the Triton executor")


class _Generator:
    def __init__(self, program: Program, inline: bool, loop: str, precise: bool) -> None:
        self.program, self.inline, self.loop, self.precise = program, inline, loop, precise
        self.floats: list[float] = []
        self.ints: list[int] = []
        self.groups: dict[str, list[int]] = {k: [] for k in ("x", "y", "row", "col", "tile", "scalar")}
        self.types: dict[int, int] = {}
        self.leaves: list[tuple[int, int]] = []
        self.folds = [folds.lookup(o) for o in program.outputs]
        self.tiles = any(o.axis == "tile" for o in program.outputs)

    def at(self, group: str, operand: int) -> int:
        members = self.groups[group]
        if operand not in members:
            members.append(operand)
        return members.index(operand)

    def leaf(self, node: Leaf) -> int:
        pair = (self.at("x", node.rows), self.at("y", node.cols))
        if pair not in self.leaves:
            self.leaves.append(pair)
        return self.leaves.index(pair)

    def datum(self, node: Data) -> tuple[str, int]:
        self.types[node.operand] = {"float": 0, "int": 1, "bool": 2}[node.type]
        return {"row": "rd", "col": "cd", "tile": "td", "scalar": "sd"}[node.kind], self.at(node.kind, node.operand)

    def number(self, value: float | int | bool) -> str:
        if isinstance(value, bool):
            return str(value)
        if isinstance(value, int):
            if abs(value) <= 2 or self.inline:
                return str(value)
            if value not in self.ints:
                self.ints.append(value)
            return f"I[{self.ints.index(value)}]"
        if math.isnan(value) or math.isinf(value):
            return f'float("{value}")'
        if value in LITERALS or self.inline:
            return repr(value)
        if value not in self.floats:
            self.floats.append(value)
        return f"F[{self.floats.index(value)}]"

    def is_wide(self, node: Expr) -> bool:
        """Whether an integer expression has 64 bits."""
        if isinstance(node, Data):
            return node.type == "int"
        if isinstance(node, Const):
            return not -(2**31) <= node.value < 2**31
        if isinstance(node, Op) and node.name in (
            "float",
            "eq",
            "ne",
            "lt",
            "le",
            "gt",
            "ge",
            "and",
            "or",
            "xor",
            "not",
        ):
            return False
        return any(self.is_wide(a) for a in node.args)

    def build(self) -> Source:
        p = self.program
        roots = [o.expr for o in p.outputs]
        units = [1.0] * len(roots)
        if not self.inline and not self.tiles:
            peeled = [peel(e) if takes_unit(f) else (1.0, e) for f, e in zip(self.folds, roots, strict=True)]
            units, roots = [u for u, _ in peeled], [_exp2_form(e, self.precise) for _, e in peeled]
        test = p.mask.test if p.mask else None
        wanted = [*roots, *([test] if test is not None else [])]
        nodes = list(walk(*wanted))
        for node in nodes:  # numbering in the order of the expression, whatever function uses it first
            if isinstance(node, Leaf):
                self.leaf(node)
            elif isinstance(node, Data):
                self.datum(node)
        users = {a for n in nodes if n.varies != ROW and n.varies != frozenset() for a in n.args} | set(wanted)
        frontier = [n for n in nodes if isinstance(n, Op) and n.varies == ROW and n in users]
        direct = tuple(sorted({self.datum(n)[1] for n in users if isinstance(n, Data) and n.kind == "row"}))
        codes = tuple({"float": 0, "int": 3 if self.is_wide(n) else 1, "bool": 2}[n.type] for n in frontier)
        row = _Writer(self, "row", {})
        row_values = [row.text(n) for n in frontier]
        given = {n: f"rv[{i}][:, None]" for i, n in enumerate(frontier)}
        tile = _Writer(self, "tile", given)
        scores = [self._full(tile, e) for e in roots]
        arguments = "leaf, rd, rv, cd, td, sd, F, I, rows, cols, n, k, zero, WIDE: tl.constexpr"
        parts = [
            _function(
                "row_part",
                "rd, sd, F, I, rows, n, k, WIDE: tl.constexpr",
                [*row.lines, f"    return {_tuple(row_values or ['rows'])}"],
            ),
            self._bounds(),
            _function("score", arguments, [*tile.lines, f"    return {_tuple(scores)}"]),
        ]
        w = _Writer(self, "tile", given)
        seen = "True" if test is None else w._as(test, "bool")
        parts.append(_function("test", arguments, [*w.lines, f"    return ({seen}) & (zero == 0)"]))
        payloads: list[int] = []
        results: list[int] = []
        states: list[int] = []
        imports: list[str] = []
        registers, lists = 0, False
        if not self.tiles:
            parts += self._folds(payloads, results, states, imports)
            registers = sum(abs(w) if w > 0 else 1 for w in states if w >= 0)
            lists = any(w > 0 for w in states)
        body = "\n\n".join(parts)
        used = [name for name in POINTWISE if f"{name}(" in body]
        title = str(p.outputs[0].axis) + ": " + ", ".join(o.fold for o in p.outputs)
        header = HEADER.format(title=title, pointwise=", ".join(used) or "relu", imports="\n".join(imports))
        mask = 0 if p.mask is None or (p.mask.lo is None and p.mask.hi is None) else 1 if p.mask.axis == "row" else 2
        g = {k: tuple(v) for k, v in self.groups.items()}
        return Source(
            header + body + "\n", tuple(self.floats), tuple(self.ints), tuple(units), g["x"], g["y"], g["row"], g["col"], g["tile"], g["scalar"],
            self.types, tuple(self.leaves), tuple(payloads), tuple(results), tuple(states), tuple(float(f.fill) for f in self.folds),
            mask, registers, lists, test is not None, _count(wanted), self.loop, codes, direct,
        )  # fmt: skip

    def _full(self, w: _Writer, root: Expr) -> str:
        text = w._as(root, "float")
        both = root.varies == ROW | COL and not isinstance(root, Const)
        return text if both else f"zero + {text}"

    def _bounds(self) -> str:
        m = self.program.mask
        axis = m.axis if m else "row"
        own = {"row": ("rd", "rows"), "col": ("cd", "cols")}[axis]
        lines = [f"    {own[0]} = data", f"    {own[1]} = index"]
        w = _Writer(self, "vector", {})
        end = "k" if axis == "row" else "n"
        lo, hi = (m.lo, m.hi) if m else (None, None)

        def bound(e: Expr | None, default: str) -> str:
            if e is None:
                return f"index * 0 + {default}"
            text = w.text(e)
            if self.is_wide(e):
                text = f"saturate({text})"
            return f"tl.minimum(tl.maximum(index * 0 + {text}, 0), {end})"

        low, high = bound(lo, "0"), bound(hi, end)
        return _function("bounds", "data, sd, F, I, index, n, k", [*lines, *w.lines, f"    return {low}, {high}"])

    def _folds(self, payloads: list[int], results: list[int], states: list[int], imports: list[str]) -> list[str]:
        """start, fold_tile, step, flat, nest, merge, finish of all outputs together."""
        start, tile, step, products, merge, finish, nest = [], [], [], [], [], [], []
        closed: list[str] = []
        types: list[str] = []
        weights: list[str] = []
        factors: list[str] = []
        state_names, acc_names, flat_names, made = [], [], [], []
        number = 0
        for j, (o, f) in enumerate(zip(self.program.outputs, self.folds, strict=True)):
            names = jit_names(f, self.loop)
            unit = "tl.full((), 1.0, tl.float64)" if self.inline else f"unit[{j}]"
            if o.payload is not None and not scales(f):
                names = {"step": names["step"]}
            imports.append(f"from {f.jit} import {', '.join(f'{v} as {k}_{j}' for k, v in names.items())}")
            closed.append(f"close_{j}(states[{j}])" if "close" in names else f"states[{j}]")
            spec = jit_state(f, self.loop)
            members = []
            for e, (_, value, *width) in enumerate(spec):
                if value == "place":
                    start.append(
                        f"    i{j}_{e} = tl.zeros([BN, {width[0]}], tl.int32) + tl.arange(0, {width[0]})[None, :]"
                    )
                else:
                    shape = f"[BN, {width[0]}]" if width else "[BN]"
                    kind = "tl.int32" if isinstance(value, int) else "WIDE"
                    text = repr(value) if not isinstance(value, float) or math.isfinite(value) else f'float("{value}")'
                    start.append(f"    i{j}_{e} = tl.full({shape}, {text}, {kind})")
                members.append(f"i{j}_{e}")
                flat_names.append(f"states[{j}][{e}]")
                nest.append(f"flat[{number}]")
                number += 1
                states.append(width[0] if width else 0)
            state_names.append(_tuple(members))
            fill = repr(float(f.fill)) if math.isfinite(f.fill) else f'float("{f.fill}")'
            tile.append(f"    s{j} = s[{j}] if visible is None else tl.where(visible, s[{j}], {fill})")
            if o.payload is None:
                tile.append(f"    t{j} = step_{j}(states[{j}], s{j}, cols, first, visible, {unit})")
                merge.append(f"    t{j} = merge_{j}(states[{j}], more[{j}], {unit})")
                finish.append(f"    r{j} = finish_{j}(states[{j}], {unit})")
            else:
                a = len(payloads)
                payloads.append(self.at("y", o.payload))
                acc_names.append(a)
                step.append(f"    d{a}: tl.constexpr = tl.float64 if PAY[{a}][2] == 2 else pay[{a}].dtype")
                types.append(f"d{a}")
                given = f"states[{j}], s{j}, cols, first, visible, {unit}, TYPES[{a}]"
                weight = f"p[{a}], pay[{a}], PAY[{a}][2], PRECISION"
                weights.append(f"p{j}")
                if scales(f):
                    tile.append(f"    t{j}, alpha{j}, p{j} = step_{j}({given})")
                    products.append(f"    a{a} = product_onto(accs[{a}] * alpha[{len(factors)}][:, None], {weight})")
                    factors.append(f"alpha{j}")
                    merge.append(f"    t{j}, alpha{j}, beta{j} = merge_{j}(states[{j}], more[{j}], {unit})")
                    merge.append(f"    a{a} = accs[{a}] * alpha{j}[:, None] + more_accs[{a}] * beta{j}[:, None]")
                    finish.append(f"    r{j} = finish_{j}(states[{j}], {unit})")
                    finish.append(
                        f"    o{a} = accs[{a}] * r{j}[{sum(r.kind != 'payload' for r in f.results)}][:, None]"
                    )
                else:
                    tile.append(f"    p{j} = step_{j}({given})")
                    tile.append(f"    t{j} = states[{j}]")
                    products.append(f"    a{a} = product_onto(accs[{a}], {weight})")
                    merge.append(f"    t{j} = states[{j}]")
                    merge.append(f"    a{a} = accs[{a}] + more_accs[{a}]")
                    finish.append(f"    o{a} = accs[{a}] * {unit}")
            place = 0
            for r in f.results:
                if r.kind == "payload":
                    made.append(f"o{len(payloads) - 1}")
                    results.append(-len(payloads))
                    continue
                made.append(f"r{j}[{place}]")
                results.append(dict(o.options)["k"] if r.kind == "list" else 0)
                place += 1
        count = len(self.program.outputs)
        structure, i = [], 0
        for f in self.folds:
            size = len(jit_state(f, self.loop))
            structure.append(_tuple(nest[i : i + size]))
            i += size
        accs = [f"accs[{a}]" for a in acc_names]
        for a in acc_names:
            start += [f"    b{a}: tl.constexpr = BDV[{a}]", f"    a{a} = tl.zeros([BN, b{a}], WIDE)"]
        states.extend(-1 - a for a in acc_names)
        news = _tuple([f"t{j}" for j in range(count)]), _tuple([f"a{a}" for a in acc_names])
        return [
            _function("start", "BN: tl.constexpr, BDV: tl.constexpr, WIDE: tl.constexpr",
                      [*start, f"    return {_tuple(state_names)}, {news[1]}"]),
            _function("fold_tile", "states, s, cols, first, visible, TYPES: tl.constexpr, unit",
                      [*tile, f"    return {news[0]}, {_tuple(factors)}, {_tuple(weights)}"]),
            _function("step", "states, accs, s, cols, first, visible, pay, unit, PAY: tl.constexpr, PRECISION: tl.constexpr",
                      [*step, f"    t, alpha, p = fold_tile(states, s, cols, first, visible, {_tuple(types)}, unit)", *products,
                       f"    return t, {news[1]}"]),
            _function("close", "states", [f"    return {_tuple(closed)}"]),
            _function("flat", "states, accs", [f"    return {_tuple(flat_names + accs)}"]),
            _function("nest", "flat", [f"    return {_tuple(structure)}, {_tuple([f'flat[{number + a}]' for a in acc_names])}"]),
            _function("merge", "states, accs, more, more_accs, unit", [*merge, f"    return {news[0]}, {news[1]}"]),
            _function("finish", "states, accs, unit", [*finish, f"    return {_tuple(made)}"]),
        ]  # fmt: skip


def _tuple(parts: list[str]) -> str:
    return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"


def _function(name: str, args: str, lines: list[str]) -> str:
    return "\n".join([f"@triton.jit\ndef {name}({args}):", *lines, ""])


@functools.lru_cache(maxsize=1024)
def source_of(program: Program, inline: bool, loop: str = "quick", precise: bool = False) -> Source:
    """The source of a Program whose outputs all have axis "row", or all "tile".

    inline    float64: numbers are written out
    loop      the loop's own functions of a fold, if it has some: "quick" or "specialised"
    precise   float32 operands: exponents are rounded as torch rounds them
    """
    return _Generator(program, inline, loop, precise).build()


def cache_directory() -> Path:
    chosen = os.environ.get("TILEFOLD_CACHE")
    return Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tilefold"


@functools.cache
def load(text: str) -> ModuleType:
    """The module of a generated source, written to the cache directory (or to a temporary one where that can't be written)."""
    name = "tilefold_" + hashlib.sha256(text.encode()).hexdigest()[:24]
    for folder in (
        cache_directory(),
        Path(tempfile.gettempdir()) / f"tilefold-{os.getuid() if hasattr(os, 'getuid') else 0}",
    ):
        path = folder / f"{name}.py"
        try:
            if not path.exists() or path.read_text() != text:
                folder.mkdir(parents=True, exist_ok=True)
                with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".tmp", delete=False) as f:
                    f.write(text)
                os.replace(f.name, path)  # whole or not at all, also beside another process
            break
        except OSError:
            continue
    else:
        raise OSError(f"no directory to write generated kernels to; set TILEFOLD_CACHE (tried {cache_directory()})")
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
