"""Column shards and streams give the result of the whole."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from accuracy import close64, same
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import tilefold as tf
from tilefold.errors import FoldError, OptionError, ShapeError

F64 = torch.float64
FOLDS = {
    "logsumexp": lambda v: tf.LogSumExp(),
    "softmax_sum": lambda v: tf.SoftmaxSum(v),
    "with lse": lambda v: tf.SoftmaxSum(v, return_lse=True),
    "sum": lambda v: tf.Sum(),
    "weighted_sum": lambda v: tf.WeightedSum(v),
    "max": lambda v: tf.Max(),
    "min": lambda v: tf.Min(),
    "argmax": lambda v: tf.ArgMax(),
    "argmin": lambda v: tf.ArgMin(),
    "value and argmax": lambda v: tf.ArgMax(return_value=True),
    "topk": lambda v: tf.TopK(3),
    "bottomk": lambda v: tf.BottomK(3),
    "count": lambda v: tf.Count(),
    "mean": lambda v: tf.Mean(),
    "variance": lambda v: tf.Variance(),
    "population variance": lambda v: tf.Variance(correction=0),
}
SIZES = (5, 3, 9, 4)


def equal(got: Any, want: Any, exact: bool = False) -> None:
    for g, w in zip(
        got if isinstance(got, tuple) else (got,), want if isinstance(want, tuple) else (want,), strict=True
    ):
        assert g.dtype == w.dtype
        same(g, w) if exact or not g.is_floating_point() else close64(g, w)


def problem(requires_grad: bool = False) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    k = sum(SIZES)
    made = (
        torch.randn(2, 6, 4, dtype=F64),
        torch.randn(k, 4, dtype=F64),
        torch.randn(2, k, 3, dtype=F64),
        torch.randn(k, dtype=F64),
    )
    return tuple(t.requires_grad_(requires_grad) for t in made)  # type: ignore[return-value]


def shards(x: Tensor, y: Tensor, bias: Tensor) -> list[Any]:
    return [tf.scores(x, part) * 0.7 + b for part, b in zip(y.split(SIZES), bias.split(SIZES), strict=True)]


@pytest.mark.parametrize("name", FOLDS)
def test_shards_of_the_columns_give_the_result_of_the_whole(name: str) -> None:
    x, y, v, bias = problem()
    equal(tf.fold(shards(x, y, bias), FOLDS[name](v)), tf.fold(tf.scores(x, y) * 0.7 + bias, FOLDS[name](v)))


@pytest.mark.parametrize("name", [n for n in FOLDS if n not in ("argmax", "argmin", "count")])
def test_gradients_pass_through_the_merge(name: str) -> None:
    every = problem(requires_grad=True)
    x, y, v, bias = every
    got, want = tf.fold(shards(x, y, bias), FOLDS[name](v)), tf.fold(tf.scores(x, y) * 0.7 + bias, FOLDS[name](v))
    got, want = (t[0] if isinstance(t, tuple) else t for t in (got, want))
    up = torch.randn_like(want)
    for g, w in zip(
        torch.autograd.grad(got, every, up, allow_unused=True), torch.autograd.grad(want, every, up, allow_unused=True)
    ):
        assert (g is None) == (w is None)
        if g is not None:
            close64(g, w, name, 1e-10)


@given(st.data())
def test_any_shards_of_integers_give_the_same_bits(data: Any) -> None:
    k = data.draw(st.integers(2, 9))
    draw = st.lists(st.lists(st.integers(-2, 2), min_size=2, max_size=2), min_size=k, max_size=k)
    x, y = torch.tensor([[1.0, -1.0], [0.0, 2.0]]), torch.tensor(data.draw(draw), dtype=torch.float32)
    cut = data.draw(st.integers(1, k - 1))
    v = torch.arange(float(k))[:, None] - 3
    for make in (
        tf.Sum,
        tf.Max,
        tf.Min,
        tf.ArgMax,
        tf.ArgMin,
        tf.Count,
        lambda: tf.WeightedSum(v),
        lambda: tf.TopK(1),
        lambda: tf.BottomK(1),
    ):
        equal(
            tf.fold([tf.scores(x, y[:cut]), tf.scores(x, y[cut:])], make()),
            tf.fold(tf.scores(x, y), make()),
            exact=True,
        )


def test_several_folds_over_shards() -> None:
    x, y, v, bias = problem()
    whole = tf.scores(x, y) * 0.7 + bias
    got = tf.fold(shards(x, y, bias), lse=tf.LogSumExp(), out=tf.SoftmaxSum(v), best=tf.ArgMax())
    equal(got.lse, whole.logsumexp(-1))
    equal(got.out, tf.fold(whole, tf.SoftmaxSum(v)))
    equal(got.best, whole.argmax(-1))


def test_a_shard_that_a_row_does_not_see_changes_nothing() -> None:
    x, y, v = (
        torch.randn(4, 3, dtype=F64, requires_grad=True),
        torch.randn(8, 3, dtype=F64),
        torch.randn(8, 2, dtype=F64),
    )
    seen = torch.ones(4, 8, dtype=torch.bool)
    seen[0, :4] = seen[1, 4:] = seen[2] = False
    parts = [tf.scores(x, y[:4]).visible(seen[:, :4]), tf.scores(x, y[4:]).visible(seen[:, 4:])]
    whole = tf.scores(x, y).visible(seen)
    for name in FOLDS:
        if "topk" not in name and "bottomk" not in name:
            equal(tf.fold(parts, FOLDS[name](v)), tf.fold(whole, FOLDS[name](v)))
    for make in (lambda: tf.SoftmaxSum(v), tf.LogSumExp):
        got, want = tf.fold(parts, make()), tf.fold(whole, make())
        (g,) = torch.autograd.grad(got[got.isfinite()].sum(), x)
        (w,) = torch.autograd.grad(want[want.isfinite()].sum(), x)
        close64(g, w)


def test_shards_with_fewer_columns_than_k_are_an_error_that_says_so() -> None:
    x, y = torch.randn(2, 3), torch.randn(8, 3)
    with pytest.raises(OptionError, match="k: got 5"):
        tf.fold([tf.scores(x, y[:4]), tf.scores(x, y[4:])], tf.TopK(5))


def test_low_precision_payloads_are_rounded_once() -> None:
    x, y, v = (torch.randn(*s).bfloat16() for s in ((5, 16), (64, 16), (64, 8)))
    got = tf.fold([tf.scores(x, a) for a in y.split(8)], tf.SoftmaxSum(v))
    assert got.dtype == torch.bfloat16
    want = (x.double() @ y.double().mT).softmax(-1) @ v.double()
    assert (got - want).abs().max() <= want.abs().max() * torch.finfo(torch.bfloat16).eps


@pytest.mark.parametrize("name", list(FOLDS))
def test_a_stream_gives_the_result_of_the_whole(name: str) -> None:
    x, y, v, _ = problem()
    payload = FOLDS[name](v).payload is not None
    v = v[0]
    fold = FOLDS[name](None)
    parts = zip(y.split(SIZES), v.split(SIZES)) if payload else iter(y.split(SIZES))
    got = tf.stream(x, parts, fold, transform=lambda s: s * 0.7)
    equal(got, tf.fold(tf.scores(x, y) * 0.7, FOLDS[name](v)))


def test_a_stream_is_read_once_and_piece_by_piece() -> None:
    x = torch.randn(3, 4)
    alive: list[Any] = []
    import weakref

    def chunks() -> Any:
        for i in range(5):
            y = torch.full((6, 4), float(i))
            assert sum(r() is not None for r in alive) <= 1
            alive.append(weakref.ref(y))
            yield y

    best = tf.stream(x, chunks(), best=tf.ArgMax(), top=tf.TopK(2))
    assert best.best.shape == (3,) and best.top[0].shape == (3, 2)


def test_stream_of_a_metric() -> None:
    x, y = torch.randn(5, 4), torch.randn(20, 4)
    values, columns = tf.stream(x, y.split(7), tf.BottomK(3), metric="sqeuclidean")
    want = torch.cdist(x.double(), y.double()).square().topk(3, largest=False)
    same(columns, want.indices)
    torch.testing.assert_close(values, want.values.float())


def test_stream_is_forward_only() -> None:
    x, y = torch.randn(5, 4, requires_grad=True), torch.randn(20, 4, requires_grad=True)
    assert not tf.stream(x, y.split(7), tf.LogSumExp()).requires_grad


def test_bad_shards_and_streams_name_what_is_wrong() -> None:
    x, y, v = torch.randn(5, 4), torch.randn(20, 4), torch.randn(20, 2)
    with pytest.raises(ShapeError, match="shards of shapes"):
        tf.fold([tf.scores(x, y), tf.scores(x[:2], y)], tf.Sum())
    with pytest.raises(TypeError, match="list of scores"):
        tf.fold([], tf.Sum())
    with pytest.raises(TypeError, match="list of scores"):
        tf.fold([tf.scores(x, y), y], tf.Sum())
    with pytest.raises(ShapeError, match="payload.*K = 40"):
        tf.fold([tf.scores(x, y), tf.scores(x, y)], tf.SoftmaxSum(v))
    with pytest.raises(FoldError, match="gather over a list"):
        tf.fold([tf.scores(x, y)], tf.Gather(torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(OptionError, match="chunks: got an empty iterator"):
        tf.stream(x, iter([]), tf.Sum())
    with pytest.raises(ShapeError, match="chunks.*pairs, which softmax_sum needs"):
        tf.stream(x, [y], tf.SoftmaxSum())
    with pytest.raises(OptionError, match="with its payload"):
        tf.stream(x, [y], tf.SoftmaxSum(v))
    with pytest.raises(OptionError, match="chunks.*at least k = 9"):
        tf.stream(x, y.split(5), tf.TopK(9))
