"""The warp-specialised loop and the portable one, both against float64 and each other, over random configurations."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from accuracy import accurate
from gpu_helpers import ON_GPU, integers, pick, randn
from torch import Tensor

import tilefold as tf
from tilefold.execute import select
from tilefold.execute.triton import plan

pytestmark = pytest.mark.skipif(not ON_GPU, reason="the loops themselves")
HOPPER = ON_GPU and torch.cuda.get_device_capability()[0] == 9
BF16, F16 = torch.bfloat16, torch.float16


def launched() -> set[str]:
    """Modules of the launches that are planned."""
    return {type(launch).__module__.split(".")[2] for _, launches, _ in plan._plans.values() for launch in launches}


def reference(q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, softcap: float | None) -> tuple[Tensor, Tensor]:
    """Materialised, in the operands' own type; 0 where nothing is visible."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, 1), v.repeat_interleave(groups, 1)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if softcap is not None:
        s = softcap * torch.tanh(s / softcap)
    if visible is not None:
        s = s.masked_fill(~visible, -torch.inf)
    lse = s.logsumexp(-1)
    p = (s - lse.nan_to_num(neginf=torch.inf).unsqueeze(-1)).exp()
    return p @ v, lse


MASKS: dict[str, Any] = {
    "none": lambda i, j, sq, sk: None,
    "top_left": lambda i, j, sq, sk: j <= i,
    "bottom_right": lambda i, j, sq, sk: j <= i + sk - sq,
    "window": lambda i, j, sq, sk: (j >= i - 70) & (j <= i + 30),
}


def configurations(part: int, parts: int) -> list[Any]:
    """Few structures, which cost a compilation each, and many sizes: 216 of all parts together."""
    draw = random.Random(7)
    kinds = [
        (d, dv, dtype, draw.choice(list(MASKS)), groups)
        for d, dv in ((64, 64), (128, 128), (256, 256), (192, 128), (96, 40), (16, 32))
        for dtype in (BF16, F16)
        for groups in (1, 4)
    ]
    sizes = (1, 2, 63, 64, 65, 127, 128, 129, 191, 192, 193, 300, 511, 777, 1024, 1500)
    made = [(*kind, draw.choice(sizes), draw.choice(sizes), draw.randint(1, 3)) for kind in kinds for _ in range(9)]
    return [c for c in made if kinds.index(c[:5]) % parts == part]


@pytest.mark.parametrize("part", range(8))
def test_attention_in_random_configurations(part: int, device: torch.device) -> None:
    for d, dv, dtype, mask, groups, sq, sk, batch in configurations(part, 8):
        softcap = 3.0 if mask == "window" else None
        q = randn(batch, 2 * groups, sq, d, device=device, dtype=dtype)
        k, v = (randn(batch, 2, sk, w, device=device, dtype=dtype) for w in (d, dv))
        i, j = torch.arange(sq, device=device)[:, None], torch.arange(sk, device=device)
        visible = MASKS[mask](i, j, sq, sk)
        options: dict[str, Any] = {"causal": mask} if mask in ("top_left", "bottom_right") else {}
        options |= {"window": (70, 30), "softcap": softcap} if mask == "window" else {}
        out, lse = tf.attention(q, k, v, return_lse=True, **options)
        what = f"D = {d}, Dv = {dv}, {dtype}, {mask}, {groups} heads share keys, {sq} x {sk}, batch {batch}"
        wide = reference(q.double(), k.double(), v.double(), visible, softcap)
        plain = reference(q, k, v, visible, softcap)
        accurate(out, wide[0], plain[0], what)
        accurate(lse, wide[1], plain[1].float(), f"{what}, log-sum-exp")


@pytest.mark.parametrize("d", [64, 128, 256])
@pytest.mark.parametrize("sq", [1, 4, 17, 64])
def test_few_queries_of_grouped_heads(d: int, sq: int, device: torch.device) -> None:
    """Packed rows; numbers of entries that cut the keys into many parts, into one, and unevenly."""
    for batch, kv, groups, sk in ((1, 8, 4, 20000), (17, 8, 4, 1500), (3, 1, 71, 700), (40, 4, 8, 129)):
        q = randn(batch, kv * groups, sq, d, device=device, dtype=BF16)
        k, v = (randn(batch, kv, sk, d, device=device, dtype=BF16) for _ in range(2))
        lengths = torch.randint(0, sk + 1, (batch,), device=device)
        slopes = torch.rand(kv * groups, device=device) * 0.01
        i, j = torch.arange(sq, device=device)[:, None], torch.arange(sk, device=device)
        here = i + lengths[:, None, None, None] - sq
        seen = (j < lengths[:, None, None, None]) & (j <= here) & (j >= here - 900)
        options: dict[str, Any]
        for options, visible in (
            ({}, None),
            ({"mask": tf.mask.lengths(lengths), "causal": "bottom_right", "window": (900, 0)}, seen),
        ):
            out, lse = tf.attention(q, k, v, return_lse=True, **options)
            what = f"{batch} x {kv} x {groups} heads of {d}, {sq} x {sk}, {[*options]}"
            wide = reference(q.double(), k.double(), v.double(), visible, None)
            plain = reference(q, k, v, visible, None)
            accurate(out, wide[0], plain[0], what)
            accurate(lse, wide[1], plain[1].float(), f"{what}, log-sum-exp")
        out = tf.attention(q, k, v, alibi_slopes=slopes)
        bias = -slopes[:, None, None] * (i + sk - sq - j).abs()
        with select.using(loop="portable"):
            portable = tf.attention(q, k, v, bias=bias.to(BF16) if sq == 1 else bias)
        torch.testing.assert_close(out, portable, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("d", [32, 64, 96, 128, 256])
@pytest.mark.parametrize("size", [1, 8, 16, 64, 100, 128, 384, 3000])
def test_pages_are_what_they_hold(size: int, d: int, device: torch.device) -> None:
    """Wild numbers where no key is, NaN in pages that nobody owns; whole tiles and parts, of one query and of many."""
    for batch, kv, groups, sq, keys in (
        (3, 2, 8, 1, 3000),
        (20, 4, 4, 3, 400),
        (2, 1, 2, 300, 700),
        (1, 8, 4, 1, 6000),
    ):
        places = max(1, keys // size)
        pages = batch * places + 3
        table = torch.randperm(pages, device=device)[: batch * places].reshape(batch, places).int()
        lengths = torch.randint(1, places * size + 1, (batch,), device=device)
        lengths[0] = places * size
        k, v = (randn(pages, size, kv, d, device=device, dtype=BF16) for _ in range(2))
        whole = [t[table.long()].flatten(1, 2) for t in (k, v)]
        nobody = torch.ones(pages, dtype=torch.bool, device=device)
        nobody[table.long()] = False
        k[nobody], v[nobody] = torch.nan, torch.nan
        wild = torch.arange(places, device=device) * size >= lengths[:, None]
        given = table.masked_fill(wild, 2**31 - 1)
        q = randn(batch, sq, kv * groups, d, device=device, dtype=BF16)
        options: dict[str, Any] = {"layout": "bshd", "mask": tf.mask.lengths(lengths), "causal": "bottom_right"}
        found = tf.attention(q, k, v, block_table=given, return_lse=True, **options)
        want = tf.attention(q, *whole, return_lse=True, **options)
        torch.testing.assert_close(found, want, rtol=0.02, atol=0.01)


@pytest.mark.skipif(not HOPPER, reason="where both loops serve")
@pytest.mark.parametrize("d", [40, 64, 128, 256])
def test_both_loops_agree_exactly_on_integers(d: int, device: torch.device) -> None:
    """Ties, masks, ragged sizes: columns and sums of small integers have no rounding."""
    plan._plans.clear()
    for n, k in ((1, 5000), (300, 1), (193, 129), (1000, 777)):
        x, y = (integers(2, m, d, device=device, dtype=F16) for m in (n, k))
        column = integers(k, device=device)
        whole = tf.scores(x, y) + column
        hidden = whole.visible(tf.mask.lengths(torch.tensor([k // 2, k], device=device)))
        largest, smallest = tf.ArgMax(return_value=True), tf.ArgMin(return_value=True)
        # half of all pairs, and the others for other numbers of features: each costs two compilations
        pairs = ((largest, tf.Count()), (smallest, tf.Max()))[:: 1 if d in (64, 256) else -1]
        for s, folds in zip((whole, hidden), pairs, strict=True):
            for fold in folds:
                found = tf.fold(s, fold)
                with select.using(loop="portable"):
                    want = tf.fold(s, fold)
                torch.testing.assert_close(found, want, rtol=0, atol=0, equal_nan=True)
    assert launched() == {"hopper", "triton"}


@pytest.mark.parametrize("d", [64, 256])
def test_rows_without_a_largest_score(d: int, device: torch.device) -> None:
    """NaN in a row or a column, nothing but -inf, nothing visible."""
    x, y = randn(600, d, device=device, dtype=F16), randn(3000, d, device=device, dtype=F16)
    with_nan = y.clone()
    with_nan[777] = torch.nan
    rows = x.clone()
    rows[5], rows[7] = torch.nan, torch.inf
    nothing = torch.full((3000,), -torch.inf, device=device)
    lengths = tf.mask.lengths(torch.tensor([2000], device=device))
    cases = {
        "equal": tf.scores(x, y[:1].expand(3000, d).contiguous()),
        "a column": tf.scores(x, with_nan),
        "rows": tf.scores(rows, y),
        "distances": -tf.scores(rows, with_nan, metric="sqeuclidean"),
        "-inf": tf.scores(x, y) + nothing,
        "-inf, causal": (tf.scores(x, y) + nothing).visible(tf.mask.causal("top_left")),
        "hidden": tf.scores(x[None], with_nan[None]).visible(lengths),
    }
    for name, s in cases.items():
        found = s.argmax(-1)
        with tf.backend("eager"):
            want = s.argmax(-1)
        assert torch.equal(found, want), name


@pytest.mark.skipif(not HOPPER, reason="the portable loops beside another")
@pytest.mark.parametrize("causal", [False, "bottom_right"])
def test_portable_attention_where_another_loop_is_chosen(causal: Any, device: torch.device) -> None:
    sq, sk = pick((700, 1100), (70, 110))
    q, k, v = (randn(2, h, s, 64, device=device, dtype=BF16) for h, s in ((8, sq), (2, sk), (2, sk)))
    visible = None if not causal else torch.ones(sq, sk, dtype=torch.bool, device=device).tril(sk - sq)
    with select.using(loop="portable"):
        out, lse = tf.attention(q, k, v, causal=causal, return_lse=True)
    wide, plain = (reference(*t, visible, None) for t in ((q.double(), k.double(), v.double()), (q, k, v)))
    accurate(out, wide[0], plain[0], "output")
    accurate(lse, wide[1], plain[1].float(), "log-sum-exp")


def gradients_of(kind: str, sq: int, sk: int, device: torch.device) -> tuple[dict[str, Any], Tensor | None]:
    """Options of attention, and which keys they let a query see."""
    i, j = torch.arange(sq, device=device)[:, None], torch.arange(sk, device=device)
    lengths = torch.tensor([sk // 2, sk], device=device)
    return {
        "none": ({}, None),
        "bottom_right": ({"causal": "bottom_right"}, j <= i + sk - sq),
        "window": ({"window": (70, 30)}, MASKS["window"](i, j, sq, sk)),
        "lengths": ({"mask": tf.mask.lengths(lengths)}, (j < lengths[:, None])[:, None, None]),
    }[kind]


def pulled(make: Any, given: tuple[Tensor, ...], dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The gradients of all but the last, which is that of the result."""
    *own, grad = (t.to(dtype) for t in given)
    own = [t.detach().requires_grad_() for t in own]
    return torch.autograd.grad(make(*own), own, grad)


STRUCTURES = (
    (128, 128, BF16, "none", 1),
    (64, 64, BF16, "bottom_right", 4),
    (128, 64, F16, "window", 1),
    (64, 128, BF16, "none", 2),
    (96, 40, BF16, "lengths", 2),
)


@pytest.mark.parametrize(("d", "dv", "dtype", "kind", "groups"), STRUCTURES)
def test_gradients_of_attention_at_random_sizes(
    d: int, dv: int, dtype: torch.dtype, kind: str, groups: int, device: torch.device
) -> None:
    plan._plans.clear()
    draw = random.Random(d)
    for sq, sk in [(1, 70), (700, 90), *((draw.randint(1, 900), draw.randint(1, 900)) for _ in range(10))]:
        options, visible = gradients_of(kind, sq, sk, device)
        q, grad = (randn(2, 2 * groups, sq, w, device=device, dtype=dtype) for w in (d, dv))
        k, v = (randn(2, 2, sk, w, device=device, dtype=dtype) for w in (d, dv))

        given = (q, k, v, grad)
        materialised = lambda *t, visible=visible: reference(*t, visible, None)[0]
        found = pulled(lambda *t, options=options: tf.attention(*t, **options), given, dtype)
        wide, plain = (pulled(materialised, given, dtype) for dtype in (torch.float64, dtype))
        for name, *each in zip("qkv", found, wide, plain, strict=True):
            accurate(*each, f"d{name}, {sq} x {sk}")
    if HOPPER:
        kinds = {type(launch).__module__ for _, launches, _ in plan._plans.values() for launch in launches}
        assert "tilefold.execute.hopper.columns_plan" in kinds


@pytest.mark.skipif(not HOPPER, reason="where sums arrive in any order")
def test_gradients_in_a_fixed_order(device: torch.device) -> None:
    q, k, v = (randn(2, h, 3000, 64, device=device, dtype=BF16).requires_grad_() for h in (8, 2, 2))
    out = tf.attention(q, k, v, causal=True)
    grad = torch.randn_like(out)
    free = torch.autograd.grad(out, (q, k, v), grad, retain_graph=True)
    torch.use_deterministic_algorithms(True)
    try:
        first, *others = (torch.autograd.grad(out, (q, k, v), grad, retain_graph=True) for _ in range(30))
    finally:
        torch.use_deterministic_algorithms(False)
    asked = tf.compat.flash_attn_func(*(t.transpose(1, 2) for t in (q, k, v)), causal=True, deterministic=True)
    others.append(torch.autograd.grad(asked, (q, k, v), grad.transpose(1, 2)))
    for other in others:
        for a, b in zip(first, other, strict=True):
            assert torch.equal(a, b)
    for a, b in zip(first, free, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=0.02)


def test_gradients_beside_padding_that_is_nan(device: torch.device) -> None:
    """Keys beyond a length and queries that see nothing may hold anything."""
    q, k, v = (randn(2, 2, s, 128, device=device, dtype=BF16) for s in (400, 300, 300))
    grad = torch.randn_like(q)
    lengths = tf.mask.lengths(torch.tensor([130, 300], device=device))
    results = []
    for filler in (0.0, torch.nan):
        k[0, :, 130:], v[0, :, 130:] = filler, filler
        own = [t.clone().requires_grad_() for t in (q, k, v)]
        results.append(torch.autograd.grad(tf.attention(*own, mask=lengths), own, grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)
    results = []
    short = torch.arange(300, device=device) < 130
    for filler in (0.0, torch.nan):  # the same by a boolean mask
        k[:, :, 130:], v[:, :, 130:] = filler, filler
        own = [t.clone().requires_grad_() for t in (q, k, v)]
        results.append(torch.autograd.grad(tf.attention(*own, mask=short[None, None, None]), own, grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)
    results = []
    for filler in (0.0, torch.nan):
        q[:, :, :100] = filler  # of 400 queries at the end of 300 keys the first 100 see none
        own = [t.clone().requires_grad_() for t in (q, k.nan_to_num(), v.nan_to_num())]
        results.append(torch.autograd.grad(tf.attention(*own, causal="bottom_right"), own, grad))
    for a, b in zip(*results, strict=True):
        torch.testing.assert_close(a, b, rtol=0.02, atol=1e-3)
