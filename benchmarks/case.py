"""What a benchmark case is: shapes, inputs, implementations, a check and the least work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

Shape = Mapping[str, Any]
Data = dict[str, Any]
Check = Callable[[Any], "str | None"]  # what is wrong with an output; None when it is right


@dataclass(frozen=True)
class Setting:
    """One shape in one dtype on one kind of device; `target` marks what quick runs measure."""

    shape: Shape
    dtype: str
    device: str = "cuda"
    target: bool = False

    def __str__(self) -> str:
        return " ".join(f"{key}={value}" for key, value in self.shape.items()) + f" {self.dtype}"


@dataclass(frozen=True)
class Work:
    """The least a correct implementation does: matrix flops, and bytes that have to move."""

    flops: float
    bytes: float
    dtype: str  # whose matrix rate bounds the flops


@dataclass
class Call:
    """Something to time. `check` replaces the case's own; `scale` turns its time into that of the full work."""

    run: Callable[[], Any]
    check: Check | None = None
    scale: float = 1.0


@dataclass(frozen=True)
class Impl:
    """An implementation by name; `make` imports what it needs, so that an absent or broken peer is one error text."""

    name: str
    make: Callable[[], Call | Callable[[], Any]]
    named: bool = False  # the peer that a target names: quick runs keep it


@dataclass(frozen=True)
class Case:
    name: str
    settings: tuple[Setting, ...]
    make: Callable[[Setting, torch.device], Data]
    impls: Callable[[Setting, Data], Iterator[Impl]]
    check: Callable[[Setting, Data, Any], str | None]
    work: Callable[[Setting], Work]
    rate: str = "tflops"
    about: str = field(default="", compare=False)
    host: bool = False  # what is timed is the host, also on a GPU
    values: Callable[[Setting, Data, Any], dict[str, float]] | None = None  # what else an output says, for its record


def dtype_of(setting: Setting) -> torch.dtype:
    name = {"tf32": "float32"}.get(setting.dtype, setting.dtype)
    return getattr(torch, name)  # type: ignore[no-any-return]


def size_of(setting: Setting) -> int:
    return dtype_of(setting).itemsize


def randn(setting: Setting, device: torch.device, *shape: int, scale: float = 1.0) -> torch.Tensor:
    """Fresh normal numbers, made in pieces so that a large half-precision tensor needs no float32 copy."""
    out = torch.empty(shape, dtype=dtype_of(setting), device=device)
    for part in out.view(-1).split(2**28):
        part.normal_(std=scale)
    return out


def bare_matmul(flops: float, dtype: torch.dtype, device: torch.device) -> Call:
    """A large square-ish product of the same flops, in place of one whose output alone would be memory-bound."""
    side = 8192 if flops >= 2 * 8192**2 * 1024 else 2048
    inner = max(64, round(flops / (2 * side * side) / 64) * 64)
    a = torch.randn(side, inner, dtype=dtype, device=device)
    b = torch.randn(side, inner, dtype=dtype, device=device)
    out = torch.empty(side, side, dtype=dtype, device=device)
    return Call(lambda: torch.mm(a, b.T, out=out), lambda _: product_is(out, a, b), flops / (2.0 * side * side * inner))


def product_is(out: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> str | None:
    """Checks some rows of out = a @ b.T."""
    rows = sample(a.shape[0], 16, a.device)
    return close("product", out[rows], a[rows].double() @ b[:4096].double().T, slice(4096))


def sample(count: int, wanted: int, device: torch.device) -> torch.Tensor:
    """Distinct random row numbers."""
    return torch.randperm(count, device=device)[: min(count, wanted)]


# The tests hold results to DESIGN's finer bounds; here a wrong answer has to be seen, whoever gave it.
_FACTOR = {torch.float32: 64, torch.float64: 64}


def close(
    name: str,
    out: torch.Tensor,
    ref: torch.Tensor,
    columns: slice | None = None,
    dtype: torch.dtype | None = None,
    size: float = 0.0,
) -> str | None:
    """Largest error against the largest reference value, in units of the operands' precision.

    `size` is the size of what was summed, where the sum is much smaller than its terms.
    """
    out = out if columns is None else out[..., columns]
    dtype = dtype or out.dtype
    if out.shape != ref.shape:
        return f"{name} has shape {tuple(out.shape)}, expected {tuple(ref.shape)}"
    error, size = float((out.to(ref.dtype) - ref).abs().max()), max(size, float(ref.abs().max()))
    allowed = _FACTOR.get(dtype, 8) * torch.finfo(dtype).eps * size
    return None if error <= allowed else f"{name} is off by {error:.3g}, allowed {allowed:.3g}"  # NaN is off


def first(*problems: str | None) -> str | None:
    return next((p for p in problems if p), None)
