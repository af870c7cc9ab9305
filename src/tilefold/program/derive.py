"""Reverse-mode differentiation of expressions, symbolic: the answer is again an expression.

Where torch has a convention at a kink it is followed: maximum and minimum share a tie equally, relu has slope 0 at 0.
"""

from __future__ import annotations

import math

from .expr import Const, Data, Expr, Leaf, Op, op, walk

TWO_OVER_SQRT_PI = 2.0 / math.sqrt(math.pi)
LN2 = math.log(2.0)


def _pullback(node: Op, g: Expr) -> list[Expr | None]:
    """The contribution of g = dL/d(node) to each argument."""
    args = node.operands
    a = args[0]
    b = args[1] if len(args) > 1 else a
    match node.name:
        case "add":
            return [g, g]
        case "sub":
            return [g, -g]
        case "mul":
            return [g * b, g * a]
        case "div":
            return [g / b, -(g * node / b)]
        case "pow":
            # 0^0 is 1 for every exponent near 0, and 0^b is 0 for every b > 0: no slope, where the formula has 0 * inf
            slope = g * b * op("pow", a, b - 1)
            if isinstance(b, Const):
                return [slope if b.value else None, None]
            flat = op("and", op("eq", a, 0.0), op("ge", b, 0.0))
            return [op("where", op("eq", b, 0.0), 0.0, slope), op("where", flat, 0.0, g * node * op("log", a))]
        case "maximum" | "minimum":
            first = op("gt" if node.name == "maximum" else "lt", a, b)
            half = op("where", op("eq", a, b), g * 0.5, 0.0)
            return [op("where", first, g, half), op("where", op(_FLIP[node.name], a, b), g, half)]
        case "neg":
            return [-g]
        case "abs":
            return [g * op("sign", a)]
        case "square":
            return [g * a * 2.0]
        case "exp":
            return [g * node]
        case "exp2":
            return [g * node * LN2]
        case "log":
            return [g / a]
        case "log2":
            return [g / a * (1.0 / LN2)]
        case "log1p":
            return [g / (a + 1.0)]
        case "expm1":
            return [g * (node + 1.0)]
        case "sqrt":
            return [g * 0.5 / node]
        case "rsqrt":
            return [g * -0.5 * node * node * node]
        case "reciprocal":
            return [-(g * node * node)]
        case "tanh":
            return [g * (1.0 - node * node)]
        case "sigmoid":
            return [g * node * (1.0 - node)]
        case "relu":
            return [op("where", op("gt", a, 0.0), g, 0.0)]
        case "erf":
            return [g * op("exp", -(a * a)) * TWO_OVER_SQRT_PI]
        case "sin":
            return [g * op("cos", a)]
        case "cos":
            return [-(g * op("sin", a))]
        case "where":
            return [None, op("where", a, g, 0.0), op("where", a, 0.0, g)]
        case _:  # comparisons, logic, casts, sign, gumbel: piecewise constant
            return [None] * len(args)


_FLIP = {"maximum": "lt", "minimum": "gt"}


def gradients(pairs: list[tuple[Expr, Expr]]) -> dict[Leaf | Data, Expr]:
    """d/d(leaf or data) of sum_k weight_k * expr_k, for every real-valued leaf and datum below the expressions.

    Args:
        pairs: (expression, weight dL/d(expression)) each.
    """
    adjoint: dict[Expr, Expr] = {}
    order = list(walk(*(e for e, _ in pairs)))
    # adjoints are needed only on the way to something that can have a gradient
    live: set[Expr] = set()
    for node in order:
        if node.type == "float" and (isinstance(node, (Leaf, Data)) or any(a in live for a in node.args)):
            live.add(node)

    def add(node: Expr, g: Expr) -> None:
        adjoint[node] = adjoint[node] + g if node in adjoint else g

    for expr, weight in pairs:
        if expr in live:
            add(expr, weight)
    for node in reversed(order):
        if node not in adjoint or not isinstance(node, Op):
            continue
        for arg, g in zip(node.operands, _pullback(node, adjoint[node]), strict=True):
            if g is not None and arg in live:
                add(arg, g)
    return {n: g for n, g in adjoint.items() if isinstance(n, (Leaf, Data))}
