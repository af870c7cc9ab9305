"""Programs and expressions: text and back, transposition, and symbolic derivatives against torch's."""

from __future__ import annotations

import math
from typing import Any
from unittest.mock import patch

import pytest
import torch
from accuracy import close64
from hypothesis import assume, given
from hypothesis import strategies as st

from tilefold.execute import eager
from tilefold.program import (
    KINDS,
    Const,
    Data,
    Expr,
    Index,
    Leaf,
    Mask,
    Op,
    Output,
    Program,
    Size,
    gradients,
    op,
    transpose,
    walk,
)
from tilefold.program.expr import OPS

TYPES = {"float": torch.float64, "int": torch.int64, "bool": torch.bool}
OPERANDS = ("rows", "cols", "row", "col", "tile", "scalar", "row", "tile")
FLOAT = (Leaf(0, 1), Data(2, "row"), Data(3, "col"), Data(4, "tile"), Data(5, "scalar"))
INT = (Index("row"), Index("col"), Size("row"), Size("col"), Data(6, "row", "int"))
NUMBERS = st.one_of(
    st.floats(-4, 4).map(Const),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan]).map(Const),
    st.integers(-5, 5).map(Const),
)
ARITHMETIC = ("add", "sub", "mul", "div", "maximum", "minimum")
SMOOTH = ("neg", "square", "tanh", "sigmoid", "sin", "cos", "erf", "abs", "relu")


def _extend(children: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    compare = st.builds(op, st.sampled_from(["lt", "ge", "eq"]), children, children)
    return st.one_of(
        st.builds(op, st.sampled_from(ARITHMETIC), children, children),
        st.builds(op, st.sampled_from(SMOOTH), children),
        st.builds(op, st.just("where"), compare, children, children),
    )


expressions = st.recursive(st.one_of(st.sampled_from(FLOAT + INT), NUMBERS), _extend, max_leaves=12)
intervals = st.one_of(st.none(), st.builds(lambda a, b: Index("row") * a + b, st.integers(0, 3), st.integers(-5, 5)))
tests = st.one_of(st.none(), st.builds(op, st.sampled_from(["lt", "ne"]), expressions, expressions))
masks = st.one_of(
    st.none(),
    st.builds(Mask, st.just("row"), intervals, intervals, st.none(), st.just((0, 0)), tests),
    st.builds(Mask, st.just("col"), st.none(), st.none(), st.just(8), st.just((4, 2)), tests),
)
outputs = st.one_of(
    st.builds(lambda e: Output("logsumexp", e), expressions),
    st.builds(lambda e, k: Output("topk", e, (("k", k),)), expressions, st.integers(1, 9)),
    st.builds(lambda e, n: Output("softmax_sum", e, (("neutral", n),), 1), expressions, st.booleans()),
    st.builds(
        lambda e, axis, like: Output("sum", e, (), None, axis, like),
        expressions,
        st.sampled_from(["row", "col", "tile"]),
        st.sampled_from([None, 2]),
    ),
)
programs = st.builds(
    lambda o, m: Program((*OPERANDS, "block"), tuple(o), m), st.lists(outputs, min_size=1, max_size=3), masks
)


@given(programs)
def test_program_survives_its_text(program: Program) -> None:
    read = Program.parse.__wrapped__(program.text)
    assert read == program and hash(read) == hash(program) and read.text == program.text
    assert str(read) == str(program)


@given(programs)
def test_transposing_twice_changes_nothing(program: Program) -> None:
    assert program.transpose().transpose() == program


@given(expressions)
def test_transposed_expression_exchanges_rows_and_columns(expr: Expr) -> None:
    turned = transpose(expr)
    assert transpose(turned) is expr
    assert turned.varies == {{"row": "col", "col": "row"}[axis] for axis in expr.varies}
    assert turned.type == expr.type


@given(programs)
def test_pruned_program_keeps_the_operands_it_reads(program: Program) -> None:
    pruned, kept = program.prune()
    assert pruned.operands == tuple(program.operands[i] for i in kept)
    assert pruned.prune() == (pruned, tuple(range(len(kept))))
    assert set(pruned.operands) <= set(KINDS)


def test_equal_nodes_are_one_object() -> None:
    assert Leaf(0, 1) * 2.0 + Index("col") is Leaf(0, 1) * 2.0 + Index("col")
    assert Const(0.0) is not Const(-0.0) and Const(1) is not Const(1.0) and Const(True) is not Const(1)
    assert Const(math.nan) is Const(math.nan)


def test_wrong_number_of_arguments_is_an_error() -> None:
    with pytest.raises(TypeError, match="add takes 2"):
        Op("add", (Const(1.0),))


def test_unknown_node_in_a_text_is_an_error() -> None:
    with pytest.raises(ValueError, match="unknown node"):
        Program.parse('{"operands":["rows"],"nodes":[["surprise"]],"outputs":[],"mask":null}')


def _evaluate(expr: Expr, operands: list[torch.Tensor], kinds: tuple[str, ...], n: int, k: int) -> torch.Tensor:
    """The expression as the eager executor computes it, [N, K]."""
    program = Program(kinds, (Output("sum", expr, axis="tile"),))
    (out,) = eager.run(program, operands, (), n, k, (torch.float64,))
    return out


per_row = st.one_of(
    st.builds(
        lambda f, e: Output(f, e), st.sampled_from(["logsumexp", "sum", "max", "argmax", "variance"]), expressions
    ),
    st.builds(lambda e, k: Output("topk", e, (("k", k),)), expressions, st.integers(1, 4)),
    st.builds(lambda e, n: Output("softmax_sum", e, (("neutral", n),), 1), expressions, st.booleans()),
    st.builds(lambda e: Output("weighted_sum", e, (), 1), expressions),
)
visible = st.one_of(st.none(), st.builds(Mask, st.just("row"), intervals, intervals, st.none(), st.just((0, 0)), tests))
LEADS = {(): [()], (1, 1): [(), (1,), (1, 1)], (3,): [(), (1,), (3,)], (2, 3): [(), (3,), (2, 1), (2, 3), (1, 1)]}


@given(st.lists(per_row, min_size=1, max_size=2), visible, st.sampled_from([*LEADS]), st.integers(0, 2**31), st.data())
def test_straight_line_gives_what_the_loop_gives(
    outputs: list[Output], mask: Mask | None, batch: tuple[int, ...], seed: int, data: st.DataObject
) -> None:
    """At other sizes too than those it was first made for."""
    program = Program(OPERANDS, tuple(outputs), mask)
    for node in walk(*program.roots()):  # torch's relu of integers is an integer
        assume(not (isinstance(node, Op) and node.name == "relu" and node.args[0].type == "int"))
    leads = [data.draw(st.sampled_from(LEADS[batch])) for _ in OPERANDS]
    dtype = data.draw(st.sampled_from([torch.float64, torch.float32, torch.bfloat16]))
    g = torch.Generator().manual_seed(seed)
    for n, k in ((2, 5), (1, 4)):
        shapes = {"rows": (n, 2), "cols": (k, 2), "row": (n, 1), "col": (1, k), "tile": (n, k), "scalar": (1, 1)}
        operands = [torch.randn(*b, *shapes[kind], generator=g).to(dtype) for b, kind in zip(leads, OPERANDS)]
        operands[6] = torch.randint(-3, 3, operands[6].shape, generator=g)
        before = [t.clone() for t in operands]
        made = eager.run(program, operands, batch, n, k, [dtype] * len(outputs))
        with patch.object(eager, "_if_one_tile", lambda *key: None):
            wanted = eager.run(program, operands, batch, n, k, [dtype] * len(outputs))
        for a, b in zip((*made, *operands), (*wanted, *before), strict=True):
            assert a.is_contiguous()
            torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


def _by_torch(name: str, args: list[torch.Tensor]) -> torch.Tensor:
    special = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not"}
    if name == "float":
        return args[0].double()
    if name == "floordiv":
        return torch.div(*args, rounding_mode="floor")
    return getattr(torch, special.get(name, name))(*args)  # type: ignore[no-any-return]


KINKS = st.sampled_from([0.0, 1.0, -1.0, 2.0, -2.0, 0.5, 3.0])
VALUES = st.lists(st.one_of(KINKS, st.floats(-3, 3).map(lambda v: round(v, 3))), min_size=6, max_size=6)
REAL_ARGUMENTS = {
    name: arity for name, (arity, _) in OPS.items() if name not in ("gumbel", "floordiv", "and", "or", "xor", "not")
}


@pytest.mark.parametrize("name", sorted(REAL_ARGUMENTS))
@given(st.data())
def test_value_and_derivative_are_torchs(name: str, data: Any) -> None:
    arity = REAL_ARGUMENTS[name]
    args = [torch.tensor(data.draw(VALUES), dtype=torch.float64).view(2, 3) for _ in range(arity)]
    nodes: list[Expr] = [Data(i, "tile") for i in range(arity)]
    if name == "where":
        args[0], nodes[0] = args[0] > 0, Data(0, "tile", "bool")
    up = torch.randn(2, 3, dtype=torch.float64)
    kinds = ("tile",) * (arity + 1)
    expr = op(name, *nodes)
    leaves = [a.requires_grad_() if a.is_floating_point() else a for a in args]
    want = _by_torch(name, leaves)
    close64(_evaluate(expr, [*(a.detach() for a in args), up], kinds, 2, 3), want.double(), name)
    found = gradients([(expr, Data(arity, "tile"))])
    if not want.requires_grad:
        assert not found
        return
    wanted = torch.autograd.grad(want, [a for a in leaves if a.requires_grad], up, allow_unused=True)
    for node, w in zip([n for n in nodes if n.type == "float"], wanted, strict=True):
        got = (
            _evaluate(found[node], [*(a.detach() for a in args), up], kinds, 2, 3)
            if node in found
            else torch.zeros(2, 3).double()
        )
        close64(got, torch.zeros_like(got) if w is None else w, f"derivative of {name}")


@pytest.mark.parametrize("exponent", [0.0, 1.0, 2.0, 3.0, 0.5, -1.0])
def test_derivative_of_a_power_with_a_constant_exponent_is_torchs(exponent: float) -> None:
    a = torch.tensor([[0.0, 1.0, -2.0, 3.0]], dtype=torch.float64, requires_grad=True)
    (want,) = torch.autograd.grad(a.pow(exponent).sum(), a)
    found = gradients([(op("pow", Data(0, "tile"), exponent), Const(1.0))])
    close64(_evaluate(found.get(Data(0, "tile"), Const(0.0)), [a.detach()], ("tile",), 1, 4), want)


@given(expressions, st.integers(0, 2**31))
def test_derivative_of_any_expression_is_torchs(expr: Expr, seed: int) -> None:
    g = torch.Generator().manual_seed(seed)
    n, k, d = 3, 4, 2
    shapes = {"rows": (n, d), "cols": (k, d), "row": (n, 1), "col": (1, k), "tile": (n, k), "scalar": (1, 1)}
    operands = [torch.randn(shapes[kind], generator=g, dtype=torch.float64) for kind in OPERANDS]
    operands[6] = torch.randint(-3, 3, (n, 1), generator=g)
    for t in operands:
        if t.is_floating_point():
            t.requires_grad_()
    up = torch.randn(n, k, generator=g, dtype=torch.float64)
    values: dict[Expr, Any] = {}

    def value(e: Expr) -> torch.Tensor:
        if e in values:
            return values[e]
        match e:
            case Leaf():
                v = operands[0] @ operands[1].mT
                if not v.requires_grad:
                    v.requires_grad_()
            case Data():
                v = operands[e.operand]
            case Const():
                v = torch.tensor(e.value, dtype=TYPES[e.type])
            case Index():
                v = torch.arange(n).unsqueeze(-1) if e.axis == "row" else torch.arange(k)
            case Size():
                v = torch.tensor({"row": n, "col": k}[e.axis])
            case Op():
                v = _by_torch(e.name, [value(a) for a in e.operands])
        values[e] = v
        return v

    out = value(expr)
    plain = [t.detach() for t in operands]
    close64(_evaluate(expr, plain, OPERANDS, n, k), out.double().expand(n, k), "value", 1e-9)
    found = gradients([(expr, Data(7, "tile"))])
    plain[7] = up
    for node, grad in found.items():
        got = _evaluate(grad, plain, OPERANDS, n, k)
        (want,) = torch.autograd.grad(out.double().expand(n, k), values[node], up, retain_graph=True)
        if isinstance(node, Leaf):
            close64(got, want, str(node), 1e-9)
        else:
            close64(got.sum_to_size(want.shape), want, str(node), 1e-9)
