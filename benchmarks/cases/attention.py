"""Attention, forward and backward, at 32768 tokens and 2048 features."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F

from .. import peers
from ..case import Call, Case, Data, Impl, Setting, Work, bare_matmul, close, first, randn, size_of

Attention = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], torch.Tensor]


def _tilefold(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    import tilefold as tf

    return tf.attention(q, k, v, causal=causal)


def _torch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def _materialised(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
    s = q @ k.mT * q.shape[-1] ** -0.5
    if causal:
        s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool, device=s.device).triu_(1), float("-inf"))
    return s.softmax(-1) @ v


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    shape = (s["B"], s["H"], s["S"], s["D"])
    data = {name: randn(setting, device, *shape) for name in ("q", "k", "v")}
    for tensor in data.values():
        tensor.requires_grad_()
    return data | {"grad": randn(setting, device, *shape)}


def _own_layout(data: Data) -> Data:
    """The same numbers with [B, S, H, D] storage, for flash-attn-4."""
    names = ("q", "k", "v", "grad")
    turned = {n: data[n].detach().transpose(1, 2).contiguous().transpose(1, 2) for n in names}
    return {n: t if n == "grad" else t.requires_grad_() for n, t in turned.items()}


def _forward(data: Data, causal: bool, attention: Attention) -> Call:
    return Call(torch.no_grad()(lambda: attention(data["q"], data["k"], data["v"], causal)))


def _backward(data: Data, causal: bool, attention: Attention) -> Call:
    """Only the backward pass: the forward ran once, before the clock."""
    operands = [data["q"], data["k"], data["v"]]
    out = attention(*operands, causal)
    return Call(lambda: torch.autograd.grad(out, operands, data["grad"], retain_graph=True))


def _impls(time: Callable[[Data, bool, Attention], Call]) -> Callable[[Setting, Data], Iterator[Impl]]:
    def impls(setting: Setting, data: Data) -> Iterator[Impl]:
        causal, device = setting.shape["causal"], data["q"].device
        yield Impl("tilefold", lambda: time(data, causal, _tilefold))
        if device.type == "cpu":
            yield Impl("torch", lambda: time(data, causal, _torch), named=True)
            return
        flops = (_bwd_work if time is _backward else _fwd_work)(setting).flops
        yield Impl("cublas", lambda: bare_matmul(flops, data["q"].dtype, device))
        yield Impl("flex", lambda: time(data, causal, peers.flex()), named=True)
        yield Impl("cudnn", lambda: time(data, causal, peers.sdpa("cudnn")), named=True)
        yield Impl("flash-attn-2", lambda: time(data, causal, peers.sdpa("flash-attn-2")))
        if peers.installed("flash-attn-4"):
            yield Impl("flash-attn-4", lambda: time(_own_layout(data), causal, peers.flash_attn_4()), named=True)

    return impls


def _one_head(setting: Setting, data: Data) -> tuple[tuple[int, int], list[torch.Tensor]]:
    """A random head, in float64 up to 8192 tokens (512 MiB of scores), in float32 beyond."""
    s = setting.shape
    b, h = int(torch.randint(s["B"], ())), int(torch.randint(s["H"], ()))
    dtype = torch.float64 if s["S"] <= 8192 else torch.float32
    return (b, h), [data[name][b, h].detach().to(dtype) for name in ("q", "k", "v", "grad")]


def _check_forward(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    (b, h), (q, k, v, _) = _one_head(setting, data)
    ref = _materialised(q, k, v, setting.shape["causal"])
    return close("output", out[b, h], ref)


def _check_backward(setting: Setting, data: Data, out: Any) -> str | None:
    (b, h), (q, k, v, grad) = _one_head(setting, data)
    with torch.enable_grad():
        operands = [t.requires_grad_() for t in (q, k, v)]
        refs = torch.autograd.grad(_materialised(q, k, v, setting.shape["causal"]), operands, grad)
    return first(*(close(f"gradient of {n}", o[b, h], ref) for n, o, ref in zip("qkv", out, refs)))


def _work(setting: Setting, products: float, tensors: int) -> Work:
    s = setting.shape
    tokens = s["B"] * s["H"] * s["S"]
    flops = 2 * products * tokens * s["S"] * s["D"] * (0.5 if s["causal"] else 1)
    return Work(flops, tensors * tokens * s["D"] * size_of(setting), setting.dtype)


def _fwd_work(setting: Setting) -> Work:
    return _work(setting, 2, 4)


def _bwd_work(setting: Setting) -> Work:
    return _work(setting, 5, 8)


def _gpu(d: int, s: int, causal: bool, target: bool = False) -> Setting:
    return Setting({"B": 32768 // s, "H": 2048 // d, "S": s, "D": d, "causal": causal}, "bfloat16", "cuda", target)


_SETTINGS = (
    _gpu(128, 8192, False, target=True),
    _gpu(128, 8192, True),
    _gpu(128, 2048, True),
    _gpu(128, 32768, True),
    _gpu(64, 8192, False),
    _gpu(64, 8192, True),
    _gpu(256, 8192, False),
    _gpu(256, 8192, True),
    Setting({"B": 1, "H": 4, "S": 2048, "D": 64, "causal": False}, "float32", "cpu"),
    Setting({"B": 1, "H": 4, "S": 2048, "D": 64, "causal": True}, "float32", "cpu"),
)

FORWARD = Case(
    "attention_fwd", _SETTINGS, _data, _impls(_forward), _check_forward, _fwd_work, about="attention, forward"
)
BACKWARD = Case(
    "attention_bwd", _SETTINGS, _data, _impls(_backward), _check_backward, _bwd_work,
    about="attention, backward alone",
)  # fmt: skip
