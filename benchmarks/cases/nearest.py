"""Nearest centroid and k nearest neighbours, by squared distance."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from .. import peers
from ..case import Case, Data, Impl, Setting, Work, bare_matmul, randn, sample, size_of

# What a chosen column may be farther than the best, of |x|^2 + |y|^2: a quarter of a 16-bit operand's eps, which admits
# products that were rounded to 16 bits before the comparison, and for float32 what TF32 does not reach.
_GAP = {torch.bfloat16: 2.0**-9, torch.float16: 2.0**-12, torch.float32: 1e-5}
_CHUNK = 2**28  # scores that the plain form holds at a time


def _data(setting: Setting, device: torch.device) -> Data:
    s = setting.shape
    return {"x": randn(setting, device, s["N"], s["D"]), "y": randn(setting, device, s["K"], s["D"])}


def _chunks(x: torch.Tensor, y: torch.Tensor) -> Iterator[torch.Tensor]:
    """|y|^2 - 2 x.y, a chunk of rows at a time."""
    y_sq = y.float().square().sum(-1)
    for part in x.split(max(1, _CHUNK // y.shape[0])):
        yield y_sq - 2 * (part @ y.T)


def _torch_knn(x: torch.Tensor, y: torch.Tensor, k: int) -> tuple[torch.Tensor, ...]:
    parts = [scores.topk(k, largest=False) for scores in _chunks(x, y)]
    return tuple(torch.cat(t) for t in zip(*parts))


def _torch_argmin(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return torch.cat([scores.argmin(-1) for scores in _chunks(x, y)])


def _argmax_impls(setting: Setting, data: Data) -> Iterator[Impl]:
    x, y = data["x"], data["y"]

    def tilefold() -> Any:
        import tilefold as tf

        return lambda: tf.scores(x, y, metric="sqeuclidean").argmin(-1)

    yield Impl("tilefold", tilefold)
    if x.is_cuda:
        yield Impl("cublas", lambda: bare_matmul(_work(setting).flops, x.dtype, x.device), named=True)
        if peers.installed("flash-kmeans"):
            yield Impl("flash-kmeans", lambda: peers.flash_kmeans_assign(x, y), named=True)
    yield Impl("torch", lambda: lambda: _torch_argmin(x, y), named=not x.is_cuda)


def _knn_impls(setting: Setting, data: Data) -> Iterator[Impl]:
    x, y, k = data["x"], data["y"], setting.shape["k"]

    def tilefold() -> Any:
        import tilefold as tf

        return lambda: tf.knn(x, y, k, metric="sqeuclidean")

    yield Impl("tilefold", tilefold)
    if x.is_cuda:
        yield Impl("cublas", lambda: bare_matmul(_work(setting).flops, x.dtype, x.device), named=True)
        if peers.installed("flashlib"):
            yield Impl("flashlib", lambda: peers.flashlib_knn(x, y, k), named=True)
    yield Impl("torch", lambda: lambda: _torch_knn(x, y, k), named=not x.is_cuda)


def _check(setting: Setting, data: Data, out: Any) -> str | None:
    """Sampled rows: the distances of what was chosen, by direct differences in float64, against the best there are."""
    x, y, k = data["x"], data["y"], setting.shape.get("k", 1)
    rows = sample(x.shape[0], 64, x.device)
    chosen = _indices(out)[rows].reshape(len(rows), k).long()
    if bool(((chosen < 0) | (chosen >= y.shape[0])).any()):
        return "an index is out of range"
    if k > 1 and bool((chosen.sort(-1).values.diff(dim=-1) == 0).any()):
        return "an index occurs twice in a row"
    xs = x[rows].double()
    best = torch.full((len(rows), k), float("inf"), dtype=torch.float64, device=x.device)
    for part in y.split(2**18):
        d = part.double().square().sum(-1) - 2 * xs @ part.double().T + xs.square().sum(-1, keepdim=True)
        best = torch.cat([best, d], -1).topk(k, largest=False).values
    got = (xs[:, None] - y[chosen].double()).square().sum(-1).sort(-1).values
    scale = xs.square().sum(-1, keepdim=True) + y[chosen].double().square().sum(-1)
    gap = float(((got - best) / scale).max())
    allowed = _GAP[x.dtype]
    return None if gap <= allowed else f"a chosen column is {gap:.3g} of |x|^2 + |y|^2 too far, allowed {allowed:.3g}"


def _indices(out: Any) -> torch.Tensor:
    """Peers give indices alone or (values, indices)."""
    parts = out if isinstance(out, (tuple, list)) else (out,)
    return next(t for t in parts if not t.is_floating_point())


def _work(setting: Setting) -> Work:
    s = setting.shape
    out = 4.0 * s["N"] * s.get("k", 1) * (2 if "k" in s else 1)
    return Work(2.0 * s["N"] * s["K"] * s["D"], (s["N"] + s["K"]) * s["D"] * size_of(setting) + out, setting.dtype)


def _argmax(n: int, k: int, d: int, target: bool = False, dtype: str = "float16", device: str = "cuda") -> Setting:
    return Setting({"N": n, "K": k, "D": d}, dtype, device, target)


def _knn(n: int, k: int, d: int, neighbours: int, dtype: str, target: bool = False, device: str = "cuda") -> Setting:
    return Setting({"N": n, "K": k, "D": d, "k": neighbours}, dtype, device, target)


ARGMAX = Case(
    "argmax",
    (
        _argmax(2**20, 8192, 128, target=True),
        _argmax(2**20, 1024, 128),
        _argmax(2**20, 8192, 256),
        _argmax(2**20, 8192, 64),
        _argmax(65536, 1024, 64, dtype="float32", device="cpu"),
    ),
    _data,
    _argmax_impls,
    _check,
    _work,
    about="nearest of K centroids",
)
KNN = Case(
    "knn",
    (
        _knn(8192, 10**6, 256, 10, "bfloat16", target=True),
        _knn(8192, 65536, 256, 16, "bfloat16"),
        _knn(65536, 65536, 128, 10, "bfloat16"),
        _knn(1024, 10**6, 128, 100, "bfloat16"),
        _knn(4096, 16384, 384, 10, "float32", device="cpu"),
    ),
    _data,
    _knn_impls,
    _check,
    _work,
    about="k nearest neighbours",
)
