"""CLIP's loss over a whole batch, both directions, with the gradients of both sides and of the scale."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .. import peers
from ..case import Call, Case, Data, Impl, Setting, Work, bare_matmul, close, first, randn, sample, size_of

_SCALE = 14.3  # 1 / 0.07, where CLIP starts


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    x, y = (F.normalize(randn(setting, device, s["N"], s["D"]), dim=-1) for _ in range(2))
    y = F.normalize(x + y, dim=-1)  # pairs that belong together
    return {"x": x.requires_grad_(), "y": y.requires_grad_(), "scale": torch.tensor(_SCALE, device=device)}


def _torch(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    s = (x @ y.T).float() * scale
    pairs = torch.arange(len(x), device=x.device)
    return (F.cross_entropy(s, pairs) + F.cross_entropy(s.T, pairs)) / 2


def _with_grad(loss: Callable[[], torch.Tensor], data: Data) -> tuple[torch.Tensor, ...]:
    value = loss()
    return (value, *torch.autograd.grad(value, (data["x"], data["y"])))


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    x, y, scale = data["x"], data["y"], data["scale"]

    def call(loss: Callable[[], torch.Tensor]) -> Call:
        return Call(partial(_with_grad, loss, data))

    def tilefold() -> Call:
        import tilefold as tf

        return call(lambda: tf.contrastive_loss(x, y, scale=scale, normalize=False))

    yield Impl("tilefold", tilefold)
    if x.is_cuda:
        yield Impl("cublas", lambda: bare_matmul(_work(setting).flops, x.dtype, x.device))
        yield Impl("compile", lambda: call(partial(peers.compiled(_torch), x, y, scale)))
    yield Impl("torch", lambda: call(partial(_torch, x, y, scale)), named=True)


@torch.no_grad()
def _check(setting: Setting, data: Data, out: Any) -> str | None:
    """The loss from float32 scores in chunks; sampled rows of both gradients in float64."""
    x, y, n = data["x"].detach(), data["y"].detach(), setting.shape["N"]
    over = [_lse(x, y), _lse(y, x)]
    pairs = _SCALE * (x.double() * y.double()).sum(-1)
    loss = ((over[0] + over[1]) / 2 - pairs).mean()
    rows = sample(n, 32, x.device)
    refs = [_gradient(x, y, *over, rows), _gradient(y, x, *over[::-1], rows)]
    size = _SCALE / n * float(y.abs().max())  # what attracts a pair, before the rest repels it
    return first(
        close("loss", out[0], loss, dtype=x.dtype),
        *(close(f"gradient of {a}", g[rows], ref, dtype=x.dtype, size=size) for a, g, ref in zip("xy", out[1:], refs)),
    )


def _lse(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    b32 = b.float()
    return torch.cat([(_SCALE * (part.float() @ b32.T)).logsumexp(-1) for part in a.split(4096)]).double()


def _gradient(
    a: torch.Tensor, b: torch.Tensor, own: torch.Tensor, other: torch.Tensor, rows: torch.Tensor
) -> torch.Tensor:
    s = _SCALE * (a[rows].double() @ b.double().T)
    weight = torch.exp(s - own[rows, None]) + torch.exp(s - other)
    weight[torch.arange(len(rows), device=a.device), rows] -= 2
    return _SCALE / (2 * len(a)) * (weight @ b.double())


def _work(setting: Setting) -> Work:
    s = setting.shape
    return Work(8.0 * s["N"] ** 2 * s["D"], 4.0 * s["N"] * s["D"] * size_of(setting), setting.dtype)


CONTRASTIVE = Case(
    "contrastive",
    (
        Setting({"N": 32768, "D": 512}, "bfloat16", target=True),
        Setting({"N": 65536, "D": 512}, "bfloat16"),
        Setting({"N": 4096, "D": 256}, "float32", "cpu"),
    ),
    _data,
    _impls,
    _check,
    _work,
    about="contrastive loss both ways, forward and backward",
)
