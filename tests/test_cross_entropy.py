"""tf.linear_cross_entropy and F.cross_entropy of lazy scores: all of torch's options, and inputs that broke others.

Case numbers are those of the project's list of reports about language-model heads.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate
from torch import Tensor

import tilefold as tf

N, V, D = 37, 53, 16
DOUBLE = torch.float64


def lazy(logits: Tensor) -> Any:
    """Scores whose values are `logits`: a product of zeros plus a matrix that is read tile by tile."""
    *batch, n, v = logits.shape
    return tf.scores(logits.new_zeros(*batch, n, 1), logits.new_zeros(v, 1)) + logits


def problem(
    n: int = N, v: int = V, d: int = D, dtype: torch.dtype = DOUBLE, ignored: bool = True
) -> tuple[Tensor, Tensor, Tensor]:
    x = torch.randn(n, d, dtype=dtype, requires_grad=True)
    w = torch.randn(v, d, dtype=dtype, requires_grad=True)
    y = torch.randint(0, v, (n,))
    if ignored and n:
        y[:: max(2, n // 5)] = -100
    return x, w, y


def gradients(loss: Tensor, *inputs: Tensor) -> tuple[Tensor, ...]:
    """Of the loss, weighted unevenly where it is not a scalar."""
    upstream = torch.linspace(0.5, 3.0, loss.numel(), dtype=loss.dtype).reshape(loss.shape)
    return torch.autograd.grad(loss, inputs, upstream, retain_graph=True)


def agrees(got: Tensor, want: Tensor, *inputs: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(got, want, rtol=tolerance, atol=tolerance, equal_nan=True)
    for a, b in zip(gradients(got, *inputs), gradients(want, *inputs)):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, equal_nan=True)


# ---- the options of F.cross_entropy ------------------------------------------------------------------------


def options() -> Iterator[dict[str, Any]]:
    for reduction, smoothing, weighted, ignore in itertools.product(
        ("mean", "sum", "none"), (0.0, 0.1, 1.0), (False, True), (-100, 3)
    ):
        yield {"reduction": reduction, "label_smoothing": smoothing, "weight": weighted, "ignore_index": ignore}


def weighted(kwargs: dict[str, Any], v: int = V) -> dict[str, Any]:
    return kwargs | {"weight": torch.rand(v, dtype=DOUBLE) if kwargs["weight"] else None}


@pytest.mark.parametrize("kwargs", list(options()), ids=lambda k: "-".join(str(v) for v in k.values()))
def test_every_option_equals_torch(kwargs: dict[str, Any]) -> None:
    kwargs = weighted(kwargs)
    x, w, y = problem(ignored=kwargs["ignore_index"] == -100)
    want = F.cross_entropy(x @ w.T, y, **kwargs)
    agrees(F.cross_entropy(tf.scores(x, w), y, **kwargs), want, x, w)
    agrees(tf.linear_cross_entropy(x, w, y, **kwargs), want, x, w)


@pytest.mark.parametrize("kwargs", list(options()), ids=lambda k: "-".join(str(v) for v in k.values()))
def test_three_dimensions_reduce_torchs_class_axis(kwargs: dict[str, Any]) -> None:
    kwargs = weighted(kwargs, 11)
    x = torch.randn(3, 11, D, dtype=DOUBLE, requires_grad=True)  # classes
    w = torch.randn(3, 7, D, dtype=DOUBLE, requires_grad=True)  # places
    y = torch.randint(0, 11, (3, 7))
    if kwargs["ignore_index"] == -100:
        y[0, ::3] = -100
    want = F.cross_entropy(x @ w.mT, y, **kwargs)
    agrees(F.cross_entropy(tf.scores(x, w), y, **kwargs), want, x, w)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
@pytest.mark.parametrize("weigh", [False, True])
def test_targets_that_are_probabilities(reduction: str, smoothing: float, weigh: bool) -> None:
    x, w, _ = problem()
    weight = torch.rand(V, dtype=DOUBLE) if weigh else None
    p = torch.rand(N, V, dtype=DOUBLE).softmax(-1).requires_grad_()
    kwargs: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing, "weight": weight}
    want = F.cross_entropy(x @ w.T, p, **kwargs)
    agrees(F.cross_entropy(tf.scores(x, w), p, **kwargs), want, x, w, p)
    agrees(tf.linear_cross_entropy(x, w, p, **kwargs), want, x, w, p)
    x3, w3 = x.reshape(1, N, D), w.reshape(1, V, D)  # classes along axis 1: the scores of w against x
    p3 = p.mT.unsqueeze(0)
    want = F.cross_entropy(w3 @ x3.mT, p3, **kwargs)
    agrees(F.cross_entropy(tf.scores(w3, x3), p3, **kwargs), want, x, w, p)


@pytest.mark.parametrize("flags", [{"size_average": False}, {"reduce": False}, {"size_average": True, "reduce": True}])
@pytest.mark.filterwarnings("ignore:size_average and reduce")
def test_older_flags_win_over_reduction(flags: dict[str, bool]) -> None:
    x, w, y = problem()
    agrees(F.cross_entropy(tf.scores(x, w), y, **flags), F.cross_entropy(x @ w.T, y, **flags), x, w)
    logp = F.log_softmax(tf.scores(x, w), -1)
    agrees(F.nll_loss(logp, y, **flags), F.nll_loss(F.log_softmax(x @ w.T, -1), y, **flags), x, w)


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("weigh", [False, True])
@pytest.mark.parametrize("lazily", ["log_softmax", "scores"])
def test_nll_loss(reduction: str, weigh: bool, lazily: str) -> None:
    x, w, y = problem()
    weight = torch.rand(V, dtype=DOUBLE) if weigh else None
    want = F.nll_loss(F.log_softmax(x @ w.T, -1), y, weight=weight, reduction=reduction)
    s = tf.scores(x, w)
    logp = F.log_softmax(s, -1) if lazily == "log_softmax" else s - s.logsumexp(-1, keepdim=True)
    agrees(F.nll_loss(logp, y, weight=weight, reduction=reduction), want, x, w)


def test_reduction_none_has_the_shape_of_the_targets() -> None:  # case 3
    x, w, y = problem(24)
    assert tf.linear_cross_entropy(x, w, y, reduction="none").shape == (24,)
    assert tf.linear_cross_entropy(x.reshape(2, 3, 4, D), w, y.reshape(2, 3, 4), reduction="none").shape == (2, 3, 4)
    assert tf.linear_cross_entropy(x[0], w, y[1], reduction="none").shape == ()
    mean = tf.linear_cross_entropy(x, w, y)
    assert torch.equal(tf.linear_cross_entropy(x.reshape(2, 3, 4, D), w, y.reshape(2, 3, 4)), mean)


@pytest.mark.parametrize("kind", [torch.uint8, torch.int16, torch.int32, torch.int64])
def test_integer_targets_of_any_width(kind: torch.dtype) -> None:
    x, w, y = problem(v=200, ignored=False)
    y[0] = 156  # -100 as an unsigned byte
    want = F.cross_entropy(x @ w.T, y)
    agrees(tf.linear_cross_entropy(x, w, y.to(kind)), want, x, w)


# ---- bias, softcap, z-loss ---------------------------------------------------------------------------------


@pytest.mark.parametrize("softcap", [None, 2.0])
@pytest.mark.parametrize("z_loss", [0.0, 0.1])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["mean", "none"])
def test_bias_softcap_and_z_loss(softcap: float | None, z_loss: float, smoothing: float, reduction: str) -> None:
    x, w, y = problem()
    b = torch.randn(V, dtype=DOUBLE, requires_grad=True)
    logits = F.linear(x, w, b)
    logits = logits if softcap is None else softcap * torch.tanh(logits / softcap)
    want = F.cross_entropy(logits, y, reduction="none", label_smoothing=smoothing)
    valid = y != -100
    want = want + z_loss * torch.where(valid, logits.logsumexp(-1).square(), 0.0)
    want = want if reduction == "none" else want.sum() / valid.sum()
    got = tf.linear_cross_entropy(
        x, w, y, linear_bias=b, softcap=softcap, z_loss=z_loss, label_smoothing=smoothing, reduction=reduction
    )
    agrees(got, want, x, w, b)


def test_bias_is_added_once_whatever_d_is() -> None:  # case 5
    bias = torch.arange(8) / 4.0
    loss = tf.linear_cross_entropy(torch.zeros(1, 1024), torch.zeros(8, 1024), torch.tensor([7]), linear_bias=bias)
    assert abs(loss.item() - 1.363278) < 1e-6


def test_bias_gets_its_gradient_beside_a_frozen_input() -> None:  # case 13
    x, w, y = problem()
    b = torch.randn(V, dtype=DOUBLE, requires_grad=True)
    tf.linear_cross_entropy(x.detach(), w.detach(), y, linear_bias=b).backward()
    expected = torch.autograd.grad(F.cross_entropy(F.linear(x, w, b), y), b)[0]
    torch.testing.assert_close(b.grad, expected)


# ---- gradients ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first_ignored", [False, True])
def test_uneven_upstream_gradient(first_ignored: bool) -> None:  # case 1
    x, w = torch.eye(2), torch.zeros(3, 2, requires_grad=True)
    b = torch.zeros(3, requires_grad=True)
    y = torch.tensor([-100 if first_ignored else 0, 1])
    loss = tf.linear_cross_entropy(x, w, y, linear_bias=b, reduction="none")
    loss.backward(torch.tensor([1.0, 3.0]))
    first = torch.tensor([0.0, 0.0, 0.0]) if first_ignored else torch.tensor([-2.0, 1.0, 1.0]) / 3
    right = torch.stack([first, torch.tensor([1.0, -2.0, 1.0])], 1)
    torch.testing.assert_close(w.grad, right)
    torch.testing.assert_close(b.grad, right.sum(1))


def test_frozen_weight_gets_no_gradient() -> None:  # case 11
    x, w, y = problem()
    frozen = w.detach()
    tf.linear_cross_entropy(x, frozen, y).backward()
    assert frozen.grad is None
    expected = torch.autograd.grad(F.cross_entropy(x @ w.T, y), x)[0]
    torch.testing.assert_close(x.grad, expected)


def test_no_grad_gives_the_loss_alone() -> None:  # case 14
    x, w, y = problem()
    with torch.no_grad():
        loss = tf.linear_cross_entropy(x, w, y, label_smoothing=0.1)
    assert not loss.requires_grad
    torch.testing.assert_close(loss, F.cross_entropy(x @ w.T, y, label_smoothing=0.1).detach())
    with torch.inference_mode():
        assert torch.equal(tf.linear_cross_entropy(x, w, y, label_smoothing=0.1), loss)


def test_second_backward_gives_the_same_again() -> None:  # case 16
    x, w, y = problem()
    loss = tf.linear_cross_entropy(x, w, y)
    loss.backward(torch.tensor(2.0, dtype=DOUBLE), retain_graph=True)
    once = x.grad.clone(), w.grad.clone()
    loss.backward(torch.tensor(2.0, dtype=DOUBLE))
    torch.testing.assert_close(x.grad, 2 * once[0])
    torch.testing.assert_close(w.grad, 2 * once[1])
    expected = torch.autograd.grad(2 * F.cross_entropy(x @ w.T, y), (x, w))
    torch.testing.assert_close(once, expected)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_second_derivative_is_an_error() -> None:
    x, w, y = problem()
    (g,) = torch.autograd.grad(tf.linear_cross_entropy(x, w, y), x, create_graph=True)
    with pytest.raises(tf.errors.GradientError):
        g.sum().backward()


def test_tied_weights_add_both_gradients() -> None:  # case 32
    table = torch.randn(V, D, dtype=DOUBLE, requires_grad=True)
    ids, y = torch.randint(0, V, (N,)), torch.randint(0, V, (N,))
    got = tf.linear_cross_entropy(F.embedding(ids, table), table, y)
    agrees(got, F.cross_entropy(F.embedding(ids, table) @ table.T, y), table)
    agrees(
        tf.linear_cross_entropy(table, table, torch.arange(V)), F.cross_entropy(table @ table.T, torch.arange(V)), table
    )


def test_weight_gradient_accumulates_wider_than_bfloat16() -> None:  # case 18
    n, v, d = 4096, 8, 4
    x = torch.full((n, d), 1.0, dtype=torch.bfloat16)
    w = torch.zeros(v, d, dtype=torch.bfloat16, requires_grad=True)
    y = torch.zeros(n, dtype=torch.int64)
    tf.linear_cross_entropy(x, w, y, reduction="sum").backward()
    # 4096 times 1/8: a bfloat16 sum would stop at 32
    assert torch.equal(w.grad[1], torch.full((d,), n / 8, dtype=torch.bfloat16))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_loss_and_gradients_are_as_accurate_as_torchs(dtype: torch.dtype) -> None:  # case 9: V = 32, large N
    x, w, y = problem(1024, 32, 64, dtype)
    b = torch.randn(32, dtype=dtype, requires_grad=True)
    inputs = (x, w, b)
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    got = tf.linear_cross_entropy(x, w, y, linear_bias=b)
    plain = F.cross_entropy(F.linear(*inputs), y)
    want = F.cross_entropy(F.linear(*wide), y)
    accurate(got, want, plain, "loss")
    found, right, theirs = (torch.autograd.grad(l, i) for l, i in ((got, inputs), (want, wide), (plain, inputs)))
    for name, f, r, t in zip(("input", "linear_weight", "linear_bias"), found, right, theirs):
        assert f.dtype == dtype
        accurate(f, r, t, name)


@pytest.mark.parametrize("leaf", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("weight_type", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("bias", [False, True])
def test_autocast_and_mixed_types(leaf: torch.dtype, weight_type: torch.dtype, bias: bool) -> None:  # case 24
    x, _, y = problem(64, 31, 32, leaf)
    w = torch.randn(31, 32, dtype=weight_type, requires_grad=True)
    b = torch.randn(31, dtype=weight_type, requires_grad=True) if bias else None
    with torch.autocast("cpu", torch.bfloat16):
        loss = tf.linear_cross_entropy(x, w, y, linear_bias=b)
    loss.backward()
    assert loss.dtype == torch.float32
    assert x.grad.dtype == leaf and w.grad.dtype == weight_type and (b is None or b.grad.dtype == weight_type)
    want = F.cross_entropy(F.linear(x.double(), w.double(), None if b is None else b.double()), y)
    assert abs(loss.item() - want.item()) < 0.02 * want.item()
    # and without autocast
    got = tf.linear_cross_entropy(x, w, y, linear_bias=b)
    torch.testing.assert_close(got.double(), want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("n", [1, 4, 32, 33, 128])
def test_mean_over_a_batch_is_independent_of_how_it_is_split(n: int) -> None:  # case 20
    x, w, y = problem(128, ignored=False)
    whole = tf.linear_cross_entropy(x, w, y)
    parts = torch.cat([tf.linear_cross_entropy(a, w, b, reduction="none") for a, b in zip(x.split(n), y.split(n))])
    torch.testing.assert_close(parts.mean(), whole, rtol=1e-13, atol=0)


@pytest.mark.parametrize("v", [1, 2, 130, 1023, 1024, 1025, 3001])
def test_vocabulary_sizes_around_a_tile(v: int) -> None:  # case 7: nothing of a ragged last tile leaks in
    x, w, y = problem(19, v)
    agrees(tf.linear_cross_entropy(x, w, y), F.cross_entropy(x @ w.T, y), x, w)


def test_vocabulary_shards_give_the_unsharded_loss() -> None:  # case 7
    x, w, y = problem(19, 130, ignored=False)
    lse = tf.fold([tf.scores(x, part) for part in w.split(65)], tf.LogSumExp())
    hit = (x * w[y]).sum(-1)
    agrees((lse - hit).mean(), F.cross_entropy(x @ w.T, y), x, w)


# ---- ignored rows ------------------------------------------------------------------------------------------


def test_ignore_index_that_is_a_real_class() -> None:  # case 28
    got = tf.linear_cross_entropy(
        torch.zeros(3, 2), torch.zeros(4, 2), torch.tensor([0, 1, 2]), ignore_index=1, reduction="none"
    )
    torch.testing.assert_close(got, torch.tensor([math.log(4), 0.0, math.log(4)]))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    "kwargs",
    [{}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"weight": torch.arange(V, dtype=DOUBLE) / V}],
    ids=["plain", "smoothing", "z_loss", "weight"],
)
def test_all_targets_ignored(reduction: str, kwargs: dict[str, Any]) -> None:  # case 22
    x, w, y = problem()
    y[:] = -100
    loss = tf.linear_cross_entropy(x, w, y, reduction=reduction, **kwargs)
    right = {"mean": torch.tensor(math.nan), "sum": torch.tensor(0.0), "none": torch.zeros(N)}[reduction]
    torch.testing.assert_close(loss.float(), right, equal_nan=True)
    for g in gradients(loss, x, w):
        assert torch.equal(g, torch.zeros_like(g))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kwargs", [{}, {"label_smoothing": 0.1}, {"z_loss": 0.1}, {"softcap": 3.0}], ids=str)
def test_ignored_row_of_nan_costs_nothing_and_gets_gradient_zero(value: float, kwargs: dict[str, Any]) -> None:
    x, w, y = problem()
    with torch.no_grad():
        x[5] = value
    y[5] = -100
    keep = torch.arange(N) != 5
    loss = tf.linear_cross_entropy(x, w, y, **kwargs)
    clean = tf.linear_cross_entropy(x[keep], w, y[keep], **kwargs)
    torch.testing.assert_close(loss, clean, rtol=1e-13, atol=0)
    (g,) = torch.autograd.grad(loss, x)
    torch.testing.assert_close(g, torch.autograd.grad(clean, x)[0], rtol=1e-12, atol=1e-15)
    assert torch.equal(g[5], torch.zeros(D, dtype=DOUBLE))


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_no_row_at_all(reduction: str) -> None:
    x, w, y = problem(0)
    loss = tf.linear_cross_entropy(x, w, y, reduction=reduction)
    torch.testing.assert_close(loss, F.cross_entropy(x @ w.T, y, reduction=reduction), equal_nan=True)
    gx, gw = gradients(loss, x, w)
    assert gx.shape == (0, D) and torch.equal(gw, torch.zeros_like(w))


def test_class_weights_that_sum_to_zero_give_nan() -> None:
    x, w, y = problem()
    zero = torch.zeros(V, dtype=DOUBLE)
    assert tf.linear_cross_entropy(x, w, y, weight=zero).isnan()
    assert tf.linear_cross_entropy(x, w, y, weight=zero, reduction="sum") == 0


def test_class_weights_in_half_precision_are_summed_wide() -> None:
    n = 3000
    x, w, y = torch.zeros(n, 4), torch.zeros(3, 4), torch.zeros(n, dtype=torch.int64)
    loss = tf.linear_cross_entropy(x, w, y, weight=torch.ones(3, dtype=torch.bfloat16))
    torch.testing.assert_close(loss, torch.tensor(3.0).log(), rtol=1e-6, atol=0)


# ---- infinities and NaN ------------------------------------------------------------------------------------


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("reduction", ["none", "sum"])
def test_infinite_logits_are_values_as_in_torch(smoothing: float, reduction: str) -> None:
    logits = torch.randn(8, 6, dtype=DOUBLE)
    logits[0, 1] = -math.inf  # not the target
    logits[1, 2] = -math.inf  # the target
    logits[2] = -math.inf
    logits[3, 0] = math.inf
    logits[4, 3] = math.nan
    logits[5, [0, 1, 2]] = -math.inf
    logits.requires_grad_()
    y = torch.tensor([0, 2, 0, 0, 0, 5, 1, 2])
    got = F.cross_entropy(lazy(logits), y, reduction=reduction, label_smoothing=smoothing)
    want = F.cross_entropy(logits, y, reduction=reduction, label_smoothing=smoothing)
    torch.testing.assert_close(got, want, equal_nan=True)
    g, right = torch.autograd.grad(got.sum(), logits)[0], torch.autograd.grad(want.sum(), logits)[0]
    finite = [0, 1, 5, 6, 7]
    torch.testing.assert_close(g[finite], right[finite])
    assert g[3:5].isnan().any(1).all()
    if not smoothing:
        assert g[0, 1] == 0
        torch.testing.assert_close(g[1, 2], torch.tensor(-1.0, dtype=DOUBLE))


def test_nan_row_spoils_only_itself() -> None:
    x, w, y = problem(ignored=False)
    with torch.no_grad():
        x[7] = math.nan
    loss = tf.linear_cross_entropy(x, w, y, reduction="none")
    assert loss[7].isnan() and loss.isnan().sum() == 1
    (g,) = torch.autograd.grad(loss, x, torch.ones_like(loss))
    assert g[7].isnan().all() and not g[torch.arange(N) != 7].isnan().any()


@pytest.mark.parametrize("offset", [-3e4, -300.0, 300.0, 3e4])
def test_large_logits_of_one_sign(offset: float) -> None:
    x, w, y = problem(dtype=torch.float32)
    b = torch.full((V,), offset)
    got = tf.linear_cross_entropy(x, w, y, linear_bias=b)
    want = F.cross_entropy(F.linear(x.double(), w.double(), b.double()), y)
    accurate(got, want, F.cross_entropy(F.linear(x, w, b), y), "loss")


def test_target_that_a_mask_hides_has_infinite_loss() -> None:
    x, w, y = problem(8, 8, ignored=False)
    mask = torch.ones(8, 8, dtype=torch.bool).tril()
    y = torch.tensor([0, 0, 1, 7, 2, 5, 6, 7])
    got = F.cross_entropy(tf.scores(x, w).visible(tf.mask.causal()), y, reduction="none")
    want = F.cross_entropy((x @ w.T).masked_fill(~mask, -math.inf), y, reduction="none")
    torch.testing.assert_close(got, want)
    assert got[3] == math.inf


# ---- views that library losses make ------------------------------------------------------------------------


def test_shifted_and_flattened_logits() -> None:
    h = torch.randn(2, 9, D, dtype=DOUBLE, requires_grad=True)
    w = torch.randn(V, D, dtype=DOUBLE, requires_grad=True)
    y = torch.randint(0, V, (2, 9))

    def loss(logits: Any) -> Tensor:
        shifted = logits.float()[..., :-1, :].contiguous()
        return F.cross_entropy(shifted.view(-1, V), y[..., 1:].reshape(-1))

    want = F.cross_entropy((h @ w.T)[..., :-1, :].reshape(-1, V), y[..., 1:].reshape(-1))
    agrees(loss(tf.scores(h, w)), want, h, w)


# ---- bad input ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [-1, V, V + 100, -101])
def test_label_out_of_range_is_an_index_error(bad: int) -> None:
    x, w, y = problem(ignored=False)
    y[3] = bad
    with pytest.raises(IndexError, match=f"target.*{bad}.*0 to {V - 1}"):
        tf.linear_cross_entropy(x, w, y)
    with pytest.raises(IndexError):
        F.nll_loss(F.log_softmax(tf.scores(x, w), -1), y)
    assert tf.linear_cross_entropy(x, w, y, ignore_index=bad).isfinite()


def test_label_out_of_range_marks_its_row_where_the_data_may_not_be_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    # as on a GPU, where looking would wait for the device (case 26)
    for home in ("tilefold.ops.cross_entropy", "tilefold.scores.api"):
        monkeypatch.setattr(importlib.import_module(home), "can_look_at", lambda t: False)
    x, w, y = problem()
    y[3], y[4] = V, -1
    loss = tf.linear_cross_entropy(x, w, y, reduction="none")
    assert loss.isnan().nonzero().flatten().tolist() == [3, 4]
    (g,) = torch.autograd.grad(loss.sum(), x)
    assert g.isnan().any(1).nonzero().flatten().tolist() == [3, 4]
    nll = F.nll_loss(tf.scores(x, w), y, reduction="none")
    assert nll.isnan().nonzero().flatten().tolist() == [3, 4]


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"target": torch.zeros(N + 1, dtype=torch.int64)}, RuntimeError, "target"),
        ({"target": torch.zeros(N, dtype=torch.bool)}, RuntimeError, "target"),
        ({"target": torch.zeros(N)}, RuntimeError, "target"),
        ({"linear_weight": torch.zeros(V, D + 1, dtype=DOUBLE)}, RuntimeError, "D = "),
        ({"linear_weight": torch.zeros(D, dtype=DOUBLE)}, RuntimeError, "linear_weight"),
        ({"linear_bias": torch.zeros(V + 1)}, RuntimeError, "linear_bias"),
        ({"linear_bias": torch.zeros(1)}, RuntimeError, "linear_bias"),
        ({"weight": torch.zeros(V - 1)}, RuntimeError, "weight"),
        ({"reduction": "average"}, ValueError, "reduction"),
        ({"label_smoothing": 1.5}, ValueError, "label_smoothing"),
        ({"label_smoothing": math.nan}, ValueError, "label_smoothing"),
        ({"softcap": 0.0}, ValueError, "softcap"),
        ({"target": torch.rand(N, V), "ignore_index": 3}, ValueError, "ignore_index"),
        ({"input": torch.zeros(N, D, dtype=torch.int64)}, RuntimeError, "x"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    x, w, y = problem()
    with pytest.raises(error, match=names):
        tf.linear_cross_entropy(**{"input": x, "linear_weight": w, "target": y, **changes})


def test_four_dimensions_name_the_way_out() -> None:
    s = tf.scores(torch.zeros(2, 2, 3, 4), torch.zeros(5, 4))
    with pytest.raises(tf.errors.FoldError, match="reshape"):
        F.cross_entropy(s, torch.zeros(2, 3, 5, dtype=torch.int64))


# ---- under a compiler --------------------------------------------------------------------------------------


def test_compiles_into_one_graph() -> None:
    x, w, y = problem()
    loss = torch.compile(tf.linear_cross_entropy, backend="aot_eager", fullgraph=True)(x, w, y, label_smoothing=0.1)
    agrees(loss, F.cross_entropy(x @ w.T, y, label_smoothing=0.1), x, w)


def test_ignored_row_of_nan_adds_nothing_to_the_weights_gradient() -> None:
    x, w, y = problem()
    with torch.no_grad():
        x[3] = math.nan
    y[3] = -100
    (got,) = gradients(tf.linear_cross_entropy(x, w, y), w)
    rest = torch.arange(x.shape[0]) != 3
    (want,) = gradients(tf.linear_cross_entropy(x[rest], w, y[rest]), w)
    torch.testing.assert_close(got, want)
