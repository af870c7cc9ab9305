"""Bad input: the error names the argument, what it was and what it may be, and nothing of the caller's has changed."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import same

import tilefold as tf
from tilefold import errors, folds

X, Y, V = torch.randn(4, 3), torch.randn(6, 3), torch.randn(6, 2)
I = torch.zeros(4, dtype=torch.int64)


def s() -> Any:
    return tf.scores(X, Y)


# what is done, the class that torch raises for it, and the argument, what it was, what it may be
BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "sizes D differ": (
        lambda: tf.scores(X, Y[:, :2]),
        RuntimeError,
        "x, y: got D = 3 and 2; expected the same last size D",
    ),
    "one dimension": (
        lambda: tf.scores(X[0], Y),
        RuntimeError,
        r"x: got shape \(3,\); expected at least two dimensions",
    ),
    "no tensor": (lambda: tf.scores([[1.0]], Y), TypeError, "x: got list; expected a tensor"),
    "integer operand": (
        lambda: tf.scores(X, Y.long()),
        RuntimeError,
        "y: got a tensor of torch.int64; expected float16",
    ),
    "boolean operand": (lambda: tf.scores(X > 0, Y), RuntimeError, "x: got a tensor of torch.bool"),
    "complex operand": (
        lambda: tf.scores(X.to(torch.complex64), Y),
        RuntimeError,
        "x: got a tensor of torch.complex64",
    ),
    "devices differ": (
        lambda: tf.scores(X, Y.to("meta")),
        RuntimeError,
        "x, y: got devices cpu and meta; expected operands on one device",
    ),
    "device of the data": (lambda: s() + torch.ones(4, 6, device="meta"), RuntimeError, "devices cpu and meta"),
    "device of the payload": (lambda: s() @ V.to("meta"), RuntimeError, "payload: got devices cpu and meta"),
    "batches do not broadcast": (
        lambda: tf.scores(X.expand(2, 4, 3), Y.expand(3, 6, 3)),
        RuntimeError,
        r"leading dimensions \(2,\) and \(3,\)",
    ),
    "unknown metric": (
        lambda: tf.scores(X, Y, metric="manhattan"),
        ValueError,
        "metric: got 'manhattan'; expected 'dot', 'cosine', 'sqeuclidean', 'euclidean'",
    ),
    "outer of many coordinates": (
        lambda: tf.outer(lambda a, b: a.sum(), torch.ones(2, 17), torch.ones(2, 17)),
        ValueError,
        "D: got 17; expected 1 to 16",
    ),
    "outer of no number": (
        lambda: tf.outer(lambda a, b: a - b, X, Y),
        ValueError,
        "fn: got a function that returned _Vector; expected one number per pair",
    ),
    "outer sizes differ": (
        lambda: tf.outer(lambda a, b: a.sum(), X, Y[:, :2]),
        RuntimeError,
        "rows, columns: got D = 3 and 2",
    ),
    "outer of integers": (
        lambda: tf.outer(lambda a, b: a.sum(), X.long(), Y),
        RuntimeError,
        "rows: got a tensor of torch.int64",
    ),
    "outer of no tensor": (lambda: tf.outer(lambda a, b: a.sum(), [1.0], Y), TypeError, "rows: got list"),
    "8-bit operand": (
        lambda: tf.scores(X.to(torch.float8_e4m3fn), Y),
        RuntimeError,
        "x: got a tensor of torch.float8_e4m3fn; expected float16",
    ),
    "sparse operand": (lambda: tf.scores(X, Y.to_sparse()), RuntimeError, "y: got a tensor of layout torch.sparse_coo"),
    "array as operand": (lambda: s() + X.numpy(), TypeError, "operand: got ndarray; expected a number"),
    "outer batches": (
        lambda: tf.outer(lambda a, b: (a - b).sum(), X.expand(2, 4, 3), Y.expand(3, 6, 3)),
        RuntimeError,
        r"leading dimensions \(2,\) and \(3,\)",
    ),
    "row vector of a wrong length": (
        lambda: s() + torch.ones(5, 1),
        RuntimeError,
        r"tensor: got shape \(5, 1\); expected a shape that broadcasts to the scores' \(4, 6\)",
    ),
    "column vector of a wrong length": (lambda: s() * torch.ones(4), RuntimeError, r"got shape \(4,\)"),
    "bias of a wrong shape": (lambda: s() + torch.ones(6, 4), RuntimeError, r"got shape \(6, 4\)"),
    "bias of a wrong batch": (
        lambda: tf.scores(X.expand(2, 4, 3), Y) + torch.ones(3, 4, 6),
        RuntimeError,
        r"got shape \(3, 4, 6\)",
    ),
    "complex bias": (
        lambda: s() + torch.ones(6, dtype=torch.complex64),
        RuntimeError,
        "complex64; expected real numbers",
    ),
    "scores of other sizes": (lambda: s() + tf.scores(Y, X), RuntimeError, r"scores: got shapes \(4, 6\) and \(6, 4\)"),
    "scores of other batches": (
        lambda: tf.scores(X.expand(2, 4, 3), Y) + tf.scores(X.expand(3, 4, 3), Y),
        RuntimeError,
        r"scores: got leading dimensions \(2,\) and \(3,\)",
    ),
    "string as operand": (lambda: s() + "1", TypeError, "operand: got str; expected a number"),
    "mask of a wrong shape": (
        lambda: s().visible(torch.ones(5, 6, dtype=torch.bool)),
        RuntimeError,
        r"mask: got shape \(5, 6\); expected a shape that broadcasts",
    ),
    "mask of floats": (
        lambda: s().visible(torch.zeros(4, 6)),
        RuntimeError,
        "mask: got a tensor of torch.float32; expected torch.bool, True where visible",
    ),
    "mask of no kind": (lambda: s().visible("causal"), TypeError, "mask: got str"),
    "alignment": (
        lambda: tf.mask.causal("bottom"),
        ValueError,
        "align: got 'bottom'; expected 'top_left' or 'bottom_right'",
    ),
    "window": (lambda: tf.mask.window(-2, 0), ValueError, "left: got -2; expected a number of columns >= 0, or None"),
    "lengths of floats": (
        lambda: tf.mask.lengths(torch.ones(2)),
        RuntimeError,
        "lengths: got a tensor of torch.float32; expected a tensor of integers",
    ),
    "lengths of a wrong batch": (
        lambda: tf.scores(X.expand(2, 4, 3), Y).visible(tf.mask.lengths(torch.tensor([1, 2, 3]))),
        RuntimeError,
        "lengths: got shape",
    ),
    "segments of floats": (
        lambda: tf.mask.segments(torch.ones(4)),
        RuntimeError,
        "rows: got a tensor of torch.float32",
    ),
    "lengths of booleans": (
        lambda: tf.mask.lengths(I > 0),
        RuntimeError,
        "lengths: got a tensor of torch.bool; expected a tensor of integers, uint8 or signed",
    ),
    "lengths of a type without arithmetic": (
        lambda: tf.mask.lengths(I.to(torch.uint16)),
        RuntimeError,
        "lengths: got a tensor of torch.uint16",
    ),
    "interval of booleans": (lambda: tf.mask.interval(I, I > 0), RuntimeError, "stop: got a tensor of torch.bool"),
    "segments of booleans": (lambda: tf.mask.segments(I > 0), RuntimeError, "rows: got a tensor of torch.bool"),
    "segments of a wrong length": (
        lambda: s().visible(tf.mask.segments(I)),
        RuntimeError,
        r"segments\(rows, cols\): got shapes \(4,\) and \(4,\); expected \[.., 4\] and \[.., 6\]",
    ),
    "block table of a wrong shape": (
        lambda: s().visible(tf.mask.blocks(torch.ones(3, 3).bool(), (2, 2))),
        RuntimeError,
        r"table: got torch.bool of shape \(3, 3\); expected torch.bool of shape \[.., 2, 3\]",
    ),
    "block size": (lambda: tf.mask.blocks(torch.ones(3, 3).bool(), (0, 2)), ValueError, r"size: got \(0, 2\)"),
    "block table of a wrong batch": (
        lambda: tf.scores(X.expand(2, 4, 3), Y).visible(tf.mask.blocks(torch.ones(3, 2, 3).bool(), (2, 2))),
        RuntimeError,
        r"table: got leading dimensions \(2,\) and \(3,\)",
    ),
    "two block masks": (
        lambda: s().visible(*[tf.mask.blocks(torch.ones(2, 3).bool(), (2, 2))] * 2),
        ValueError,
        "two block masks on one score; combine them",
    ),
    "k above K": (lambda: s().topk(7), ValueError, "k: got 7; expected at most K = 6"),
    "k of zero": (lambda: s().topk(0), ValueError, "k: got 0; expected 1 to 2048"),
    "k above the largest": (
        lambda: tf.scores(X, torch.ones(3000, 3)).topk(2049),
        ValueError,
        "k: got 2049; expected 1 to 2048",
    ),
    "large k beside other folds": (
        lambda: tf.fold(tf.scores(X, torch.ones(50, 3)), tf.TopK(33), tf.Sum()),
        NotImplementedError,
        "k: got 33 beside other folds; expected at most 32",
    ),
    "payload of a wrong length": (
        lambda: s().softmax(-1) @ V[:5],
        RuntimeError,
        r"payload: got shape \(5, 2\); expected \[.., K, Dv\] with K = 6",
    ),
    "payload of integers": (lambda: s() @ V.long(), RuntimeError, "payload: got a tensor of torch.int64"),
    "payload of a wrong batch": (
        lambda: tf.scores(X.expand(2, 4, 3), Y) @ V.expand(3, 6, 2),
        RuntimeError,
        r"payload: got leading dimensions \(2,\) and \(3,\)",
    ),
    "payload that is missing": (
        lambda: tf.fold(s(), tf.SoftmaxSum()),
        ValueError,
        "payload: got None; expected a tensor",
    ),
    "payload that is no tensor": (lambda: s() @ [1.0], TypeError, "got list; expected a tensor"),
    "index out of range": (
        lambda: tf.fold(s(), tf.Gather(I + 6)),
        IndexError,
        "index: got values from 6 to 6; expected 0 to 5",
    ),
    "negative index": (lambda: tf.fold(s(), tf.Gather(I - 1)), IndexError, "index: got values from -1 to -1"),
    "index of floats": (
        lambda: tf.fold(s(), tf.Gather(torch.zeros(4))),
        RuntimeError,
        "index: got torch.float32; expected a tensor of integers",
    ),
    "index of a wrong length": (
        lambda: tf.fold(s(), tf.Gather(I[:3])),
        RuntimeError,
        r"index: got shape \(3,\); expected \[.., N\] with N = 4",
    ),
    "index that is missing": (lambda: tf.fold(s(), tf.Gather()), RuntimeError, "index: got NoneType"),
    "gather of a wrong shape": (lambda: s().gather(-1, I), RuntimeError, r"index: got shape \(4,\); expected \[4, m\]"),
    "gather out of range": (lambda: s().gather(-1, I[:, None] + 6), IndexError, "index: got values from 6 to 6"),
    "seed of a wrong length": (
        lambda: tf.fold(s(), tf.Sample(seed=I[:3])),
        RuntimeError,
        r"seed: got shape \(3,\); expected \[.., N\] with N = 4, or one element",
    ),
    "seed of floats": (
        lambda: tf.fold(s(), tf.Sample(seed=torch.zeros(4))),
        RuntimeError,
        "seed: got .*float32; expected .*integers",
    ),
    "stream of a wrong length": (
        lambda: tf.fold(s(), tf.Sample(0, stream=I[:3])),
        RuntimeError,
        r"stream: got shape \(3,\)",
    ),
    "position of floats": (lambda: tf.fold(s(), tf.Sample(0, position=0.5)), RuntimeError, "position: got .*float"),
    "label out of range": (lambda: F.cross_entropy(s(), I + 6), IndexError, "6"),
    "rows of no boolean": (lambda: s().visible_rows(X[:, 0]), RuntimeError, "which: got a tensor of torch.float32"),
    "lengths of no tensor": (lambda: tf.mask.lengths(3), TypeError, "lengths: got int; expected a tensor"),
    "block size of one number": (lambda: tf.mask.blocks(torch.ones(2, 2).bool(), 3), ValueError, "size: got 3"),
    "k of true": (lambda: s().topk(True), ValueError, "k: got True, a bool; expected an int"),
    "k that is missing": (lambda: tf.fold(s(), tf.TopK(None)), ValueError, "k: got None, a NoneType"),
    "payload of numpy": (lambda: tf.fold(s(), tf.SoftmaxSum(V.numpy())), TypeError, "payload: got ndarray"),
    "stream of no fold": (lambda: tf.stream(X, [Y]), ValueError, "folds: got none; expected at least one fold"),
    "stream of a class": (lambda: tf.stream(X, [Y], tf.Sum), ValueError, "fold: got the class Sum; expected a fold"),
    "hidden states of integers": (
        lambda: tf.linear_cross_entropy(X.long(), Y, I),
        RuntimeError,
        "input: got a tensor of torch.int64",
    ),
    "labels of no tensor": (lambda: tf.linear_cross_entropy(X, Y, [0] * 4), TypeError, "target: got list"),
    "seed of a string": (lambda: tf.sample(X, Y, seed="a"), TypeError, "seed: got str; expected an int"),
    "no fold": (lambda: tf.fold(s()), ValueError, "folds: got none; expected at least one fold"),
    "class of a fold": (
        lambda: tf.fold(s(), tf.Sum),
        ValueError,
        r"fold: got .*; expected a fold, such as tf.LogSumExp\(\) \(an instance\)",
    ),
    "fold of a tensor": (
        lambda: tf.fold(X @ Y.mT, tf.Sum()),
        TypeError,
        "s: got Tensor; expected scores, made by tf.scores",
    ),
    "axis of a batch": (
        lambda: tf.scores(X.expand(2, 4, 3), Y).sum(0),
        NotImplementedError,
        r"sum\(dim=\): got 0; expected one of the last two axes",
    ),
    "axis out of range": (lambda: s().sum(2), IndexError, "dim: got 2; expected -2 to 1"),
    "argmax of everything": (
        lambda: s().argmax(),
        NotImplementedError,
        r"argmax\(dim=\): got None .*expected dim=-1 or dim=-2",
    ),
    "reshape that splits the columns": (
        lambda: s().reshape(8, 3),
        NotImplementedError,
        r"reshape: got \(4, 6\) to \(8, 3\); expected a shape whose last axis stays 6",
    ),
    "reshape to another count": (
        lambda: s().reshape(5, 6),
        RuntimeError,
        r"shape: got \(5, 6\); expected a shape of 24 scores",
    ),
    "integer index of a row": (lambda: s()[0], NotImplementedError, "the integer 0 on the row axis; expected a slice"),
    "last row by its number": (lambda: s()[-1], NotImplementedError, r"a slice: scores\[..., -1:, :\] keeps"),
    "column by its number": (lambda: s()[:, 2], NotImplementedError, r"a slice: scores\[..., 2:3\] keeps"),
    "pairs by a mask": (lambda: s()[s() > 0], NotImplementedError, r"scores\[...\]: got Scores; expected slices"),
    "rows by an array": (lambda: s()[X.numpy()], NotImplementedError, r"scores\[...\]: got ndarray; expected slices"),
    "axis of no number": (lambda: F.softmax(s()), TypeError, "dim: got None, a NoneType; expected an int"),
    "variance of everything": (lambda: s().std(), NotImplementedError, r"var\(dim=\): got None; expected one axis"),
    "scores times scores": (lambda: s() @ s().mT, NotImplementedError, r"matmul\(scores, scores\): one of them"),
    "scores to integers": (lambda: s().to(torch.int64), NotImplementedError, "scores.to: got torch.int64"),
    "truth of an index": (lambda: bool(tf.row_index().eq(1)), NotImplementedError, "bool"),
    "tensor before the scores": (
        lambda: torch.clamp(X @ Y.mT, min=s()),
        NotImplementedError,
        "torch.clamp: lazy scores have to be its first argument",
    ),
    "too many indices": (lambda: s()[0, 0, 0], IndexError, "3 indices; expected at most 2"),
    "mask of rows of a wrong length": (lambda: s()[torch.ones(5).bool()], IndexError, "a mask of 5; expected 4"),
    "row index out of range": (
        lambda: s()[torch.tensor([0, 9])],
        IndexError,
        r"scores\[index\] \(rows\): got values from 0 to 9; expected -4 to 3",
    ),
    "clamp without bounds": (lambda: s().clamp(), ValueError, r"clamp\(min=, max=\): got neither"),
    "softcap of zero": (lambda: s().softcap(0.0), ValueError, "softcap: got 0.0; expected a positive number, or None"),
    "softcap of infinity": (lambda: s().softcap(math.inf), ValueError, "softcap: got inf; expected a positive number"),
    "softcap of nan": (lambda: s().softcap(math.nan), ValueError, "softcap: got nan"),
    "softcap of a string": (lambda: s().softcap("a"), TypeError, "softcap: got str; expected a positive number"),
    "out argument": (lambda: torch.exp(s(), out=X), NotImplementedError, r"exp\(out=\)"),
    "dropout": (lambda: F.dropout(s().softmax(-1), 0.1), NotImplementedError, r"dropout\(p=\): got 0.1 on lazy scores"),
    "einsum of the whole matrix": (lambda: torch.einsum("nk,kd->nkd", s(), V), NotImplementedError, "einsum"),
    "backend": (
        lambda: tf.backend("cuda").__enter__(),
        ValueError,
        "backend: got 'cuda'; expected one of auto, eager, triton",
    ),
    "moved to another device": (lambda: s().to("meta"), NotImplementedError, r"scores.to: got meta"),
}


@pytest.mark.parametrize("what", BAD)
def test_bad_input_is_an_error_that_names_it(what: str) -> None:
    do, kind, text = BAD[what]
    before = [t.clone() for t in (X, Y, V, I)]
    with pytest.raises(kind, match=text) as caught:
        do()
    if kind is not TypeError:
        assert isinstance(caught.value, (errors.TilefoldError, IndexError, ValueError)), type(caught.value)
    for t, b in zip((X, Y, V, I), before):
        same(t, b)
    # what is right still works
    same(s().argmax(-1), (X @ Y.mT).argmax(-1))


NEUTRAL = {
    "logsumexp": (lambda z: z.logsumexp(-1), -math.inf),
    "sum": (lambda z: z.sum(-1), 0.0),
    "mean": (lambda z: z.mean(-1), math.nan),
    "softmax sum": (lambda z: tf.fold(z, tf.SoftmaxSum(V[:0]))[:, 0], 0.0),
    "count": (lambda z: (z > 0).sum(-1), 0),
}


@pytest.mark.parametrize("name", NEUTRAL)
def test_no_column_gives_the_neutral_result(name: str) -> None:
    fn, value = NEUTRAL[name]
    out = fn(tf.scores(X, Y[:0]))
    same(out, torch.full((4,), value, dtype=out.dtype))


@pytest.mark.parametrize(
    "fn",
    [
        lambda z: z.amax(-1),
        lambda z: z.amin(-1),
        lambda z: z.argmax(-1),
        lambda z: z.max(-1),
        lambda z: tf.fold(z, tf.Sample(1)),
        lambda z: tf.fold(z, tf.LogSumExp(), tf.ArgMin()),
    ],
)
def test_no_column_is_an_error_where_nothing_is_neutral(fn: Callable[[Any], Any]) -> None:
    with pytest.raises(IndexError, match=r"s: got scores with no column \(K = 0\); expected at least one column"):
        fn(tf.scores(X, Y[:0]))


@pytest.mark.parametrize("which", ["x", "y", "bias", "payload"])
def test_an_operand_that_was_changed_is_an_error(which: str) -> None:
    t = {"x": X.clone(), "y": Y.clone(), "bias": torch.randn(4, 6), "payload": V.clone()}
    z = tf.scores(t["x"], t["y"]) + t["bias"]
    if which == "payload":
        f = tf.SoftmaxSum(t["payload"])
        t[which].add_(1)
        tf.fold(z, f)  # a payload is read when it is folded
        return
    z.logsumexp(-1)
    t[which].add_(1)
    for use in (
        lambda: z.logsumexp(-1),
        lambda: (z * 2).argmax(-1),
        lambda: z[1:].sum(-1),
        lambda: z.mT.sum(-1),
        lambda: (tf.scores(X, Y) + z).sum(-1),
        lambda: z.materialize(),
    ):
        with pytest.raises(RuntimeError, match="changed in place after the scores were made; make the scores again"):
            use()


def test_an_operand_that_was_changed_between_forward_and_backward_is_torchs_error() -> None:
    x, y = X.clone().requires_grad_(), Y.clone()
    out = tf.scores(x, y).logsumexp(-1)
    y.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        out.sum().backward()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_triton_that_can_not_run_here_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    from tilefold.execute import backend

    backend.why_not_triton.cache_clear()
    with (
        tf.backend("triton"),
        pytest.raises(RuntimeError, match="backend: got 'triton'; expected 'eager' or 'auto' here, because"),
    ):
        s().sum(-1)
    monkeypatch.setenv("TILEFOLD_BACKEND", "triton")
    with pytest.raises(errors.BackendError):
        s().sum(-1)
    monkeypatch.setenv("TILEFOLD_BACKEND", "surprise")
    with pytest.raises(ValueError, match="TILEFOLD_BACKEND: got 'surprise'"):
        s().sum(-1)
    backend.why_not_triton.cache_clear()


def test_an_error_leaves_the_backend_as_it_was() -> None:
    from tilefold.execute import backend

    with pytest.raises(RuntimeError), tf.backend("eager"):
        assert backend.requested() == "eager"
        raise RuntimeError
    assert backend.requested() == "auto"


def test_classes_derive_from_torchs() -> None:
    pairs = (
        (errors.ShapeError, RuntimeError),
        (errors.OptionError, ValueError),
        (errors.LabelError, IndexError),
        (errors.FoldError, NotImplementedError),
    )
    for ours, torchs in (*pairs, (errors.GradientError, RuntimeError), (errors.BackendError, RuntimeError)):
        assert issubclass(ours, torchs) and issubclass(ours, errors.TilefoldError)


def test_a_method_that_scores_lack_is_a_fold_error_and_no_attribute() -> None:
    with pytest.raises(errors.FoldError, match=r"scores.cumsum: lazy scores do not have it; .*materialize"):
        s().cumsum(-1)
    assert not hasattr(s(), "cumsum") and not hasattr(s().softmax(-1), "cumsum") and hasattr(s(), "sum")


def test_unknown_attribute_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="surprise"):
        s().surprise  # noqa: B018
    with pytest.raises(AttributeError, match="surprise"):
        tf.surprise  # noqa: B018
    with pytest.raises(AttributeError, match="no result 'c'; there are a, b"):
        tf.fold(s(), a=tf.Sum(), b=tf.Max()).c  # noqa: B018


def test_views_of_a_changed_base_count_as_changed() -> None:
    base = torch.randn(8, 3)
    z = tf.scores(base[:4], Y)
    base.zero_()
    with pytest.raises(RuntimeError, match="changed in place"):
        z.sum(-1)


def test_inputs_are_never_written() -> None:
    every = [torch.randn(*shape, dtype=torch.float64) for shape in ((4, 3), (6, 3), (6, 2), (4, 6))]
    before = [(t.clone(), t._version) for t in every]
    x, y, v, bias = every
    z: Any = (tf.scores(x, y) + bias).tanh()
    tf.fold(z, tf.SoftmaxSum(v), tf.Variance(), tf.TopK(2), tf.ArgMin(), tf.Mean())
    tf.fold(
        (tf.scores(x, y) * 0 + bias).visible(tf.mask.causal("bottom_right")),
        tf.LogSumExp(),
        tf.Max(),
        tf.WeightedSum(v),
    )
    # scores that are a bare operand
    tf.fold(tf.outer(lambda a, b: a[0], x, y) * 1 + bias, tf.LogSumExp())
    for t, (b, version) in zip(every, before):
        same(t, b)
        assert t._version == version


def test_labels_out_of_range_only_wait_for_the_data_where_that_costs_nothing() -> None:
    from tilefold.scores.debug import can_look_at

    assert can_look_at(I) and not can_look_at(I.to("meta"))
    with tf.debug():
        assert not can_look_at(I.to("meta"))


@pytest.mark.parametrize("metric", ["dot", "cosine", "sqeuclidean", "euclidean"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("which", [0, 1])
def test_a_changed_point_is_noticed_by_every_metric(metric: str, dtype: torch.dtype, which: int) -> None:
    points = torch.randn(5, 3).to(dtype), torch.randn(7, 3).to(dtype)
    s = tf.scores(*points, metric=metric)
    points[which].add_(1)
    for use in (lambda: s.sum(-1), lambda: s.argmin(-1), lambda: (s * 2).amax(-1)):
        with pytest.raises(RuntimeError, match="changed in place"):
            use()


def test_a_changed_point_is_noticed_under_autocast() -> None:
    x, y = torch.randn(5, 3), torch.randn(7, 3)
    with torch.autocast("cpu", torch.bfloat16):
        s = tf.scores(x, y)
    x.add_(1)
    with pytest.raises(RuntimeError, match="changed in place"):
        s.logsumexp(-1)


def test_a_shared_matrix_is_not_copied_for_every_batch_entry() -> None:
    s = tf.scores(torch.randn(2, 5, 3), torch.randn(7, 3))
    with pytest.raises(tf.errors.FoldError, match="reshape first and add it then"):
        (s + torch.randn(5, 7)).view(-1, 7)
    own = torch.randn(2, 5, 7)
    torch.testing.assert_close((s + own).view(-1, 7).logsumexp(-1), (s.materialize() + own).view(-1, 7).logsumexp(-1))


@pytest.mark.parametrize("options", [{"seed": None}, {"seed": "1"}, {"temperature": -1.0}, {"temperature": math.inf}])
def test_wrong_options_of_a_sample(options: dict[str, Any]) -> None:
    with pytest.raises(tf.errors.OptionError, match=next(iter(options))):
        tf.Sample(**options)


def test_a_fold_without_a_name_is_not_registered() -> None:
    class Nameless(folds.Fold):
        def step(self, *args: Any) -> Any: ...
        def merge(self, *args: Any) -> Any: ...

    with pytest.raises(ValueError, match="class attribute `name`"):
        folds.register(Nameless)
