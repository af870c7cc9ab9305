"""Peers by name: how each is called, and which version it is. Nothing here is imported unless a case asks for it."""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

_TORCH = {"torch", "compile", "flex", "flash-attn-2"}  # they come with torch and have its version


def label(name: str) -> str:
    """The name that a record carries: "flash-kmeans 0.3.1"; tilefold, the bare matmul and docs/levels have none."""
    if name in ("tilefold", "cublas") or name.startswith("level-"):
        return name
    if name == "cudnn":
        v = torch.backends.cudnn.version() or 0
        return f"cudnn {v // 10000}.{v // 100 % 100}.{v % 100}"
    package = {"liger": "liger-kernel"}.get(name, name)
    return f"{name} {torch.__version__.split('+')[0] if name in _TORCH else importlib.metadata.version(package)}"


def installed(name: str) -> bool:
    try:
        return bool(label(name))
    except importlib.metadata.PackageNotFoundError:
        return False


def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compile(function, dynamic=False)


def sdpa(backend: str) -> Callable[..., torch.Tensor]:
    """torch's attention, held to one of its kernels."""
    from torch.nn.attention import SDPBackend, sdpa_kernel

    chosen = {"cudnn": SDPBackend.CUDNN_ATTENTION, "flash-attn-2": SDPBackend.FLASH_ATTENTION}[backend]

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        with sdpa_kernel(chosen):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attention


@functools.cache
def flex() -> Callable[..., torch.Tensor]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention, dynamic=False)
    mask = functools.cache(
        lambda s, device: create_block_mask(lambda b, h, i, j: i >= j, None, None, s, s, device=device)
    )

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        return attend(q, k, v, block_mask=mask(q.shape[-2], str(q.device)) if causal else None)

    return attention


def flash_attn_4() -> Callable[..., torch.Tensor]:
    """Takes [B, H, S, D] views of [B, S, H, D] storage, its own layout."""
    from flash_attn.cute import flash_attn_func

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool) -> torch.Tensor:
        out = flash_attn_func(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), causal=causal)
        return (out[0] if isinstance(out, tuple) else out).transpose(1, 2)

    return attention


def flash_attn_decode(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, table: torch.Tensor | None
) -> Callable[[], torch.Tensor]:
    """Keys and values in pages, or [B, Hkv, S, D] copied into its own layout outside the clock."""
    from flash_attn import flash_attn_with_kvcache

    keys, values = (t.transpose(1, 2).contiguous() if table is None else t for t in (k, v))
    return lambda: flash_attn_with_kvcache(q.transpose(1, 2), keys, values, block_table=table).transpose(1, 2)


def flash_kmeans_assign(x: torch.Tensor, c: torch.Tensor) -> Callable[[], torch.Tensor]:
    """The assignment step; |x|^2 is made once outside, as its own loop does, and |c|^2 within."""
    from flash_kmeans.assign_euclid_triton import euclid_assign_triton

    x_sq = torch.cat([part.float().square().sum(-1) for part in x.split(2**18)])[None]
    return lambda: euclid_assign_triton(x[None], c[None], x_sq)[0]


def flashlib_knn(x: torch.Tensor, y: torch.Tensor, k: int) -> Callable[[], Any]:
    from flashlib import flash_knn

    return lambda: flash_knn(x, y, k)


def liger(h: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> Callable[[], torch.Tensor]:
    from liger_kernel.transformers.fused_linear_cross_entropy import LigerFusedLinearCrossEntropyLoss

    loss = LigerFusedLinearCrossEntropyLoss()
    return lambda: loss(w, h, labels)


def cut_cross_entropy(h: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> Callable[[], torch.Tensor]:
    from cut_cross_entropy import linear_cross_entropy

    return lambda: linear_cross_entropy(h, w, labels, impl="cce")
