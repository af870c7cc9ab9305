"""What tf.attention takes, by the Triton loops and by eager: output, log-sum-exp and all gradients."""

from typing import Any

import pytest
import torch

import tilefold as tf
from tilefold.execute import select

SMALL = {"bn": 16, "bk": 16}


def both(q, k, v, *others, **options):
    """Output, log-sum-exp and gradients of one call by each executor; k and v may be lists."""
    made = []
    inputs = [q, *(k if isinstance(k, list) else [k]), *(v if isinstance(v, list) else [v]), *others]
    for name in ("triton", "eager"):
        with tf.backend(name), select.using(**SMALL):
            out, lse = tf.attention(q, k, v, return_lse=True, **options)
            torch.manual_seed(1)
            up, up_lse = torch.randn(out.shape).to(out.dtype), torch.randn(lse.shape)
            loss = (out * up).sum() + torch.where(lse.isfinite(), lse, 0.0).mul(up_lse).sum()
            made.append((out, lse, *torch.autograd.grad(loss, inputs)))
    return made


def assert_same(q, k, v, *others, tolerance=2e-5, **options):
    for i, (a, b) in enumerate(zip(*both(q, k, v, *others, **options), strict=True)):
        assert a.shape == b.shape and a.dtype == b.dtype
        scale = float(b.double()[b.isfinite()].abs().max()) if b.isfinite().any() else 1.0
        torch.testing.assert_close(
            a, b, rtol=0, atol=tolerance * max(scale, 1e-6), msg=lambda m, i=i: f"result {i}: {m}"
        )


def leaf(*shape, dtype=torch.float32):
    return torch.randn(*shape).to(dtype).requires_grad_()


def qkv(dtype=torch.float32):
    return leaf(2, 4, 21, 16, dtype=dtype), leaf(2, 2, 37, 16, dtype=dtype), leaf(2, 2, 37, 12, dtype=dtype)


OPTIONS: dict[str, dict[str, Any]] = {
    "causal": {"causal": "bottom_right", "softcap": 1.5},
    "lengths": {"mask": tf.mask.lengths(torch.tensor([37, 5])), "causal": "bottom_right", "window": (7, 0)},
    "interval": {"mask": tf.mask.interval(torch.arange(21), torch.arange(21) + 3)},
    "dropout": {"dropout_p": 0.4, "seed": 3, "causal": "bottom_right"},
    "score function": {"score_mod": lambda s: s - 0.1 * (tf.row_index() - tf.col_index()).abs()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_options(name):
    assert_same(*qkv(), **OPTIONS[name])


def test_alibi_and_sinks_with_their_gradients():
    slopes, sinks = torch.rand(2, 4, requires_grad=True), leaf(4)
    assert_same(*qkv(), slopes, sinks, alibi_slopes=slopes, sinks=sinks, causal="bottom_right")


def test_layout_of_heads_inside():
    q, k, v = (t.detach().transpose(1, 2).contiguous().requires_grad_() for t in qkv())
    assert_same(q, k, v, layout="bshd")


@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right", "window": (6, 0)}, {"causal": "top_left"}], ids=str)
def test_packed_sequences(options):
    q, k, v = leaf(21, 4, 16), leaf(37, 2, 16), leaf(37, 2, 12)
    cu_q, cu_k = torch.tensor([0, 0, 5, 5, 19], dtype=torch.int32), torch.tensor([0, 3, 12, 20, 37], dtype=torch.int32)
    slopes = torch.rand(4, 4, requires_grad=True)
    packing = {"layout": "thd", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    assert_same(q, k, v, **packing, **options)
    assert_same(q, k, v, slopes, alibi_slopes=slopes, **packing, **options)


@pytest.mark.parametrize("options", [{"causal": "bottom_right"}, {"dropout_p": 0.4, "seed": 3}], ids=str)
def test_shards_of_the_keys(options):
    q, k, v = qkv()
    keys, values = ([p.detach().requires_grad_() for p in t.split([17, 20], 2)] for t in (k, v))
    assert_same(q, keys, values, **options)


@pytest.mark.parametrize("options", [{"out_dtype": torch.float32}, {"dropout_p": 0.4, "seed": 3}], ids=str)
def test_16_bit_operands(options):
    assert_same(*qkv(torch.float16), tolerance=4e-3, **options)


# the interpreter cuts a bfloat16 off instead of rounding it, so that bias is measured in float16 here
def test_signed_mean_error_of_positive_values():
    q, k, v = (torch.randn(1, 2, n, 32).half() for n in (32, 300, 300))
    with tf.backend("triton"):
        out = tf.attention(q, k, v.abs())
    want = (q.double() @ k.double().mT * 32**-0.5).softmax(-1) @ v.abs().double()
    ulp = torch.finfo(torch.float16).eps * 2.0 ** want.log2().floor()
    assert ((out - want) / ulp).mean().abs() < 0.05


@pytest.mark.xfail(reason="the weights are added up before they are rounded for the product")
def test_values_of_one_give_one_in_float32():
    q, k = torch.randn(1, 2, 32, 32).half(), torch.randn(1, 2, 300, 32).half()
    with tf.backend("triton"):
        out = tf.attention(q, k, torch.ones_like(k), out_dtype=torch.float32)
    assert (out - 1.0).abs().max() < 2e-6
