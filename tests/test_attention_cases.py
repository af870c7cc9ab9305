"""What tf.attention takes beyond q, k and v: layouts, packed sequences, ALiBi, sinks, dropout, shards; against float64.

Case numbers are those of the project's list of reports about attention.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from accuracy import accurate
from test_attention import HEADS, agrees, causal, qkv, reference, run, window
from torch import Tensor

import tilefold as tf
from tilefold.folds import gumbel

DOUBLE = torch.float64
INF = math.inf


def leaf(*shape: int, dtype: torch.dtype = DOUBLE) -> Tensor:
    return torch.randn(*shape).to(dtype).requires_grad_()


# ---- layouts -----------------------------------------------------------------------------------------------


@HEADS
def test_layout_bshd(h: int, hkv: int) -> None:
    q, k, v = qkv(2, h, hkv, 19, 27, dv=9)
    sharded = [t.detach().transpose(1, 2).contiguous().requires_grad_() for t in (q, k, v)]
    out, lse = run(*sharded, layout="bshd", causal="bottom_right")
    assert out.shape == (2, 19, h, 9) and lse.shape == (2, h, 19) and out.is_contiguous()
    want = run(q, k, v, causal="bottom_right")
    torch.testing.assert_close((out.transpose(1, 2), lse), want)
    up, up_lse = torch.randn_like(out), torch.randn_like(lse)
    found = torch.autograd.grad((out, lse), sharded, (up, up_lse))
    right = torch.autograd.grad(want, (q, k, v), (up.transpose(1, 2), up_lse))
    for a, b in zip(found, right):
        torch.testing.assert_close(a.transpose(1, 2), b)


@pytest.mark.parametrize("layout", ["bhsd", "bshd"])
def test_sizes_of_nothing_in_every_layout(layout: Any) -> None:
    for b, sq, sk in ((0, 4, 5), (2, 0, 5), (2, 4, 0)):
        shapes = [(b, 4, sq, 8), (b, 2, sk, 8), (b, 2, sk, 8)]
        q, k, v = (leaf(*((s[0], s[2], s[1], s[3]) if layout == "bshd" else s)) for s in shapes)
        out, lse = run(q, k, v, layout=layout)
        assert out.shape == q.shape and lse.shape == (b, 4, sq) and not out.any()
        for g in torch.autograd.grad(out.sum(), (q, k, v)):
            assert not g.any()


# ---- packed sequences --------------------------------------------------------------------------------------

LENGTHS = {
    "self": ([5, 0, 9, 1, 17], None),
    "cross": ([3, 7, 0, 11], [9, 2, 4, 11]),
    "no keys": ([4, 6], [0, 5]),
    "no queries": ([0, 6], [3, 5]),
    "empty at both ends": ([0, 4, 0, 0], [0, 6, 0, 0]),
    "nothing": ([0, 0], [0, 0]),
    "no sequence": ([], []),
}


def cumulative(lengths: list[int], dtype: torch.dtype = torch.int32) -> Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(dtype)


def packed(kind: str, h: int, hkv: int, d: int = 12, dv: int = 7) -> tuple[Any, ...]:
    lq, lk = LENGTHS[kind]
    lk = lq if lk is None else lk
    q, k, v = leaf(sum(lq), h, d), leaf(sum(lk), hkv, d), leaf(sum(lk), hkv, dv)
    return q, k, v, cumulative(lq), cumulative(lk)


def one_by_one(q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, make: Any) -> tuple[Tensor, Tensor]:
    """The reference of each sequence, packed again; `make(i, q length, k length)` gives its options."""
    nothing = 0.0 * (q.sum() + k.sum() + v.sum())  # so that every gradient is there
    outs, lses = [q.new_zeros(0, q.shape[1], v.shape[-1]) + nothing], [q.new_zeros(q.shape[1], 0)]
    for i in range(cu_q.shape[0] - 1):
        a, b = (slice(int(cu[i]), int(cu[i + 1])) for cu in (cu_q, cu_k))
        part = [t.transpose(0, 1).unsqueeze(0) for t in (q[a], k[b], v[b])]
        if part[1].shape[2] == 0:  # torch has no log-sum-exp of nothing
            outs.append(q[a][..., :1].expand(-1, -1, v.shape[-1]) * 0.0)
            lses.append(torch.full((q.shape[1], part[0].shape[2]), -INF, dtype=q.dtype))
            continue
        out, lse = reference(*part, **make(i, part[0].shape[2], part[1].shape[2]))
        outs.append(out[0].transpose(0, 1))
        lses.append(lse[0])
    return torch.cat(outs), torch.cat(lses, 1)


@HEADS
@pytest.mark.parametrize("kind", LENGTHS)
@pytest.mark.parametrize("align", [False, "top_left", "bottom_right"])
def test_packed_sequences_equal_one_at_a_time(kind: str, align: Any, h: int, hkv: int) -> None:
    q, k, v, cu_q, cu_k = packed(kind, h, hkv)
    got = run(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal=align)
    assert got[0].shape == (q.shape[0], h, 7) and got[1].shape == (h, q.shape[0])
    assert got[0].is_contiguous() and got[1].is_contiguous()
    seen = (lambda i, a, b: {"visible": causal(a, b, align)}) if align else (lambda i, a, b: {})
    agrees(got, one_by_one(q, k, v, cu_q, cu_k, seen), q, k, v)


@pytest.mark.parametrize("sides", [(2, 0), (None, 1), (1, None), (3, 3)], ids=str)
@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_window_inside_packed_sequences(sides: tuple[int | None, int | None], align: str) -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)

    def visible(i: int, a: int, b: int) -> dict[str, Tensor]:
        return {"visible": window(a, b, *sides, 0 if align == "top_left" else b - a)}

    options: dict[str, Any] = {"layout": "thd", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    got = run(q, k, v, mask=tf.mask.window(*sides, align=align), **options)
    agrees(got, one_by_one(q, k, v, cu_q, cu_k, visible), q, k, v)
    both = lambda i, a, b: {"visible": visible(i, a, b)["visible"] & causal(a, b, align)}
    agrees(run(q, k, v, causal=align, window=sides, **options), one_by_one(q, k, v, cu_q, cu_k, both), q, k, v)


@HEADS
@pytest.mark.parametrize("per_sequence", [False, True])
def test_alibi_inside_packed_sequences(h: int, hkv: int, per_sequence: bool) -> None:  # case 45
    q, k, v, cu_q, cu_k = packed("cross", h, hkv)
    slopes = torch.rand((4, h) if per_sequence else (h,), dtype=DOUBLE, requires_grad=True)

    def bias(i: int, a: int, b: int) -> dict[str, Tensor]:
        own = slopes[i] if per_sequence else slopes
        return {"bias": -own[:, None, None] * (torch.arange(a)[:, None] + b - a - torch.arange(b)).abs()}

    got = run(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, alibi_slopes=slopes)
    agrees(got, one_by_one(q, k, v, cu_q, cu_k, bias), q, k, v, slopes)


def test_queries_and_keys_of_one_packing_may_say_causal_true() -> None:
    q, k, v, cu, _ = packed("self", 4, 2)
    want = run(q, k, v, layout="thd", cu_seqlens_q=cu, causal="bottom_right")
    torch.testing.assert_close(run(q, k, v, layout="thd", cu_seqlens_q=cu, causal=True), want)
    torch.testing.assert_close(run(q, k, v, layout="thd", cu_seqlens_q=cu, cu_seqlens_k=cu, causal=True), want)


def test_zero_length_sequences_get_zero_gradients() -> None:  # case 9, scaled down; its sizes are in the GPU leg
    cu_q, cu_k = (torch.tensor(c, dtype=torch.int32) for c in ([0, 0, 47, 80, 80], [0, 99, 167, 200, 320]))
    q, k, v = leaf(80, 4, 24), leaf(320, 1, 24), leaf(320, 1, 24)
    out = tf.attention(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
    _, gk, gv = torch.autograd.grad(out.sum(), (q, k, v))
    for g in (gk, gv):
        assert not g[:99].any() and not g[200:].any() and g[99:200].abs().sum((-1, -2)).all()


def test_packed_queries_of_one_token_are_padded_ones() -> None:  # case 11: q lengths 1, 0, 1 and k lengths 3, 0, 5
    q, k, v = leaf(2, 9, 64), leaf(8, 3, 64), leaf(8, 3, 64)
    cu_q, cu_k = cumulative([1, 0, 1]), cumulative([3, 0, 5])
    got = run(q, k, v, layout="thd", cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, causal="bottom_right")
    agrees(got, one_by_one(q, k, v, cu_q, cu_k, lambda i, a, b: {}), q, k, v)


@pytest.mark.parametrize("value", [math.nan, INF])
def test_tokens_behind_the_last_sequence_are_padding(value: float) -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    pad = lambda t: torch.cat([t.detach(), torch.full((5, *t.shape[1:]), value, dtype=DOUBLE)]).requires_grad_()
    options: dict[str, Any] = {"layout": "thd", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": "bottom_right"}
    longer = [pad(t) for t in (q, k, v)]
    (want, want_lse), (out, lse) = run(q, k, v, **options), run(*longer, **options)
    torch.testing.assert_close(out[:-5], want)
    torch.testing.assert_close(lse[:, :-5], want_lse)
    assert not out[-5:].any() and (lse[:, -5:] == -INF).all()
    found = torch.autograd.grad(out[:-5].square().sum(), longer)
    right = torch.autograd.grad(want.square().sum(), (q, k, v))
    for a, b in zip(found, right):
        torch.testing.assert_close(a[:-5], b)
        assert not a[-5:].any()


def test_interval_mask_is_public() -> None:
    q, k, v = qkv(2, 4, 2, 9, 14)
    start, stop = torch.randint(0, 14, (2, 4, 9)), torch.randint(0, 15, (2, 4, 9))
    j = torch.arange(14)
    seen = (j >= start.unsqueeze(-1)) & (j < stop.unsqueeze(-1))
    agrees(run(q, k, v, mask=tf.mask.interval(start, stop)), reference(q, k, v, seen), q, k, v)
    one = tf.mask.interval(start[0, 0], stop[0, 0])
    agrees(run(q, k, v, mask=one), reference(q, k, v, seen[0, 0]), q, k, v)
    with pytest.raises(tf.errors.ShapeError, match="start: got a tensor of torch.float32"):
        tf.mask.interval(torch.zeros(3), stop)


# ---- lengths per batch entry -------------------------------------------------------------------------------


@HEADS
def test_bottom_right_is_the_end_of_each_entrys_own_keys(h: int, hkv: int) -> None:
    q, k, v = qkv(5, h, hkv, 6, 20)
    lengths = torch.tensor([20, 0, 13, 6, 2])
    i, j = torch.arange(6)[:, None], torch.arange(20)
    here = i + (lengths - 6).reshape(5, 1, 1, 1)
    seen = (j <= here) & (j < lengths.reshape(5, 1, 1, 1))
    for given in (lengths, lengths.to(torch.int32), lengths[:, None]):
        got = run(q, k, v, mask=tf.mask.lengths(given), causal="bottom_right")
        agrees(got, reference(q, k, v, seen), q, k, v)
    got = run(q, k, v, mask=tf.mask.lengths(lengths), causal="bottom_right", window=(3, 0))
    agrees(got, reference(q, k, v, seen & (j >= here - 3)), q, k, v)
    slopes = torch.rand(h, dtype=DOUBLE)
    got = run(q, k, v, mask=tf.mask.lengths(lengths), alibi_slopes=slopes)
    bias = -slopes.reshape(h, 1, 1) * (here - j).abs()
    agrees(got, reference(q, k, v, j < lengths.reshape(5, 1, 1, 1), bias), q, k, v)


def test_top_left_does_not_depend_on_lengths() -> None:
    q, k, v = qkv(2, 4, 2, 9, 9)
    lengths = torch.tensor([9, 4])
    seen = causal(9, 9) & (torch.arange(9) < lengths.reshape(2, 1, 1, 1))
    for align in (True, "top_left"):
        agrees(run(q, k, v, mask=tf.mask.lengths(lengths), causal=align), reference(q, k, v, seen), q, k, v)


# ---- ALiBi, sinks, score functions -------------------------------------------------------------------------


@HEADS
@pytest.mark.parametrize("sizes", [(12, 12), (3, 12), (1, 12), (12, 3)], ids=str)
@pytest.mark.parametrize("align", [False, "bottom_right"])
def test_alibi(sizes: tuple[int, int], h: int, hkv: int, align: Any) -> None:  # case 45: -slope |i + Sk - Sq - j|
    sq, sk = sizes
    q, k, v = qkv(2, h, hkv, sq, sk)
    away = (torch.arange(sq).unsqueeze(-1) + sk - sq - torch.arange(sk)).abs()
    for shape in ((h,), (2, h)):
        slopes = torch.rand(shape, dtype=DOUBLE, requires_grad=True)
        seen = causal(sq, sk, "bottom_right") if align else None
        want = reference(q, k, v, seen, -slopes[..., None, None] * away)
        agrees(run(q, k, v, alibi_slopes=slopes, causal=align), want, q, k, v, slopes)


def with_sinks(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    """The reference with one more key per head, whose score is the sink and whose value is 0."""
    out, lse = reference(q, k, v, **options)
    sink = sinks.reshape(-1, 1)
    total = torch.where(lse == -INF, sink, torch.logaddexp(torch.where(lse == -INF, 0.0, lse), sink))
    return out * torch.where(lse == -INF, 0.0, (lse - total).exp()).unsqueeze(-1), total


@HEADS
@pytest.mark.parametrize("align", [False, "bottom_right"])
def test_sinks(h: int, hkv: int, align: Any) -> None:
    q, k, v = qkv(2, h, hkv, 19, 11)  # queries above the diagonal see no key: only the sink
    sinks = leaf(h)
    seen = causal(19, 11, align) if align else None
    got = run(q, k, v, sinks=sinks, causal=align)
    agrees(got, with_sinks(q, k, v, sinks, visible=seen), q, k, v, sinks)
    # by hand: softmax over the scores and the sink
    s = q.reshape(2, hkv, h // hkv, 19, 16) @ k.unsqueeze(2).mT / 4
    s = s.flatten(1, 2) if seen is None else s.flatten(1, 2).masked_fill(~seen, -INF)
    p = torch.cat([s, sinks.reshape(1, h, 1, 1).expand(2, h, 19, 1)], -1).softmax(-1)[..., :-1]
    torch.testing.assert_close(got[0], p @ v.repeat_interleave(h // hkv, 1))


def test_sinks_without_keys_are_the_log_sum_exp() -> None:
    q, k, v = qkv(1, 4, 2, 5, 0)
    sinks = leaf(4)
    out, lse = run(q, k, v, sinks=sinks)
    assert not out.any()
    torch.testing.assert_close(lse, sinks.reshape(1, 4, 1).expand(1, 4, 5))
    gq, g = torch.autograd.grad(out.sum() + lse.sum(), (q, sinks))
    assert not gq.any() and torch.equal(g, torch.full((4,), 5.0, dtype=DOUBLE))


def test_sinks_of_minus_infinity_change_nothing() -> None:
    q, k, v = qkv(1, 4, 2, 9, 5)
    sinks = torch.full((4,), -INF, dtype=DOUBLE, requires_grad=True)
    got, want = run(q, k, v, sinks=sinks, causal="bottom_right"), run(q, k, v, causal="bottom_right")
    agrees(got, want, q, k, v)
    up = torch.randn_like(got[0])
    for g in torch.autograd.grad(got[0], (q, k, v, sinks), up):
        assert g.isfinite().all()


def test_sinks_far_above_the_scores() -> None:
    q, k, v = (t.detach().float() for t in qkv(1, 2, 2, 5, 7))
    out, lse = run(q, k, v, sinks=torch.tensor([200.0, -200.0]))
    assert torch.equal(out[:, 0], torch.zeros(1, 5, 16)) and torch.equal(lse[:, 0], torch.full((1, 5), 200.0))
    torch.testing.assert_close(out[:, 1], tf.attention(q, k, v)[:, 1])


@HEADS
def test_score_function_written_over_scores(h: int, hkv: int) -> None:
    q, k, v = qkv(2, h, hkv, 13, 17)
    bias = leaf(17)
    shift = torch.arange(13.0, dtype=DOUBLE).unsqueeze(-1) - torch.arange(17.0, dtype=DOUBLE)

    def relative(s: tf.Scores) -> tf.Scores:
        return s + bias - 0.1 * (tf.row_index() - tf.col_index())

    got = run(q, k, v, score_mod=relative, causal="bottom_right")
    want = reference(q, k, v, causal(13, 17, "bottom_right"), bias - 0.1 * shift)
    agrees(got, want, q, k, v, bias)
    # the same without tf.attention, for one key head
    if h == hkv:
        s = relative(tf.scores(q, k) / 4).visible(tf.mask.causal("bottom_right"))
        torch.testing.assert_close(s.softmax(-1) @ v, want[0])


# ---- dropout -----------------------------------------------------------------------------------------------


def kept(b: int, h: int, sq: int, sk: int, p: float, seed: int) -> Tensor:
    """Which weights dropout keeps, [B, H, Sq, Sk]."""
    entry = torch.arange(b * h).reshape(b, h, 1, 1)
    noise = gumbel(torch.tensor(seed), torch.arange(sq).unsqueeze(-1), entry, torch.arange(sk), DOUBLE)
    return noise <= -math.log(-math.log1p(-p))


def with_dropout(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, p: float, visible: Tensor | None = None) -> Any:
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * q.shape[-1] ** -0.5
    some = None if visible is None else visible.any(-1, keepdim=True)
    if some is not None:
        s = torch.where(some, s.masked_fill(~visible, -INF), 0.0)
    weights = s.softmax(-1) * keep / (1 - p)
    lse = s.logsumexp(-1)
    if some is not None:
        weights, lse = torch.where(some, weights, 0.0), torch.where(some.squeeze(-1), lse, -INF)
    return weights @ v, lse


@HEADS
@pytest.mark.parametrize("p", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("align", [False, "bottom_right"])
def test_dropout_replays_in_backward(h: int, hkv: int, p: float, align: Any) -> None:
    q, k, v = qkv(2, h, hkv, 21, 15)  # at p = 0.95 some rows keep nothing
    keep = kept(2, h, 21, 15, p, 7)
    seen = causal(21, 15, align) if align else None
    want = with_dropout(q, k, v, keep, p, seen)
    for seed in (7, torch.tensor(7), torch.tensor([7], dtype=torch.int32)):
        agrees(run(q, k, v, dropout_p=p, seed=seed, causal=align), want, q, k, v)


def test_dropout_pattern_depends_on_place_alone() -> None:
    q, k, v = (t.detach() for t in qkv(3, 4, 2, 40, 50))
    ones = torch.eye(50, dtype=DOUBLE).expand(3, 2, 50, 50)
    weights = lambda *shape: tf.attention(
        q[:, :, : shape[0]], k[:, :, : shape[1]], ones[:, :, : shape[1]], dropout_p=0.3, seed=1
    )
    whole = weights(40, 50) > 0
    assert torch.equal(whole, kept(3, 4, 40, 50, 0.3, 1))
    assert torch.equal(weights(11, 23)[..., :23] > 0, whole[:, :, :11, :23])
    assert abs(whole.double().mean() - 0.7) < 0.01
    other = tf.attention(q, k, ones, dropout_p=0.3, seed=2) > 0
    assert abs((whole ^ other).double().mean() - 0.42) < 0.02  # 2 * 0.3 * 0.7: independent


def test_dropout_is_right_on_average() -> None:
    q, k, v = (t.detach().float() for t in qkv(1, 2, 2, 4, 6))
    mean = torch.stack([tf.attention(q, k, v, dropout_p=0.4, seed=i) for i in range(1500)]).mean(0)
    torch.testing.assert_close(mean, tf.attention(q, k, v), atol=0.12, rtol=0)


def test_dropout_without_a_seed_draws_one_from_torchs_generator() -> None:
    q, k, v = (t.detach() for t in qkv())
    torch.manual_seed(5)
    a, b = tf.attention(q, k, v, dropout_p=0.5), tf.attention(q, k, v, dropout_p=0.5)
    torch.manual_seed(5)
    assert torch.equal(a, tf.attention(q, k, v, dropout_p=0.5)) and not torch.equal(a, b)
    state = torch.get_rng_state()
    tf.attention(q, k, v, dropout_p=0.0)
    assert torch.equal(state, torch.get_rng_state())


def test_dropout_with_sinks_and_16_bit_operands() -> None:
    inputs = qkv(2, 4, 2, 60, 80, 32, dtype=torch.bfloat16)
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    sinks = torch.randn(4)
    out, lse = run(*inputs, dropout_p=0.2, seed=3, sinks=sinks)
    keep = kept(2, 4, 60, 80, 0.2, 3)

    def plain(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        k, v = k.repeat_interleave(2, 1), v.repeat_interleave(2, 1)
        s = torch.cat([q @ k.mT * 32**-0.5, sinks.to(q.dtype).reshape(1, 4, 1, 1).expand(2, 4, 60, 1)], -1)
        return (s.softmax(-1)[..., :-1] * keep / 0.8).to(v.dtype) @ v, s.logsumexp(-1)

    want, theirs = plain(*wide), plain(*inputs)
    assert out.dtype == torch.bfloat16 and lse.dtype == torch.float32
    accurate(out, want[0], theirs[0], "output")
    accurate(lse, want[1], theirs[1], "log-sum-exp")
    up = torch.randn(out.shape).bfloat16()
    grads = [
        torch.autograd.grad(o, i, up.to(o.dtype)) for o, i in ((out, inputs), (want[0], wide), (theirs[0], inputs))
    ]
    for name, f, r, t in zip("qkv", *grads):
        accurate(f, r, t, f"gradient of {name}")


# ---- shards of the keys ------------------------------------------------------------------------------------

SHARDED: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "bottom_right"},
    "causal top left": {"causal": "top_left"},
    "window": {"causal": "bottom_right", "window": (4, None)},
    "lengths": {"mask": tf.mask.lengths(torch.tensor([17, 3])), "causal": "bottom_right"},
    "segments": {"mask": tf.mask.segments(torch.tensor([0] * 4 + [2] * 6), torch.arange(19) // 7)},
    "interval": {"mask": tf.mask.interval(torch.arange(10), torch.arange(10) + 5)},
    "boolean": {"mask": torch.rand(2, 1, 10, 19) < 0.5},
    "softcap": {"softcap": 1.5, "scale": 0.3},
    "score function": {"score_mod": lambda s: s - 0.1 * (tf.row_index() - tf.col_index()).abs()},
    "dropout": {"dropout_p": 0.3, "seed": 4, "causal": "bottom_right"},
    "float32": {"out_dtype": torch.float32},
}


@pytest.mark.parametrize("hkv", [4, 2])
@pytest.mark.parametrize("name", SHARDED)
def test_shards_of_the_keys_equal_the_whole(name: str, hkv: int) -> None:
    q, k, v = qkv(2, 4, hkv, 10, 19)
    options = SHARDED[name]
    whole = run(q, k, v, **options)
    for sizes in ([19], [5, 14], [1, 0, 11, 7]):
        got = run(q, list(k.split(sizes, 2)), list(v.split(sizes, 2)), **options)
        assert got[0].dtype == whole[0].dtype
        agrees(got, whole, q, k, v, tolerance=1e-6 if name == "float32" else 1e-10)


@pytest.mark.parametrize("hkv", [4, 2])
def test_shards_with_tensors_over_the_keys(hkv: int) -> None:
    q, k, v = qkv(2, 4, hkv, 10, 19)
    bias, slopes, sinks, scale = leaf(4, 10, 19), leaf(2, 4), leaf(4), leaf(19)
    options: dict[str, Any] = {
        "bias": bias,
        "alibi_slopes": slopes,
        "sinks": sinks,
        "scale": scale,
        "causal": "top_left",
    }
    got = run(q, list(k.split([6, 13], 2)), list(v.split([6, 13], 2)), **options)
    agrees(got, run(q, k, v, **options), q, k, v, bias, slopes, sinks, scale)


def test_shards_of_packed_keys() -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    options: dict[str, Any] = {"layout": "thd", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k, "causal": "bottom_right"}
    got = run(q, list(k.split([4, 22])), list(v.split([4, 22])), **options)
    agrees(got, run(q, k, v, **options), q, k, v)


def test_shards_of_16_bit_keys_are_rounded_once() -> None:
    q, k, v = qkv(1, 4, 2, 70, 300, 32, dtype=torch.bfloat16)
    want = reference(*(t.double() for t in (q, k, v)))[0]
    got = tf.attention(q, list(k.split(100, 2)), list(v.split(100, 2)))
    assert got.dtype == torch.bfloat16
    accurate(got, want, reference(q, k, v)[0])


def test_a_row_that_no_shard_shows_anything() -> None:
    q, k, v = qkv(1, 4, 2, 9, 8)
    seen = torch.ones(9, 8, dtype=torch.bool)
    seen[2] = seen[5, :4] = seen[6, 4:] = False
    got = run(q, list(k.split(4, 2)), list(v.split(4, 2)), mask=seen, sinks=None)
    agrees(got, reference(q, k, v, seen), q, k, v)
    assert (got[1][:, :, 2] == -INF).all()


# ---- result type, bias of rounding -------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_float32_result_of_16_bit_operands(dtype: torch.dtype) -> None:
    inputs = qkv(1, 4, 2, 90, 90, 64, dtype=dtype)
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    out = tf.attention(*inputs, causal=True, out_dtype=torch.float32)
    want = reference(*wide, causal(90, 90))[0]
    assert out.dtype == torch.float32
    assert (out - want).abs().max() < 1e-5
    up = torch.randn(out.shape)
    plain = reference(*inputs, causal(90, 90))[0]
    grads = [torch.autograd.grad(o, i, up.to(o.dtype)) for o, i in ((out, inputs), (want, wide), (plain, inputs))]
    for name, f, r, t in zip("qkv", *grads):
        assert f.dtype == dtype
        accurate(f, r, t, f"gradient of {name}")
    assert tf.attention(*(t.float() for t in inputs), out_dtype=dtype).dtype == dtype


def ulp(x: Tensor, dtype: torch.dtype) -> Tensor:
    """The distance of neighbours at x in a type."""
    return torch.finfo(dtype).eps * 2.0 ** x.abs().log2().floor()


def check_ties(
    gap: float, low: float, high: float, device: torch.device | str = "cpu", features: int = 2, d: int = 512
) -> None:
    """Two scores tie at the top, the others lie `gap` below; values of one sign (Qiu & Yao, arXiv 2510.04212).

    The two values add up to a number half way between neighbours in bfloat16, and the rest lies always on one side.
    """
    rows, keys = 4, 256
    generator = torch.Generator().manual_seed(0)
    scores = -gap - torch.rand(keys, generator=generator, dtype=DOUBLE)
    scores[[17, 101]] = 0.0
    # two bfloat16 numbers make a score of 16 bits
    q = torch.tensor([1.0, 2.0**-8]).expand(1, 1, rows, 2).bfloat16().to(device)
    first = scores.bfloat16()
    k = torch.stack([first, ((scores - first.double()) * 256).bfloat16()], -1)[None, None].to(device)
    q, k = (torch.nn.functional.pad(t, (0, features - 2)) for t in (q, k))
    v = (low + (high - low) * torch.rand(1, 1, keys, d, generator=generator)).bfloat16().to(device)
    out = tf.attention(q, k, v, scale=1.0)
    want = reference(q.double(), k.double(), v.double(), scale=1.0)[0]
    error = (out.double() - want) / ulp(want, torch.bfloat16)
    standard_error = error.std() / math.sqrt(d)  # the rows are alike
    assert error.mean().abs() < 0.02 + 3 * standard_error
    exact = tf.attention(q, k, v, scale=1.0, out_dtype=torch.float32)
    assert ((exact - want) / ulp(want, torch.bfloat16)).mean().abs() < 0.02


@pytest.mark.parametrize("gap", [9.0, 13.0, 15.0])
@pytest.mark.parametrize("low, high", [(2.1, 3.9), (-3.9, -2.1)], ids=str)
def test_rounding_is_not_biased_where_keys_tie_at_the_maximum(gap: float, low: float, high: float) -> None:
    check_ties(gap, low, high)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("options", [{}, {"causal": "bottom_right"}], ids=["full", "causal"])
def test_signed_mean_error_of_positive_values(dtype: torch.dtype, options: dict[str, Any]) -> None:  # case 25
    q, k, v = (t.detach() for t in qkv(1, 4, 2, 64, 500, 64, dtype=dtype))
    v = v.abs()
    out = tf.attention(q, k, v, **options)
    seen = causal(64, 500, "bottom_right") if options else None
    want = reference(q.double(), k.double(), v.double(), seen)[0]
    error = (out.double() - want) / ulp(want, dtype)
    assert error.mean().abs() < 0.02
    exact = tf.attention(q, k, v, out_dtype=torch.float32, **options)
    assert ((exact - want) / ulp(want, dtype)).mean().abs() < 2e-3
    ones = tf.attention(q, k, torch.ones_like(v), out_dtype=torch.float32, **options)
    assert (ones - 1.0).abs().max() < 2e-6


# ---- rows that see nothing, padding ------------------------------------------------------------------------

EVERY: dict[str, dict[str, Any]] = {
    "alibi": {"alibi_slopes": torch.rand(4, dtype=DOUBLE)},
    "score function": {"score_mod": lambda s: s * 2.0 + tf.col_index()},
    "dropout": {"dropout_p": 0.3, "seed": 1},
    "float32": {"out_dtype": torch.float32},
    "sinks": {"sinks": torch.zeros(4, dtype=DOUBLE)},
    "bias": {"bias": torch.zeros(4, 12, 20, dtype=DOUBLE)},
}


@pytest.mark.parametrize("shards", [1, 3])
@pytest.mark.parametrize("name", EVERY)
def test_rows_that_see_nothing(name: str, shards: int) -> None:
    q, k, v = qkv(2, 4, 2, 12, 20)
    seen = torch.ones(2, 1, 12, 20, dtype=torch.bool)
    seen[1] = seen[0, :, 3] = False
    keys, values = (list(t.split([6, 6, 8], 2)) if shards == 3 else t for t in (k, v))
    out, lse = run(q, keys, values, mask=seen, **EVERY[name])
    nothing = ~seen.expand(2, 4, 12, 20).any(-1)
    assert not out[nothing].any() and out[~nothing].abs().sum(-1).all()
    assert torch.equal(lse == (0.0 if name == "sinks" else -INF), nothing)
    grads = torch.autograd.grad(out.square().sum() + lse[~nothing].sum(), (q, k, v))
    assert not grads[0][nothing].any() and not grads[1][1].any() and not grads[2][1].any()
    assert all(g.isfinite().all() for g in grads)


@pytest.mark.parametrize("value", [math.nan, INF])
@pytest.mark.parametrize("name", [n for n in EVERY if n != "bias"])
def test_what_padding_holds_is_never_seen(name: str, value: float) -> None:
    q, k, v = qkv(2, 4, 2, 9, 27)
    options = {**EVERY[name], "mask": tf.mask.lengths(torch.tensor([27, 13]))}
    want = tf.attention(q, k, v, **options)
    right = torch.autograd.grad(want.square().sum(), (q, k, v))
    with torch.no_grad():
        k[1, :, 13:], v[1, :, 13:] = value, value
    out = tf.attention(q, k, v, **options)
    assert torch.equal(out, want)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), (q, k, v)), right)


@pytest.mark.parametrize("d", [32, 48, 80, 96, 192, 256])
def test_head_sizes_and_strides_with_every_option(d: int) -> None:
    q = (
        torch.randn(2, 13, d, 4, dtype=DOUBLE).mT.transpose(1, 2).requires_grad_()
    )  # no stride is 1 where torch expects it
    k, v = (torch.randn(2, 17, 2, 2 * d, dtype=DOUBLE)[..., ::2].transpose(1, 2).requires_grad_() for _ in range(2))
    slopes, sinks = leaf(4), leaf(4)
    away = (torch.arange(13).unsqueeze(-1) + 4 - torch.arange(17)).abs()
    seen = causal(13, 17, "bottom_right")
    want = with_sinks(q, k, v, sinks, visible=seen, bias=-slopes.reshape(4, 1, 1) * away)
    got = run(q, k, v, alibi_slopes=slopes, sinks=sinks, causal="bottom_right")
    agrees(got, want, q, k, v, slopes, sinks)


# ---- tracing -----------------------------------------------------------------------------------------------

TRACED: dict[str, dict[str, Any]] = {
    "layout": {"layout": "bshd", "causal": True},
    "alibi and sinks": {"alibi_slopes": torch.rand(4, dtype=DOUBLE), "sinks": torch.rand(4, dtype=DOUBLE)},
    "lengths": {"mask": tf.mask.lengths(torch.tensor([11, 4])), "causal": "bottom_right"},
    "dropout": {"dropout_p": 0.3, "seed": 1},
    "float32": {"out_dtype": torch.float32},
    "score function": {"score_mod": lambda s: s - 0.1 * (tf.row_index() - tf.col_index()).abs()},
}


def compiled_like_eager(fn: Any, *inputs: Tensor, dynamic: bool | None = None) -> None:
    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    found = torch.autograd.grad(compiled(*inputs), inputs)
    torch.testing.assert_close(found, torch.autograd.grad(fn(*inputs), inputs))


@pytest.mark.parametrize("name", TRACED)
def test_options_compile_into_one_graph(name: str) -> None:  # case 43
    q, k, v = qkv(2, 4, 2, 11) if name != "layout" else (leaf(2, 11, h, 16) for h in (4, 2, 2))

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = tf.attention(q, k, v, return_lse=True, **TRACED[name])
        return out.square().sum() + lse.sum()

    compiled_like_eager(loss, q, k, v)


def test_packed_sequences_compile_into_one_graph() -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        options: dict[str, Any] = {"layout": "thd", "cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
        return tf.attention(q, k, v, causal="bottom_right", window=(4, 0), **options).square().sum()

    compiled_like_eager(loss, q, k, v, dynamic=True)


@pytest.mark.parametrize("dynamic", [False, True])
def test_shards_compile_into_one_graph(dynamic: bool) -> None:
    q, k, v = qkv(2, 4, 2, 10, 19)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        keys, values = list(k.split([6, 13], 2)), list(v.split([6, 13], 2))
        return tf.attention(q, keys, values, causal="bottom_right").square().sum()

    compiled_like_eager(loss, q, k, v, dynamic=dynamic)


META = SHARDED | TRACED | {"blocks": {"mask": tf.mask.blocks(torch.ones(2, 1, 1, 1).bool(), (32, 32))}}


def on_meta(value: Any) -> Any:
    """An option with its tensors, and those of a mask, on the meta device."""
    if isinstance(value, Tensor):
        return value.to("meta")
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(*(on_meta(getattr(value, f.name)) for f in dataclasses.fields(value)))
    return value


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("hkv", [4, 2])
@pytest.mark.parametrize("name", META)
def test_operands_on_the_meta_device_give_results_without_values(name: str, hkv: int) -> None:
    options = META[name]
    real = qkv(2, 4, hkv, 10, 19) if name != "layout" else [leaf(2, 11, h, 16) for h in (4, hkv, hkv)]
    want = run(*real, **options)
    q, k, v = (t.detach().to("meta").requires_grad_() for t in real)
    for _ in range(2):
        got = run(q, k, v, **{n: on_meta(o) for n, o in options.items()})
        assert [(t.device.type, t.shape, t.dtype, t.stride()) for t in got] == [
            ("meta", t.shape, t.dtype, t.stride()) for t in want
        ]
        grads = torch.autograd.grad(got[0].sum() + got[1].sum(), (q, k, v))
        assert [(g.device.type, g.shape) for g in grads] == [("meta", t.shape) for t in real]
    if name in SHARDED:
        got = run(q, list(k.split(10, 2)), list(v.split(10, 2)), **{n: on_meta(o) for n, o in options.items()})
        assert [t.shape for t in got] == [t.shape for t in want]


def test_packed_sequences_on_the_meta_device() -> None:
    q, k, v, cu_q, cu_k = packed("cross", 4, 2)
    options = {"layout": "thd", "causal": "bottom_right", "alibi_slopes": torch.rand(4, dtype=DOUBLE)}
    options |= {"cu_seqlens_q": cu_q, "cu_seqlens_k": cu_k}
    out, lse = run(*(t.to("meta") for t in (q, k, v)), **{n: on_meta(o) for n, o in options.items()})
    assert out.is_meta and lse.is_meta
    assert [t.shape for t in (out, lse)] == [t.shape for t in run(q, k, v, **options)]


def test_dropout_without_a_seed_compiles() -> None:
    q, k, v = qkv(1, 2, 2, 9)
    compiled = torch.compile(lambda *t: tf.attention(*t, dropout_p=0.5), backend="aot_eager", fullgraph=True)
    out = compiled(q, k, v)
    assert out.shape == q.shape and not torch.equal(out, tf.attention(q, k, v))
    assert all(g.isfinite().all() for g in torch.autograd.grad(out.sum(), (q, k, v)))


# ---- bad input ---------------------------------------------------------------------------------------------

CU = torch.tensor([0, 2, 5])


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"layout": "sbhd"}, ValueError, "layout: got 'sbhd'; expected 'bhsd', 'bshd', 'thd'"),
        ({"layout": ["bhsd"]}, ValueError, r"layout: got \['bhsd'\]"),
        ({"v": torch.zeros(2, 2, 7, 8).to_sparse()}, RuntimeError, "v: got a tensor of layout torch.sparse_coo"),
        ({"v": torch.zeros(2, 2, 7, 8, device="meta")}, RuntimeError, "v: got a tensor on meta"),
        ({"scale": "a"}, TypeError, "scale: got str; expected a number, a tensor"),
        ({"scale": 1j}, TypeError, "scale: got complex"),
        ({"scale": torch.tensor(1j)}, RuntimeError, "scale: got a tensor of torch.complex64"),
        ({"scale": torch.ones(1, device="meta")}, RuntimeError, "scale: got a tensor on meta; expected one on cpu"),
        ({"bias": torch.zeros(5, 7, device="meta")}, RuntimeError, "bias: got a tensor on meta"),
        ({"bias": torch.zeros(5, 7).to_sparse()}, RuntimeError, "bias: got a tensor of layout torch.sparse_coo"),
        ({"mask": torch.ones(5, 7).bool().to_sparse()}, RuntimeError, "mask: got a tensor of layout torch.sparse_coo"),
        ({"dropout_p": 0.1, "seed": torch.zeros(1, device="meta").long()}, RuntimeError, "seed: got a tensor on meta"),
        ({"dropout_p": 0.1, "seed": torch.tensor(1j)}, RuntimeError, "seed: got torch.complex64"),
        ({"out_dtype": "float32"}, ValueError, "out_dtype: got 'float32'; expected torch.float16"),
        ({"out_dtype": torch.float8_e4m3fn}, ValueError, "out_dtype: got torch.float8_e4m3fn"),
        ({"score_mod": 3}, ValueError, "score_mod: got 'int' object is not callable; expected a function of the"),
        ({"score_mod": lambda s, b, h, i, j: s}, ValueError, "score_mod: got .* missing 4 required .*scores alone"),
        ({"score_mod": lambda s: s + "a"}, TypeError, "operand: got str"),
        ({"layout": "thd"}, RuntimeError, r"q: .*three dimensions, \[T, H, D\]"),
        ({"layout": "bshd"}, RuntimeError, "k: got 7 heads for 5"),
        ({"cu_seqlens_q": CU}, ValueError, "layout: got 'bhsd' with cu_seqlens_q"),
        ({"cu_seqlens_k": CU}, ValueError, "cu_seqlens_k: got given without cu_seqlens_q"),
        ({"alibi_slopes": torch.zeros(2)}, RuntimeError, r"alibi_slopes: .*\(2,\).*\[4\] or \[2, 4\]"),
        ({"alibi_slopes": torch.zeros(4, dtype=torch.int64)}, RuntimeError, "alibi_slopes: .*int64"),
        ({"alibi_slopes": 0.5}, TypeError, "alibi_slopes: got float"),
        ({"sinks": torch.zeros(2)}, RuntimeError, r"sinks: .*\(2,\).*\[4\]"),
        ({"sinks": torch.zeros(4, dtype=torch.int32)}, RuntimeError, "sinks: .*int32"),
        ({"sinks": 0.5}, TypeError, "sinks: got float"),
        ({"dropout_p": 1.0}, ValueError, "dropout_p: got 1.0"),
        ({"dropout_p": -0.1}, ValueError, "dropout_p: got -0.1"),
        ({"dropout_p": "a lot"}, ValueError, "dropout_p: got 'a lot'"),
        ({"dropout_p": 0.1, "seed": 1.5}, TypeError, "seed: got float"),
        ({"dropout_p": 0.1, "seed": torch.zeros(2, dtype=torch.int64)}, RuntimeError, "seed: .*one integer"),
        ({"dropout_p": 0.1, "seed": torch.zeros(1)}, RuntimeError, "seed: got torch.float32"),
        ({"out_dtype": torch.int32}, ValueError, "out_dtype: got torch.int32"),
        ({"score_mod": lambda s: s.logsumexp(-1)}, ValueError, r"score_mod: got a function that returned Tensor of"),
        ({"score_mod": lambda s: s[..., :3]}, ValueError, "score_mod: got a function that returned Scores of"),
        ({"k": [], "v": []}, RuntimeError, "k, v: got lists of 0 and 0"),
        (
            {"k": [torch.zeros(2, 2, 7, 8)] * 2, "v": [torch.zeros(2, 2, 7, 8)]},
            RuntimeError,
            "k, v: got lists of 2 and 1",
        ),
        (
            {"k": [torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 3, 9)], "v": [torch.zeros(2, 2, 7, 8)] * 2},
            RuntimeError,
            r"q, k\[1\]: got D = 8 and 9",
        ),
        (
            {"k": [torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 3, 8)], "v": [torch.zeros(2, 2, 7, 8)] * 2},
            RuntimeError,
            r"q, k\[1\], v\[1\]: got shapes",
        ),
        (
            {"k": [torch.zeros(2, 2, 7, 8)] * 2, "v": [torch.zeros(2, 2, 7, 8), torch.zeros(2, 2, 7, 1)]},
            RuntimeError,
            r"q, k\[1\], v\[1\]: got shapes .*\(2, 2, 7, 1\)",
        ),
        (
            {
                "k": [torch.zeros(2, 2, 4, 8)] * 2,
                "v": [torch.zeros(2, 2, 4, 8)] * 2,
                "mask": tf.mask.blocks(torch.ones(1, 1, dtype=torch.bool), (8, 8)),
            },
            ValueError,
            "mask: got a block mask over a list of keys",
        ),
    ],
)
def test_bad_options_are_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given = {"q": torch.zeros(2, 4, 5, 8), "k": torch.zeros(2, 2, 7, 8), "v": torch.zeros(2, 2, 7, 8), **changes}
    with pytest.raises(error, match=names):
        tf.attention(**given)


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"cu_seqlens_q": None}, ValueError, "layout: got 'thd' without cu_seqlens_q"),
        ({"cu_seqlens_q": [0, 2, 5]}, TypeError, "cu_seqlens_q: got list"),
        ({"cu_seqlens_q": CU.float()}, RuntimeError, "cu_seqlens_q: got torch.float32"),
        ({"cu_seqlens_q": CU[None]}, RuntimeError, r"cu_seqlens_q: .*\(1, 3\)"),
        ({"cu_seqlens_q": CU + 1}, ValueError, r"cu_seqlens_q: got \[1, 3, 6\]"),
        ({"cu_seqlens_q": torch.tensor([0, 4, 3])}, ValueError, r"cu_seqlens_q: got \[0, 4, 3\]"),
        ({"cu_seqlens_q": torch.tensor([0, 4, 6])}, ValueError, "cu_seqlens_q: .* from 0 to at most 5"),
        ({"cu_seqlens_k": torch.tensor([0, 7])}, RuntimeError, "cu_seqlens_k: got 2 numbers; expected 3"),
        ({"cu_seqlens_k": torch.tensor([0, 7, 8])}, ValueError, "cu_seqlens_k: .* to at most 7"),
        ({"causal": True}, ValueError, "causal: got True with cu_seqlens_k"),
        ({"mask": tf.mask.lengths(torch.tensor([3]))}, ValueError, "mask: got lengths beside cu_seqlens_q"),
        ({"alibi_slopes": torch.zeros(3, 4)}, RuntimeError, r"alibi_slopes: .*\[4\] or \[2, 4\]"),
        ({"k": torch.zeros(7, 3, 8), "v": torch.zeros(7, 3, 8)}, RuntimeError, "k: got 3 heads for 4"),
        ({"v": torch.zeros(6, 2, 8)}, RuntimeError, r"q, k, v: .*\[Tk, Hkv, Dv\]"),
    ],
)
def test_bad_packing_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given = {"q": torch.zeros(5, 4, 8), "k": torch.zeros(7, 2, 8), "v": torch.zeros(7, 2, 8), "layout": "thd"}
    given |= {"cu_seqlens_q": CU, "cu_seqlens_k": torch.tensor([0, 3, 7]), **changes}
    with pytest.raises(error, match=names):
        tf.attention(**given)
