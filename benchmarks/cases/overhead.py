"""Host time of one warmed call on a problem too small to matter; the difference to torch's own form is the overhead."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F

from ..case import Case, Data, Impl, Setting, Work, close, randn


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    if setting.shape["op"] == "attention":
        return {n: randn(setting, device, 1, 1, s["N"], s["D"]) for n in ("x", "y", "v")}
    return {"x": randn(setting, device, s["N"], s["D"]), "y": randn(setting, device, s["K"], s["D"])}


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    op, x, y = setting.shape["op"], data["x"], data["y"]

    def tilefold() -> Any:
        import tilefold as tf

        return {
            "attention": lambda: tf.attention(x, y, data["v"]),
            "logsumexp": lambda: tf.scores(x, y).logsumexp(-1),
            "argmax": lambda: tf.scores(x, y).argmax(-1),
        }[op]

    def plain() -> Any:
        return {
            "attention": lambda: F.scaled_dot_product_attention(x, y, data["v"]),
            "logsumexp": lambda: torch.logsumexp(x @ y.T, -1),
            "argmax": lambda: torch.argmax(x @ y.T, -1),
        }[op]

    yield Impl("tilefold", tilefold)
    yield Impl("torch", plain, named=True)


def _check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    x, y = data["x"].double(), data["y"].double()
    if setting.shape["op"] == "attention":
        return close("output", out, F.scaled_dot_product_attention(x, y, data["v"].double()))
    s = x @ y.T
    if setting.shape["op"] == "argmax":
        return None if torch.equal(out, s.argmax(-1)) else "an index is wrong"
    return close("result", out, s.logsumexp(-1), dtype=data["x"].dtype)


def _work(setting: Setting) -> Work:
    s = setting.shape
    return Work(2.0 * s["N"] * s["K"] * s["D"], 4.0 * (s["N"] + s["K"]) * s["D"], setting.dtype)


OVERHEAD = Case(
    "overhead",
    tuple(
        Setting({"op": op, "N": 8, "K": 8, "D": 8}, "float32", device, device == "cpu")
        for device in ("cpu", "cuda")
        for op in ("logsumexp", "argmax", "attention")
    ),
    _data,
    _impls,
    _check,
    _work,
    about="host time of a warmed call on eight rows",
    host=True,
)
