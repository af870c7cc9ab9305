"""The covering set: calls of the public interface on tensors without data, each for the targets that it matters to.

Chosen so that every fold, kind of operand, kind of mask, data type, way to hold the features (resident, streamed,
through descriptors, by multiply-add), gradient piece and kernel of the executor is there at least once; sizes decide
about splits only.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

import tilefold as tf
from tilefold import mask

F16, BF16, F32, F64 = torch.float16, torch.bfloat16, torch.float32, torch.float64
EVERY = ("sm_90", "sm_80", "sm_100", "gfx942")
HOPPER = ("sm_90",)


@dataclass(frozen=True)
class Case:
    name: str
    make: Callable[[], Any]
    targets: tuple[str, ...] = HOPPER
    tf32: bool = False


def tensor(*shape: int, dtype: torch.dtype = BF16, grad: bool = False) -> Tensor:
    return torch.empty(shape, dtype=dtype, device="meta").requires_grad_(grad)


def integers(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.int64, device="meta")


def booleans(*shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.bool, device="meta")


def pull(out: Any, *wanted: Tensor) -> None:
    """The gradients of `wanted`, from one of every result's type and shape."""
    outs = [o for o in (out if isinstance(out, tuple) else (out,)) if o.requires_grad]
    torch.autograd.grad(outs, wanted, [torch.empty_like(o) for o in outs])


def attention(
    d: int,
    *,
    dtype: torch.dtype = BF16,
    dv: int = 0,
    heads: int = 16,
    kv: int = 16,
    sq: int = 4096,
    sk: int = 4096,
    batch: int = 2,
    backward: bool = False,
    **options: Any,
) -> Callable[[], Any]:
    def make() -> None:
        q, k = (
            tensor(batch, heads, sq, d, dtype=dtype, grad=backward),
            tensor(batch, kv, sk, d, dtype=dtype, grad=backward),
        )
        v = tensor(batch, kv, sk, dv or d, dtype=dtype, grad=backward)
        given = {name: value() if callable(value) else value for name, value in options.items()}
        out = tf.attention(q, k, v, **given)
        if backward:
            bias = given.get("bias")
            pull(out, q, k, v, *([bias] if bias is not None and bias.requires_grad else []))

    return make


def paged(d: int, size: int) -> Callable[[], Any]:
    def make() -> None:
        k, v = (tensor(4096, size, 8, d) for _ in range(2))
        table = torch.empty(16, 32768 // size, dtype=torch.int32, device="meta")
        options: Any = {"causal": "bottom_right", "mask": mask.lengths(integers(16)), "layout": "bshd"}
        tf.attention(tensor(16, 1, 32, d), k, v, block_table=table, **options)

    return make


def folds(
    d: int,
    *every: tf.Fold,
    dtype: torch.dtype = BF16,
    n: int = 1 << 15,
    k: int = 1 << 13,
    backward: bool = False,
    metric: str = "dot",
    change: Callable[[Any], Any] = lambda s: s,
) -> Callable[[], Any]:
    def make() -> None:
        x, y = tensor(n, d, dtype=dtype, grad=backward), tensor(k, d, dtype=dtype, grad=backward)
        out = tf.fold(change(tf.scores(x, y, metric)), *every)
        if backward:
            pull(out, x, y)

    return make


def cross_entropy(
    d: int, *, dtype: torch.dtype = BF16, n: int = 8192, classes: int = 131072, bias: bool = False, **options: Any
) -> Callable[[], Any]:
    def make() -> None:
        h, w = tensor(n, d, dtype=dtype, grad=True), tensor(classes, d, dtype=dtype, grad=True)
        b = tensor(classes, dtype=dtype, grad=True) if bias else None
        loss = tf.linear_cross_entropy(h, w, integers(n), linear_bias=b, reduction="none", **options)
        pull(loss, h, w, *([b] if b is not None else []))

    return make


def payload(
    d: int,
    dv: int,
    change: Callable[[Any], Any],
    *,
    dtype: torch.dtype = BF16,
    metric: str = "dot",
    backward: bool = True,
) -> Callable[[], Any]:
    def make() -> None:
        x, y = tensor(16384, d, dtype=dtype, grad=backward), tensor(8192, d, dtype=dtype, grad=backward)
        v = tensor(8192, dv, dtype=dtype, grad=backward)
        out = change(tf.scores(x, y, metric)) @ v
        if backward:
            pull(out, x, y, v)

    return make


def contrastive(kind: str) -> Callable[[], Any]:
    def make() -> None:
        a, b = tensor(8192, 512, grad=True), tensor(8192, 512, grad=True)
        scale, bias = tensor(1, dtype=F32, grad=True), tensor(1, dtype=F32, grad=True)
        loss = tf.contrastive_loss(a, b, scale=scale, bias=bias, kind=kind)
        pull(loss, a, b, scale, *([bias] if kind == "siglip" else []))

    return make


def near(fn: Callable[[Any, Any], Any], d: int) -> Callable[[], Any]:
    def make() -> None:
        x, y = tensor(8192, d, dtype=F32, grad=True), tensor(8192, d, dtype=F32, grad=True)
        pull(tf.outer(fn, x, y).neg().exp() @ tensor(8192, 16, dtype=F32), x, y)

    return make


def two_leaves() -> None:
    x, y, z, w = (tensor(4096, d, grad=True) for d in (128, 128, 64, 64))
    pull((tf.scores(x, y) + tf.scores(z, w)).logsumexp(-1), x, y, z, w)


def sampled() -> None:
    tf.sample(tensor(256, 4096), tensor(131072, 4096), temperature=tensor(256, dtype=F32), seed=1, stream=integers(256))


def scale(s: Any) -> Any:
    return s * 0.125


def every_statistic(*more: tf.Fold) -> tuple[tf.Fold, ...]:
    return (tf.Sum(), tf.Mean(), tf.Count(), *more)


LSE, TOP = tf.LogSumExp, tf.TopK

CASES = (
    # attention
    Case("attention D=128, causal", attention(128, causal=True, backward=True), ("sm_80", "sm_100")),
    Case(
        "attention D=128, grouped heads, causal",
        attention(128, kv=4, causal=True, backward=True),
        ("sm_90", "gfx942"),
    ),
    Case("attention D=256", attention(256, dtype=F16, backward=True)),
    Case("attention D=192, Dv=128", attention(192, dv=128, backward=True)),
    Case("attention D=32", attention(32, dtype=F16)),
    Case("attention D=128, softcap", attention(128, softcap=50.0, backward=True)),
    Case("attention D=128, Dv=512", attention(128, dv=512)),
    Case("attention D=64, bias", attention(64, bias=lambda: tensor(1, 16, 4096, 4096, grad=True), backward=True)),
    Case("attention D=64, boolean mask", attention(64, mask=lambda: booleans(4096, 4096))),
    Case("attention D=128, segments", attention(128, mask=lambda: mask.segments(integers(2, 4096)), backward=True)),
    Case("attention D=128, bias per key", attention(128, bias=lambda: tensor(2, 1, 1, 4096, dtype=F32))),
    Case("attention D=128, lengths", attention(128, mask=lambda: mask.lengths(integers(2)))),
    Case(
        "attention D=128, blocks",
        attention(128, mask=lambda: mask.blocks(booleans(32, 32), (128, 128)), backward=True),
    ),
    Case("attention D=128, one query", attention(128, sq=1, sk=65536, batch=1, kv=4)),
    Case(
        "attention D=64, four queries of 24 heads and of lengths",
        attention(64, sq=4, sk=65536, heads=24, kv=3, causal="bottom_right", mask=lambda: mask.lengths(integers(2))),
        ("sm_90", "sm_80"),
    ),
    Case("attention D=128, pages of 16", paged(128, 16), ("sm_90", "sm_80", "gfx942")),
    Case("attention D=128, pages of 256", paged(128, 256)),
    Case("attention D=64, float32", attention(64, dtype=F32)),
    Case("attention D=64, tf32", attention(64, dtype=F32, backward=True), tf32=True),
    Case("attention D=32, float64", attention(32, dtype=F64)),
    # log-sum-exp and cross-entropy
    Case("log-sum-exp D=64", folds(64, LSE(), backward=True)),
    Case("log-sum-exp D=100", folds(100, LSE(), change=scale)),
    Case("log-sum-exp D=256", folds(256, LSE(), backward=True)),
    Case("log-sum-exp D=2049", folds(2049, LSE())),
    Case("log-sum-exp D=4096", folds(4096, LSE(), n=8192, k=131072), EVERY),
    Case("log-sum-exp D=64, tf32", folds(64, LSE(), dtype=F32), ("sm_80",), tf32=True),
    Case("cross-entropy D=4096", cross_entropy(4096), EVERY),
    Case(
        "cross-entropy D=256, all options",
        cross_entropy(256, bias=True, label_smoothing=0.1, z_loss=1e-4, softcap=30.0),
    ),
    Case("contrastive, sigmoid", contrastive("siglip")),
    Case("two leaves", two_leaves),
    # search
    Case("arg-max D=128", folds(128, tf.ArgMax(), dtype=F16), EVERY),
    Case("arg-max D=768", folds(768, tf.ArgMax())),
    Case("arg-min of distances D=128", folds(128, tf.ArgMin(), metric="sqeuclidean"), EVERY),
    Case(
        "arg-min of distances D=128, float32",
        folds(128, tf.ArgMin(return_value=True), dtype=F32, metric="sqeuclidean", backward=True),
    ),
    Case("arg-max of cosines D=256, tf32", folds(256, tf.ArgMax(), dtype=F32, metric="cosine"), tf32=True),
    Case("top-10 D=128", folds(128, TOP(10), n=1000, k=8192), ("sm_90", "gfx942")),
    Case("bottom-32 of distances D=64", folds(64, tf.BottomK(32), n=1000, k=8192, metric="sqeuclidean")),
    Case("top-4 and log-sum-exp D=256", folds(256, TOP(4), LSE())),
    Case("top-100 of a million D=256", folds(256, TOP(100), n=8192, k=1000000)),
    Case("bottom-2048 of distances D=4096", folds(4096, tf.BottomK(2048), n=1024, k=1000000, metric="sqeuclidean")),
    Case("top-100 D=64, few columns", folds(64, TOP(100), n=64, k=4096)),
    # the other folds and expressions
    Case("maximum D=128", folds(128, tf.Max(), backward=True)),
    Case("minimum D=64, causal", folds(64, tf.Min(), n=8192, change=lambda s: s.visible(mask.causal()))),
    Case("sum, mean, count D=128", folds(128, *every_statistic(), change=lambda s: (s > 0.5) * s)),
    Case("variance D=128", folds(128, tf.Variance(), backward=True)),
    Case("gather and log-sum-exp D=128", lambda: folds(128, LSE(), tf.Gather(integers(1 << 15)))()),
    Case("sample D=4096", sampled, ("sm_90", "sm_100")),
    Case("four folds at once", folds(128, tf.ArgMax(), LSE(), tf.Variance(), tf.Sum())),
    Case("payload of scores", payload(128, 128, lambda s: s)),
    Case(
        "payload of a kernel matrix",
        payload(64, 64, lambda s: (s * -0.5).exp(), dtype=F32, metric="sqeuclidean", backward=False),
    ),
    Case("payload of tanh and sigmoid", payload(64, 64, lambda s: s.tanh() * s.sigmoid(), backward=False)),
    Case("L1 distances", near(lambda a, b: sum((a[i] - b[i]).abs() for i in range(3)), 3)),
)

PAIRS = [(case, target) for case in CASES for target in case.targets]
