"""Payloads of many features: scores are written once a chunk, products by the matrix library."""

import math
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate
from helpers import assert_same

import tilefold as tf
from tilefold.execute import select
from tilefold.execute import triton as loops
from tilefold.execute.triton import chunks, plan, streamed
from tilefold.program import Index, Leaf, Mask, Output, Program, op

D = 300
SEVERAL = (16, 32)  # rows, columns of a chunk: ragged ends on both sides
F16 = torch.float16
TYPES = [torch.float32, torch.bfloat16, torch.float16]


def operand(*shape, dtype=torch.float32, scale=1.0):
    return (torch.randn(*shape) * scale).to(dtype).requires_grad_()


def gradients(loss, operands, chunk=SEVERAL, **tiles):
    """By the loops, in chunks of that size."""
    with tf.backend("triton"), select.using(chunk=chunk, **tiles):
        value = loss(*operands)
        up = torch.randn(value.shape, generator=torch.Generator().manual_seed(1)).to(value.dtype)
        return value, torch.autograd.grad(value, operands, up), up


def check(ours, theirs, operands, chunk=SEVERAL, **tiles):
    """Gradients of `ours` against those of `theirs` on all scores, in float64 and in the operands' type."""
    _, found, up = gradients(ours, operands, chunk, **tiles)
    wide = [t.detach().double().requires_grad_() for t in operands]
    want = torch.autograd.grad(theirs(*wide), wide, up.double())
    value = theirs(*operands)
    plain = torch.autograd.grad(value, operands, up.to(value.dtype))
    for i, (f, w, p) in enumerate(zip(found, want, plain, strict=True)):
        assert f.dtype == operands[i].dtype
        accurate(f, w, p, f"gradient {i}")
    return found


@pytest.fixture
def written(monkeypatch):
    """(rows, columns) of every part of the scores that is written."""
    parts = []
    fill = plan.Launch.fill

    def keep(self, operands, outs, part, device):
        parts.append((part[1] - part[0], part[3] - part[2]))
        fill(self, operands, outs, part, device)

    monkeypatch.setattr(plan.Launch, "fill", keep)
    return parts


def test_scores_by_tensor_descriptors():
    """The loop that GPUs with descriptors take; what it skips or hides is as in the other one."""
    n, v, d = 45, 70, 304
    target = torch.randint(0, v, (n,))
    target[3:20] = -100
    kernels = []
    launch = plan.Kernel.__call__

    def keep(self, *rest):
        kernels.append(self.fn)
        launch(self, *rest)

    tiles = {"bn": 16, "bk": 32, "bd": 16, "resident": False, "described": True}
    with mock.patch.object(plan.Kernel, "__call__", keep):
        check(
            lambda x, w, b: tf.linear_cross_entropy(x, w, target, linear_bias=b, z_loss=0.1),
            lambda x, w, b: with_z_loss(F.linear(x, w, b), target, 0.1),
            [operand(n, d, dtype=F16), operand(v, d, dtype=F16, scale=0.1), operand(v, dtype=F16)],
            **tiles,
        )
    assert kernels.count(streamed.streamed_tiles_kernel) == 3 * 3


def with_z_loss(s, target, z):
    loss = F.cross_entropy(s, target)
    kept = target != -100
    return loss + z * s.logsumexp(-1)[kept].square().mean()


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("options", [{}, {"label_smoothing": 0.1}, {"softcap": 5.0}], ids=str)
def test_cross_entropy(dtype, options, written):
    n, v = 45, 70
    target = torch.randint(0, v, (n,))
    target[3] = -100
    smoothing, cap = options.get("label_smoothing", 0.0), options.get("softcap")

    def ours(x, w, b):
        return tf.linear_cross_entropy(x, w, target, linear_bias=b, **options)

    def theirs(x, w, b):
        s = F.linear(x, w, b)
        s = s if cap is None else cap * torch.tanh(s / cap)
        return F.cross_entropy(s, target, label_smoothing=smoothing)

    check(ours, theirs, [operand(n, D, dtype=dtype), operand(v, D, dtype=dtype, scale=0.1), operand(v, dtype=dtype)])
    assert len(written) == 3 * 3, "each score is written once for both axes"


@pytest.mark.parametrize("chunk", [(16, 512), (64, 32), (64, 512)], ids=str)
@pytest.mark.parametrize("dtype", TYPES[:2], ids=str)
def test_where_one_chunk_is_all_it_writes_the_result_itself(chunk, dtype):
    target = torch.randint(0, 70, (45,))
    check(
        lambda x, w: tf.linear_cross_entropy(x, w, target),
        lambda x, w: F.cross_entropy(x @ w.mT, target),
        [operand(45, D, dtype=dtype), operand(70, D, dtype=dtype, scale=0.1)],
        chunk,
    )


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_contrastive(kind):
    n = 37

    def theirs(a, b, scale):
        s = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT * scale
        if kind == "siglip":
            return -F.logsigmoid((2 * torch.eye(n, dtype=s.dtype) - 1) * s).sum() / n
        pairs = torch.arange(n)
        return (F.cross_entropy(s, pairs) + F.cross_entropy(s.mT, pairs)) / 2

    operands = [operand(n, D), operand(n, D), torch.tensor(3.0, requires_grad=True)]
    check(lambda a, b, scale: tf.contrastive_loss(a, b, scale=scale, kind=kind), theirs, operands)


def test_distances():
    check(
        lambda x, y: (tf.scores(x, y, metric="sqeuclidean") / D).neg().logsumexp(-1),
        lambda x, y: ((x.unsqueeze(1) - y).square().sum(-1) / D).neg().logsumexp(-1),
        [operand(21, D), operand(40, D)],
    )


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_causal_sum_with_a_payload(dtype):
    """Dv = 300 with few features, and hidden scores that are exactly 0."""
    n = 45

    def theirs(x, y, v):
        return (x @ y.mT * 0.25).tanh().tril() @ v

    check(
        lambda x, y, v: (tf.scores(x, y) * 0.25).tanh().visible(tf.mask.causal()) @ v,
        theirs,
        [operand(n, 16, dtype=dtype), operand(n, 16, dtype=dtype), operand(n, D, dtype=dtype)],
    )


MASKS = {
    "window": Mask("row", Index("row") - 9, Index("row") + 4),
    "per column": Mask("col", Index("col") - 5, Index("col") + 6),
    "test": Mask(test=op("gt", Index("row") + Index("col"), 20)),
}


@pytest.mark.parametrize("name", MASKS)
def test_masks(name):
    w = op("tanh", Leaf(0, 1) * 0.05)
    outputs = (Output("weighted_sum", w, (), 1), Output("weighted_sum", w, (), 0, "col"), Output("sum", w))
    operands = [torch.randn(50, D), torch.randn(70, D)]
    program = Program(("rows", "cols"), outputs, MASKS[name])
    assert_same(program, operands, tiles={"bn": 16, "bk": 16, "chunk": SEVERAL})


def test_what_no_row_or_column_sees_does_not_count():
    """Ignored rows, and classes behind the end of every row, hold NaN."""
    x, w, target = operand(45, D), operand(70, D, scale=0.1), torch.randint(0, 60, (45,))
    ignored = torch.zeros(45, dtype=torch.bool)
    ignored[[0, 20, 21]] = True
    target[ignored] = -100
    with torch.no_grad():
        x[ignored] = math.nan
    _, (gx, gw), _ = gradients(lambda x, w: tf.linear_cross_entropy(x, w, target, reduction="sum"), [x, w])
    assert (gx[ignored] == 0).all() and gx.isfinite().all() and gw.isfinite().all()
    left, labels = x[~ignored].detach().requires_grad_(), target[~ignored]
    up = torch.randn((), generator=torch.Generator().manual_seed(1))
    want = torch.autograd.grad(F.cross_entropy(left @ w.mT, labels, reduction="sum"), (left, w), up)
    torch.testing.assert_close((gx[~ignored], gw), want)

    program = Program(("rows", "cols"), (Output("weighted_sum", Leaf(0, 1), (), 1),), Mask("row", None, Index("row")))
    y = torch.randn(70, D)
    y[44:] = math.nan
    (made,) = loops.run(program, [torch.randn(45, D), y], (), 45, 70, [torch.float32])
    assert made.isfinite().all() and (made[0] == 0).all()


def test_mixed_types_and_batches_of_one():
    s = Leaf(0, 1) * 0.2
    outputs = (
        Output("weighted_sum", s, (), 2), Output("weighted_sum", s, (), 1), Output("weighted_sum", s * s, (), 0, "col"),
        Output("logsumexp", s), Output("sum", s, axis="col"),
    )  # fmt: skip
    operands = [torch.randn(1, 1, 20, D).half(), torch.randn(1, 40, D).half(), torch.randn(40, 7)]
    types = [torch.float32, torch.float16, torch.float32, torch.float32, torch.float32]
    program = Program(("rows", "cols", "cols"), outputs)
    for chunk in (SEVERAL, (64, 512)):
        assert_same(program, operands, (1, 1), dtypes=types, tiles={"chunk": chunk})
        assert_same(program, [t.double() for t in operands], (1, 1), dtypes=[torch.float64] * 5, tiles={"chunk": chunk})


def test_strides():
    w = Leaf(0, 1) * 0.1
    outputs = (Output("weighted_sum", w, (), 1), Output("weighted_sum", w, (), 0, "col"))
    x, y = torch.randn(D, 20).mT, torch.randn(40, 2 * D)[:, ::2]
    assert_same(Program(("rows", "cols"), outputs), [x, y], tiles={"chunk": SEVERAL})


def test_factors_stay_out_of_narrow_scores():
    """1e-6 of a score is not a number that float16 holds well."""
    s = Leaf(0, 1) * 1e-6
    program = Program(("rows", "cols"), (Output("weighted_sum", s, (), 1),))
    x, y = torch.randn(20, D).half(), torch.randn(40, D).half()
    with select.using(chunk=SEVERAL):
        (made,) = loops.run(program, [x, y], (), 20, 40, [torch.float32])
    torch.testing.assert_close(made.double(), x.double() @ y.double().mT * 1e-6 @ y.double(), rtol=1e-2, atol=1e-5)


def test_equal_bits_again():
    target = torch.randint(0, 70, (45,))
    operands = [operand(45, D, dtype=torch.bfloat16), operand(70, D, dtype=torch.bfloat16)]
    first, second = (gradients(lambda x, w: tf.linear_cross_entropy(x, w, target), operands)[1] for _ in range(2))
    assert all(map(torch.equal, first, second))


def test_few_features_and_batches_stay_with_the_loop():
    plain = (Output("sum", Leaf(0, 1) * 2.0), Output("sum", op("exp", Leaf(0, 1))), Output("logsumexp", Leaf(0, 1)))
    sums = Program(("rows", "cols"), (Output("weighted_sum", Leaf(0, 1), (), 1), *plain))
    few, many = ([torch.zeros(20, d), torch.zeros(30, d)] for d in (256, 257))
    assert chunks.outputs(sums, few, ()) == () and chunks.outputs(sums, many, ()) == (0, 1)
    assert chunks.outputs(sums, many, (2,)) == ()
    rescaled = Program(("rows", "cols"), (Output("softmax_sum", Leaf(0, 1), (("neutral", True),), 1),))
    assert not chunks.serves(rescaled, many, ())


@pytest.mark.parametrize("n", [1, 300, 8192, 16384, 20000, 1 << 20])
@pytest.mark.parametrize("k", [1, 300, 5003, 131072])
@pytest.mark.parametrize("width", [2, 4, 16])
def test_sizes_of_chunks(n, k, width):
    rows, columns = chunks.size(n, k, width)
    assert rows * columns * width <= chunks.BUFFER and columns % chunks.STEP == 0
    assert 2 * columns >= min(k, chunks.COLUMNS) and 2 * rows >= min(n, 2048), "even parts"
    assert chunks.size(8192, 131072, 2) == (8192, 4096)


def test_explanation():
    x, y = torch.randn(20, D), torch.randn(30, D)
    program = Program(("rows", "cols"), (Output("weighted_sum", Leaf(0, 1), (), 1),))
    (text,) = loops.explain_tiles(program, [x, y], (), 20, 30)
    assert "scores written once a chunk of 20 x 256, products by the matrix library" in text
