"""Every fold with a Triton form, on ragged sizes, against eager."""

import pytest
import torch
import triton
import triton.language as tl
from helpers import assert_same, both

from tilefold import folds
from tilefold.folds import argmax_jit
from tilefold.program import Const, Data, Index, Leaf, Mask, Output, Program, op

SMALL = {"bn": 16, "bk": 16}
FOLDS = {
    "logsumexp": (), "max": (), "min": (), "argmax": (), "argmin": (), "sum": (), "count": (), "mean": (), "variance": (("correction", 0.5),),
    "softmax_sum": (("neutral", True),), "weighted_sum": (), "topk": (("k", 5),), "bottomk": (("k", 3),), "gather": (), "sample": (),
}  # fmt: skip
DISCRETE = {"max", "min", "argmax", "argmin", "topk", "bottomk", "sample"}
SIGNED = {"min", "argmin", "bottomk"}


def program_of(fold, options=(), expr=None, mask=None):
    s = Leaf(0, 1) * 0.3 if expr is None else expr
    if fold in SIGNED:
        s = -s
    payload = 2 if fold in ("softmax_sum", "weighted_sum") else None
    kinds = ("rows", "cols", "cols") if payload else ("rows", "cols")
    return Program(kinds, (Output(fold, s, options, payload),), mask)


def tensors(n, k, d, dtype=torch.float32, dv=20, whole=False):
    make = (lambda *s: torch.randint(-4, 5, s).to(dtype)) if whole else (lambda *s: torch.randn(*s).to(dtype))
    return [make(n, d), make(k, d), make(k, dv)]


def run(fold, options, n, k, d, dtype=torch.float32, expr=None, mask=None, whole=False, **kwargs):
    program = program_of(fold, options, expr, mask)
    return assert_same(program, tensors(n, k, d, dtype, whole=whole)[: len(program.operands)], **kwargs)


def test_every_registered_fold_of_ours_is_covered():
    ours = {n for n, c in folds.registered().items() if c.jit and c.jit.startswith("tilefold.")}
    assert ours == set(FOLDS)


@pytest.mark.parametrize("fold", FOLDS)
def test_ragged_sizes(fold):
    run(fold, FOLDS[fold], 37, 53, 17, tiles=SMALL, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", FOLDS)
def test_half_precision(fold):
    run(fold, FOLDS[fold], 33, 40, 24, torch.float16, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", ["logsumexp", "argmax", "softmax_sum", "topk", "variance"])
def test_double_precision(fold):
    run(fold, FOLDS[fold], 20, 33, 9, torch.float64, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", ["logsumexp", "softmax_sum", "argmax"])
def test_bfloat16(fold):
    run(fold, FOLDS[fold], 20, 33, 16, torch.bfloat16, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", FOLDS)
def test_split_columns(fold):
    run(fold, FOLDS[fold], 19, 100, 8, tiles={**SMALL, "splits": 3}, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", FOLDS)
def test_hidden_columns(fold):
    # row 3 sees nothing, the others a window that starts anywhere
    i = Index("row")
    lo = op("where", op("eq", i, 3), 100, i - 5)
    run(fold, FOLDS[fold], 37, 53, 8, mask=Mask("row", lo, i + 9), tiles=SMALL, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", ["argmax", "max", "topk", "softmax_sum", "mean", "count"])
def test_pointwise_test_hides_scores(fold):
    mask = Mask(test=op("ne", op("floordiv", Index("row") + Index("col"), 3) * 3, Index("row") + Index("col")))
    run(fold, FOLDS[fold], 20, 40, 8, mask=mask, tiles=SMALL, whole=fold in DISCRETE)


@pytest.mark.parametrize("d", [1, 3, 100, 257, 300])
def test_feature_sizes(d):
    run("logsumexp", (), 18, 35, d, tiles=SMALL)


@pytest.mark.parametrize("dv", [1, 3, 130, 300])
def test_payload_sizes(dv):
    x, y, v = tensors(18, 35, 8, dv=dv)
    assert_same(program_of("softmax_sum", FOLDS["softmax_sum"]), [x, y, v])


@pytest.mark.parametrize(("n", "k"), [(1, 1), (1, 200), (200, 1), (16, 16), (15, 17)])
def test_row_and_column_counts(n, k):
    for fold in ("logsumexp", "argmax", "softmax_sum", "topk"):
        run(fold, FOLDS[fold], n, k, 4, whole=fold in DISCRETE)


@pytest.mark.parametrize("fold", ["logsumexp", "softmax_sum", "max", "argmax", "topk", "sum"])
def test_infinities_and_nan_stay_in_their_rows(fold):
    x, y, v = tensors(20, 40, 4, whole=True)
    col = torch.zeros(1, 40)
    row = torch.zeros(20, 1)
    col[0, 7] = float("inf")
    row[2] = float("nan")
    row[5] = -float("inf")
    row[6] = float("inf")
    payload = fold == "softmax_sum"
    kinds = ("rows", "cols", "cols", "row", "col") if payload else ("rows", "cols", "row", "col")
    s = Leaf(0, 1) + op(
        "where", op("lt", Index("row"), 10), Data(3 if payload else 2, "row"), Data(4 if payload else 3, "col")
    )
    program = Program(kinds, (Output(fold, s, FOLDS[fold], 2 if payload else None),))
    assert_same(program, [x, y, *([v] if payload else []), row, col], tiles=SMALL)


def test_nan_beats_infinity_in_a_list():
    s = Leaf(0, 1) + Data(2, "col")
    col = torch.zeros(1, 40)
    col[0, 3], col[0, 30], col[0, 9] = float("nan"), float("nan"), float("inf")
    program = Program(("rows", "cols", "col"), (Output("topk", s, (("k", 4),)), Output("argmax", s), Output("max", s)))
    assert_same(program, [*tensors(18, 40, 4, whole=True)[:2], col], tiles=SMALL)


def test_ties_go_to_the_lowest_column_whatever_tile_comes_first():
    x, y, _ = tensors(20, 70, 2)
    y[:] = y[:1]
    mask = Mask("row", Index("row"), Index("row") + 40)
    outputs = (Output("argmax", Leaf(0, 1)), Output("max", Leaf(0, 1)), Output("topk", Leaf(0, 1), (("k", 9),)))
    for tiles in (SMALL, {**SMALL, "splits": 2}):
        ours = assert_same(Program(("rows", "cols"), outputs, mask), [x, y], tiles=tiles)
        assert torch.equal(ours[1], torch.arange(20))


def test_minus_infinity_is_still_a_column():
    outputs = (
        Output("argmax", Const(-float("inf")) + Leaf(0, 1) * 0.0),
        Output("topk", Const(-float("inf")) + Leaf(0, 1) * 0.0, (("k", 3),)),
    )
    ours = assert_same(Program(("rows", "cols"), outputs), tensors(5, 30, 3)[:2], tiles=SMALL)
    assert torch.equal(ours[1], torch.zeros(5, dtype=torch.int64))


def test_fewer_visible_columns_than_k():
    ours = run("topk", (("k", 7),), 20, 30, 4, mask=Mask("row", None, Index("row") - 2), tiles=SMALL, whole=True)
    assert torch.all(ours[1][:3] == -1) and torch.all(ours[0][:3] == -float("inf"))


def test_several_folds_in_one_pass():
    s = Leaf(0, 1)
    outputs = (
        Output("logsumexp", s * 0.5), Output("softmax_sum", s * 0.5, (("neutral", False),), 2), Output("sum", s), Output("weighted_sum", op("tanh", s), (), 3),
        Output("argmax", s), Output("topk", s, (("k", 2),)),
    )  # fmt: skip
    x, y, v = tensors(20, 50, 8)
    assert_same(Program(("rows", "cols", "cols", "cols"), outputs), [x, y, v, torch.randn(50, 3)], tiles=SMALL)


def test_ones_as_payload_give_exactly_one():
    x, y, _ = tensors(33, 90, 16, torch.float16)
    ours, _ = both(program_of("softmax_sum", FOLDS["softmax_sum"]), [x, y, torch.ones(90, 5, dtype=torch.float16)])
    assert torch.all(ours[0] == 1)


def test_long_lists():
    for k, n in ((40, 100), (64, 50)):
        run("topk", (("k", k),), 9, n, 4, whole=True)
    run("bottomk", (("k", 33),), 9, 70, 4, mask=Mask("row", None, Index("row") * 5), whole=True)


@triton.jit
def best_of_few_kernel(s, out, best, ROWS: tl.constexpr, COLS: tl.constexpr):
    at = tl.arange(0, ROWS)[:, None] * COLS + tl.arange(0, COLS)[None, :]
    value, place = argmax_jit.best_of_few(tl.load(s + at), tl.arange(0, COLS)[None, :] + tl.zeros([ROWS, 1], tl.int32))
    tl.store(best + tl.arange(0, ROWS), value)
    tl.store(out + tl.arange(0, ROWS), place)


@pytest.mark.parametrize("columns", [8, 16, 32])
def test_ties_in_the_hand_of_a_thread_go_to_the_lowest_place(columns):
    s = torch.randint(0, 4, (64, columns)).float()
    out, best = torch.empty(64, dtype=torch.int32), torch.empty(64)
    best_of_few_kernel[(1,)](s, out, best, 64, columns)
    assert torch.equal(best, s.amax(-1))
    assert torch.equal(out.long(), (s == best[:, None]).int().argmax(-1))
