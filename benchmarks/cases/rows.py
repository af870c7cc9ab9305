"""Row statistics of x @ y.T: log-sum-exp, and the softmax-weighted sum, forward and with their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch

from .. import peers
from ..case import Call, Case, Data, Impl, Setting, Work, bare_matmul, close, first, product_is, randn, sample, size_of

MATERIALISED_LIMIT = {"cpu": 6e9, "cuda": 40e9}  # bytes of scores that the plain form may take


def _data(setting: Setting, device: torch.device, payload: bool = False, grad: bool = False) -> Data:
    s = setting.shape
    scale = s["D"] ** -0.25  # scores with a standard deviation of 1
    data = {
        "x": randn(setting, device, s["N"], s["D"], scale=scale),
        "y": randn(setting, device, s["K"], s["D"], scale=scale),
    }
    if payload:
        data["v"] = randn(setting, device, s["K"], s["D"])
    if grad:
        for tensor in data.values():
            tensor.requires_grad_()
        shape = (s["N"], s["D"]) if payload else (s["N"],)
        data["grad"] = randn(setting, device, *shape).to(data["x"].dtype if payload else torch.float32)
    return data


def _tilefold(data: Data) -> torch.Tensor:
    import tilefold as tf

    s = tf.scores(data["x"], data["y"])
    return s.softmax(-1) @ data["v"] if "v" in data else s.logsumexp(-1)


def _torch(data: Data) -> torch.Tensor:
    s = data["x"] @ data["y"].T
    return s.softmax(-1) @ data["v"] if "v" in data else s.logsumexp(-1)


def _with_grad(forward: Callable[[Data], torch.Tensor], data: Data) -> tuple[torch.Tensor, ...]:
    out = forward(data)
    operands = [data[name] for name in ("x", "y", "v") if name in data]
    return (out, *torch.autograd.grad(out, operands, data["grad"].to(out.dtype)))


def _impls(setting: Setting, data: Data) -> Iterator[Impl]:
    s = setting.shape

    def call(forward: Callable[[Data], torch.Tensor]) -> Call:
        return Call(partial(_with_grad, forward, data) if "grad" in data else partial(forward, data))

    yield Impl("tilefold", lambda: call(_tilefold))
    if data["x"].is_cuda and "grad" not in data:
        yield Impl("cublas", lambda: _product(setting, data), named=True)
    if s["N"] * s["K"] * size_of(setting) <= MATERIALISED_LIMIT[data["x"].device.type]:
        yield Impl("torch", lambda: call(_torch), named=setting.device == "cpu")
        if data["x"].is_cuda:
            yield Impl("compile", lambda: call(peers.compiled(_torch)))


def _product(setting: Setting, data: Data) -> Call:
    """The product itself where writing it costs little beside it, otherwise another of the same flops."""
    if setting.shape["D"] < 1024:
        return bare_matmul(_work(setting).flops, data["x"].dtype, data["x"].device)
    out = data["x"].new_empty(data["x"].shape[0], data["y"].shape[0])
    return Call(lambda: torch.mm(data["x"], data["y"].T, out=out), lambda _: product_is(out, data["x"], data["y"]))


@torch.no_grad()
def _check(setting: Setting, data: Data, out: Any) -> str | None:
    """Sampled rows against float64; the gradient of y needs every row, so in float64 on some of its columns."""
    x, y, v = data["x"], data["y"], data.get("v")
    dtype = x.dtype
    result, *grads = out if isinstance(out, tuple) else (out,)
    rows = sample(x.shape[0], 32, x.device)
    s = x[rows].double() @ y.double().T
    p, lse = s.softmax(-1), s.logsumexp(-1)
    ref = p @ v.double() if v is not None else lse
    problem = close("result", result[rows], ref, dtype=dtype)
    if problem or not grads:
        return problem
    g = data["grad"][rows].double()
    ds = p * (g @ v.double().T - (g * ref).sum(-1, keepdim=True)) if v is not None else p * g[:, None]
    problem = close("gradient of x", grads[0][rows], ds @ y.double(), dtype=dtype)
    if problem or (not x.is_cuda and x.shape[0] * y.shape[0] > 2**28):
        return problem
    y64 = y.double()
    columns = sample(y.shape[0], 32, x.device)
    dy = dv = torch.zeros((), dtype=torch.float64, device=x.device)
    for i in range(0, x.shape[0], 1024):
        xs, gs = x[i : i + 1024].double(), data["grad"][i : i + 1024].double()
        s = xs @ y64.T
        p = s.softmax(-1)
        if v is None:
            dy = dy + (p * gs[:, None])[:, columns].T @ xs
        else:
            dp = gs @ v.double().T
            dy = dy + (p * (dp - (p * dp).sum(-1, keepdim=True)))[:, columns].T @ xs
            dv = dv + p[:, columns].T @ gs
    return first(
        close("gradient of y", grads[1][columns], dy, dtype=dtype),
        close("gradient of v", grads[2][columns], dv, dtype=dtype) if v is not None else None,
    )


def _work(setting: Setting, leaves: int = 1, products: int | None = None) -> Work:
    """`products` counts the matrix products that cannot be avoided."""
    s = setting.shape
    flops = 2.0 * s["N"] * s["K"] * s["D"] * (products or leaves)
    return Work(flops, (s["N"] + leaves * s["K"]) * s["D"] * size_of(setting), setting.dtype)


def _cpu(n: int, target: bool = True) -> Setting:
    return Setting({"N": n, "K": n, "D": 64}, "float32", "cpu", target)


LOGSUMEXP = Case(
    "logsumexp",
    (
        Setting({"N": 8192, "K": 131072, "D": 4096}, "bfloat16", target=True),
        Setting({"N": 2**20, "K": 8192, "D": 128}, "float16"),
        Setting({"N": 2**20, "K": 8192, "D": 64}, "float16"),
        _cpu(8192),
        _cpu(65536, target=False),
    ),
    _data,
    _impls,
    _check,
    _work,
    about="log-sum-exp of each row",
)
LOGSUMEXP_BWD = Case(
    "logsumexp_bwd",
    (Setting({"N": 8192, "K": 131072, "D": 4096}, "bfloat16"), _cpu(8192)),
    partial(_data, grad=True),
    _impls,
    _check,
    partial(_work, products=3),
    about="log-sum-exp of each row, forward and backward",
)
SOFTMAX_SUM = Case(
    "softmax_sum",
    (_cpu(8192), _cpu(65536, target=False)),
    partial(_data, payload=True),
    _impls,
    _check,
    partial(_work, leaves=2),
    about="softmax-weighted sum of a payload",
)
SOFTMAX_SUM_BWD = Case(
    "softmax_sum_bwd",
    (_cpu(8192),),
    partial(_data, payload=True, grad=True),
    _impls,
    _check,
    partial(_work, leaves=2, products=6),
    about="softmax-weighted sum of a payload, forward and backward",
)
