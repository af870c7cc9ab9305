"""One new token in each of B sequences: attention over S cached keys, whose reading is the work.

page: keys of a page of the cache, which a table names; 0: keys lie in a row
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .. import peers
from ..case import Case, Data, Impl, Setting, Work, close, randn, size_of


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    data: Data = {"q": randn(setting, device, s["B"], s["H"], 1, s["D"])}
    shape = (s["B"], s["Hkv"], s["S"], s["D"])
    if s["page"]:
        places = s["S"] // s["page"]
        shape = (s["B"] * places, s["page"], s["Hkv"], s["D"])
        data["table"] = torch.randperm(shape[0], device=device).reshape(s["B"], places).int()
    return data | {name: randn(setting, device, *shape) for name in ("k", "v")}


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    q, k, v, table = (data.get(name) for name in ("q", "k", "v", "table"))
    assert q is not None and k is not None and v is not None

    def tilefold() -> Callable[[], Any]:
        import tilefold as tf

        if table is None:
            return lambda: tf.attention(q, k, v)
        keys, values = k.transpose(1, 2), v.transpose(1, 2)
        return lambda: tf.attention(q, keys, values, block_table=table)

    yield Impl("tilefold", tilefold)
    yield Impl("torch", lambda: lambda: _torch(q, k, v, table), named=True)
    if q.is_cuda and peers.installed("flash-attn"):
        yield Impl("flash-attn", lambda: peers.flash_attn_decode(q, k, v, table), named=True)


def _torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | None) -> torch.Tensor:
    if table is not None:
        k, v = (t[table.long()].flatten(1, 2).transpose(1, 2) for t in (k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def _check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    """The heads that share a random key head, in float64."""
    s = setting.shape
    groups = s["H"] // s["Hkv"]
    b, h = int(torch.randint(s["B"], ())), int(torch.randint(s["Hkv"], ()))
    heads = slice(h * groups, (h + 1) * groups)

    def own(t: torch.Tensor) -> torch.Tensor:
        return (t[data["table"][b].long(), :, h].flatten(0, 1) if s["page"] else t[b, h]).double()

    weights = (data["q"][b, heads, 0].double() @ own(data["k"]).mT * s["D"] ** -0.5).softmax(-1)
    return close("output", out[b, heads, 0], weights @ own(data["v"]))


def _work(setting: Setting) -> Work:
    s = setting.shape
    return Work(
        4.0 * s["B"] * s["H"] * s["S"] * s["D"],
        2.0 * s["B"] * s["Hkv"] * s["S"] * s["D"] * size_of(setting),
        setting.dtype,
    )


def _gpu(b: int, s: int, page: int = 0, target: bool = False) -> Setting:
    return Setting({"B": b, "H": 32, "Hkv": 8, "S": s, "D": 128, "page": page}, "bfloat16", "cuda", target)


DECODE = Case(
    "decode",
    (
        _gpu(16, 32768, target=True),
        _gpu(1, 32768),
        _gpu(64, 8192),
        _gpu(16, 32768, page=256),
        _gpu(16, 32768, page=16),
        Setting({"B": 4, "H": 8, "Hkv": 2, "S": 8192, "D": 64, "page": 0}, "float32", "cpu"),
    ),
    _data,
    _impls,
    _check,
    _work,
    rate="gbps",
    about="attention of one new token",
)
