"""Inputs of a real size that broke other implementations, and sizes whose addresses pass 2^31.

Numbers are those of the project's lists of reports: A for attention, H for language-model heads.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate, same
from gpu_helpers import ON_GPU, pick, randn, sampled
from test_attention import reference
from test_attention_cases import check_ties, ulp
from torch import Tensor

import tilefold as tf
from tilefold.compat import flash_attn_varlen_func
from tilefold.execute import select

BF16, F32, F64 = torch.bfloat16, torch.float32, torch.float64


@pytest.fixture(autouse=True)
def memory(device: torch.device) -> Iterator[None]:
    if ON_GPU and torch.cuda.get_device_properties(device).total_memory < 64 << 30:
        pytest.skip("needs 64 GB of GPU memory")
    yield
    if ON_GPU:
        torch.cuda.empty_cache()


def check(ours: tuple[Tensor, ...], visible: Tensor | None, out: Tensor, lse: Tensor | None = None) -> None:
    """Output, log-sum-exp and gradients by the project's criterion."""
    wide = tuple(t.detach().double().requires_grad_() for t in ours)
    want, plain = reference(*wide, visible), reference(*ours, visible)
    accurate(out, want[0], plain[0], "output")
    if lse is not None:
        accurate(lse, want[1], plain[1], "log-sum-exp")
    up = torch.randn(out.shape, device=out.device).to(out.dtype)
    grads = [torch.autograd.grad(o, t, up.to(o.dtype)) for o, t in ((out, ours), (want[0], wide), (plain[0], ours))]
    for name, f, r, p in zip("qkv", *grads):
        accurate(f, r, p, f"gradient of {name}")


def negative(
    length: int, keys: int, heads: int, kv: int, d: int, value: float, device: torch.device
) -> tuple[Tensor, ...]:
    """bfloat16 q, k, v whose scaled scores lie near `value`."""
    q, k, v = (torch.randn(1, h, s, d, device=device) * 0.1 for h, s in ((heads, length), (kv, keys), (kv, keys)))
    q[..., 0], k[..., 0] = 1.0, value * math.sqrt(d)
    return tuple(t.bfloat16().requires_grad_() for t in (q, k, v))


# ---- attention ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("length", [704, 1025, 257])
def test_a19_a39_gradients_in_a_ragged_tail_of_negative_logits(length: int, device: torch.device) -> None:
    ours = negative(length, length, 1, 1, 64, -120.0, device)
    seen = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    out = tf.attention(*ours, mask=seen)
    check(ours, seen, out)


def test_a1_negative_logits_beside_hidden_blocks(device: torch.device) -> None:
    ours = negative(88, 448, 14, 2, 64, -200.0, device)
    out, lse = tf.attention(*ours, causal="bottom_right", return_lse=True)
    seen = torch.ones(88, 448, dtype=torch.bool, device=device).tril(360)
    assert (lse < -190).all()
    check(ours, seen, out, lse)


def test_a9_segments_of_length_zero(device: torch.device) -> None:
    cu_q, cu_k = pick(
        ([0, 0, 1208, 2048, 2048], [0, 2538, 4280, 5120, 8192]), ([0, 0, 12, 20, 20], [0, 25, 42, 51, 80])
    )
    q, k, v = (
        randn(1, h, c[-1], 256, device=device, dtype=BF16, grad=True) for h, c in ((4, cu_q), (1, cu_k), (1, cu_k))
    )
    rows, cols = (
        torch.bucketize(torch.arange(c[-1]), torch.tensor(c[1:]), right=True).to(device) for c in (cu_q, cu_k)
    )
    out, lse = tf.attention(q, k, v, mask=tf.mask.segments(rows, cols), return_lse=True)
    check((q, k, v), rows.unsqueeze(-1) == cols, out, lse)
    out = tf.attention(q, k, v, mask=tf.mask.segments(rows, cols))
    _, gk, gv = torch.autograd.grad(out.sum(), (q, k, v))
    for g in (gk, gv):
        same(g[:, :, : cu_k[1]], torch.zeros_like(g[:, :, : cu_k[1]]))
        same(g[:, :, cu_k[3] :], torch.zeros_like(g[:, :, cu_k[3] :]))


def test_a13_other_sequences_do_not_change_when_one_length_does(device: torch.device) -> None:
    q, k, v = (randn(4, h, s, 128, device=device, dtype=BF16) for h, s in ((32, 1), (8, 1000), (8, 1000)))
    lengths = torch.tensor([900, 1000, 120, 500], device=device)
    a = tf.attention(q, k, v, mask=tf.mask.lengths(lengths))
    lengths = torch.tensor([800, 1000, 120, 500], device=device)
    b = tf.attention(q, k, v, mask=tf.mask.lengths(lengths))
    same(a[1:], b[1:])
    assert not torch.equal(a[0], b[0])


def test_a31_upstream_gradient_whose_offsets_pass_two_to_the_31(device: torch.device) -> None:
    length, stride = pick((225304, 9728), (301, 97))
    q, k, v = (randn(1, 1, length, 64, device=device, dtype=BF16, grad=True) for _ in range(3))
    joined = torch.randn(length, stride, device=device, dtype=BF16)  # as the gradient of cat([attention, mlp], 1)
    up = joined[:, :64].reshape(1, 1, length, 64) if not ON_GPU else joined[:, :64].unsqueeze(0).unsqueeze(0)
    assert not ON_GPU or up.stride(-2) * length > 2**31
    out = tf.attention(q, k, v, causal="bottom_right", window=(127, 0))
    found = torch.autograd.grad(out, (q, k, v), up, retain_graph=True)
    right = torch.autograd.grad(out, (q, k, v), up.contiguous())
    for f, r in zip(found, right):
        same(f, r)
    # and the last 200 tokens alone
    tail = tuple(t.detach()[:, :, -327:].double().requires_grad_() for t in (q, k, v))
    i = torch.arange(tail[0].shape[2], device=device)
    seen = (i <= i.unsqueeze(-1)) & (i >= i.unsqueeze(-1) - 127)
    (want,) = torch.autograd.grad(reference(*tail, seen)[0], tail[0], up[:, :, -327:].double())
    keep = slice(-100, None)
    torch.testing.assert_close(found[0][:, :, keep].double(), want[:, :, keep], rtol=0.05, atol=0.02)


def test_a33_two_gigabytes_of_keys_and_values(device: torch.device) -> None:
    sq, sk = pick((2048, 2**22), (20, 3000))
    q = randn(1, 8, sq, 128, device=device, dtype=BF16)
    k, v = (torch.randn(1, 1, sk, 128, device=device, dtype=BF16) for _ in range(2))
    out, lse = tf.attention(q, k, v, causal="bottom_right", return_lse=True)
    for h, i in ((0, 0), (3, sq // 2), (7, sq - 1)):
        keys = sk - sq + i + 1
        s = k[0, 0, :keys].double() @ q[0, h, i].double() / math.sqrt(128)
        want = s.softmax(0) @ v[0, 0, :keys].double()
        torch.testing.assert_close(lse[0, h, i].double(), s.logsumexp(0), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(out[0, h, i].double(), want, rtol=0.02, atol=2e-4 if ON_GPU else 0.02)


def test_a33_zeros_of_a_long_sequence(device: torch.device) -> None:
    zero = torch.zeros(1, 1, pick(33728, 515), 512, device=device, dtype=BF16)
    out, lse = tf.attention(zero, zero, zero, return_lse=True)
    same(out, zero)
    torch.testing.assert_close(lse, torch.full_like(lse, math.log(zero.shape[2])))


def test_a33_a_batch_gives_what_its_entries_give(device: torch.device) -> None:
    keys = pick(350_000, 3500)
    q = randn(32, 1, 1, 64, device=device, dtype=BF16)
    k, v = (randn(32, 1, keys, 64, device=device, dtype=BF16) for _ in range(2))
    whole = tf.attention(q, k, v)
    for i in (0, 31):
        one = tf.attention(q[i : i + 1], k[i : i + 1], v[i : i + 1])
        torch.testing.assert_close(one, whole[i : i + 1], rtol=0.01, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
def test_a35_grouped_heads_of_512_features_repeat_bit_by_bit(dtype: torch.dtype, device: torch.device) -> None:
    q, k, v = (randn(1, h, 129, 512, device=device, dtype=dtype, grad=True) for h in (16, 2, 2))
    results = []
    for _ in range(3):
        junk = torch.full((pick(1 << 26, 1 << 10),), math.nan, device=device)  # what the allocator hands out next
        del junk
        out = tf.attention(q, k, v)
        grads = torch.autograd.grad(out.float().square().sum(), (q, k, v)) if dtype == BF16 else ()
        results.append((out, *grads))
    assert all(bool(r.isfinite().all()) for r in results[0])
    for other in results[1:]:
        for a, b in zip(results[0], other):
            same(a, b)


def packed_seen(cu_q: Tensor, cu_k: Tensor, causal: bool) -> tuple[Tensor, Tensor]:
    """Which keys each packed query sees, and where it stands among them, aligned at the ends of its sequence."""
    i, j = (torch.arange(int(c[-1]), device=c.device) for c in (cu_q, cu_k))
    of_i, of_j = torch.bucketize(i, cu_q[1:], right=True), torch.bucketize(j, cu_k[1:], right=True)
    here = (i - cu_q[1:][of_i] + cu_k[1:][of_i]).unsqueeze(-1)
    seen = of_i.unsqueeze(-1) == of_j
    return seen & (j <= here) if causal else seen, here


@pytest.mark.parametrize("causal", [False, True])
def test_a9_a11_a45_packed_sequences_of_any_length(causal: bool, device: torch.device) -> None:
    real = ([0, 0, 1208, 1209, 2048, 2048], [0, 2538, 4280, 5120, 5121, 8192])
    cu_q, cu_k = (torch.tensor(c, device=device) for c in pick(real, ([0, 0, 12, 13, 20, 20], [0, 25, 42, 51, 52, 80])))
    q, k, v = (
        randn(int(c[-1]), h, 128, device=device, dtype=BF16, grad=True) for c, h in ((cu_q, 8), (cu_k, 2), (cu_k, 2))
    )
    seen, here = packed_seen(cu_q, cu_k, causal)
    out, lse, _ = flash_attn_varlen_func(
        q, k, v, cu_q.int(), cu_k.int(), 1208, 2538, causal=causal, return_attn_probs=True
    )
    dense = tuple(t.detach().transpose(0, 1).unsqueeze(0).requires_grad_() for t in (q, k, v))
    own = tf.attention(*dense, mask=seen, return_lse=True)
    torch.testing.assert_close(out, own[0][0].transpose(0, 1), rtol=0.02, atol=0.02)
    torch.testing.assert_close(lse, own[1][0], rtol=1e-5, atol=1e-4)
    wide = tuple(t.detach().double().requires_grad_() for t in dense)
    up = torch.randn_like(out)
    found = torch.autograd.grad(out, (q, k, v), up)
    results = reference(*wide, seen), reference(*dense, seen)
    accurate(out, results[0][0][0].transpose(0, 1), results[1][0][0].transpose(0, 1), "output")
    along = up.transpose(0, 1).unsqueeze(0)
    right, plain = (torch.autograd.grad(r[0], t, along.to(r[0].dtype)) for r, t in zip(results, (wide, dense)))
    for name, f, r, p in zip("qkv", found, right, plain):
        accurate(f.transpose(0, 1).unsqueeze(0), r, p, f"gradient of {name}")
    same(found[1][: int(cu_k[1])], torch.zeros_like(found[1][: int(cu_k[1])]))

    slopes = torch.rand(8, device=device)
    out = flash_attn_varlen_func(q, k, v, cu_q, cu_k, 1208, 2538, causal=causal, alibi_slopes=slopes)
    bias = -slopes[:, None, None] * (here - torch.arange(k.shape[0], device=device)).abs()
    want, plain_out = reference(*wide, seen, bias.double())[0], reference(*dense, seen, bias.bfloat16())[0]
    accurate(out, want[0].transpose(0, 1), plain_out[0].transpose(0, 1), "output with ALiBi")


def test_a13_decoding_over_caches_of_different_lengths(device: torch.device) -> None:
    lengths = torch.tensor(pick([900, 1000, 120, 500], [90, 100, 12, 50]), device=device)
    q, k, v = (
        randn(4, h, s, 128, device=device, dtype=BF16) for h, s in ((32, 3), (8, pick(1000, 100)), (8, pick(1000, 100)))
    )
    out = tf.attention(
        q, k, v, mask=tf.mask.lengths(lengths), causal="bottom_right", sinks=torch.zeros(32, device=device)
    )
    for i, n in enumerate(lengths.tolist()):
        seen = torch.ones(3, n, dtype=torch.bool, device=device).tril(n - 3)
        want, lse = reference(*(t[i : i + 1, :, :n].double() for t in (q, k, v)), seen)
        plain = reference(*(t[i : i + 1, :, :n] for t in (q, k, v)), seen)[0]
        accurate(out[i : i + 1], want * lse.sigmoid().unsqueeze(-1), plain, f"entry {i}")


@pytest.mark.parametrize("hkv", [8, 2])
def test_dropout_replays_in_backward(hkv: int, device: torch.device) -> None:
    n, p = pick(1500, 150), 0.2
    ours = tuple(randn(2, h, n, 64, device=device, dtype=BF16, grad=True) for h in (8, hkv, hkv))
    wide = tuple(t.detach().double().requires_grad_() for t in ours)
    eye = torch.eye(n, device=device, dtype=BF16).expand(2, hkv, n, n)
    weights = [tf.attention(ours[0].detach() * 0, ours[1].detach(), e, dropout_p=p, seed=5) for e in eye.split(128, -1)]
    keep = torch.cat(weights, -1) > 0
    assert abs(float(keep.double().mean()) - 0.8) < 0.01

    def dropped(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        k, v = k.repeat_interleave(8 // hkv, 1), v.repeat_interleave(8 // hkv, 1)
        seen = torch.ones(n, n, dtype=torch.bool, device=device).tril()
        weights = (q @ k.mT * 64**-0.5).masked_fill(~seen, -math.inf).softmax(-1)
        return (weights * keep / (1 - p)).to(v.dtype) @ v

    results = tf.attention(*ours, causal=True, dropout_p=p, seed=5), dropped(*wide), dropped(*ours)
    accurate(*results, "output")
    up = torch.randn_like(results[0])
    grads = [torch.autograd.grad(o, t, up.to(o.dtype)) for o, t in zip(results, (ours, wide, ours))]
    for name, f, r, t in zip("qkv", *grads):
        accurate(f, r, t, f"gradient of {name}")


def test_shards_of_the_keys_equal_the_whole(device: torch.device) -> None:
    n, cuts = pick((4096, [1000, 24, 3072]), (200, [50, 3, 147]))
    q, k, v = (randn(1, h, n, 128, device=device, dtype=BF16, grad=True) for h in (8, 2, 2))
    sinks = randn(8, device=device, grad=True)
    out, lse = tf.attention(
        q, list(k.split(cuts, 2)), list(v.split(cuts, 2)), causal=True, sinks=sinks, return_lse=True
    )
    whole, whole_lse = tf.attention(q, k, v, causal=True, sinks=sinks, return_lse=True)
    torch.testing.assert_close(lse, whole_lse, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(out, whole, rtol=0.01, atol=0.01)
    up = torch.randn_like(out)
    for a, b in zip(*(torch.autograd.grad(o, (q, k, v, sinks), up) for o in (out, whole))):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02 * float(b.abs().max()))


PORTABLE_BIAS = pytest.mark.xfail(ON_GPU, reason="the portable loop divides by the sum of weights before rounding")


@pytest.mark.parametrize("features, d", [(64, 256), pytest.param(2, 512, marks=PORTABLE_BIAS)])
def test_a25_rounding_is_not_biased_where_keys_tie_at_the_maximum(features: int, d: int, device: torch.device) -> None:
    for gap in (9.0, 13.0, 15.0):
        check_ties(gap, 2.1, 3.9, device, features, d)
        check_ties(gap, -3.9, -2.1, device, features, d)


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
def test_a25_values_of_one_and_positive_values(dtype: torch.dtype, device: torch.device) -> None:
    q, k = (randn(2, h, pick(2000, 200), 128, device=device, dtype=dtype) for h in (8, 2))
    v = randn(2, 2, k.shape[2], 128, device=device).abs().to(dtype)
    same(tf.attention(q, k, torch.ones_like(v)), torch.ones_like(q))
    want = reference(q.double(), k.double(), v.double())[0]
    error = (tf.attention(q, k, v) - want) / ulp(want, dtype)
    assert error.mean().abs() < 0.05


@pytest.mark.parametrize("dtype", [torch.float16, BF16], ids=str)
def test_a25_values_of_one_give_one_in_float32(dtype: torch.dtype, device: torch.device) -> None:
    q, k = (randn(2, h, pick(2000, 200), 128, device=device, dtype=dtype) for h in (8, 2))
    ones = tf.attention(q, k, torch.ones_like(k), out_dtype=F32)
    assert (ones - 1.0).abs().max() < 2e-6


@pytest.mark.skipif(importlib.util.find_spec("transformers") is None, reason="transformers is absent")
def test_training_step_of_a_model_with_the_layers_of_llama_3_8b(device: torch.device) -> None:
    from test_compat import both, tiny

    size = {"hidden_size": 4096, "intermediate_size": 14336, "head_dim": 128, "num_attention_heads": 32}
    size |= {"num_key_value_heads": 8, "num_hidden_layers": 4, "vocab_size": 32000, "max_position_embeddings": 8192}
    model = tiny("Llama", **pick(size, {})).to(device, pick(BF16, F32))
    tokens = torch.randint(1, 99, (2, pick(2048, 20)), device=device)

    def step(model: Any) -> tuple[Tensor, Tensor]:
        loss = model(tokens, labels=tokens).loss
        loss.backward()
        return loss.detach().float(), model.model.layers[0].self_attn.q_proj.weight.grad.float()

    (loss, grad), (stock_loss, stock_grad) = both(model, "sdpa", step)
    torch.testing.assert_close(loss, stock_loss, rtol=2e-3, atol=0)
    assert (grad - stock_grad).norm() < 0.05 * stock_grad.norm()
    generate = lambda m: m.generate(tokens[:, :50], do_sample=False, max_new_tokens=8, min_new_tokens=8)
    ours, theirs = both(model.float(), "sdpa", generate)
    same(ours, theirs)


# ---- language-model heads -------------------------------------------------------------------------------


def test_h30_more_than_two_to_the_31_logits(device: torch.device) -> None:
    n, v = pick((17000, 128256), (170, 1282))
    x, w = (randn(m, 64, device=device, dtype=BF16, grad=True) for m in (n, v))
    y = torch.randint(0, v, (n,), device=device)
    loss = tf.linear_cross_entropy(x, w, y, reduction="none")
    up = torch.rand(n, device=device)
    gx, gw = torch.autograd.grad(loss, (x, w), up)
    want_w = torch.zeros(v, 64, device=device, dtype=F64)
    step = pick(1000, 50)
    for start in range(0, n, step):  # float32 logits, a chunk of rows at a time
        part = slice(start, start + step)
        a, b = x[part].detach().float().requires_grad_(), w.detach().float().requires_grad_()
        chunk = F.cross_entropy(a @ b.T, y[part], reduction="none")
        ga, gb = torch.autograd.grad(chunk, (a, b), up[part])
        torch.testing.assert_close(loss[part], chunk, rtol=1e-4, atol=1e-3)
        torch.testing.assert_close(gx[part].float(), ga, rtol=0.02, atol=0.02 * ga.abs().max().item())
        want_w += gb
    torch.testing.assert_close(gw.double(), want_w, rtol=0.02, atol=0.02 * want_w.abs().max().item())


def test_h30_more_rows_or_batch_entries_than_a_grid_dimension_takes(device: torch.device) -> None:
    n, batch = pick((70_001, 70_001), (701, 71))
    x, w = randn(n, 64, device=device, dtype=BF16), randn(99, 64, device=device, dtype=BF16)
    accurate(tf.scores(x, w).logsumexp(-1), (x.double() @ w.double().T).logsumexp(-1), (x @ w.T).logsumexp(-1))
    x, w = randn(batch, 5, 64, device=device, dtype=BF16), randn(batch, 9, 64, device=device, dtype=BF16)
    accurate(tf.scores(x, w).logsumexp(-1), (x.double() @ w.double().mT).logsumexp(-1), (x @ w.mT).logsumexp(-1))


def test_h9_small_vocabulary_of_many_rows(device: torch.device) -> None:
    n = pick(8192, 300)
    x, w = randn(n, 64, device=device, dtype=BF16, grad=True), randn(32, 64, device=device, dtype=BF16, grad=True)
    y = torch.randint(0, 32, (n,), device=device)
    wide = tuple(t.detach().double().requires_grad_() for t in (x, w))
    losses = (tf.linear_cross_entropy(x, w, y), F.cross_entropy(wide[0] @ wide[1].T, y), F.cross_entropy(x @ w.T, y))
    grads = [torch.autograd.grad(l, t) for l, t in zip(losses, ((x, w), wide, (x, w)))]
    for name, f, r, p in zip(("input", "linear_weight"), *grads):
        accurate(f, r, p, name)


def test_h47_tail_of_a_draw_at_a_gap_of_20(device: torch.device) -> None:
    v, n, gap = pick((262144, 100_000, 20.5), (2048, 500, 9.0))
    logits = torch.full((v,), -gap, device=device)
    logits[v // 3] = 0.0
    draws = tf.sample(torch.zeros(n, 16, device=device), torch.zeros(v, 16, device=device), linear_bias=logits, seed=1)
    odds = (v - 1) * math.exp(-gap)
    expected = n * odds / (1 + odds)
    hits = int((draws != v // 3).sum())
    assert abs(hits - expected) < 4.5 * math.sqrt(expected), f"{hits} draws of the tail, expected {expected:.1f}"
    assert draws.min() >= 0 and draws.max() < v


def test_h38_class_is_always_in_range(device: torch.device) -> None:
    n, v = pick((4096, 32000), (50, 320))
    x, w = -torch.ones(n, 16, device=device), torch.ones(v, 16, device=device)
    for seed in range(pick(20, 2)):
        draws = tf.sample(x, w, linear_bias=torch.zeros(v, device=device), seed=seed)
        assert 0 <= int(draws.min()) and int(draws.max()) < v


# ---- addresses ------------------------------------------------------------------------------------------


def test_columns_beyond_two_to_the_31_elements(device: torch.device) -> None:
    k = pick(2**25 + 77, 5000)
    y = torch.zeros(k, 64, device=device, dtype=BF16)
    x = randn(64, 64, device=device, dtype=BF16)
    y[k - 5 :] = 1.0
    y[k - 3, 0] = 2.0
    x[:, 0] = x[:, 0].abs() + 1
    x[:, 1] = 200.0  # the last five columns win, the third last above all
    same(tf.scores(x, y).argmax(-1), torch.full((64,), k - 3, device=device))
    s = x.double() @ y[k - 5 :].double().T
    want = torch.cat([s, torch.full((64, 1), math.log(k - 5), device=device, dtype=F64)], 1).logsumexp(1)
    torch.testing.assert_close(tf.scores(x, y).logsumexp(-1).double(), want, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("odd", [3, 8], ids=["odd stride", "stride of whole vectors"])
def test_rows_far_apart(odd: int, device: torch.device) -> None:
    n, gap = pick((40, 2**26 + odd), (40, 200 + odd))
    storage = torch.empty(n * gap, device=device, dtype=BF16)
    x = storage.as_strided((n, 64), (gap, 1))
    values = randn(n, 64, device=device, dtype=BF16)
    x.copy_(values)
    assert not ON_GPU or x.stride(0) * (n - 1) > 2**31
    y = randn(999, 64, device=device, dtype=BF16)
    # only the portable loop takes an odd stride, and bits are compared
    with select.using(**({"loop": "portable"} if odd % 8 else {})):
        same(tf.scores(x, y).logsumexp(-1), tf.scores(values, y).logsumexp(-1))
        same(tf.scores(y, x).argmax(-1), tf.scores(y, values).argmax(-1))


def test_result_beyond_two_to_the_31_elements(device: torch.device) -> None:
    n = pick(2**25 + 33, 700)
    q = torch.ones(1, 1, n, 64, device=device, dtype=BF16)
    q[0, 0, -1] = -1.0
    k, v = randn(1, 1, 50, 64, device=device, dtype=BF16), randn(1, 1, 50, 64, device=device, dtype=BF16)
    out = tf.attention(q, k, v)
    rows = sampled(n, 40, q.device)
    want = reference(q[:, :, rows].double(), k.double(), v.double())[0]
    accurate(out[:, :, rows], want, reference(q[:, :, rows], k, v)[0])
