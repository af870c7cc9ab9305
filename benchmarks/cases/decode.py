"""One new token in each of B sequences: attention over S cached keys, whose reading is the work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .. import peers
from ..case import Case, Data, Impl, Setting, Work, close, randn, size_of


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    q = randn(setting, device, s["B"], s["H"], 1, s["D"])
    k, v = (randn(setting, device, s["B"], s["Hkv"], s["S"], s["D"]) for _ in range(2))
    return {"q": q, "k": k, "v": v}


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    q, k, v = data["q"], data["k"], data["v"]

    def tilefold() -> Callable[[], Any]:
        import tilefold as tf

        return lambda: tf.attention(q, k, v)

    yield Impl("tilefold", tilefold)
    yield Impl("torch", lambda: lambda: F.scaled_dot_product_attention(q, k, v, enable_gqa=True), named=True)
    if q.is_cuda and peers.installed("flash-attn"):
        yield Impl("flash-attn", lambda: peers.flash_attn_decode(q, k, v), named=True)


def _check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    """The heads that share a random key head, in float64."""
    s = setting.shape
    groups = s["H"] // s["Hkv"]
    b, h = int(torch.randint(s["B"], ())), int(torch.randint(s["Hkv"], ()))
    heads = slice(h * groups, (h + 1) * groups)
    q, k, v = data["q"][b, heads, 0].double(), data["k"][b, h].double(), data["v"][b, h].double()
    return close("output", out[b, heads, 0], (q @ k.mT * s["D"] ** -0.5).softmax(-1) @ v)


def _work(setting: Setting) -> Work:
    s = setting.shape
    return Work(
        4.0 * s["B"] * s["H"] * s["S"] * s["D"],
        2.0 * s["B"] * s["Hkv"] * s["S"] * s["D"] * size_of(setting),
        setting.dtype,
    )


def _gpu(b: int, s: int, target: bool = False) -> Setting:
    return Setting({"B": b, "H": 32, "Hkv": 8, "S": s, "D": 128}, "bfloat16", "cuda", target)


DECODE = Case(
    "decode",
    (
        _gpu(16, 32768, target=True),
        _gpu(1, 32768),
        _gpu(64, 8192),
        Setting({"B": 4, "H": 8, "Hkv": 2, "S": 8192, "D": 64}, "float32", "cpu"),
    ),
    _data,
    _impls,
    _check,
    _work,
    rate="gbps",
    about="attention of one new token",
)
