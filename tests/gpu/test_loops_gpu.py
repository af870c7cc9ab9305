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


@pytest.mark.skipif(not HOPPER, reason="where both loops serve")
@pytest.mark.parametrize("d", [40, 64, 128, 256])
def test_both_loops_agree_exactly_on_integers(d: int, device: torch.device) -> None:
    """Ties, masks, ragged sizes: columns and sums of small integers have no rounding."""
    plan._plans.clear()
    for n, k in ((1, 5000), (300, 1), (193, 129), (1000, 777)):
        x, y = (integers(2, m, d, device=device, dtype=F16) for m in (n, k))
        column = integers(k, device=device)
        for mask in (None, tf.mask.lengths(torch.tensor([k // 2, k], device=device))):
            s = tf.scores(x, y) + column
            s = s if mask is None else s.visible(mask)
            folds = (tf.ArgMax(return_value=True), tf.Max(), tf.Count())
            found = [tf.fold(s, f) for f in folds]
            with select.using(loop="portable"):
                want = [tf.fold(s, f) for f in folds]
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
