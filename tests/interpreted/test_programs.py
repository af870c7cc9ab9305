"""Batches, strides, masks, gradient Programs and generated expressions, against eager."""

import math

import pytest
import torch
from helpers import assert_same

from tilefold.execute import eager
from tilefold.execute import triton as loops
from tilefold.program import Const, Data, Index, Leaf, Mask, Output, Program, Size, op

SMALL = {"bn": 16, "bk": 16}
ATTENTION = Program(("rows", "cols", "cols"), (Output("softmax_sum", Leaf(0, 1) * 0.3, (("neutral", True),), 2),))


def attention_gradient(mask=None, scale=0.3):
    """dq, dk, dv of attention: 0 q, 1 k, 2 v, 3 dO, 4 log-sum-exp, 5 delta."""
    p = op("exp", Leaf(0, 1) * scale - Data(4, "row"))
    ds = p * (Leaf(3, 2) - Data(5, "row")) * scale
    outputs = (
        Output("weighted_sum", ds, (), 1, "row", 0), Output("weighted_sum", ds, (), 0, "col", 1), Output("weighted_sum", p, (), 3, "col", 2),
    )  # fmt: skip
    return Program(("rows", "cols", "cols", "rows", "row", "row"), outputs, mask)


def gradient_tensors(q_batch, k_batch, n, k, d, dv, dtype=torch.float32):
    q, y = torch.randn(*q_batch, n, d).to(dtype), torch.randn(*k_batch, k, d).to(dtype)
    v, do = torch.randn(*k_batch, k, dv).to(dtype), torch.randn(*q_batch, n, dv).to(dtype)
    lse = torch.logsumexp((q.float() @ y.float().mT) * 0.3, -1, keepdim=True)
    return [q, y, v, do, lse, torch.randn(*q_batch, n, 1)]


@pytest.mark.parametrize("batch", [(2,), (2, 3)])
def test_batch(batch):
    make = lambda *s: torch.randn(*batch, *s)
    assert_same(ATTENTION, [make(20, 8), make(30, 8), make(30, 5)], batch)


def test_grouped_heads_share_keys_without_copies():
    q, k, v = torch.randn(2, 2, 3, 20, 8), torch.randn(2, 2, 1, 30, 8), torch.randn(2, 2, 1, 30, 5)
    assert_same(ATTENTION, [q, k, v], (2, 2, 3))


def test_operands_of_fewer_batch_dimensions():
    assert_same(ATTENTION, [torch.randn(2, 3, 20, 8), torch.randn(30, 8), torch.randn(3, 30, 5)], (2, 3))


def test_strides_of_every_kind():
    q = torch.randn(2, 20, 3, 8).transpose(1, 2)  # heads inside
    k = torch.randn(2, 3, 8, 60)[..., ::2].mT  # features far apart
    v = torch.randn(5, 30).mT.expand(2, 3, 30, 5)
    assert_same(ATTENTION, [q, k, v], (2, 3))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_attention_gradient(dtype):
    program = attention_gradient()
    assert_same(program, gradient_tensors((2,), (2,), 21, 37, 8, 12, dtype), (2,), dtypes=[dtype] * 3, tiles=SMALL)


def test_gradient_of_grouped_heads_sums_over_the_group():
    program = attention_gradient()
    ours = assert_same(
        program, gradient_tensors((2, 3), (2, 1), 20, 33, 8, 5), (2, 3), dtypes=[torch.float32] * 3, tiles=SMALL
    )
    assert ours[1].shape == (2, 1, 33, 8)


def test_gradient_of_operands_without_batch():
    assert_same(attention_gradient(), gradient_tensors((2, 3), (), 20, 33, 8, 5), (2, 3), dtypes=[torch.float32] * 3)


def test_gradient_with_split_columns():
    assert_same(
        attention_gradient(),
        gradient_tensors((2,), (1,), 20, 70, 8, 5),
        (2,),
        dtypes=[torch.float32] * 3,
        tiles={**SMALL, "splits": 2},
    )


MASKS = {
    "causal": Mask("row", None, Index("row") + 1),
    "causal to the end": Mask("row", None, Index("row") + Size("col") - Size("row") + 1),
    "window": Mask("row", Index("row") - 9, Index("row") + 4),
    "reversed": Mask("row", Index("row"), None),
    "test": Mask(test=op("gt", Index("row") + Index("col"), 20)),
    "per column": Mask("col", Index("col") - 5, Index("col") + 6),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks_forward_and_backward(name):
    program = Program(ATTENTION.operands, ATTENTION.outputs, MASKS[name])
    assert_same(program, [torch.randn(50, 8), torch.randn(70, 8), torch.randn(70, 5)], tiles=SMALL)
    assert_same(
        attention_gradient(MASKS[name]), gradient_tensors((), (), 50, 70, 8, 5), dtypes=[torch.float32] * 3, tiles=SMALL
    )


def test_packed_segments_from_row_data():
    lo = torch.tensor([0] * 11 + [11] * 20 + [31] * 19)[:, None]
    hi = torch.tensor([11] * 11 + [31] * 20 + [50] * 19)[:, None]
    mask = Mask("row", Data(3, "row", "int"), op("minimum", Data(4, "row", "int"), Index("row") + 1))
    program = Program((*ATTENTION.operands, "row", "row"), ATTENTION.outputs, mask)
    assert_same(program, [torch.randn(50, 8), torch.randn(50, 8), torch.randn(50, 5), lo, hi], tiles=SMALL)
    g = attention_gradient()
    mask = Mask("row", Data(6, "row", "int"), op("minimum", Data(7, "row", "int"), Index("row") + 1))
    g = Program((*g.operands, "row", "row"), g.outputs, mask)
    assert_same(g, [*gradient_tensors((), (), 50, 50, 8, 5), lo, hi], dtypes=[torch.float32] * 3, tiles=SMALL)


def test_lengths_per_batch_entry():
    lengths = torch.tensor([0, 13, 40])[:, None, None]
    mask = Mask("row", None, Data(3, "scalar", "int"))
    program = Program((*ATTENTION.operands, "scalar"), ATTENTION.outputs, mask)
    ours = assert_same(
        program, [torch.randn(3, 20, 8), torch.randn(3, 40, 8), torch.randn(3, 40, 5), lengths], (3,), tiles=SMALL
    )
    assert torch.all(ours[0][0] == 0) and torch.all(ours[1][0] == -float("inf"))


def test_hidden_payload_rows_behind_the_end_do_not_count():
    v = torch.randn(21, 5)
    program = Program(ATTENTION.operands, ATTENTION.outputs, Mask("row", None, Index("row") + 1))
    big = torch.full((64, 5), float("nan"))
    big[:21] = v
    assert_same(program, [torch.randn(21, 8), torch.randn(21, 8), big[:21]], tiles=SMALL)


def test_block_table():
    table = torch.rand(4, 5) > 0.5
    table[1] = False
    for program in (Program((*ATTENTION.operands, "block"), ATTENTION.outputs, Mask(block=3, block_size=(16, 16))),):
        assert_same(program, [torch.randn(60, 8), torch.randn(70, 8), torch.randn(70, 5), table], tiles=SMALL)
        assert_same(program, [torch.randn(60, 8), torch.randn(70, 8), torch.randn(70, 5), table])
    g = attention_gradient(Mask(block=6, block_size=(16, 16)))
    g = Program((*g.operands, "block"), g.outputs, g.mask)
    assert_same(g, [*gradient_tensors((), (), 60, 70, 8, 5), table], dtypes=[torch.float32] * 3, tiles=SMALL)


def test_bias_and_its_gradient():
    kinds = ("rows", "cols", "tile", "row", "col", "scalar")
    s = Leaf(0, 1) * Data(5, "scalar") + Data(2, "tile") + Data(3, "row") - Data(4, "col")
    operands = [
        torch.randn(2, 3, 20, 8),
        torch.randn(3, 30, 8),
        torch.randn(3, 20, 30),
        torch.randn(2, 1, 20, 1),
        torch.randn(1, 30),
        torch.randn(3, 1, 1),
    ]
    assert_same(Program(kinds, (Output("logsumexp", s),)), operands, (2, 3))
    w = op("tanh", s)
    outputs = (
        Output("sum", w, (), None, "tile", 2), Output("sum", w, (), None, "row", 3), Output("sum", w, (), None, "col", 4), Output("sum", w * Leaf(0, 1), (), None, "row", 5),
    )  # fmt: skip
    assert_same(
        Program(kinds, outputs, Mask("row", None, Index("row") + 5)),
        operands,
        (2, 3),
        dtypes=[torch.float16] + [torch.float32] * 3,
        tolerance=1e-3,
    )


def test_boolean_tile_and_broadcast_rows():
    s = op("where", Data(2, "tile", "bool"), Leaf(0, 1), -float("inf")) + Data(3, "tile")
    operands = [torch.randn(20, 8), torch.randn(30, 8), torch.rand(20, 30) > 0.3, torch.randn(1, 30)]
    assert_same(Program(("rows", "cols", "tile", "tile"), (Output("logsumexp", s),)), operands)


def test_several_leaves_and_mixed_types():
    s = Leaf(0, 1) * 0.2 + Leaf(2, 3) * Leaf(0, 3)
    operands = [torch.randn(20, 8).half(), torch.randn(30, 8).half(), torch.randn(20, 8), torch.randn(30, 8).half()]
    program = Program(("rows", "cols", "rows", "cols"), (Output("logsumexp", s), Output("weighted_sum", s, (), 1)))
    assert_same(program, operands, dtypes=[torch.float32, torch.float16])


def test_streamed_features_with_payload():
    q, k, v = torch.randn(18, 300) / 8, torch.randn(33, 300), torch.randn(33, 300)
    assert_same(ATTENTION, [q, k, v], tiles=SMALL)
    assert_same(attention_gradient(), gradient_tensors((), (), 18, 33, 260, 5), dtypes=[torch.float32] * 3, tiles=SMALL)


UNARY = "exp exp2 log log2 log1p expm1 sqrt rsqrt reciprocal tanh sigmoid relu erf sin cos sign abs neg square isnan isinf".split()


@pytest.mark.parametrize("name", UNARY)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_operation(name, dtype):
    values = torch.cat(
        (
            torch.linspace(-8, 8, 33),
            torch.tensor([0.0, 1e-4, -1e-4, 1e-7, 0.3, -0.3, 0.6, -0.6, 30.0, -30.0, math.inf, -math.inf, math.nan]),
        )
    ).to(dtype)
    if name in ("log", "log2", "sqrt", "rsqrt"):
        values = values.abs()
    if name == "log1p":
        values = values.clamp(min=-0.75)
    if name in ("sin", "cos"):
        values[values.isinf()] = 1.0
    out = op("where", op(name, Data(2, "col")), 1.0, 2.0) if name in ("isnan", "isinf") else op(name, Data(2, "col"))
    s = op("where", op("eq", Index("col"), Index("row")), out, 0.0) + Leaf(0, 1) * 0.0
    k = len(values)
    operands = [torch.zeros(k, 1, dtype=dtype), torch.zeros(k, 1, dtype=dtype), values[None]]
    program = Program(
        ("rows", "cols", "col"),
        (Output("gather", op("where", op("eq", Index("col"), Index("row")), s, -float("inf"))),),
    )
    (ours,) = loops.run(program, operands, (), k, k, [dtype])
    (theirs,) = eager.run(program, operands, (), k, k, [dtype])
    torch.testing.assert_close(
        ours, theirs, rtol=8 * torch.finfo(dtype).eps, atol=0 if name not in ("sin", "cos") else 1e-6, equal_nan=True
    )


def test_binary_operations():
    a, b = Leaf(0, 1), Data(2, "col")
    exprs = [
        op("maximum", a, b), op("minimum", a, 0.25), op("pow", op("abs", a) + 0.1, b), op("pow", a, Const(3.0)), a / b, 1.0 / (a * a + 1.0),
        op("where", op("and", op("lt", a, b), op("not", op("ge", b, 0.5))), a, b), op("where", op("xor", op("le", a, 0.0), op("ne", b, 0.0)), 1.0, 2.0),
        op("float", op("floordiv", Index("col") - 7, 4)) * a, op("float", Index("row") + Size("col") * 2), op("where", op("or", op("gt", a, 1.0), op("isinf", b)), 3.5, a),
    ]  # fmt: skip
    operands = [torch.randn(20, 4), torch.randn(30, 4), torch.randn(1, 30) + 0.7]
    for e in exprs:
        assert_same(Program(("rows", "cols", "col"), (Output("sum", e),)), operands)


def test_scores_that_no_product_makes():
    kinds = ("rows", "cols", "row", "col")
    s = -op("abs", Data(2, "row") - Data(3, "col"))
    operands = [torch.randn(20, 1), torch.randn(30, 1), torch.randn(20, 1), torch.randn(1, 30)]
    assert_same(Program(kinds, (Output("logsumexp", s), Output("argmax", s))), operands, n=20, k=30)
    # without any "rows" operand
    program, kept = Program(kinds, (Output("logsumexp", s), Output("sum", Const(1.0)))).prune()
    assert_same(program, [operands[i] for i in kept], n=20, k=30)


def test_noise_of_samples():
    kinds = ("rows", "cols", "row", "row")
    seed = torch.tensor([5, -3, 2**40 + 17] * 6 + [0, 1])[:, None]
    stream = torch.arange(20)[:, None] * 7919 % 2**33
    for noise in (
        op("gumbel", Const(1234567890123), Index("row"), Const(0), Index("col")),
        op("gumbel", Data(2, "row", "int"), Data(3, "row", "int"), Const(5), Index("col")),
    ):
        program = Program(kinds, (Output("topk", noise + Leaf(0, 1) * 0.0, (("k", 30),)),))
        assert_same(program, [torch.zeros(20, 1), torch.zeros(30, 1), seed, stream], tolerance=1e-6)


def test_labels_of_64_bits_compare_with_columns():
    kinds = ("rows", "cols", "row")
    labels = torch.tensor([3, -100, 2**40 + 3, 29, 0])[:, None]
    s = op("where", op("eq", Index("col"), Data(2, "row", "int")), Leaf(0, 1), -float("inf"))
    assert_same(Program(kinds, (Output("gather", s),)), [torch.randn(5, 4), torch.randn(30, 4), labels])


def test_another_number_is_the_same_kernel():
    from tilefold.execute.triton import generate

    made = {
        generate.source_of(
            Program(("rows", "cols"), (Output("logsumexp", op("tanh", Leaf(0, 1) * c) * d),)), False
        ).text
        for c, d in ((0.3, 7.0), (0.7, 30.0))
    }
    assert len(made) == 1
    assert "tanh" in loops.generated_source(
        Program(("rows", "cols"), (Output("logsumexp", op("tanh", Leaf(0, 1) * 0.3)),))
    )


def test_a_fold_without_triton_form_is_named():
    from tilefold import folds

    class Plain(folds.Sum):
        name = "plain_sum_of_test"
        jit = None

    folds.register(Plain)
    program = Program(("rows", "cols"), (Output("plain_sum_of_test", Leaf(0, 1)),))
    assert "plain_sum_of_test" in loops.why_not(program, [torch.randn(3, 2), torch.randn(4, 2)])


def test_a_long_list_does_not_combine():
    program = Program(("rows", "cols"), (Output("topk", Leaf(0, 1), (("k", 33),)), Output("max", Leaf(0, 1))))
    assert "does not combine" in loops.why_not(program, [torch.randn(3, 2), torch.randn(40, 2)])


def test_no_columns():
    program = Program(("rows", "cols"), (Output("logsumexp", Leaf(0, 1)),))
    assert_same(program, [torch.randn(3, 2), torch.randn(0, 2)], n=3, k=0)
