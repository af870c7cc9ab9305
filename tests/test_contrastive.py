"""tf.contrastive_loss: CLIP and SigLIP against plain torch on all pairs."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate
from torch import Tensor

import tilefold as tf

DOUBLE = torch.float64


def reference(
    a: Tensor, b: Tensor, scale: Any = 1.0, bias: Any = 0.0, kind: str = "clip", normalize: bool = True
) -> Tensor:
    if normalize:
        a, b = F.normalize(a, dim=-1), F.normalize(b, dim=-1)
    s = a @ b.mT * scale + bias
    n = a.shape[0]
    if kind == "siglip":
        return -F.logsigmoid((2 * torch.eye(n, dtype=s.dtype) - 1) * s).sum() / n
    pairs = torch.arange(n)
    return (F.cross_entropy(s, pairs) + F.cross_entropy(s.mT, pairs)) / 2


def pairs(n: int = 40, d: int = 16, dtype: torch.dtype = DOUBLE) -> tuple[Tensor, Tensor]:
    a, b = torch.randn(n, d), torch.randn(n, d)
    return a.to(dtype).requires_grad_(), (a + 0.5 * b).to(dtype).requires_grad_()


KINDS = pytest.mark.parametrize("kind", ["clip", "siglip"])


@KINDS
@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("n", [1, 2, 40, 1100])
def test_loss_and_gradients_equal_torchs(kind: str, normalize: bool, n: int) -> None:
    a, b = pairs(n)
    got = tf.contrastive_loss(a, b, scale=5.0, bias=-2.0, kind=kind, normalize=normalize)
    want = reference(a, b, 5.0, -2.0, kind, normalize)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    torch.testing.assert_close(
        torch.autograd.grad(got, (a, b)), torch.autograd.grad(want, (a, b)), rtol=1e-9, atol=1e-11
    )


@KINDS
@pytest.mark.parametrize("shape", [(), (1,)], ids=str)
def test_scale_and_bias_are_learnable(kind: str, shape: tuple[int, ...]) -> None:
    a, b = pairs()
    log_scale = torch.full(shape, math.log(10.0), dtype=DOUBLE, requires_grad=True)
    bias = torch.full(shape, -10.0, dtype=DOUBLE, requires_grad=True)
    got = tf.contrastive_loss(a, b, scale=log_scale.exp(), bias=bias, kind=kind)
    want = reference(a, b, log_scale.exp(), bias, kind)
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)
    found, right = (torch.autograd.grad(l, (a, b, log_scale, bias)) for l in (got, want))
    torch.testing.assert_close(found, right, rtol=1e-9, atol=1e-11)
    assert found[2].shape == shape and found[2].abs().sum() > 0
    if kind == "siglip":
        assert found[3].abs().sum() > 0


def test_both_directions_count() -> None:
    a, b = pairs()
    one = tf.contrastive_loss(a, b, scale=3.0)
    torch.testing.assert_close(one, tf.contrastive_loss(b, a, scale=3.0))
    s = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT * 3
    rows, columns = F.cross_entropy(s, torch.arange(40)), F.cross_entropy(s.mT, torch.arange(40))
    assert (rows - columns).abs() > 1e-3
    torch.testing.assert_close(one, (rows + columns) / 2)


def test_siglip_sums_over_pairs_and_divides_by_the_batch() -> None:  # case 53: over B, not over B^2
    n = 64
    zero = torch.zeros(n, 8, dtype=DOUBLE)
    loss = tf.contrastive_loss(zero, zero, kind="siglip", normalize=False)
    torch.testing.assert_close(loss, torch.tensor(n * math.log(2), dtype=DOUBLE))


@KINDS
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_as_accurate_as_plain_torch(kind: str, dtype: torch.dtype) -> None:
    a, b = pairs(300, 32, dtype)
    wide = tuple(t.detach().double().requires_grad_() for t in (a, b))
    losses = [
        tf.contrastive_loss(a, b, scale=20.0, kind=kind),
        reference(*wide, 20.0, 0.0, kind),
        reference(a, b, 20.0, 0.0, kind),
    ]
    accurate(*losses, "loss", slack=8 * torch.finfo(dtype).eps / 2**-23)
    grads = [torch.autograd.grad(l, t) for l, t in zip(losses, ((a, b), wide, (a, b)))]
    for name, f, r, t in zip("ab", *grads):
        assert f.dtype == dtype
        accurate(f, r, t, name)


@KINDS
@pytest.mark.parametrize("scale", [0.0, -3.0, 100.0, 1e4])
def test_scale_of_any_size(kind: str, scale: float) -> None:
    a, b = pairs()
    got, want = tf.contrastive_loss(a, b, scale=scale, kind=kind), reference(a, b, scale, 0.0, kind)
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(torch.autograd.grad(got, (a, b)), torch.autograd.grad(want, (a, b)))


@KINDS
def test_autocast(kind: str) -> None:
    a, b = pairs(64, 32, torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        loss = tf.contrastive_loss(a, b, scale=20.0, kind=kind)
    loss.backward()
    assert loss.dtype == a.grad.dtype == torch.float32
    # the pair's own similarity is rounded as all the others are
    low = [F.normalize(t, dim=-1).bfloat16() for t in (a, b)]
    torch.testing.assert_close(loss, tf.contrastive_loss(*low, scale=20.0, kind=kind, normalize=False))


@KINDS
def test_compiles_into_one_graph(kind: str) -> None:
    a, b = pairs()
    loss = torch.compile(tf.contrastive_loss, backend="aot_eager", fullgraph=True)(a, b, scale=7.0, kind=kind)
    want = reference(a, b, 7.0, 0.0, kind)
    torch.testing.assert_close(loss, want)
    torch.testing.assert_close(torch.autograd.grad(loss, (a, b)), torch.autograd.grad(want, (a, b)))


def test_no_pair() -> None:
    for kind in ("clip", "siglip"):
        assert tf.contrastive_loss(torch.zeros(0, 4), torch.zeros(0, 4), kind=kind).isnan()


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"b": torch.zeros(5, 8)}, RuntimeError, "a, b"),
        ({"a": torch.zeros(8), "b": torch.zeros(8)}, RuntimeError, "a, b"),
        ({"kind": "simclr"}, ValueError, "kind: got 'simclr'"),
        ({"scale": torch.ones(4)}, RuntimeError, "scale"),
        ({"bias": torch.ones(4, 4)}, RuntimeError, "bias"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given: dict[str, Any] = {"a": torch.zeros(4, 8), "b": torch.zeros(4, 8), **changes}
    with pytest.raises(error, match=names):
        tf.contrastive_loss(**given)
