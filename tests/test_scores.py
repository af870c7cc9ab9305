"""Lazy scores: every way to write them gives what the same lines give on a matrix."""

from __future__ import annotations

import copy
import itertools
import math
import pickle
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate, close64, same
from spellings import DISCRETE, LAZY, SPELLINGS, dense, env
from torch import Tensor

import tilefold as tf
from tilefold.errors import FoldError

F32, F64 = torch.float32, torch.float64
INF, NAN = math.inf, math.nan


@pytest.mark.parametrize("name", SPELLINGS)
def test_spelling_equals_the_same_lines_on_a_matrix(name: str) -> None:
    fn = SPELLINGS[name]
    e = env()
    got, want, plain = fn(tf.scores, e), fn(dense, e.to(F64)), fn(dense, e)
    assert isinstance(got, Tensor)
    accurate(got, want, plain, name)
    assert got.requires_grad is (name not in DISCRETE)


@pytest.mark.parametrize("name", LAZY)
def test_lazy_spelling_equals_the_matrix(name: str) -> None:
    lazy, matrix = LAZY[name]
    e = env()
    accurate(lazy(e), matrix(e.to(F64)), matrix(e), name, 32 if "euclidean" in name else 8)


@pytest.mark.parametrize(
    "name",
    [
        "matmul(F.softmax)",
        "strided slice with data",
        "s.topk",
        "s.argmax(-1)",
        "s.std(-1)",
        "softmax mT",
        "torch.amin(0)",
    ],
)
def test_several_tiles_equal_one(name: str) -> None:
    """More rows and columns than a tile has."""
    e = env(300, 2500, 5)
    accurate(SPELLINGS[name](tf.scores, e), SPELLINGS[name](dense, e.to(F64)), SPELLINGS[name](dense, e), name)


# ---- metrics -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("metric", ["dot", "cosine", "sqeuclidean", "euclidean"])
def test_metric_is_its_definition(metric: str) -> None:
    x, y = torch.randn(2, 9, 5, dtype=F64), torch.randn(11, 5, dtype=F64)
    want = {
        "dot": x @ y.mT,
        "cosine": F.cosine_similarity(x[:, :, None], y, dim=-1),
        "sqeuclidean": (x[:, :, None] - y).square().sum(-1),
        "euclidean": torch.cdist(x, y),
    }[metric]
    close64(tf.scores(x, y, metric=metric).materialize(), want, metric)


def test_distance_of_a_point_to_itself_is_zero_and_never_negative() -> None:
    x = torch.randn(50, 16) + 100
    for metric in ("sqeuclidean", "euclidean"):
        d = tf.scores(x, x, metric=metric).materialize()
        assert bool((d >= 0).all())
        assert torch.equal(tf.scores(x, x, metric=metric).argmin(-1), torch.arange(50))


@pytest.mark.parametrize("value", [INF, NAN])
def test_what_padding_holds_does_not_change_the_accuracy_of_distances(value: float) -> None:
    x, y = torch.randn(40, 8) + 1e4, torch.randn(60, 8) + 1e4
    padded = torch.cat((y, torch.full((2, 8), value)))
    for metric in ("sqeuclidean", "euclidean"):
        got = tf.scores(x, padded, metric=metric)[:, :60].materialize()
        torch.testing.assert_close(got, tf.scores(x, y, metric=metric).materialize(), rtol=0, atol=1e-2)


def test_distances_without_features_are_zero() -> None:
    same(tf.scores(torch.ones(3, 0), torch.ones(4, 0), metric="euclidean").materialize(), torch.zeros(3, 4))


def test_distances_far_from_the_origin_do_not_cancel() -> None:
    x, y = torch.randn(40, 8) + 1e4, torch.randn(60, 8) + 1e4
    want = torch.cdist(x.double(), y.double()).square()
    got = tf.scores(x, y, metric="sqeuclidean").materialize()
    # eps of the coordinates, not of their squares
    assert (got - want).abs().max() < 1e-2
    same(tf.scores(x, y, metric="sqeuclidean").argmin(-1), want.argmin(-1))


def test_zero_vector_has_cosine_zero() -> None:
    x = torch.tensor([[0.0, 0.0], [1.0, 0.0]])
    same(tf.scores(x, x, metric="cosine").materialize(), torch.tensor([[0.0, 0.0], [0.0, 1.0]]))


# ---- batches, types, strides -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bx", "by", "bv", "bt"),
    [
        ((2, 3), (2, 3), (2, 3), (2, 3)),
        ((2, 3), (3,), (), (2, 1)),
        ((2, 1), (1, 3), (3,), (3,)),
        ((), (4,), (4,), ()),
        ((2, 3), (), (2, 1), (1, 3)),
        ((), (), (2,), (3, 1)),
    ],
)
def test_batch_dimensions_broadcast_like_a_product(bx: Any, by: Any, bv: Any, bt: Any) -> None:
    n, k = 6, 9
    x, y, v = torch.randn(*bx, n, 4, dtype=F64), torch.randn(*by, k, 4, dtype=F64), torch.randn(*bv, k, 3, dtype=F64)
    data = {"tile": (n, k), "row": (n, 1), "col": (1, k), "scalar": (1, 1)}
    for kind, shape in data.items():
        b = torch.randn(*bt, *shape, dtype=F64)
        s, m = tf.scores(x, y) + b, x @ y.mT + b
        assert s.shape == m.shape
        close64(s.logsumexp(-1), m.logsumexp(-1), kind)
        close64(s.softmax(-1) @ v, m.softmax(-1) @ v, kind)
        close64(s.mT.amax(-1), m.amax(-2), kind)


def test_five_batch_dimensions() -> None:
    x, y = torch.randn(2, 1, 2, 1, 2, 3, 4, dtype=F64), torch.randn(3, 1, 2, 1, 5, 4, dtype=F64)
    close64(tf.scores(x, y).logsumexp(-1), (x @ y.mT).logsumexp(-1))


LOW = [torch.float16, torch.bfloat16]


@pytest.mark.parametrize(
    ("tx", "ty"), [*itertools.product([torch.float16, torch.bfloat16, F32, F64], repeat=2)], ids=str
)
def test_mixed_types_accumulate_wide_and_keep_the_operands_type(tx: torch.dtype, ty: torch.dtype) -> None:
    x, y, v = torch.randn(9, 8).to(tx), torch.randn(30, 8).to(ty), torch.randn(30, 4).to(ty)
    both = torch.promote_types(tx, ty)
    m = x.double() @ y.double().mT
    plain = x.to(both) @ y.to(both).mT
    s = tf.scores(x, y)
    assert s.dtype == both
    lse, out = s.logsumexp(-1), s.softmax(-1) @ v
    assert lse.dtype == (F64 if both == F64 else F32) and out.dtype == both
    accurate(lse, m.logsumexp(-1), plain.float().logsumexp(-1) if both != F64 else m.logsumexp(-1), "lse")
    accurate(out, m.softmax(-1) @ v.double(), plain.softmax(-1) @ v.to(both), "softmax sum")
    assert s.amax(-1).dtype == lse.dtype and s.argmax(-1).dtype == torch.int64


@pytest.mark.parametrize("dtype", LOW, ids=str)
def test_ones_as_payload_give_ones(dtype: torch.dtype) -> None:
    x, y = torch.randn(64, 32).to(dtype), torch.randn(300, 32).to(dtype)
    out = tf.scores(x, y).softmax(-1) @ torch.ones(300, 4, dtype=dtype)
    same(out, torch.ones_like(out))


def test_to_sets_the_type_of_payload_results() -> None:
    x, y, v = torch.randn(3, 4).half(), torch.randn(5, 4).half(), torch.randn(5, 2).half()
    assert (tf.scores(x, y).float().softmax(-1) @ v).dtype == F32
    assert (F.softmax(tf.scores(x, y), -1, dtype=F32).to(torch.float16) @ v).dtype == torch.float16


def test_non_contiguous_operands() -> None:
    x, y = torch.randn(7, 2, 10, dtype=F64)[::2, 1, ::2], torch.randn(5, 12, dtype=F64).mT
    bias, v = torch.randn(12, 4, dtype=F64).mT, torch.randn(3, 24, dtype=F64).mT[::2]
    m = x @ y.mT + bias
    s = tf.scores(x, y) + bias
    close64(s.logsumexp(-1), m.logsumexp(-1))
    close64(s.softmax(-1) @ v, m.softmax(-1) @ v)
    row = torch.randn(1, 1, dtype=F64).expand(4, 12)
    close64((tf.scores(x, y) * row).sum(-1), (x @ y.mT * row).sum(-1))


def test_autocast_computes_in_its_type() -> None:
    x, y = torch.randn(9, 8), torch.randn(30, 8)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        s = tf.scores(x, y)
    assert s.dtype == torch.bfloat16
    close64(s.logsumexp(-1), (x.bfloat16().float() @ y.bfloat16().float().mT).logsumexp(-1), tolerance=1e-6)


# ---- empty sizes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(0, 5, 3), (4, 0, 3), (4, 5, 0), (0, 0, 0)], ids=str)
def test_empty_sizes_give_what_torch_gives(shape: tuple[int, int, int]) -> None:
    n, k, d = shape
    x, y, v = (
        torch.randn(2, n, d, requires_grad=True),
        torch.randn(k, d, requires_grad=True),
        torch.randn(k, 3, requires_grad=True),
    )
    m = x @ y.mT
    s = tf.scores(x, y)
    same(s.logsumexp(-1), m.logsumexp(-1))
    same(s.sum(-1), m.sum(-1))
    same(s @ v, m @ v)
    torch.testing.assert_close(tf.fold(s, tf.SoftmaxSum(v)), m.softmax(-1) @ v)
    same((s > 0).sum(-1), (m > 0).sum(-1))
    same(s.mean(-1), m.mean(-1))
    grads = torch.autograd.grad(s.logsumexp(-1).sum() + (s @ v).sum(), (x, y, v))
    wanted = torch.autograd.grad(m.logsumexp(-1).sum() + (m @ v).sum(), (x, y, v))
    for g, w in zip(grads, wanted):
        torch.testing.assert_close(g, w.nan_to_num())
    if k:
        same(s.argmax(-1), m.argmax(-1))


def test_empty_batch() -> None:
    x, y = torch.randn(0, 3, 2, requires_grad=True), torch.randn(5, 2, requires_grad=True)
    out = tf.scores(x, y).logsumexp(-1)
    assert out.shape == (0, 3)
    gx, gy = torch.autograd.grad(out.sum(), (x, y))
    same(gx, torch.zeros_like(x))
    same(gy, torch.zeros_like(y))


def test_one_row_one_column_one_feature() -> None:
    x, y = torch.tensor([[2.0]]), torch.tensor([[3.0]])
    s = tf.scores(x, y)
    same(s.logsumexp(-1), torch.tensor([6.0]))
    same((s + torch.tensor([[1.0]])).argmax(-1), torch.tensor([0]))
    same(s.var(-1), torch.tensor([NAN]))


# ---- infinities, NaN, ties ---------------------------------------------------------------------------------


@pytest.mark.parametrize("value", [INF, -INF, NAN])
def test_special_scores_are_values_and_touch_their_row_only(value: float) -> None:
    m = torch.randn(5, 2100, dtype=F64)
    bias = torch.zeros(5, 2100, dtype=F64)
    bias[2, 1500] = value
    x, y = m, torch.eye(2100, dtype=F64)
    v = torch.randn(2100, 3, dtype=F64)
    s, ref = tf.scores(x, y) + bias, m + bias
    close64(s.logsumexp(-1), ref.logsumexp(-1))
    close64(s.softmax(-1) @ v, ref.softmax(-1) @ v)
    close64(s.amax(-1), ref.amax(-1))
    close64(s.amin(-1), ref.amin(-1))
    close64(s.sum(-1), ref.sum(-1))
    close64(s.mean(-1), ref.mean(-1))
    close64(s.var(-1), ref.var(-1))
    same(s.argmax(-1), ref.argmax(-1))
    same(s.argmin(-1), ref.argmin(-1))
    values, columns = s.topk(3)
    close64(values, ref.topk(3).values)
    same(columns, ref.topk(3).indices)
    same(s.isnan().sum(-1), ref.isnan().sum(-1))
    same(s.isinf().sum(-1), ref.isinf().sum(-1))


def test_a_row_of_minus_infinity_follows_the_function_that_was_called() -> None:
    x, y, v = torch.zeros(2, 3), torch.randn(4, 3), torch.randn(4, 2)
    bias = torch.zeros(2, 4)
    bias[1] = -INF
    s = tf.scores(x, y) + bias
    same(s.logsumexp(-1)[1], torch.tensor(-INF))
    assert bool((s.softmax(-1) @ v)[1].isnan().all())  # as torch.softmax
    same(tf.fold(s, tf.SoftmaxSum(v))[1], torch.zeros(2))  # as attention


def test_ties_go_to_the_lowest_column_across_tiles() -> None:
    x, y = torch.ones(3, 1), torch.zeros(3000, 1)
    y[[100, 1500, 2999]] = 1.0
    s = tf.scores(x, y)
    same(s.argmax(-1), torch.full((3,), 100))
    same(s.topk(4).indices, torch.tensor([100, 1500, 2999, 0]).expand(3, 4))
    same((-s).argmin(-1), torch.full((3,), 100))
    same(s.topk(2, largest=False).indices, torch.tensor([0, 1]).expand(3, 2))


def test_fewer_visible_columns_than_k_fill_with_minus_infinity_and_minus_one() -> None:
    x, y = torch.randn(4, 3), torch.randn(6, 3)
    s = tf.scores(x, y).visible(tf.mask.causal())
    m = (x @ y.mT).masked_fill(torch.ones(4, 6).triu(1).bool(), -INF)
    values, columns = s.topk(3)
    torch.testing.assert_close(values, m.topk(3).values)
    for i in range(4):
        visible = min(3, i + 1)
        assert columns[i, visible:].eq(-1).all() and columns[i, :visible].ge(0).all()
    values, columns = s.topk(3, largest=False)
    assert values[0, 1:].eq(INF).all() and columns[0, 1:].eq(-1).all()


def test_a_visible_score_of_minus_infinity_is_still_a_column() -> None:
    bias = torch.zeros(1, 4)
    bias[0, 3] = -INF
    s = (tf.scores(torch.zeros(1, 1), torch.zeros(4, 1)) + bias).visible(torch.tensor([[False, False, True, True]]))
    same(s.topk(3).indices, torch.tensor([[2, 3, -1]]))
    same(s.visible(torch.tensor([[True, True, False, True]])).argmax(-1), torch.tensor([3]))


# ---- masks -------------------------------------------------------------------------------------------------


def visible_matrix(n: int, k: int, name: str) -> Tensor:
    i, j = torch.arange(n)[:, None], torch.arange(k)
    return {
        "causal": j <= i,
        "causal bottom_right": j <= i + k - n,
        "window": (j >= i - 2) & (j <= i + 1),
        "window left": j >= i - 3,
        "window right": j <= i + 1,
        "window bottom_right": (j >= i + k - n - 2) & (j <= i + k - n),
        "lengths": (j < torch.tensor([k, 2, 0])[:, None, None]).expand(3, n, k),
        "segments": (i // 4) == (j // 5),
        "blocks": TABLE[i // 4 % 4, j // 5 % 4],
        "boolean": random_mask(n, k),
        "boolean per column": random_mask(n, k)[:1].expand(n, k),
        "boolean per batch": random_mask(n, k)[:3, :1, None].expand(3, n, k),
        "everything": torch.ones(n, k, dtype=torch.bool),
        "nothing": torch.zeros(n, k, dtype=torch.bool),
    }[name]


TABLE = torch.tensor([[1, 0, 1, 0], [0, 1, 0, 0], [0, 0, 0, 0], [1, 1, 0, 1]]).bool()


def random_mask(n: int, k: int) -> Tensor:
    return torch.rand(n, k, generator=torch.Generator().manual_seed(1)) > 0.4


def made_mask(n: int, k: int, name: str) -> Any:
    i, j = torch.arange(n), torch.arange(k)
    m = tf.mask
    return {
        "causal": lambda: m.causal(),
        "causal bottom_right": lambda: m.causal("bottom_right"),
        "window": lambda: m.window(2, 1),
        "window left": lambda: m.window(3, None),
        "window right": lambda: m.window(None, 1),
        "window bottom_right": lambda: m.window(2, 0, align="bottom_right"),
        "lengths": lambda: m.lengths(torch.tensor([k, 2, 0])),
        "segments": lambda: m.segments(i // 4, j // 5),
        "blocks": lambda: m.blocks(TABLE[: -(-n // 4), : -(-k // 5)], (4, 5)),
        "boolean": lambda: random_mask(n, k),
        "boolean per column": lambda: random_mask(n, k)[:1],
        "boolean per batch": lambda: random_mask(n, k)[:3, :1, None],
        "everything": lambda: torch.tensor(True),
        "nothing": lambda: torch.zeros(1, 1, dtype=torch.bool),
    }[name]()


MASKS = [
    "causal",
    "causal bottom_right",
    "window",
    "window left",
    "window right",
    "window bottom_right",
    "lengths",
    "segments",
    "blocks",
    "boolean",
    "boolean per column",
    "boolean per batch",
    "everything",
    "nothing",
]


def check_masked(s: Any, m: Tensor, seen: Tensor, what: str) -> None:
    """All folds of masked scores s against the matrix m of which `seen` is visible."""
    seen = seen.expand(m.shape)
    hidden = m.masked_fill(~seen, -INF)
    n, k = m.shape[-2:]
    v = torch.arange(k * 2, dtype=m.dtype).reshape(k, 2).sin()
    count = seen.sum(-1)
    close64(s.logsumexp(-1), hidden.logsumexp(-1), f"{what}: logsumexp")
    close64(tf.fold(s, tf.SoftmaxSum(v)), hidden.softmax(-1).nan_to_num() @ v, f"{what}: softmax sum")
    close64(s.sum(-1), m.where(seen, 0).sum(-1), f"{what}: sum")
    close64(s @ v, m.where(seen, 0) @ v, f"{what}: weighted sum")
    close64(s.mean(-1), m.where(seen, 0).sum(-1) / count, f"{what}: mean")
    close64(s.amax(-1), hidden.amax(-1), f"{what}: max")
    close64(s.amin(-1), m.masked_fill(~seen, INF).amin(-1), f"{what}: min")
    same(s.argmax(-1), hidden.argmax(-1).masked_fill(count == 0, -1))
    same((s > 0).sum(-1), ((m > 0) & seen).sum(-1))
    values, columns = s.topk(3)
    close64(values, hidden.topk(3).values, f"{what}: top-k")
    same(columns, hidden.topk(3).indices.where(torch.arange(3) < count[..., None], -1))
    spread = torch.stack(
        [
            row[see].var() if see.sum() > 1 else row.new_tensor(NAN)
            for row, see in zip(m.reshape(-1, k), seen.reshape(-1, k))
        ]
    ).reshape(m.shape[:-1])
    close64(s.var(-1), spread, f"{what}: variance")
    close64(s.materialize(), hidden, f"{what}: materialize")


@pytest.mark.parametrize("transposed", [False, True], ids=["", "transposed"])
@pytest.mark.parametrize("name", MASKS)
def test_mask_hides_what_it_says(name: str, transposed: bool) -> None:
    n, k = (13, 17)
    x, y = torch.randn(3, n, 4, dtype=F64), torch.randn(k, 4, dtype=F64)
    seen, m = visible_matrix(n, k, name), x @ y.mT
    s = tf.scores(x, y).visible(made_mask(n, k, name))
    if transposed:
        s, m, seen = s.mT, m.mT, seen.mT
    check_masked(s, m, seen, name)


@pytest.mark.parametrize(
    "names", [p for p in itertools.combinations(MASKS[:-2], 2) if p[0].split()[0] != p[1].split()[0]], ids=str
)
def test_masks_combine(names: tuple[str, str]) -> None:
    n, k = (11, 15)
    x, y = torch.randn(3, n, 4, dtype=F64), torch.randn(k, 4, dtype=F64)
    seen, m = visible_matrix(n, k, names[0]) & visible_matrix(n, k, names[1]), x @ y.mT
    s = tf.scores(x, y).visible(*(made_mask(n, k, name) for name in names))
    hidden = m.masked_fill(~seen, -INF)
    close64(s.logsumexp(-1), hidden.logsumexp(-1))
    close64(s.mT.logsumexp(-1), hidden.logsumexp(-2))
    # each mask on scores of its own, which are then added
    both = tf.scores(x, y).visible(made_mask(n, k, names[0])) + 0.0 * tf.scores(x, y).visible(made_mask(n, k, names[1]))
    close64(both.logsumexp(-1), hidden.logsumexp(-1))


def test_mask_of_one_axis_meets_a_mask_of_the_other() -> None:
    x, y = torch.randn(7, 3, dtype=F64), torch.randn(9, 3, dtype=F64)
    s = tf.scores(x, y).visible(tf.mask.causal("bottom_right")).mT.visible(tf.mask.window(3, 4))
    seen = visible_matrix(7, 9, "causal bottom_right").mT & (
        (lambda i, j: (j >= i - 3) & (j <= i + 4))(torch.arange(9)[:, None], torch.arange(7))
    )
    check_masked(s, (x @ y.mT).mT, seen, "two axes")


@pytest.mark.parametrize("name", ["causal", "window", "segments", "boolean", "causal bottom_right"])
def test_masked_scores_over_many_tiles(name: str) -> None:
    n, k = 700, 2300
    x, y = torch.randn(n, 4, dtype=F64), torch.randn(k, 4, dtype=F64)
    i, j = torch.arange(n), torch.arange(k)
    seen, mask = visible_matrix(n, k, name), made_mask(n, k, name)
    if name == "segments":  # wide ones
        seen, mask = (i // 90)[:, None] == j // 300, tf.mask.segments(i // 90, j // 300)
    check_masked(tf.scores(x, y).visible(mask), x @ y.mT, seen, name)


@pytest.mark.parametrize("name", ["causal", "causal bottom_right", "window", "lengths", "segments", "boolean"])
def test_slices_of_masked_scores_keep_the_mask_of_the_whole(name: str) -> None:
    n, k = 13, 17
    x, y = torch.randn(3, n, 4, dtype=F64), torch.randn(k, 4, dtype=F64)
    m = (x @ y.mT).masked_fill(~visible_matrix(n, k, name), -INF)
    s = tf.scores(x, y).visible(made_mask(n, k, name))
    for key in [
        (..., slice(2, -1), slice(None)),
        (..., slice(1, None, 3), slice(3, 15, 2)),
        (1, slice(4, 9)),
        (slice(1, 3), slice(None), slice(5, 9)),
        (..., torch.tensor([5, 2]), slice(None)),
    ]:
        close64(s[key].logsumexp(-1), m[key].logsumexp(-1), str(key))
        close64(s[key].mT.logsumexp(-1), m[key].logsumexp(-2), str(key))
    if name == "boolean":  # one matrix for all entries would have to be copied
        with pytest.raises(tf.errors.FoldError, match="that the batch .* shares"):
            s.reshape(-1, k)
        return
    close64(s.reshape(-1, k).logsumexp(-1), m.reshape(-1, k).logsumexp(-1), "reshape")
    close64(s.flatten(0, 1).amax(-1), m.flatten(0, 1).amax(-1), "flatten")


def test_hidden_nan_and_infinity_do_not_reach_the_result() -> None:
    x, y, v = torch.randn(5, 3, dtype=F64), torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    bias = torch.zeros(5, 6, dtype=F64)
    bias[:, 4], bias[:, 5] = NAN, INF
    s, m = (tf.scores(x, y) + bias).visible(tf.mask.lengths(torch.tensor(4))), (x @ y.mT)[:, :4]
    close64(s.logsumexp(-1), m.logsumexp(-1))
    close64(tf.fold(s, tf.SoftmaxSum(v)), m.softmax(-1) @ v[:4])
    close64(s.sum(-1), m.sum(-1))
    close64(s.var(-1), m.var(-1))
    same(s.argmax(-1), m.argmax(-1))
    same(s.topk(3).indices, m.topk(3).indices)


def test_segments_of_a_batch_with_lengths_and_causal() -> None:
    x, y = torch.randn(2, 8, 3, dtype=F64), torch.randn(2, 8, 3, dtype=F64)
    seg = torch.tensor([[0, 0, 0, 1, 1, 2, 2, 2], [0, 1, 1, 1, 1, 1, 3, 3]])
    s = tf.scores(x, y).visible(tf.mask.segments(seg), tf.mask.causal(), tf.mask.lengths(torch.tensor([8, 6])))
    seen = (
        (seg[:, :, None] == seg[:, None])
        & torch.ones(8, 8).tril().bool()
        & (torch.arange(8) < torch.tensor([8, 6])[:, None, None])
    )
    check_masked(s, x @ y.mT, seen, "packed")


def test_visible_rows_hides_whole_rows() -> None:
    x, y = torch.randn(5, 3, dtype=F64), torch.randn(6, 3, dtype=F64)
    rows = torch.tensor([True, False, True, True, False])
    check_masked(tf.scores(x, y).visible_rows(rows), x @ y.mT, rows[:, None], "rows")


# ---- views -------------------------------------------------------------------------------------------------


def test_views_of_a_language_models_loss() -> None:
    h, w, labels = torch.randn(2, 9, 6), torch.randn(40, 6), torch.randint(0, 40, (2, 9))

    def loss(logits: Any) -> Tensor:
        logits = logits.float()[..., :-1, :].contiguous().view(-1, 40)
        return F.cross_entropy(logits, labels[:, 1:].reshape(-1))

    accurate(loss(tf.scores(h, w)), loss(h.double() @ w.double().mT).double(), loss(h @ w.mT), "loss")


def test_batch_views() -> None:
    x, y = torch.randn(2, 3, 5, 4, dtype=F64), torch.randn(3, 6, 4, dtype=F64)
    bias = torch.randn(2, 1, 5, 1, dtype=F64)
    s, m = tf.scores(x, y) * bias, (x @ y.mT) * bias
    for view in (
        lambda t: t[1],
        lambda t: t[:, -1],
        lambda t: t[-1:, 1:],
        lambda t: t.flatten(0, 1),
        lambda t: t.reshape(6, 5, 6),
        lambda t: t.view(3, 2, 5, 6),
        lambda t: t.unsqueeze(1),
        lambda t: t[:1].squeeze(0),
        lambda t: t[..., 1:3, ::2],
    ):
        assert view(s).shape == view(m).shape
        close64(view(s).logsumexp(-1), view(m).logsumexp(-1))


def test_index_arithmetic_follows_the_slice() -> None:
    x, y = torch.randn(9, 3, dtype=F64), torch.randn(8, 3, dtype=F64)
    bias = (torch.arange(9)[:, None] - 2 * torch.arange(8)).double()
    s, m = tf.scores(x, y) + (tf.row_index() - 2 * tf.col_index()), x @ y.mT + bias
    close64(s[2::3, 1:].mT.logsumexp(-1), m[2::3, 1:].mT.logsumexp(-1))
    close64(s[torch.tensor([4, 1])].logsumexp(-1), m[torch.tensor([4, 1])].logsumexp(-1))
    close64(s.mT[3:].amax(-1), m.mT[3:].amax(-1))


@pytest.mark.parametrize("dim", [-1, 0, None])
def test_any_and_all_of_comparisons(dim: int | None) -> None:
    e = env()
    m = dense(e.x, e.y).detach() > e.row.detach()
    m[2], m[:, 4] = True, False
    for made, matrix in ((tf.scores(e.x, e.y) > e.row, dense(e.x, e.y) > e.row), (tf.scores(e.x, e.y).where(m, 0), m)):
        args = () if dim is None else (dim,)
        same(made.any(*args), matrix.bool().any(*args))
        same(torch.all(made, *args), matrix.bool().all(*args))
        same(made.isfinite().all(-1, keepdim=True), torch.ones(len(e.x), 1, dtype=torch.bool))


def test_comparisons_convert_to_numbers_and_back() -> None:
    e = env()
    s, m = tf.scores(e.x, e.y) > e.row, dense(e.x, e.y) > e.row
    same(s.float().sum(-1), m.float().sum(-1))
    same((1 - s.to(F64)).mean(-1), (1 - m.float()).mean(-1))
    assert s.float().dtype == F32 and s.half().dtype == torch.float16 and s.type_as(e.x).dtype == F32
    same(s.float().to(torch.bool).sum(-1), m.sum(-1))


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda s: pickle.loads(pickle.dumps(s))])
@pytest.mark.parametrize("metric", ["dot", "sqeuclidean"])
def test_copies_hold_their_own_operands(duplicate: Any, metric: str) -> None:
    x, y = torch.randn(4, 3), torch.randn(6, 3)
    s = (tf.scores(x, y, metric=metric) + torch.randn(6)).visible(tf.mask.causal())
    again = duplicate(s)
    same(again.logsumexp(-1), s.logsumexp(-1))
    same(duplicate(s.softmax(-1)) @ y, s.softmax(-1) @ y)
    same(duplicate(tf.scores(x, y, metric=metric)).argmin(-1), tf.scores(x, y, metric=metric).argmin(-1))
    s._operands[0].add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        duplicate(s)


def test_printing_says_what_a_lazy_value_is() -> None:
    s = tf.scores(torch.ones(2, 3), torch.ones(4, 3))
    assert repr(s.softmax(-1)) == f"softmax({s!r}, dim=1)" and len(s.softmax(-1)) == 2
    assert repr(tf.row_index() + 1) == "Index(add(row_index, 1))"


def test_shape_and_type_are_those_of_the_matrix() -> None:
    s = tf.scores(torch.randn(2, 3, 4), torch.randn(5, 4))
    assert s.shape == (2, 3, 5) and s.ndim == s.dim() == 3 and s.size(-1) == 5 and len(s) == 2 and s.numel() == 30
    assert s.dtype == F32 and (s > 0).dtype == torch.bool and s.device.type == "cpu" and s.is_floating_point()
    assert "Scores(shape=(2, 3, 5)" in repr(s)


def test_integer_gather_and_sample_take_their_row_operand() -> None:
    x, y = torch.randn(2, 50, 3), torch.randn(30, 3)
    index = torch.randint(0, 30, (2, 50))
    s = tf.scores(x, y)
    torch.testing.assert_close(tf.fold(s, tf.Gather(index)), (x @ y.mT).gather(-1, index[..., None])[..., 0])
    draw = tf.fold(s, tf.Sample(seed=7))
    assert draw.shape == (2, 50) and draw.dtype == torch.int64 and bool(((draw >= 0) & (draw < 30)).all())
    same(draw, tf.fold(s, tf.Sample(seed=torch.tensor(7))))
    assert not torch.equal(draw, tf.fold(s, tf.Sample(seed=8)))
    # a draw depends on its stream, not on its place
    rows = torch.arange(50).expand(2, 50)
    same(
        tf.fold(s[1:, 10:20], tf.Sample(seed=7, stream=rows[1:, 10:20])),
        tf.fold(s, tf.Sample(seed=7, stream=rows))[1:, 10:20],
    )


def test_several_folds_of_one_pass_equal_single_passes() -> None:
    x, y, v = torch.randn(30, 6), torch.randn(1500, 6), torch.randn(1500, 4)
    s = tf.scores(x, y) * 0.5
    every = {
        "lse": lambda: tf.LogSumExp(),
        "soft": lambda: tf.SoftmaxSum(v),
        "sum": lambda: tf.Sum(),
        "weighted": lambda: tf.WeightedSum(v),
        "max": lambda: tf.Max(),
        "min": lambda: tf.Min(),
        "argmax": lambda: tf.ArgMax(),
        "argmin": lambda: tf.ArgMin(),
        "top": lambda: tf.TopK(5),
        "bottom": lambda: tf.BottomK(32),
        "mean": lambda: tf.Mean(),
        "var": lambda: tf.Variance(),
        "count": lambda: tf.Count(),
    }
    together = tf.fold(s, **{name: make() for name, make in every.items()})
    assert list(together) == list(every)
    for name, make in every.items():
        alone = tf.fold(s, make())
        for a, b in zip(
            together[name] if isinstance(alone, tuple) else (together[name],),
            alone if isinstance(alone, tuple) else (alone,),
        ):
            same(a, b)
    assert torch.equal(together.lse, together["lse"])
    first, second = tf.fold(s, tf.Sum(), tf.Max())
    same(first, together.sum if isinstance(together.sum, Tensor) else together["sum"])
    same(second, together["max"])


@pytest.mark.parametrize("k", [1, 32, 33, 2048])
def test_top_k_of_every_size(k: int) -> None:
    x, y = torch.randn(3, 4), torch.randn(2500, 4)
    m = x @ y.mT
    values, columns = tf.scores(x, y).topk(k)
    torch.testing.assert_close(values, m.topk(k).values)
    torch.testing.assert_close(m.gather(-1, columns), values)


@pytest.mark.parametrize(
    "use",
    [
        lambda s: s.sort(-1),
        lambda s: torch.sort(s),
        lambda s: torch.cumsum(s, -1),
        lambda s: s.cumsum(-1),
        lambda s: s.median(-1),
        lambda s: s.numpy(),
        lambda s: s.tolist(),
        lambda s: s.item(),
        lambda s: bool(s),
        lambda s: list(s),
        lambda s: torch.cat([s, s]),
        lambda s: F.dropout(s.softmax(-1), 0.1),
        lambda s: s.argmax(),
        lambda s: torch.fft.fft(s),
        lambda s: s.softmax(-1) @ s,
        lambda s: torch.linalg.svd(s),
        lambda s: s[0],
        lambda s: s.reshape(-1),
        lambda s: torch.einsum("nk,kd->nkd", s, torch.ones(5, 2)),
    ],
)
def test_what_can_not_be_folded_says_what_to_do(use: Any) -> None:
    s = tf.scores(torch.randn(3, 4), torch.randn(5, 4))
    with pytest.raises((FoldError, TypeError), match=r"materialize|expected|reduce|memory|iterated"):
        use(s)


def test_nothing_of_the_size_of_the_matrix_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_leaves

    largest = 0

    class Watch(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            nonlocal largest
            out = func(*args, **(kwargs or {}))
            for t in tree_leaves(out):
                if isinstance(t, Tensor):
                    largest = max(largest, t.untyped_storage().nbytes())
            return out

    n = k = 6000
    x, y = torch.randn(n, 8, requires_grad=True), torch.randn(k, 8, requires_grad=True)
    with Watch():
        tf.scores(x, y).visible(tf.mask.window(50, 50)).logsumexp(-1).sum().backward()
    assert largest < n * k * 4 / 8
