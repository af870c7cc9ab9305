"""tf.attention against float64 on materialised scores, and inputs that broke other implementations.

Case numbers are those of the project's list of reports about attention.
"""

from __future__ import annotations

import math
import sys
import weakref
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate
from torch import Tensor

import tilefold as tf

DOUBLE = torch.float64
INF = math.inf


def reference(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible: Tensor | None = None,
    bias: Tensor | None = None,
    scale: float | Tensor | None = None,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(output, log-sum-exp) in plain torch, in the operands' type. A row that sees nothing gives 0 and -inf."""
    group = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    s = q @ k.mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s if softcap is None else softcap * torch.tanh(s / softcap)
    s = s if bias is None else s + bias
    if visible is None:
        return s.softmax(-1) @ v, s.logsumexp(-1)
    some = visible.expand(s.shape).any(-1, keepdim=True)
    s = s.masked_fill(~visible, -INF)
    p = torch.where(some, torch.where(some, s, 0.0).softmax(-1), 0.0)
    lse = torch.where(some.squeeze(-1), torch.where(some, s, 0.0).logsumexp(-1), -INF)
    return p @ v, lse


def qkv(
    b: int = 2,
    h: int = 4,
    hkv: int = 2,
    sq: int = 33,
    sk: int | None = None,
    d: int = 16,
    dv: int | None = None,
    dtype: torch.dtype = DOUBLE,
) -> tuple[Tensor, Tensor, Tensor]:
    sk, dv = sq if sk is None else sk, d if dv is None else dv
    shapes = ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))
    return tuple(torch.randn(s, dtype=torch.float32).to(dtype).requires_grad_() for s in shapes)  # type: ignore[return-value]


def causal(sq: int, sk: int, align: str = "top_left") -> Tensor:
    return torch.ones(sq, sk, dtype=torch.bool).tril(0 if align == "top_left" else sk - sq)


def window(sq: int, sk: int, left: int | None, right: int | None, shift: int = 0) -> Tensor:
    i, j = torch.arange(sq).unsqueeze(-1) + shift, torch.arange(sk)
    seen = torch.ones(sq, sk, dtype=torch.bool)
    seen = seen if left is None else seen & (j >= i - left)
    return seen if right is None else seen & (j <= i + right)


def agrees(got: tuple[Tensor, Tensor], want: tuple[Tensor, Tensor], *inputs: Tensor, tolerance: float = 1e-10) -> None:
    """Output, log-sum-exp, and all gradients of both together, in float64."""
    grads = []
    for out, lse in (got, want):
        torch.manual_seed(1)
        d_out, d_lse = torch.randn(out.shape, dtype=out.dtype), torch.randn(lse.shape, dtype=lse.dtype)
        weighted = (out * d_out).sum() + torch.where(lse.isfinite(), lse, 0.0).mul(d_lse).sum()
        grads.append(torch.autograd.grad(weighted, inputs, retain_graph=True))
    torch.testing.assert_close(got[0], want[0], rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got[1], want[1], rtol=tolerance, atol=tolerance)
    for a, b in zip(*grads):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance)


def run(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> tuple[Tensor, Tensor]:
    return tf.attention(q, k, v, return_lse=True, **options)


# ---- options -----------------------------------------------------------------------------------------------

HEADS = pytest.mark.parametrize(("h", "hkv"), [(2, 2), (6, 2), (3, 1)], ids=["multi", "grouped", "single-key"])


@HEADS
@pytest.mark.parametrize("sizes", [(1, 1), (1, 40), (33, 33), (7, 70), (70, 7), (130, 1030)], ids=str)
def test_sizes_and_grouped_heads(h: int, hkv: int, sizes: tuple[int, int]) -> None:
    sq, sk = sizes
    q, k, v = qkv(2, h, hkv, sq, sk, dv=9)
    agrees(run(q, k, v), reference(q, k, v), q, k, v)
    for align in ("top_left", "bottom_right"):
        agrees(run(q, k, v, causal=align), reference(q, k, v, causal(sq, sk, align)), q, k, v)


@pytest.mark.parametrize("d", [1, 3, 17, 100, 256])
def test_head_sizes(d: int) -> None:
    q, k, v = qkv(1, 2, 1, 21, 21, d)
    agrees(run(q, k, v, causal=True), reference(q, k, v, causal(21, 21)), q, k, v)


@HEADS
def test_queries_without_features_see_every_key_alike(h: int, hkv: int) -> None:
    q, k, v = qkv(2, h, hkv, 5, 7, 0, 3)
    agrees(run(q, k, v), reference(q, k, v, scale=1.0), q, k, v)
    agrees(run(q, k, v, causal="top_left"), reference(q, k, v, causal(5, 7), scale=1.0), q, k, v)
    torch.testing.assert_close(tf.attention(q, k, v)[:, :, 0], v.mean(-2).repeat_interleave(h // hkv, 1))


@HEADS
@pytest.mark.parametrize("sides", [(3, 0), (None, 2), (2, None), (4, 4), (0, 0), (None, None), (100, 100)], ids=str)
@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_windows(h: int, hkv: int, sides: tuple[int | None, int | None], align: str) -> None:
    q, k, v = qkv(1, h, hkv, 19, 27)
    shift = 0 if align == "top_left" else 8
    left, right = sides
    seen = window(19, 27, left, right, shift)
    agrees(run(q, k, v, mask=tf.mask.window(left, right, align=align)), reference(q, k, v, seen), q, k, v)
    both = seen & causal(19, 27, align)
    agrees(run(q, k, v, causal=align, window=sides), reference(q, k, v, both), q, k, v)


@pytest.mark.parametrize(
    "shape", [(1, 1), (19, 1), (1, 27), (19, 27), (4, 19, 27), (2, 1, 1, 27), (2, 4, 19, 27), (2, 1, 19, 27)], ids=str
)
@pytest.mark.parametrize("hkv", [4, 2])
def test_bias_and_boolean_mask_broadcast(shape: tuple[int, ...], hkv: int) -> None:
    q, k, v = qkv(2, 4, hkv, 19, 27)
    bias = torch.randn(shape, dtype=DOUBLE, requires_grad=True)
    agrees(run(q, k, v, bias=bias), reference(q, k, v, bias=bias), q, k, v, bias)
    seen = torch.rand(shape) < 0.7
    agrees(run(q, k, v, mask=seen), reference(q, k, v, seen), q, k, v)
    agrees(
        run(q, k, v, mask=seen, bias=bias, causal="top_left"),
        reference(q, k, v, seen & causal(19, 27), bias),
        q,
        k,
        v,
        bias,
    )


@HEADS
def test_lengths_belong_to_the_batch_entries(h: int, hkv: int) -> None:
    q, k, v = qkv(h, h, hkv, 9, 27)  # as many batch entries as heads: a mix-up would go through
    lengths = torch.randint(0, 28, (h,))
    seen = (torch.arange(27) < lengths.unsqueeze(-1)).reshape(h, 1, 1, 27)
    for given in (lengths, lengths.unsqueeze(-1)):
        agrees(run(q, k, v, mask=tf.mask.lengths(given)), reference(q, k, v, seen), q, k, v)
    per_head = torch.randint(0, 28, (h, h))
    seen = (torch.arange(27) < per_head.unsqueeze(-1)).unsqueeze(-2)
    agrees(run(q, k, v, mask=tf.mask.lengths(per_head)), reference(q, k, v, seen), q, k, v)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize(
    "options",
    [{"causal": "bottom_right"}, {"causal": "bottom_right", "window": (2, 0)}, {"alibi_slopes": True}],
    ids=str,
)
def test_lengths_of_narrow_integers_do_not_wrap(dtype: torch.dtype, options: dict[str, Any]) -> None:
    q, k, v = qkv(2, 2, 2, 200, 127)
    lengths = torch.tensor([3, 127])  # lengths - Sq is below the least of every 8-bit type
    if "alibi_slopes" in options:
        options = {"alibi_slopes": torch.rand(2, dtype=DOUBLE)}
    got, want = (run(q, k, v, mask=tf.mask.lengths(n), **options) for n in (lengths.to(dtype), lengths))
    assert torch.equal(got[0], want[0]) and torch.equal(got[1], want[1])


@HEADS
@pytest.mark.parametrize("lead", ["none", "batch", "heads"])
def test_packed_segments(h: int, hkv: int, lead: str) -> None:
    q, k, v = qkv(h, h, hkv, 20, 31)
    shape = {"none": (), "batch": (h,), "heads": (h, h)}[lead]
    rows = torch.randint(0, 6, (*shape, 20)).sort(-1).values
    cols = torch.randint(0, 6, (*shape, 31)).sort(-1).values
    seen = rows.unsqueeze(-1) == cols.unsqueeze(-2)
    seen = seen.unsqueeze(1) if lead == "batch" else seen
    agrees(run(q, k, v, mask=tf.mask.segments(rows, cols)), reference(q, k, v, seen), q, k, v)


@HEADS
def test_causal_inside_packed_segments(h: int, hkv: int) -> None:
    q, k, v = qkv(2, h, hkv, 29)
    ids = torch.tensor([0] * 5 + [1] * 1 + [3] * 23)
    seen = (ids.unsqueeze(-1) == ids) & causal(29, 29)
    agrees(run(q, k, v, causal=True, mask=tf.mask.segments(ids)), reference(q, k, v, seen), q, k, v)


@HEADS
@pytest.mark.parametrize("lead", [(), (1,), (2, 1), (1, "h")], ids=str)
def test_block_masks(h: int, hkv: int, lead: tuple[Any, ...]) -> None:
    q, k, v = qkv(2, h, hkv, 20, 31)
    table = torch.rand(*(h if n == "h" else n for n in lead), 3, 4) < 0.5
    seen = table.repeat_interleave(8, -2).repeat_interleave(8, -1)[..., :20, :31]
    agrees(run(q, k, v, mask=tf.mask.blocks(table, (8, 8))), reference(q, k, v, seen), q, k, v)


@HEADS
@pytest.mark.parametrize("softcap", [None, 1.5])
def test_scale_is_learnable(h: int, hkv: int, softcap: float | None) -> None:
    q, k, v = qkv(2, h, hkv, 19, 27)
    for shape in ((), (1,), (h, 1, 1), (2, h, 19, 1)):
        scale = torch.rand(shape, dtype=DOUBLE, requires_grad=True)
        agrees(
            run(q, k, v, scale=scale, softcap=softcap), reference(q, k, v, scale=scale, softcap=softcap), q, k, v, scale
        )


@pytest.mark.parametrize("scale", [-0.7, 0.0, 1.0, -30.0])
def test_scale_of_any_sign(scale: float) -> None:  # case 23
    q, k, v = qkv()
    agrees(run(q, k, v, scale=scale, causal=True), reference(q, k, v, causal(33, 33), scale=scale), q, k, v)
    if scale == 0:
        torch.testing.assert_close(
            tf.attention(q, k, v, scale=0.0), v.mean(-2, keepdim=True).repeat_interleave(2, 1).expand(q.shape)
        )


def test_everything_at_once() -> None:
    q, k, v = qkv(2, 6, 2, 45, 60, 12, 20)
    bias = torch.randn(6, 45, 60, dtype=DOUBLE, requires_grad=True)
    seen = torch.rand(2, 1, 45, 60) < 0.8
    got = run(q, k, v, causal="bottom_right", window=(20, 5), softcap=3.0, bias=bias, mask=seen, scale=0.4)
    visible = seen & causal(45, 60, "bottom_right") & window(45, 60, 20, 5, 15)
    agrees(got, reference(q, k, v, visible, bias, 0.4, 3.0), q, k, v, bias)


def test_equals_torchs_own_attention() -> None:
    q, k, v = qkv(hkv=4)
    torch.testing.assert_close(tf.attention(q, k, v), F.scaled_dot_product_attention(q, k, v))
    torch.testing.assert_close(
        tf.attention(q, k, v, causal=True), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )
    q, k, v = qkv(hkv=4, sq=9, sk=14)  # torch aligns top left
    torch.testing.assert_close(
        tf.attention(q, k, v, causal="top_left"), F.scaled_dot_product_attention(q, k, v, is_causal=True)
    )


# ---- types and accuracy ------------------------------------------------------------------------------------

HALVES = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)


@HALVES
@pytest.mark.parametrize("kind", ["full", "causal"])
def test_as_accurate_as_plain_torch(dtype: torch.dtype, kind: str) -> None:
    inputs = qkv(1, 4, 2, 300, 300, 64, dtype=dtype)
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    seen = causal(300, 300) if kind == "causal" else None
    got = run(*inputs, causal=kind == "causal")
    plain, want = reference(*inputs, seen), reference(*wide, seen)
    assert got[0].dtype == dtype and got[1].dtype == torch.float32
    accurate(got[0], want[0], plain[0], "output")
    accurate(got[1], want[1], plain[1], "log-sum-exp")
    up = torch.randn(got[0].shape).to(dtype)
    found = torch.autograd.grad(got[0], inputs, up)
    right = torch.autograd.grad(want[0], wide, up.double())
    theirs = torch.autograd.grad(plain[0], inputs, up)
    for name, f, r, t in zip("qkv", found, right, theirs):
        assert f.dtype == dtype
        accurate(f, r, t, f"gradient of {name}")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE], ids=str)
@pytest.mark.parametrize("sizes", [(5, 3000), (300, 300), (1, 4097)], ids=str)
def test_values_of_one_give_exactly_one(dtype: torch.dtype, sizes: tuple[int, int]) -> None:  # case 25
    q, k, v = (t.detach() * 3 for t in qkv(1, 2, 1, *sizes, 32, dtype=dtype))
    ones = torch.ones_like(v)
    out = tf.attention(q, k, ones, causal="bottom_right")
    if dtype.itemsize == 2:
        assert torch.equal(out, torch.ones_like(out))
    else:  # 1 but for the rounding of two sums in different orders, as in plain torch
        accurate(out, torch.ones_like(out), reference(q, k, ones, causal(*sizes, "bottom_right"))[0])


def test_constant_shift_of_the_keys_changes_nothing_but_rounding() -> None:
    q, k, v = qkv(1, 1, 1, 64, 64, 16, dtype=torch.float32)
    moved = tf.attention(q, k + 30.0, v)
    want = reference(q.double(), (k + 30.0).double(), v.double())[0]
    accurate(moved, want, reference(q, k + 30.0, v)[0])


def test_mixed_types() -> None:
    q, k, v = qkv()
    out = tf.attention(q.bfloat16(), k.float(), v.half())
    assert out.dtype == torch.bfloat16
    torch.testing.assert_close(out.double(), reference(q, k, v)[0], rtol=0.05, atol=0.05)


def test_autocast_computes_and_gives_the_lower_type_and_leaves_get_theirs() -> None:
    q, k, v = qkv(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        out = tf.attention(q, k, v, causal=True)
        assert F.scaled_dot_product_attention(q, k, v, enable_gqa=True).dtype == out.dtype == torch.bfloat16
    out.sum().backward()
    assert {q.grad.dtype, k.grad.dtype, v.grad.dtype} == {torch.float32}
    want = tf.attention(*(t.detach().bfloat16() for t in (q, k, v)), causal=True)
    assert torch.equal(out, want)


# ---- rows that see nothing, empty sizes --------------------------------------------------------------------


@HEADS
def test_query_that_sees_no_key(h: int, hkv: int) -> None:  # case 3: more queries than keys, aligned bottom right
    q, k, v = qkv(2, h, hkv, 50, 11)
    out, lse = run(q, k, v, causal="bottom_right")
    agrees((out, lse), reference(q, k, v, causal(50, 11, "bottom_right")), q, k, v)
    assert torch.equal(out[:, :, :39], torch.zeros_like(out[:, :, :39]))
    assert (lse[:, :, :39] == -INF).all() and lse[:, :, 39:].isfinite().all()
    for g in torch.autograd.grad(out.sum() + lse.sum(), (q, k, v)):
        assert not g.isnan().any()


@pytest.mark.parametrize("kind", [False, "top_left", "bottom_right"])
def test_no_key_at_all(kind: Any) -> None:  # case 7
    q, k, v = qkv(1, 4, 2, 5, 0)
    out, lse = run(q, k, v, causal=kind)
    assert torch.equal(out, torch.zeros(1, 4, 5, 16, dtype=DOUBLE)) and (lse == -INF).all()
    gq, gk, gv = torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))
    assert torch.equal(gq, torch.zeros_like(q)) and gk.shape == k.shape and gv.shape == v.shape


@pytest.mark.parametrize("sizes", [(0, 4, 2, 5, 7), (2, 4, 2, 0, 7), (0, 4, 2, 0, 0)], ids=str)
def test_no_query_or_no_batch(sizes: tuple[int, ...]) -> None:
    b, h, hkv, sq, sk = sizes
    q, k, v = qkv(b, h, hkv, sq, sk)
    out, lse = run(q, k, v)
    assert out.shape == (b, h, sq, 16) and lse.shape == (b, h, sq)
    for t, g in zip((q, k, v), torch.autograd.grad(out.sum() + lse.sum(), (q, k, v))):
        assert torch.equal(g, torch.zeros_like(t))


def test_segments_of_length_zero() -> None:  # case 9, scaled down; the sizes themselves are in the GPU leg
    cu_q, cu_k = [0, 0, 47, 80, 80], [0, 99, 167, 200, 320]
    q, k, v = qkv(1, 4, 1, 80, 320, 24)
    rows, cols = (torch.bucketize(torch.arange(c[-1]), torch.tensor(c[1:]), right=True) for c in (cu_q, cu_k))
    out, lse = run(q, k, v, mask=tf.mask.segments(rows, cols))
    agrees((out, lse), reference(q, k, v, rows.unsqueeze(-1) == cols), q, k, v)
    _, gk, gv = torch.autograd.grad(out.sum(), (q, k, v))
    for g in (gk, gv):
        assert torch.equal(g[:, :, :99], torch.zeros_like(g[:, :, :99]))
        assert torch.equal(g[:, :, 200:], torch.zeros_like(g[:, :, 200:]))
        assert g[:, :, 99:200].abs().sum(-1).all()


def test_packed_queries_of_one_token() -> None:  # case 11: q lengths 1, 0, 1 and k lengths 3, 0, 5
    q, k, v = qkv(1, 9, 3, 2, 8, 64)
    rows, cols = torch.tensor([0, 2]), torch.tensor([0] * 3 + [2] * 5)
    out = tf.attention(q, k, v, mask=tf.mask.segments(rows, cols))
    first = F.scaled_dot_product_attention(q[:, :, :1], k[:, :, :3], v[:, :, :3], enable_gqa=True)
    second = F.scaled_dot_product_attention(q[:, :, 1:], k[:, :, 3:], v[:, :, 3:], enable_gqa=True)
    torch.testing.assert_close(out, torch.cat([first, second], 2))


@pytest.mark.parametrize("align", ["top_left", "bottom_right"])
def test_alignment_is_named(align: str) -> None:  # case 5
    q, k, v = qkv(1, 1, 1, 2, 5)
    out = tf.attention(q, k, v, causal=align)
    seen = {"top_left": [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0]], "bottom_right": [[1, 1, 1, 1, 0], [1, 1, 1, 1, 1]]}[align]
    torch.testing.assert_close(out, reference(q, k, v, torch.tensor(seen).bool())[0])
    with pytest.raises(tf.errors.OptionError, match="causal.*Sq = 2 and Sk = 5.*top_left.*bottom_right"):
        tf.attention(q, k, v, causal=True)


def test_window_wider_than_the_keys_is_not_clipped() -> None:  # case 15
    q, k, v = qkv(1, 1, 1, 10, 4)
    torch.testing.assert_close(tf.attention(q, k, v, window=(None, 9)), tf.attention(q, k, v))
    torch.testing.assert_close(
        tf.attention(q, k, v, mask=tf.mask.window(None, 9, align="bottom_right")), tf.attention(q, k, v)
    )


def test_window_of_one_token_sees_itself() -> None:  # case 17: W tokens are (W - 1, 0)
    q, k, v = qkv(1, 4, 2, 12)
    torch.testing.assert_close(tf.attention(q, k, v, window=(0, 0)), v.repeat_interleave(2, 1))
    three = window(12, 12, 2, 0)
    assert three.sum(-1).tolist() == [1, 2] + [3] * 10
    torch.testing.assert_close(tf.attention(q, k, v, window=(2, 0)), reference(q, k, v, three)[0])


# ---- large and negative logits -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_negative_logits_beside_hidden_blocks(
    dtype: torch.dtype,
) -> None:  # case 1: scores near -200, last key block hidden
    d = 32
    q, k, v = (t.detach() * 0.1 for t in qkv(1, 14, 2, 88, 448, d, dtype=dtype))
    q[..., 0], k[..., 0] = 1.0, -200.0 * math.sqrt(d)
    inputs = tuple(t.requires_grad_() for t in (q, k, v))
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    seen = causal(88, 448, "bottom_right")
    got, want, plain = run(*inputs, causal="bottom_right"), reference(*wide, seen), reference(*inputs, seen)
    accurate(got[0], want[0], plain[0], "output")
    accurate(got[1], want[1], plain[1], "log-sum-exp")
    assert (got[1] < -190).all() and got[0].abs().amax((-1, -2)).min() > 0


@pytest.mark.parametrize("length", [704, 129, 257, 1025])
def test_gradients_stay_finite_in_a_ragged_tail_of_negative_logits(length: int) -> None:  # case 19, 39
    d = 64
    q, k, v = (torch.randn(1, 1, length, d) * 0.1 for _ in range(3))
    q[..., 0], k[..., 0] = 1.0, -120.0 * math.sqrt(d)
    inputs = tuple(t.bfloat16().requires_grad_() for t in (q, k, v))
    wide = tuple(t.detach().double().requires_grad_() for t in inputs)
    seen = causal(length, length)
    up = torch.randn(1, 1, length, d).bfloat16()
    out = tf.attention(*inputs, mask=seen)
    want, plain = reference(*wide, seen)[0], reference(*inputs, seen)[0]
    accurate(out, want, plain, "output")
    grads = [torch.autograd.grad(o, i, up.to(o.dtype)) for o, i in ((out, inputs), (want, wide), (plain, inputs))]
    for name, f, r, t in zip("qkv", *grads):
        accurate(f, r, t, f"gradient of {name}")


def test_negative_rows_beside_a_batch_entry_of_length_zero() -> None:  # case 21
    q, k, v = qkv(3, 2, 2, 40, 40, 16)
    with torch.no_grad():
        q[..., 0], k[..., 0] = 1.0, -4000.0
    lengths = torch.tensor([40, 0, 13])
    seen = (torch.arange(40) < lengths.unsqueeze(-1)).reshape(3, 1, 1, 40)
    agrees(run(q, k, v, mask=tf.mask.lengths(lengths)), reference(q, k, v, seen), q, k, v)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_scores_beyond_the_range_of_half_precision(dtype: torch.dtype) -> None:
    q, k, v = (t.detach() * 60 for t in qkv(1, 1, 1, 30, 30, 256, dtype=dtype))
    out, lse = run(q, k, v, scale=1.0)
    assert out.isfinite().all() and lse.isfinite().all() and lse.max() > 7e4
    torch.testing.assert_close(
        out.double(), reference(q.double(), k.double(), v.double(), scale=1.0)[0], rtol=0.02, atol=0.02
    )


def test_zeros_give_zeros() -> None:  # case 33, scaled down
    z = torch.zeros(1, 1, 515, 64, dtype=torch.bfloat16)
    out, lse = run(z, z, z)
    assert torch.equal(out, z)
    torch.testing.assert_close(lse, torch.full((1, 1, 515), math.log(515)))


def test_infinite_and_nan_inputs_stay_in_their_rows() -> None:
    q, k, v = qkv(1, 2, 2, 20, 20, 8)
    with torch.no_grad():
        q[0, 0, 3], q[0, 1, 7, 2] = math.nan, INF
    out, lse = run(q, k, v)
    bad = torch.zeros(1, 2, 20, dtype=torch.bool)
    bad[0, 0, 3] = bad[0, 1, 7] = True
    assert torch.equal(out.isnan().any(-1), bad) and out[~bad].isfinite().all() and lse[~bad].isfinite().all()
    (g,) = torch.autograd.grad(out[~bad].sum(), q)
    assert g[~bad].isfinite().all()


@pytest.mark.parametrize("value", [math.nan, INF, -INF])
def test_bias_of_minus_infinity_hides_and_nan_spoils_its_row(value: float) -> None:
    q, k, v = qkv(1, 2, 2, 20, 20, 8)
    bias = torch.zeros(20, 20, dtype=DOUBLE)
    bias[4, 6] = value
    out = tf.attention(q, k, v, bias=bias)
    want = reference(q, k, v, bias=bias)[0]
    torch.testing.assert_close(out, want, equal_nan=True)
    assert bool(out[:, :, 4].isfinite().all()) == (value == -INF)


# ---- strides, views, batches -------------------------------------------------------------------------------


def test_strides_of_any_kind() -> None:  # case 29
    b, s, h, d = 1, 129, 4, 16
    q = torch.randn(b, h, d, s, dtype=DOUBLE).mT.requires_grad_()  # stride(-1) != 1
    k = torch.randn(b, h, s, d, dtype=DOUBLE).requires_grad_()
    v = torch.randn(b, s, h, d, dtype=DOUBLE).transpose(1, 2).requires_grad_()
    agrees(run(q, k, v, causal=True), reference(q, k, v, causal(s, s)), q, k, v)
    packed = torch.randn(b, s, 3, h, 2 * d, dtype=DOUBLE, requires_grad=True)
    q, k, v = (t[..., ::2] for t in packed.transpose(1, 3).unbind(2))
    agrees(run(q, k, v), reference(q, k, v), packed)


@pytest.mark.parametrize("view", ["cat", "expanded", "transposed"])
def test_upstream_gradient_of_any_strides(
    view: str,
) -> None:  # case 31: a view of cat([attention, mlp], 1); the size is in the GPU leg
    q, k, v = qkv(1, 2, 1, 30, 30, 8)
    up = {
        "cat": torch.randn(1, 2, 30, 21, dtype=DOUBLE)[..., 5:13],
        "expanded": torch.randn(1, 1, 1, 1, dtype=DOUBLE).expand(1, 2, 30, 8),
        "transposed": torch.randn(8, 30, 2, 1, dtype=DOUBLE).permute(3, 2, 1, 0),
    }[view]
    found = torch.autograd.grad(tf.attention(q, k, v), (q, k, v), up)
    right = torch.autograd.grad(reference(q, k, v)[0], (q, k, v), up)
    torch.testing.assert_close(found, right)


def test_other_sequences_do_not_change_when_one_length_does() -> None:  # case 13
    q, k, v = qkv(4, 8, 2, 1, 1000, 32, dtype=torch.float32)
    long, short = torch.tensor([900, 1000, 120, 500]), torch.tensor([800, 1000, 120, 500])
    a, b = (tf.attention(q, k, v, mask=tf.mask.lengths(n)) for n in (long, short))
    assert torch.equal(a[1:], b[1:]) and not torch.equal(a[0], b[0])


def test_batch_entries_do_not_depend_on_the_batch() -> None:  # case 13, 33 (350 k keys, batch 32 against 1)
    q, k, v = qkv(5, 2, 1, 3, 400, 32, dtype=torch.float32)
    whole = tf.attention(q, k, v)
    for i in range(5):
        torch.testing.assert_close(
            tf.attention(q[i : i + 1], k[i : i + 1], v[i : i + 1])[0], whole[i], rtol=1e-6, atol=1e-6
        )


def test_decoding_a_token_equals_its_row_of_the_whole() -> (
    None
):  # case 27: equal to rounding; bits depend on a matmul's shape
    q, k, v = qkv(1, 4, 2, 70, 70, 32, dtype=torch.float32)
    whole, lse = run(q, k, v, causal=True)
    for i in (0, 1, 36, 69):
        one, one_lse = run(q[:, :, i : i + 1], k[:, :, : i + 1], v[:, :, : i + 1], causal="bottom_right")
        torch.testing.assert_close(one[:, :, 0], whole[:, :, i], rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(one_lse[:, :, 0], lse[:, :, i], rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_repeated_calls_give_equal_bits(dtype: torch.dtype) -> None:  # case 35
    q, k, v = qkv(1, 16, 2, 129, 129, 512, dtype=dtype)
    results = []
    for _ in range(3):
        out, lse = run(q, k, v)
        results.append((out, lse, *torch.autograd.grad(out.sum(), (q, k, v))))
    assert all(r.isfinite().all() for r in results[0])
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other))


# ---- gradients through the log-sum-exp, head order, scores algebra -----------------------------------------


@HEADS
def test_log_sum_exp_is_differentiable_alone(h: int, hkv: int) -> None:  # case 37
    q, k, v = qkv(2, h, hkv, 20, 30)
    _, lse = run(q, k, v, causal="bottom_right")
    want = reference(q, k, v, causal(20, 30, "bottom_right"))[1]
    up = torch.randn(lse.shape, dtype=DOUBLE)
    found = torch.autograd.grad((lse * up).sum(), (q, k), retain_graph=True)
    assert all(g.abs().sum() > 0 for g in found)
    torch.testing.assert_close(found, torch.autograd.grad((want * up).sum(), (q, k)))
    (gv,) = torch.autograd.grad(lse.sum(), v, allow_unused=True)
    assert gv is None or torch.equal(gv, torch.zeros_like(v))


def test_query_head_reads_key_head_h_over_group() -> None:  # case 41
    q, k, v = qkv(1, 64, 8, 5, 5)
    out, lse = run(q, k, v)
    for h in (0, 7, 8, 63):
        one = reference(q[:, h : h + 1], k[:, h // 8 : h // 8 + 1], v[:, h // 8 : h // 8 + 1])
        torch.testing.assert_close(out[:, h], one[0][:, 0])
        torch.testing.assert_close(lse[:, h], one[1][:, 0])


@pytest.mark.parametrize("length", [257, 128])
def test_score_modification_by_position(length: int) -> None:  # case 39: causal with s + (i - j)
    q, k, v = (t.detach().bfloat16().requires_grad_() for t in qkv(1, 1, 1, length, length, 64))
    s = tf.scores(q, k) * 64**-0.5 + (tf.row_index() - tf.col_index())
    out = tf.fold(s.visible(tf.mask.causal()), tf.SoftmaxSum(v))
    wide = tuple(t.detach().double().requires_grad_() for t in (q, k, v))
    i = torch.arange(length)
    bias = (i.unsqueeze(-1) - i).double()
    want = reference(*wide, causal(length, length), bias)[0]
    plain = reference(q, k, v, causal(length, length), bias.bfloat16())[0]
    accurate(out, want, plain, "output")
    up = torch.randn(out.shape).bfloat16()
    grads = [torch.autograd.grad(o, x, up.to(o.dtype)) for o, x in ((out, (q, k, v)), (want, wide), (plain, (q, k, v)))]
    for name, f, r, t in zip("qkv", *grads):
        accurate(f, r, t, f"gradient of {name}")


@pytest.mark.parametrize("sizes", [(12, 12), (3, 12), (1, 12)], ids=str)
def test_alibi_is_aligned_at_the_last_query(sizes: tuple[int, int]) -> None:  # case 45: -slope |i + Sk - Sq - j|
    sq, sk = sizes
    q, k, v = qkv(2, 4, 4, sq, sk)
    slopes = torch.tensor([2.0 ** -(i + 1) for i in range(4)], dtype=DOUBLE).reshape(4, 1, 1)
    away = tf.row_index() + (sk - sq) - tf.col_index()
    s = tf.scores(q, k) * 16**-0.5
    s = s + away.abs() * (s * 0.0 - slopes)
    bias = -slopes * (torch.arange(sq).unsqueeze(-1) + sk - sq - torch.arange(sk)).abs()
    want = reference(q, k, v, bias=bias)
    torch.testing.assert_close(s.softmax(-1) @ v, want[0])
    agrees(run(q, k, v, bias=bias), want, q, k, v)


# ---- tracing, transforms -----------------------------------------------------------------------------------


def test_compiles_into_one_graph_for_changing_sizes() -> None:  # case 43
    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        out, lse = tf.attention(q, k, v, causal="bottom_right", window=(9, None), return_lse=True)
        return (out * out).sum() + lse.sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True, dynamic=True)
    for sq, sk in ((12, 20), (13, 27)):
        q, k, v = qkv(2, 4, 2, sq, sk)
        found = torch.autograd.grad(compiled(q, k, v), (q, k, v))
        torch.testing.assert_close(found, torch.autograd.grad(loss(q, k, v), (q, k, v)))


def test_result_has_the_layout_that_tracing_expects() -> None:  # case 43: fake kernels whose strides differ
    q, k, v = qkv(2, 4, 2, 12, 20)
    real = run(q.transpose(0, 2).contiguous().transpose(0, 2), k, v)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = run(*(mode.from_tensor(t) for t in (q, k, v)))
    assert [(t.shape, t.dtype, t.stride()) for t in fake] == [(t.shape, t.dtype, t.stride()) for t in real]


def test_vmap_over_the_batch() -> None:
    q, k, v = (t.detach() for t in qkv(3, 4, 2, 9, 9))
    mapped = torch.vmap(lambda *t: tf.attention(*(x.unsqueeze(0) for x in t), causal=True).squeeze(0))(q, k, v)
    torch.testing.assert_close(mapped, tf.attention(q, k, v, causal=True))


def test_functional_gradient() -> None:
    q, k, v = (t.detach() for t in qkv(1, 2, 1, 9, 9))
    found = torch.func.grad(lambda *t: tf.attention(*t, causal=True).square().sum(), (0, 1, 2))(q, k, v)
    right = torch.func.grad(lambda *t: reference(*t, causal(9, 9))[0].square().sum(), (0, 1, 2))(q, k, v)
    torch.testing.assert_close(found, right)


# ---- calls that are known ----------------------------------------------------------------------------------


def test_second_call_reads_and_differentiates_as_the_first() -> None:
    for h, hkv in ((2, 2), (4, 2)):
        for _ in range(3):
            q, k, v = qkv(2, h, hkv, 9, 11)
            options = {"causal": "bottom_right", "window": (4, None), "softcap": 3.0, "scale": 0.5}
            i, j = torch.arange(9).unsqueeze(-1) + 2, torch.arange(11)
            want = reference(q, k, v, (j <= i) & (j >= i - 4), scale=0.5, softcap=3.0)
            agrees(run(q, k, v, **options), want, q, k, v)
            with torch.no_grad():
                torch.testing.assert_close(tf.attention(q, k, v, **options), want[0])


def test_options_that_are_equal_stay_apart() -> None:
    q, k, v = (t.detach() for t in qkv(1, 1, 1, 3, 3))
    tf.attention(q, k, v, causal=True)
    with pytest.raises(ValueError, match="causal: got 1"):
        tf.attention(q, k, v, causal=1)  # type: ignore[arg-type]
    for scale in (1.0, 1, 2, 2.0):
        torch.testing.assert_close(tf.attention(q, k, v, scale=scale), reference(q, k, v, scale=scale)[0])
    for wide in (1, True):
        seen = window(3, 3, 1, 0)
        torch.testing.assert_close(tf.attention(q, k, v, window=(wide, 0)), reference(q, k, v, seen)[0])
    with pytest.raises(ValueError, match="left"):
        tf.attention(q, k, v, window=([1], 0))  # type: ignore[arg-type]


def test_autocast_is_noticed_in_a_known_call() -> None:
    q, k, v = (t.detach() for t in qkv(1, 1, 1, 3, 3, dtype=torch.float32))
    tf.attention(q, k, v)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert tf.attention(q, k, v).dtype == torch.bfloat16
    assert tf.attention(q, k, v).dtype == torch.float32


def test_known_calls_are_few_and_keep_no_operand() -> None:
    ops = sys.modules["tilefold.ops.attention"]
    before = dict(ops._programs)
    q = torch.zeros(1, 1, 1, 1)
    for d in range(1, ops.KEPT + 9):
        tf.attention(q.expand(1, 1, 1, d), q.expand(1, 1, 1, d), q)
    assert 0 < len(ops._programs) <= ops.KEPT
    kept = weakref.ref(q)
    del q
    assert kept() is None
    ops._programs.update(before)


# ---- bad input ---------------------------------------------------------------------------------------------


def _zeros(*shape: int, **kwargs: Any) -> Tensor:
    return torch.zeros(*shape, **kwargs)


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"q": _zeros(4, 5, 8)}, RuntimeError, "q: .*four dimensions"),
        ({"k": _zeros(2, 2, 7, 9)}, RuntimeError, "D = "),
        ({"k": _zeros(2, 3, 7, 8)}, RuntimeError, "Hkv"),
        ({"k": _zeros(2, 3, 7, 8), "v": _zeros(2, 3, 7, 8)}, RuntimeError, "k: .*heads"),
        ({"k": _zeros(2, 0, 7, 8), "v": _zeros(2, 0, 7, 8)}, RuntimeError, "k: .*heads"),
        ({"v": _zeros(2, 2, 6, 8)}, RuntimeError, "Sk"),
        ({"k": _zeros(1, 2, 7, 8)}, RuntimeError, "Hkv"),
        ({"q": _zeros(2, 4, 5, 8, dtype=torch.int64)}, RuntimeError, "q: .*int64"),
        ({"v": _zeros(2, 2, 7, 8, dtype=torch.int64)}, RuntimeError, "v: .*int64"),
        ({"causal": "left"}, ValueError, "causal.*'left'"),
        ({"causal": True}, ValueError, "causal"),
        ({"window": (-1, 0)}, ValueError, "left: got -1"),
        ({"softcap": -1.0}, ValueError, "softcap"),
        ({"softcap": INF}, ValueError, "softcap: got inf"),
        ({"softcap": "a"}, TypeError, "softcap: got str"),
        ({"mask": _zeros(5, 7)}, RuntimeError, "mask.*bool"),
        ({"mask": _zeros(5, 6, dtype=torch.bool)}, RuntimeError, r"\(5, 6\)"),
        ({"mask": _zeros(3, 5, 7, dtype=torch.bool)}, RuntimeError, r"mask: .*\[2, 4, 5, 7\]"),
        ({"bias": _zeros(2, 5, 7)}, RuntimeError, r"bias: .*\[2, 4, 5, 7\]"),
        ({"bias": _zeros(5, 7, dtype=torch.bool)}, RuntimeError, "bias: got a tensor of torch.bool"),
        ({"k": _zeros(2, 2, 7, 4)}, RuntimeError, "q, k: got D = 8 and 4"),
        ({"q": [1.0]}, TypeError, "q: got list; expected a tensor"),
        ({"causal": 1}, ValueError, "causal: got 1; expected False, True"),
        ({"window": 3}, ValueError, "window: got 3; expected"),
        ({"window": (1.5, 0)}, ValueError, "left: got 1.5"),
        ({"mask": tf.mask.lengths(torch.tensor([1, 2, 3]))}, RuntimeError, "lengths"),
        ({"bias": _zeros(4, 7)}, RuntimeError, r"\(4, 7\)"),
        ({"mask": tf.mask.blocks(torch.ones(3, 1, 1, 1).bool(), (8, 8))}, RuntimeError, "mask.blocks: .*3"),
        ({"mask": tf.mask.blocks(torch.ones(1, 2, 1, 1, 1).bool(), (8, 8))}, RuntimeError, "mask.blocks: .*1, 2, 1"),
        ({"mask": tf.mask.segments(torch.zeros(5, dtype=torch.int64))}, RuntimeError, "segments"),
        ({"mask": "causal"}, TypeError, "mask"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given: dict[str, Any] = {"q": _zeros(2, 4, 5, 8), "k": _zeros(2, 2, 7, 8), "v": _zeros(2, 2, 7, 8), **changes}
    with pytest.raises(error, match=names):
        tf.attention(**given)


def _integers(*shape: int) -> Tensor:
    return torch.zeros(shape, dtype=torch.int64)


@pytest.mark.parametrize("hkv", [4, 2])
@pytest.mark.parametrize("layout", ["bhsd", "bshd", "thd"])
@pytest.mark.parametrize("batch", [(3,), (3, 1), (3, 4), (1, 3), (1, 1, 4), (3, 1, 2)], ids=str)
def test_mask_of_another_batch_is_named(hkv: int, layout: Any, batch: tuple[int, ...]) -> None:
    q, k, v = qkv(1, 4, hkv, 5)
    options: dict[str, Any] = {"layout": layout}
    if layout != "bhsd":
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if layout == "thd":
        q, k, v = (t[0] for t in (q, k, v))
        options["cu_seqlens_q"] = torch.tensor([0, 2, 5])
    rows = _integers(*batch, 5)
    given = {
        "segments": tf.mask.segments(rows),
        "interval": tf.mask.interval(_integers(5), rows),
        "blocks": tf.mask.blocks(torch.ones(*batch, 1, 1).bool(), (8, 8)),
    }
    if layout != "thd":
        given["lengths"] = tf.mask.lengths(_integers(*batch))
    for name, mask in given.items():
        with pytest.raises(tf.errors.ShapeError, match=f"mask.{name}: got leading dimensions"):
            tf.attention(q, k, v, mask=mask, **options)


def test_second_derivative_is_an_error() -> None:
    q, k, v = qkv(1, 1, 1, 4, 4)
    (g,) = torch.autograd.grad(tf.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(tf.errors.GradientError):
        g.sum().backward()


@pytest.mark.parametrize("value", [math.nan, INF])
def test_what_padding_holds_is_never_seen(value: float) -> None:
    q, k, v = qkv(2, 4, 2, 9, 27)
    lengths = torch.tensor([27, 13])
    want = tf.attention(q, k, v, mask=tf.mask.lengths(lengths))
    right = torch.autograd.grad(want.square().sum(), (q, k, v))
    with torch.no_grad():
        k[1, :, 13:], v[1, :, 13:] = value, value
    out = tf.attention(q, k, v, mask=tf.mask.lengths(lengths))
    assert torch.equal(out, want)
    torch.testing.assert_close(torch.autograd.grad(out.square().sum(), (q, k, v)), right)
