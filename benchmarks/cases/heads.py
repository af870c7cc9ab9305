"""The language-model head: cross-entropy with gradients, and sampling."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F

from .. import peers
from ..case import Call, Case, Data, Impl, Setting, Work, close, first, product_is, randn, sample, size_of


def _data(setting: Setting, device: torch.device, grad: bool) -> Data:
    s = setting.shape
    h = randn(setting, device, s["N"], s["D"])
    w = randn(setting, device, s["K"], s["D"], scale=s["D"] ** -0.5)
    data = {"h": h.requires_grad_(grad), "w": w.requires_grad_(grad)}
    if grad:
        data["labels"] = torch.randint(s["K"], (s["N"],), device=device)
    return data


def _loss_torch(h: torch.Tensor, w: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy((h @ w.T).float(), labels)


def _with_grad(loss: Callable[[], torch.Tensor], data: Data) -> tuple[torch.Tensor, ...]:
    value = loss()
    return (value, *torch.autograd.grad(value, (data["h"], data["w"])))


def _loss_impls(setting: Setting, data: Data) -> Iterator[Impl]:
    h, w, labels = data["h"], data["w"], data["labels"]

    def call(loss: Callable[[], torch.Tensor]) -> Call:
        return Call(partial(_with_grad, loss, data))

    def tilefold() -> Call:
        import tilefold as tf

        return call(lambda: tf.linear_cross_entropy(h, w, labels))

    yield Impl("tilefold", tilefold)
    if h.is_cuda:
        yield Impl("cublas", lambda: _three_products(data))
        yield Impl("compile", lambda: call(partial(peers.compiled(_loss_torch), h, w, labels)), named=True)
        if peers.installed("liger"):
            yield Impl("liger", lambda: call(peers.liger(h, w, labels)), named=True)
        if peers.installed("cut-cross-entropy"):
            yield Impl("cut-cross-entropy", lambda: call(peers.cut_cross_entropy(h, w, labels)))
    yield Impl("torch", lambda: call(partial(_loss_torch, h, w, labels)), named=not h.is_cuda)


def _three_products(data: Data) -> Call:
    """Logits, and the two gradients as if the logits were theirs."""
    h, w = data["h"].detach(), data["w"].detach()
    logits = h.new_empty(h.shape[0], w.shape[0])
    dh, dw = torch.empty_like(h), torch.empty_like(w)

    def products() -> None:
        torch.mm(h, w.T, out=logits)
        torch.mm(logits, w, out=dh)
        torch.mm(logits.T, h, out=dw)

    return Call(products, lambda _: product_is(logits, h, w))


@torch.no_grad()
def _check_loss(setting: Setting, data: Data, out: Any) -> str | None:
    """The whole loss in float32; sampled rows of both gradients in float64."""
    h, w, labels = data["h"].detach(), data["w"].detach(), data["labels"]
    n, device, dtype = h.shape[0], h.device, h.dtype
    w32 = w.float()
    lse, hit = [], []
    for part, wanted in zip(h.split(512), labels.split(512)):
        logits = part.float() @ w32.T
        lse.append(logits.logsumexp(-1))
        hit.append(logits.gather(1, wanted[:, None])[:, 0])
    all_lse = torch.cat(lse)
    loss = (all_lse - torch.cat(hit)).double().mean()
    rows, columns = sample(n, 32, device), sample(w.shape[0], 32, device)
    p = torch.exp(h[rows].double() @ w.double().T - all_lse[rows, None].double())
    p[torch.arange(len(rows), device=device), labels[rows]] -= 1
    q = torch.exp(h.double() @ w[columns].double().T - all_lse[:, None].double())
    q -= (labels[:, None] == columns).double()
    return first(
        close("loss", out[0], loss, dtype=dtype),
        close("gradient of h", out[1][rows], p @ w.double() / n, dtype=dtype),
        close("gradient of W", out[2][columns], q.T @ h.double() / n, dtype=dtype),
    )


def _loss_work(setting: Setting) -> Work:
    s = setting.shape
    return Work(6.0 * s["N"] * s["K"] * s["D"], 2.0 * (s["N"] + s["K"]) * s["D"] * size_of(setting), setting.dtype)


def _softmax_multinomial(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.multinomial((h @ w.T).float().softmax(-1), 1)[:, 0]


def _gumbel(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    logits = (h @ w.T).float()
    return (logits - torch.empty_like(logits).exponential_().log()).argmax(-1)


def _sample_impls(setting: Setting, data: Data) -> Iterator[Impl]:
    h, w = data["h"], data["w"]

    def tilefold() -> Any:
        import tilefold as tf

        return lambda: tf.sample(h, w, seed=1234)

    def product() -> Call:
        out = h.new_empty(h.shape[0], w.shape[0])
        return Call(lambda: torch.mm(h, w.T, out=out), lambda _: product_is(out, h, w))

    yield Impl("tilefold", tilefold)
    if h.is_cuda:
        yield Impl("cublas", product, named=True)
        yield Impl("compile", lambda: partial(peers.compiled(_gumbel), h, w), named=True)
    yield Impl("torch", lambda: partial(_softmax_multinomial, h, w), named=True)


def _check_sample(setting: Setting, data: Data, out: torch.Tensor) -> str | None:
    """In range, and the mean log-probability of what was drawn is what the distributions say, to six deviations."""
    h, w = data["h"].double(), data["w"]
    out = out.reshape(-1).long()
    if out.shape[0] != h.shape[0] or bool(((out < 0) | (out >= w.shape[0])).any()):
        return "a token is missing or out of range"
    logp = torch.cat([(h @ part.double().T) for part in w.split(2**14)], -1).log_softmax(-1)
    p = logp.exp()
    mean = (p * logp).sum(-1)
    deviation = ((p * logp.square()).sum(-1) - mean.square()).sum().sqrt()
    z = float((logp.gather(1, out[:, None])[:, 0] - mean).sum() / deviation)
    return None if abs(z) < 6 else f"the log-probability of what was drawn is {z:.1f} deviations off"


def _sample_work(setting: Setting) -> Work:
    s = setting.shape
    return Work(2.0 * s["N"] * s["K"] * s["D"], (s["N"] + s["K"]) * s["D"] * size_of(setting), setting.dtype)


def _setting(n: int, d: int, k: int, target: bool = False, dtype: str = "bfloat16", device: str = "cuda") -> Setting:
    return Setting({"N": n, "D": d, "K": k}, dtype, device, target)


LINEAR_CROSS_ENTROPY = Case(
    "linear_cross_entropy",
    (
        _setting(8192, 4096, 131072, target=True),
        _setting(8192, 2304, 256000),
        _setting(16384, 2048, 32768),
        _setting(1024, 256, 16384, dtype="float32", device="cpu"),
    ),
    partial(_data, grad=True),
    _loss_impls,
    _check_loss,
    _loss_work,
    about="cross-entropy of a linear head, forward and backward",
)
SAMPLE = Case(
    "sample",
    (
        _setting(64, 4096, 151936, target=True),
        _setting(1, 4096, 151936),
        _setting(256, 4096, 151936),
        _setting(64, 8192, 128256),
        _setting(8, 512, 32768, dtype="float32", device="cpu"),
    ),
    partial(_data, grad=False),
    _sample_impls,
    _check_sample,
    _sample_work,
    rate="gbps",
    about="one token a row from a linear head",
)
