"""Folds and operators on a GPU at real sizes, against float64.

Every structure of a program costs a compilation of one to two seconds, so tests share structures: new data and new
sizes are free.
"""

from __future__ import annotations

import contextlib
import math
import threading
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate, same
from gpu_helpers import ON_GPU, gradients_agree, integers, pick, randn, sampled
from test_attention import reference
from torch import Tensor

import tilefold as tf

BF16, F16, F32, F64 = torch.bfloat16, torch.float16, torch.float32, torch.float64
GPU_ONLY = pytest.mark.skipif(not ON_GPU, reason="about streams, graphs and devices")


# ---- scores: types and features -------------------------------------------------------------------------


def check_logsumexp(x: Tensor, y: Tensor, backward: bool) -> None:
    scale = x.shape[-1] ** -0.5
    got = (tf.scores(x, y) * scale).logsumexp(-1)
    rows = sampled(x.shape[0], 96, x.device)
    want = (x[rows].double() @ y.double().mT * scale).logsumexp(-1)
    plain = (x[rows] @ y.mT * scale).logsumexp(-1)
    assert got.dtype == (F64 if x.dtype == F64 else F32)
    accurate(got[rows], want, plain, f"log-sum-exp, D = {x.shape[-1]}")
    if backward:
        wide = tuple(t.detach().double().requires_grad_() for t in (x, y))
        all_ = (wide[0] @ wide[1].mT * scale).logsumexp(-1)
        gradients_agree(got, all_, (x @ y.mT * scale).logsumexp(-1), (x, y), wide, f"log-sum-exp, D = {x.shape[-1]}")


@pytest.mark.parametrize("d", [1, 3, 17, 64, 100, 128, 256, 2049, 4096])
def test_any_number_of_features(d: int, device: torch.device) -> None:
    n, k = pick((1003, 5001), (13, 101))
    backward = d in (64, 2049)
    x, y = randn(n, d, device=device, dtype=BF16, grad=backward), randn(k, d, device=device, dtype=BF16, grad=backward)
    check_logsumexp(x, y, backward)


@pytest.mark.parametrize("dtype", [F16, F32, F64], ids=str)
def test_types(dtype: torch.dtype, device: torch.device) -> None:
    n, k = pick((1003, 5001), (13, 101))
    backward = dtype == F32
    x, y = (
        randn(n, 64, device=device, dtype=dtype, grad=backward),
        randn(k, 64, device=device, dtype=dtype, grad=backward),
    )
    check_logsumexp(x, y, backward)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 300001), (5, 70003), (130, 129), (100003, 3), (4099, 33)], ids=str)
def test_other_sizes_of_the_same_kernel(sizes: tuple[int, int], device: torch.device) -> None:
    """Few rows split the columns over blocks; nothing recompiles."""
    n, k = pick(sizes, (min(sizes[0], 40), min(sizes[1], 2500)))
    check_logsumexp(randn(n, 64, device=device, dtype=BF16), randn(k, 64, device=device, dtype=BF16), False)


def test_strides_and_batches_of_the_same_kernel(device: torch.device) -> None:
    x = randn(3, 64, 50, device=device, dtype=BF16).mT  # features far apart
    y = randn(3, 70, 2, 64, device=device, dtype=BF16)[:, :, 1]
    got = (tf.scores(x, y) * 0.1).logsumexp(-1)
    want = (x.double() @ y.double().mT * 0.1).logsumexp(-1)
    accurate(got, want, (x @ y.mT * 0.1).logsumexp(-1))
    shared = (tf.scores(x, y[0]) * 0.1).logsumexp(-1)
    accurate(shared[0], want[0], (x[0] @ y[0].mT * 0.1).logsumexp(-1))


# ---- discrete folds, exact on integers ------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_ties_and_indices_are_exact_on_integers(dtype: torch.dtype, device: torch.device) -> None:
    n, k = pick((2011, 9001), (23, 301))
    x, y = integers(n, 32, device=device, dtype=dtype), integers(k, 32, device=device, dtype=dtype)
    labels = torch.randint(0, k, (n,), device=device)
    s = tf.scores(x, y)
    got = tf.fold(
        s,
        best=tf.ArgMax(return_value=True),
        low=tf.ArgMin(),
        hit=tf.Gather(labels),
        top=tf.TopK(10),
        lse=tf.LogSumExp(),
    )
    whole = x.float() @ y.float().mT
    order = whole.sort(dim=-1, descending=True, stable=True)
    same(got.best[0], order.values[:, 0])
    same(got.best[1], order.indices[:, 0])
    same(got.low, whole.sort(dim=-1, stable=True).indices[:, 0])
    same(got.hit, whole.gather(1, labels[:, None]).squeeze(1))
    same(got.top.values, order.values[:, :10])
    same(got.top.indices, order.indices[:, :10])
    accurate(got.lse, whole.double().logsumexp(-1), whole.logsumexp(-1))


def test_argmax_alone_at_a_large_size(device: torch.device) -> None:
    n, k = pick((60000, 8192), (60, 300))
    x, y = integers(n, 128, device=device, dtype=BF16), integers(k, 128, device=device, dtype=BF16)
    index = tf.scores(x, y).argmax(-1)
    rows = sampled(n, 2000, device)
    whole = x[rows].float() @ y.float().mT
    columns = torch.arange(k, device=device)
    same(index[rows], torch.where(whole == whole.amax(-1, keepdim=True), columns, k).amin(-1))


@pytest.mark.parametrize("k", [32, 100, 2000])
def test_long_lists(k: int, device: torch.device) -> None:
    n, columns = pick((301, 50001), (7, 2100))
    x, y = integers(n, 32, device=device), integers(columns, 32, device=device)
    values, indices = tf.scores(x, y).topk(k)
    order = (x @ y.mT).sort(dim=-1, descending=True, stable=True)
    same(values, order.values[:, :k])
    same(indices, order.indices[:, :k])


def test_sums_and_moments_in_one_pass(device: torch.device) -> None:
    n, k = pick((1003, 20001), (13, 301))
    x, y = integers(n, 32, device=device), integers(k, 32, device=device)
    s = tf.scores(x, y)
    got = tf.fold(s, sum=tf.Sum(), top=tf.Max(), low=tf.Min(), mean=tf.Mean(), var=tf.Variance())
    whole = (x @ y.mT).double()
    accurate(got.sum, whole.sum(-1), whole.float().sum(-1))
    same(got.top, whole.amax(-1).float())
    same(got.low, whole.amin(-1).float())
    accurate(got.mean, whole.mean(-1), whole.float().mean(-1))
    accurate(got.var, whole.var(-1), whole.float().var(-1))
    same(tf.fold(s > 3, tf.Count()), (whole > 3).sum(-1))


def test_rows_of_nan_and_infinity_spoil_only_themselves(device: torch.device) -> None:
    n, k = pick((2011, 9001), (23, 301))
    x, y = integers(n, 32, device=device, dtype=BF16), integers(k, 32, device=device, dtype=BF16)
    labels = torch.randint(0, k, (n,), device=device)
    x[3], x[n - 1, 5] = math.nan, math.nan
    folds = {"best": tf.ArgMax(return_value=True), "low": tf.ArgMin(), "hit": tf.Gather(labels), "top": tf.TopK(10)}
    got = tf.fold(tf.scores(x, y), **folds, lse=tf.LogSumExp())
    bad = torch.zeros(n, dtype=torch.bool, device=device)
    bad[[3, n - 1]] = True
    for value in (got.best[0], got.hit, got.lse, got.top.values[:, 0]):
        same(value.isnan(), bad)
    same(got.best[1][bad], torch.zeros(2, dtype=torch.int64, device=device))
    whole = x[~bad].float() @ y.float().mT
    order = whole.sort(dim=-1, descending=True, stable=True)
    same(got.best[1][~bad], order.indices[:, 0])
    same(got.top.indices[~bad], order.indices[:, :10])


# ---- attention ------------------------------------------------------------------------------------------


def check_attention(
    device: torch.device,
    dtype: torch.dtype,
    sizes: tuple[int, ...],
    visible: Tensor | None = None,
    backward: bool = True,
    bias: Tensor | None = None,
    softcap: float | None = None,
    **options: Any,
) -> None:
    b, h, hkv, sq, sk, d, dv = sizes
    shapes = ((b, h, sq, d), (b, hkv, sk, d), (b, hkv, sk, dv))
    ours = tuple(randn(*s, device=device, dtype=dtype, grad=True) for s in shapes)
    wide = tuple(t.detach().double().requires_grad_() for t in ours)
    got, lse = tf.attention(*ours, return_lse=True, bias=bias, softcap=softcap, **options)
    want, want_lse = reference(*wide, visible, None if bias is None else bias.double(), softcap=softcap)
    plain, plain_lse = reference(*ours, visible, bias, softcap=softcap)
    what = f"attention {dtype}, D = {d}"
    assert got.dtype == dtype
    accurate(got, want, plain, what)
    accurate(lse, want_lse, plain_lse, f"{what}, log-sum-exp")
    if backward:
        gradients_agree(got, want, plain, ours, wide, what)


def causal(sq: int, sk: int, device: torch.device) -> Tensor:
    """Aligned bottom right."""
    return torch.ones(sq, sk, dtype=torch.bool, device=device).tril(sk - sq)


@pytest.mark.parametrize(
    ("dtype", "d", "dv", "backward"),
    [
        (BF16, 64, 64, True),
        (BF16, 128, 128, True),
        (BF16, 256, 256, True),
        (F16, 100, 64, False),
        (F32, 64, 64, True),
        (F64, 17, 17, False),
    ],
    ids=str,
)
def test_attention(dtype: torch.dtype, d: int, dv: int, backward: bool, device: torch.device) -> None:
    sq, sk = pick((1000, 1401), (37, 50))
    check_attention(device, dtype, (2, 4, 2, sq, sk, d, dv), causal(sq, sk, device), backward, causal="bottom_right")
    if (dtype, d) == (BF16, 64):  # the same kernels again: more queries than keys, one query, a ragged end
        for sq, sk in ((129, 65), (1, 700), (257, 257)):
            check_attention(device, dtype, (1, 6, 2, sq, sk, d, dv), causal(sq, sk, device), causal="bottom_right")


def test_attention_without_mask(device: torch.device) -> None:
    n = pick(1025, 41)
    check_attention(device, BF16, (1, 4, 4, n, n, 64, 64))


@pytest.mark.parametrize("kind", ["window", "lengths", "segments", "blocks", "boolean"])
def test_masks(kind: str, device: torch.device) -> None:
    n = pick(1111, 67)
    i, j = torch.arange(n, device=device).unsqueeze(-1), torch.arange(n, device=device)
    match kind:
        case "window":
            mask: Any = tf.mask.window(100, 30)
            seen = (j >= i - 100) & (j <= i + 30)
        case "lengths":
            lengths = torch.tensor([n, 0], device=device)
            mask, seen = tf.mask.lengths(lengths), (j < lengths.reshape(2, 1, 1, 1)).expand(2, 1, n, n)
        case "segments":
            ids = torch.randint(0, 9, (n,), device=device).sort().values
            mask, seen = tf.mask.segments(ids), ids.unsqueeze(-1) == ids
        case "blocks":
            count = -(-n // 64)
            table = torch.rand(count, count, device=device) < 0.3
            table[1] = False
            mask, seen = (
                tf.mask.blocks(table, (64, 64)),
                table.repeat_interleave(64, 0).repeat_interleave(64, 1)[:n, :n],
            )
        case _:
            mask = seen = torch.rand(n, n, device=device) < 0.5
    check_attention(device, BF16, (2, 4, 2, n, n, 64, 64), seen, kind in ("lengths", "segments", "blocks"), mask=mask)


def test_bias_and_softcap(device: torch.device) -> None:
    n = pick(700, 37)
    bias = randn(4, n, n, device=device, dtype=BF16)
    check_attention(device, BF16, (1, 4, 2, n, n, 64, 64), backward=False, bias=bias, softcap=5.0)


def test_learnable_scale_and_bias_get_gradients(device: torch.device) -> None:
    n = pick(500, 37)
    q, k, v = (randn(2, 2, n, 32, device=device, grad=True) for _ in range(3))
    scale = torch.tensor(0.2, device=device, requires_grad=True)
    bias = randn(2, 1, n, device=device, grad=True)
    out = tf.attention(q, k, v, scale=scale, bias=bias)
    wide = tuple(t.detach().double().requires_grad_() for t in (q, k, v, scale, bias))
    want = reference(*wide[:3], scale=wide[3], bias=wide[4])[0]
    plain = reference(q, k, v, scale=scale, bias=bias)[0]
    gradients_agree(out, want, plain, (q, k, v, scale, bias), wide, "learnable scale and bias")


def test_values_of_one_give_exactly_one(device: torch.device) -> None:
    sq, sk = pick((1000, 4001), (30, 301))
    q, k = randn(1, 4, sq, 64, device=device, dtype=BF16) * 3, randn(1, 2, sk, 64, device=device, dtype=BF16)
    ones = torch.ones(1, 2, sk, 64, device=device, dtype=BF16)
    out = tf.attention(q, k, ones, causal="bottom_right")
    same(out, torch.ones_like(out))


# ---- the other operators --------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [BF16, F32], ids=str)
def test_linear_cross_entropy(dtype: torch.dtype, device: torch.device) -> None:
    n, v, d = pick((2003, 32003, 256), (33, 301, 16))
    ours = (
        randn(n, d, device=device, dtype=dtype),
        randn(v, d, device=device, dtype=dtype) / 16,
        randn(v, device=device, dtype=dtype),
    )
    ours = tuple(t.requires_grad_() for t in ours)
    wide = tuple(t.detach().double().requires_grad_() for t in ours)
    y = torch.randint(0, v, (n,), device=device)
    y[::7] = -100
    got = tf.linear_cross_entropy(ours[0], ours[1], y, linear_bias=ours[2], label_smoothing=0.1, reduction="none")
    want = F.cross_entropy(F.linear(*wide), y, label_smoothing=0.1, reduction="none")
    plain = F.cross_entropy(F.linear(*ours), y, label_smoothing=0.1, reduction="none")
    accurate(got, want, plain, "loss")
    gradients_agree(got, want, plain, ours, wide, "linear_cross_entropy")
    y[5] = v  # out of range: marked, without waiting for the device
    if ON_GPU:
        marked = tf.linear_cross_entropy(
            ours[0], ours[1], y, linear_bias=ours[2], label_smoothing=0.1, reduction="none"
        )
        assert marked.isnan().nonzero().flatten().tolist() == [5]
        with tf.debug(), pytest.raises(IndexError):
            tf.linear_cross_entropy(ours[0], ours[1], y)


def test_linear_cross_entropy_of_many_features(device: torch.device) -> None:
    """Gradients by chunks of scores, also on a stream that is not the default."""
    n, v, d = pick((700, 5003, 1024), (33, 301, 300))
    shapes = ((n, d, 1.0), (v, d, d**-0.5), (v, 1, 1.0))
    h, w, b = ((randn(a, c, device=device, dtype=BF16) * s).requires_grad_() for a, c, s in shapes)
    wide = tuple(t.detach().double().requires_grad_() for t in (h, w, b))
    y = torch.randint(0, v, (n,), device=device)
    y[::7] = -100

    def ours() -> Tensor:
        return tf.linear_cross_entropy(h, w, y, linear_bias=b.squeeze(-1), reduction="none")

    want = F.cross_entropy(F.linear(*wide[:2], wide[2].squeeze(-1)), y, reduction="none")
    plain = F.cross_entropy(F.linear(h, w, b.squeeze(-1)), y, reduction="none")
    gradients_agree(ours(), want, plain, (h, w, b), wide, "linear_cross_entropy, D = 1024")
    up = torch.randn(n, device=device)
    first = torch.autograd.grad(ours(), (h, w, b), up)
    stream = torch.cuda.Stream() if ON_GPU else None
    with torch.cuda.stream(stream) if stream else contextlib.nullcontext():
        if stream:
            stream.wait_stream(torch.cuda.default_stream())
        again = torch.autograd.grad(ours(), (h, w, b), up)
    if stream:
        torch.cuda.default_stream().wait_stream(stream)
    for one, other in zip(first, again, strict=True):
        torch.testing.assert_close(one, other, rtol=0.01, atol=0.01 * one.abs().max().item())


@GPU_ONLY
@pytest.mark.parametrize("dtype", [BF16, F16, F32], ids=str)
def test_chunks_of_scores_add_up(dtype: torch.dtype, device: torch.device) -> None:
    """The same sums in one chunk and in several, ragged on both axes; causal, so that a row sees nothing."""
    from tilefold.execute import select
    from tilefold.execute import triton as loops
    from tilefold.program import Index, Leaf, Mask, Output, Program

    outputs = (Output("weighted_sum", Leaf(0, 1) * 0.1, (), 1), Output("weighted_sum", Leaf(0, 1) * 0.1, (), 0, "col"))
    program = Program(("rows", "cols"), outputs, Mask("row", None, Index("row")))
    x, y = randn(700, 320, device=device, dtype=dtype), randn(1003, 320, device=device, dtype=dtype)
    p, wide_p = ((a @ b.mT * 0.1).tril(-1) for a, b in ((x, y), (x.double(), y.double())))
    want, plain = (wide_p @ y.double(), wide_p.mT @ x.double()), (p @ y, p.mT @ x)
    for chunk in ((768, 1024), (256, 256), (256, 1024), (768, 512)):
        with select.using(chunk=chunk):
            made = loops.run(program, [x, y], (), 700, 1003, [dtype] * 2)
        for axis, g, w, t in zip(("rows", "columns"), made, want, plain, strict=True):
            accurate(g, w, t, f"{axis}, chunks of {chunk}")


def test_draws_equal_those_of_the_cpu(device: torch.device) -> None:
    n, v = pick((300, 5003), (20, 301))
    x, w = integers(n, 32, device=device, dtype=BF16, largest=1), integers(v, 32, device=device, dtype=BF16, largest=1)
    temperature = torch.linspace(0, 4, n, device=device)
    draws = tf.sample(x, w, temperature=temperature, seed=2**40 + 7, position=3)
    # a CPU tensor runs eagerly; equal bits of the generator, the noise to 2 ulp
    with tf.backend("eager"):
        right = tf.sample(x.cpu(), w.cpu(), temperature=temperature.cpu(), seed=2**40 + 7, position=3)
    assert (draws.cpu() == right).float().mean() > 0.99
    part = slice(7, n - 2)
    streams = torch.arange(n, device=device)[part]
    again = tf.sample(x[part], w, temperature=temperature[part], seed=2**40 + 7, position=3, stream=streams)
    same(again, draws[part])


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_knn(metric: str, device: torch.device) -> None:
    n, k = pick((2000, 100003), (20, 501))
    x, y = randn(n, 96, device=device) + 3, randn(k, 96, device=device) + 3
    value, index = tf.knn(x, y, 10, metric=metric)
    rows = sampled(n, 50, device)
    a, b = x[rows].double(), y.double()
    whole = (
        torch.cdist(a, b).square() if metric == "sqeuclidean" else F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT
    )
    best = whole.topk(10, largest=metric == "cosine").values
    size = a.square().sum(-1).amax() if metric == "sqeuclidean" else 1.0
    assert (whole.gather(1, index[rows]) - best).abs().max() <= 16 * 2**-23 * size
    torch.testing.assert_close(value[rows].double(), whole.gather(1, index[rows]), rtol=1e-5, atol=1e-6)


def test_contrastive_loss(device: torch.device) -> None:
    n = pick(3001, 40)
    a, b = (randn(n, 128, device=device, dtype=BF16, grad=True) for _ in range(2))
    scale = torch.tensor(20.0, device=device, requires_grad=True)
    got = tf.contrastive_loss(a, b, scale=scale)
    wide = tuple(t.detach().double().requires_grad_() for t in (a, b, scale))

    def plain(a: Tensor, b: Tensor, scale: Tensor) -> Tensor:
        s = F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).mT * scale
        at = torch.arange(n, device=device)
        return (F.cross_entropy(s, at) + F.cross_entropy(s.mT, at)) / 2

    want, theirs = plain(*wide), plain(a, b, scale)
    accurate(got, want, theirs, "loss", slack=8 * 2**15)
    gradients_agree(got, want, theirs, (a, b), wide[:2], "contrastive_loss")


# ---- streams, threads, graphs, compilers ----------------------------------------------------------------


def logsumexp(x: Tensor, y: Tensor) -> Tensor:
    return (tf.scores(x, y) * 0.125).logsumexp(-1)


@GPU_ONLY
def test_runs_on_the_current_stream(device: torch.device) -> None:
    y = randn(5001, 64, device=device, dtype=BF16)
    filled = randn(1003, 64, device=device, dtype=BF16)
    want = logsumexp(filled, y)
    torch.cuda.synchronize()
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        x = torch.zeros_like(filled)
        torch.cuda._sleep(200_000_000)  # about 0.1 s: a kernel on another stream would see zeros
        x.copy_(filled)
        got = logsumexp(x, y)
    side.synchronize()
    same(got, want)


def test_many_threads_at_once(device: torch.device) -> None:
    data = [
        (randn(100 + i, 64, device=device, dtype=BF16), randn(900 + i, 64, device=device, dtype=BF16)) for i in range(8)
    ]
    want = [logsumexp(x, y) for x, y in data]
    got: list[Tensor | None] = [None] * len(data)

    def work(i: int) -> None:
        for _ in range(5):
            got[i] = logsumexp(*data[i])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(len(data))]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for g, w in zip(got, want):
        assert g is not None
        same(g, w)


@GPU_ONLY
def test_nothing_waits_for_the_device_so_that_graphs_capture_it(device: torch.device) -> None:
    x, w = randn(500, 64, device=device, dtype=BF16), randn(3001, 64, device=device, dtype=BF16)
    y = torch.randint(0, 3001, (500,), device=device)
    seed = torch.tensor([5], device=device)
    for _ in range(2):  # compiles
        tf.linear_cross_entropy(x, w, y)
        tf.sample(x, w, seed=seed)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss, draws = tf.linear_cross_entropy(x, w, y), tf.sample(x, w, seed=seed)
    graph.replay()
    first = draws.clone()
    same(loss, tf.linear_cross_entropy(x, w, y))
    same(first, tf.sample(x, w, seed=5))
    seed.fill_(6)  # read on the device: a replay draws anew
    graph.replay()
    same(draws, tf.sample(x, w, seed=6))
    assert (draws != first).any()


@GPU_ONLY
def test_second_device() -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("one GPU")
    there = torch.device("cuda", 1)
    x, y = randn(300, 64, device=there, dtype=BF16), randn(900, 64, device=there, dtype=BF16)
    got = logsumexp(x, y)
    assert got.device == there
    accurate(got, (x.double() @ y.double().mT * 0.125).logsumexp(-1), (x @ y.mT * 0.125).logsumexp(-1))
    q, k, v = (randn(1, 2, 300, 64, device=there, dtype=BF16, grad=True) for _ in range(3))
    check = [t.detach().to("cuda:0").requires_grad_() for t in (q, k, v)]
    outs = [tf.attention(*t, causal="bottom_right") for t in ((q, k, v), check)]
    same(outs[0].cpu(), outs[1].cpu())
    grads = [
        torch.autograd.grad(out.float().square().sum(), t) for out, t in zip(outs, ((q, k, v), check), strict=True)
    ]
    for a, b in zip(*grads, strict=True):
        assert a.device == there
        same(a.cpu(), b.cpu())
    assert torch.cuda.current_device() == 0


def test_compiled_by_the_default_compiler(device: torch.device) -> None:
    n = pick(300, 20)
    q, k, v = (randn(2, 2, n, 64, device=device, dtype=BF16, grad=True) for _ in range(3))

    def block(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return tf.attention(q * 1.5, k, v, causal="bottom_right").float().square().mean()

    compiled = torch.compile(block, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    found = torch.autograd.grad(compiled(q, k, v), (q, k, v))
    right = torch.autograd.grad(block(q, k, v), (q, k, v))
    for f, r in zip(found, right):
        torch.testing.assert_close(f, r, rtol=0.02, atol=0.02 * r.abs().max().item())


def test_a_compiled_step_of_several_operators(device: torch.device) -> None:
    n, v = pick((300, 1003), (20, 101))
    h, w = randn(n, 64, device=device, dtype=BF16, grad=True), randn(v, 64, device=device, dtype=BF16, grad=True)
    labels = torch.randint(0, v, (n,), device=device)

    def step(h: Tensor, w: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        loss = tf.linear_cross_entropy(h.relu(), w, labels, label_smoothing=0.1)
        s = tf.scores(h, w)
        top = s.topk(5)
        return loss, s.argmax(-1), top.values, (s * 0.125).softmax(-1) @ w

    compiled = torch.compile(step, fullgraph=True, backend="inductor" if ON_GPU else "aot_eager")
    found, right = compiled(h, w), step(h, w)
    same(found[1], right[1])
    for f, r in zip(found, right, strict=True):
        torch.testing.assert_close(f, r, rtol=0.02, atol=0.02)
    grads = [torch.autograd.grad(loss + out.float().square().mean(), (h, w)) for loss, _, _, out in (found, right)]
    for f, r in zip(*grads, strict=True):
        torch.testing.assert_close(f, r, rtol=0.02, atol=0.02 * r.abs().max().item())


def test_repeated_calls_give_equal_bits(device: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    sq, sk = pick((1000, 1401), (37, 50))
    q, k, v = (randn(2, h, s, 64, device=device, dtype=BF16, grad=True) for h, s in ((4, sq), (2, sk), (2, sk)))
    results = []
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    for _ in range(3):
        out = tf.attention(q, k, v, causal="bottom_right")
        results.append((out, *torch.autograd.grad(out.float().square().sum(), (q, k, v))))
    for other in results[1:]:
        for a, b in zip(results[0], other):
            same(a, b)
