"""What the machine itself does: a device copy and a bare matrix product. Every bound is made from these two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from ..case import Call, Case, Data, Impl, Setting, Work, product_is, randn, size_of


def _copy_data(setting: Setting, device: torch.device) -> Data:
    x = torch.empty(setting.shape["N"], dtype=torch.float32, device=device).uniform_()
    return {"x": x, "out": torch.empty_like(x)}


def _copy_impls(setting: Setting, data: Data) -> Iterator[Impl]:
    yield Impl("torch", lambda: lambda: data["out"].copy_(data["x"]), named=True)


def _copy_check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    return None if torch.equal(out, data["x"]) else "the copy differs"


COPY = Case(
    "copy",
    (
        Setting({"N": 2**29}, "float32", target=True),
        Setting({"N": 2**26}, "float32", "cpu", target=True),
    ),
    _copy_data,
    _copy_impls,
    _copy_check,
    lambda s: Work(0, 8.0 * s.shape["N"], s.dtype),
    rate="gbps",
    about="a large copy, bytes read + written",
)


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    a, b = randn(setting, device, s["N"], s["D"]), randn(setting, device, s["K"], s["D"])
    return {"a": a, "b": b, "out": a.new_empty(s["N"], s["K"])}


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    def product() -> Any:
        if setting.dtype != "tf32":
            return torch.mm(data["a"], data["b"].T, out=data["out"])
        before = torch.backends.cuda.matmul.allow_tf32
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            return torch.mm(data["a"], data["b"].T, out=data["out"])
        finally:
            torch.backends.cuda.matmul.allow_tf32 = before

    name = "cublas" if data["a"].is_cuda else "torch"
    yield Impl(name, lambda: Call(product), named=True)


def _check(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    if setting.dtype == "tf32":  # ten bits of mantissa
        return product_is(out.half() / 32, data["a"].half() / 32, data["b"].half())
    return product_is(out, data["a"], data["b"])


def _cube(side: int, dtype: str, device: str = "cuda", target: bool = False) -> Setting:
    return Setting({"N": side, "K": side, "D": side}, dtype, device, target)


MATMUL = Case(
    "matmul",
    (
        _cube(8192, "bfloat16", target=True),
        _cube(8192, "float16", target=True),
        _cube(8192, "tf32"),
        _cube(8192, "float32"),
        _cube(2048, "float32", "cpu", target=True),
    ),
    _data,
    _impls,
    _check,
    lambda s: Work(2.0 * s.shape["N"] * s.shape["K"] * s.shape["D"], 3.0 * s.shape["N"] ** 2 * size_of(s), s.dtype),
    about="a bare matrix product",
)
