"""Gradients of every fold in every operand, against autograd on float64 matrices; and errors for anything beyond."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import accurate, close64, same
from spellings import DISCRETE, LAZY, SPELLINGS, Env, dense, env
from torch import Tensor
from torch.utils.checkpoint import checkpoint

import tilefold as tf
from tilefold.errors import GradientError

F64 = torch.float64


def gradients_of(fn: Callable[[Env], Tensor], e: Env, dtype: torch.dtype) -> tuple[Tensor, ...]:
    leaves = tuple(e.floats().values())
    out = fn(e)
    up = torch.randn(out.shape, generator=torch.Generator().manual_seed(5), dtype=F64).to(
        dtype if out.dtype != F64 else F64
    )
    grads = torch.autograd.grad(out, leaves, up.to(out.dtype), allow_unused=True)
    return tuple(torch.zeros_like(t) if g is None else g for t, g in zip(leaves, grads))


def check_gradients(lazy: Callable[[Env], Tensor], matrix: Callable[[Env], Tensor], e: Env, slack: float = 8) -> None:
    got, plain = gradients_of(lazy, e, torch.float32), gradients_of(matrix, e, torch.float32)
    want = gradients_of(matrix, e.to(F64), torch.float32)
    for name, g, w, p in zip(e.floats(), got, want, plain):
        assert g.dtype == getattr(e, name).dtype
        accurate(g, w, p, f"gradient of {name}", slack)


@pytest.mark.parametrize("name", [n for n in SPELLINGS if n not in DISCRETE])
def test_gradient_of_a_spelling_is_the_matrixs(name: str) -> None:
    fn = SPELLINGS[name]
    check_gradients(lambda e: fn(tf.scores, e), lambda e: fn(dense, e), env())


@pytest.mark.parametrize("name", LAZY)
def test_gradient_of_a_lazy_spelling_is_the_matrixs(name: str) -> None:
    check_gradients(*LAZY[name], env(), 64 if "euclidean" in name else 16)


@pytest.mark.parametrize(
    "name",
    ["matmul(F.softmax)", "t * s", "softmax mT", "strided slice with data", "s.var(-1)", "s.topk", "three products"],
)
def test_gradient_over_several_tiles(name: str) -> None:
    fn = SPELLINGS[name]
    check_gradients(lambda e: fn(tf.scores, e), lambda e: fn(dense, e), env(300, 2200, 5))


# every fold on one expression with operands of every kind, batches broadcast in every direction

FOLDS: dict[str, tuple[Callable[[Any, Tensor, Tensor], Any], Callable[[Tensor, Tensor, Tensor], Any]]] = {
    "logsumexp": (lambda s, v, i: tf.fold(s, tf.LogSumExp()), lambda m, v, i: m.logsumexp(-1)),
    "softmax_sum": (lambda s, v, i: tf.fold(s, tf.SoftmaxSum(v)), lambda m, v, i: m.softmax(-1) @ v),
    "softmax_sum with lse": (
        lambda s, v, i: torch.cat([t.flatten() for t in tf.fold(s, tf.SoftmaxSum(v, return_lse=True))]),
        lambda m, v, i: torch.cat([(m.softmax(-1) @ v).flatten(), m.logsumexp(-1).flatten()]),
    ),
    "lse of softmax_sum alone": (
        lambda s, v, i: tf.fold(s, tf.SoftmaxSum(v, return_lse=True))[1],
        lambda m, v, i: m.logsumexp(-1),
    ),
    "sum": (lambda s, v, i: tf.fold(s, tf.Sum()), lambda m, v, i: m.sum(-1)),
    "weighted_sum": (lambda s, v, i: tf.fold(s, tf.WeightedSum(v)), lambda m, v, i: m @ v),
    "max": (lambda s, v, i: tf.fold(s, tf.Max()), lambda m, v, i: m.amax(-1)),
    "min": (lambda s, v, i: tf.fold(s, tf.Min()), lambda m, v, i: m.amin(-1)),
    "argmax": (lambda s, v, i: tf.fold(s, tf.ArgMax(return_value=True))[0], lambda m, v, i: m.max(-1).values),
    "argmin": (lambda s, v, i: tf.fold(s, tf.ArgMin(return_value=True))[0], lambda m, v, i: m.min(-1).values),
    "topk": (lambda s, v, i: tf.fold(s, tf.TopK(3))[0], lambda m, v, i: m.topk(3).values),
    "bottomk": (lambda s, v, i: tf.fold(s, tf.BottomK(3))[0], lambda m, v, i: m.topk(3, largest=False).values),
    "mean": (lambda s, v, i: tf.fold(s, tf.Mean()), lambda m, v, i: m.mean(-1)),
    "variance": (lambda s, v, i: tf.fold(s, tf.Variance()), lambda m, v, i: m.var(-1)),
    "variance of a population": (
        lambda s, v, i: tf.fold(s, tf.Variance(correction=0)),
        lambda m, v, i: m.var(-1, correction=0),
    ),
    "gather": (lambda s, v, i: tf.fold(s, tf.Gather(i)), lambda m, v, i: m.gather(-1, i[..., None])[..., 0]),
    "several": (
        lambda s, v, i: (lambda r: r.a * r.b + r.c.sum(-1) * r.d[0].sum(-1))(
            tf.fold(s, a=tf.LogSumExp(), b=tf.Gather(i), c=tf.SoftmaxSum(v), d=tf.TopK(2))
        ),
        lambda m, v, i: (
            m.logsumexp(-1) * m.gather(-1, i[..., None])[..., 0]
            + (m.softmax(-1) @ v).sum(-1) * m.topk(2).values.sum(-1)
        ),
    ),
}


def operands(seed: int = 0) -> list[Tensor]:
    g = torch.Generator().manual_seed(seed)
    n, k, d = 7, 11, 4
    shapes = [(2, 1, n, d), (3, k, d), (2, 1, k, 5), (3, n, 1), (2, 1, 1, k), (1, 3, n, k), (3, 1, 1), ()]
    return [torch.randn(s, generator=g, dtype=F64).requires_grad_() for s in shapes]


def expression(s: Any, row: Tensor, col: Tensor, tile: Tensor, head: Tensor, t: Tensor) -> Any:
    return ((s + tile) * t + row).tanh() * 2 + s * head - col


INDEX = torch.randint(0, 11, (2, 3, 7), generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("masked", [False, True], ids=["", "masked"])
@pytest.mark.parametrize("name", FOLDS)
def test_gradient_of_a_fold_in_every_kind_of_operand(name: str, masked: bool) -> None:
    lazy, matrix = FOLDS[name]
    x, y, v, *data = every = operands()
    s, m = expression(tf.scores(x, y), *data), expression(x @ y.mT, *data)
    if masked:
        # three columns are enough for every fold; the gathered one is visible
        s, m, index = s.visible(tf.mask.lengths(torch.tensor(6))), m[..., :6], INDEX % 6
        got, want = lazy(s, v, index), matrix(m, v[..., :6, :], index)
    else:
        got, want = lazy(s, v, INDEX), matrix(m, v, INDEX)
    close64(got, want, name)
    up = torch.randn_like(want)
    grads = torch.autograd.grad(got, every, up, allow_unused=True)
    wanted = torch.autograd.grad(want, every, up, allow_unused=True)
    for i, (g, w) in enumerate(zip(grads, wanted)):
        assert (g is None) == (w is None), f"operand {i}"
        if g is not None and w is not None:
            close64(g, w, f"{name}: operand {i}", 1e-10)


@pytest.mark.parametrize("name", FOLDS)
def test_gradient_is_right_where_only_one_operand_wants_it(name: str) -> None:
    lazy, matrix = FOLDS[name]
    for i in range(8):
        every = [t.detach().requires_grad_(j == i) for j, t in enumerate(operands())]
        x, y, v, *data = every
        got, want = lazy(expression(tf.scores(x, y), *data), v, INDEX), matrix(expression(x @ y.mT, *data), v, INDEX)
        assert got.requires_grad == want.requires_grad or i == 2
        if want.requires_grad:
            up = torch.randn_like(want)
            close64(
                torch.autograd.grad(got, every[i], up)[0],
                torch.autograd.grad(want, every[i], up)[0],
                f"{name}: operand {i}",
                1e-10,
            )


@pytest.mark.parametrize("fold", ["logsumexp", "softmax_sum", "variance", "weighted_sum"])
def test_gradcheck(fold: str) -> None:
    lazy, _ = FOLDS[fold]
    x, y, v = torch.randn(3, 2, dtype=F64), torch.randn(4, 2, dtype=F64), torch.randn(4, 2, dtype=F64)
    every = [t.requires_grad_() for t in (x, y, v)]
    torch.autograd.gradcheck(lambda x, y, v: lazy(tf.scores(x, y).tanh(), v, INDEX), every)


def test_same_tensor_on_both_sides() -> None:
    x = torch.randn(6, 3, dtype=F64, requires_grad=True)
    m = x @ x.mT
    (got,) = torch.autograd.grad((tf.scores(x, x).softmax(-1) @ x).square().sum(), x)
    (want,) = torch.autograd.grad((m.softmax(-1) @ x).square().sum(), x)
    close64(got, want)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_low_precision_gradients_keep_the_operands_type(dtype: torch.dtype) -> None:
    q, k, v = (torch.randn(2, 40, 16).to(dtype).requires_grad_() for _ in range(3))
    up = torch.randn(2, 40, 16).to(dtype)

    def run(fn: Callable[..., Tensor], kind: torch.dtype) -> tuple[Tensor, ...]:
        every = [t.detach().to(kind).requires_grad_() for t in (q, k, v)]
        return torch.autograd.grad(fn(*every), every, up.to(kind))

    got = run(lambda q, k, v: (tf.scores(q, k) / 4).softmax(-1) @ v, dtype)
    plain, want = (run(lambda q, k, v: (q @ k.mT / 4).softmax(-1) @ v, kind) for kind in (dtype, F64))
    for name, g, w, p in zip("qkv", got, want, plain):
        assert g.dtype == dtype
        accurate(g, w, p, name)


def test_mixed_types_get_gradients_of_their_own_type() -> None:
    x, y = torch.randn(5, 4).half().requires_grad_(), torch.randn(6, 4, requires_grad=True)
    bias = torch.randn(6).bfloat16().requires_grad_()
    grads = torch.autograd.grad((tf.scores(x, y) + bias).logsumexp(-1).sum(), (x, y, bias))
    assert [g.dtype for g in grads] == [torch.float16, torch.float32, torch.bfloat16]


def test_learnable_temperature_of_any_scalar_shape() -> None:
    x, y = torch.randn(5, 4, dtype=F64), torch.randn(6, 4, dtype=F64)
    for shape in ((), (1,), (1, 1)):
        t = torch.full(shape, 0.7, dtype=F64, requires_grad=True)
        (got,) = torch.autograd.grad((tf.scores(x, y) * t.exp()).logsumexp(-1).sum(), t)
        (want,) = torch.autograd.grad((x @ y.mT * t.exp()).logsumexp(-1).sum(), t)
        close64(got, want, str(shape))


def test_grouped_heads_sum_over_their_group() -> None:
    b, g, h, n = 2, 2, 3, 6
    q = torch.randn(b, g, h, n, 4, dtype=F64, requires_grad=True)
    k, v = (torch.randn(b, g, 1, n, 4, dtype=F64, requires_grad=True) for _ in range(2))
    up = torch.randn(b, g, h, n, 4, dtype=F64)
    got = torch.autograd.grad(tf.fold(tf.scores(q, k).visible(tf.mask.causal()), tf.SoftmaxSum(v)), (q, k, v), up)
    m = (q @ k.mT).masked_fill(torch.ones(n, n).triu(1).bool(), -torch.inf)
    for a, w in zip(got, torch.autograd.grad(m.softmax(-1) @ v, (q, k, v), up)):
        close64(a, w)


@pytest.mark.parametrize(
    "name", [n for n in FOLDS if n not in ("gather", "several", "mean", "variance", "variance of a population")]
)
def test_rows_that_see_nothing_get_zero_gradients(name: str) -> None:
    lazy, matrix = FOLDS[name]
    x, y, v = (torch.randn(*s, dtype=F64, requires_grad=True) for s in ((4, 3), (5, 3), (5, 2)))
    rows = torch.tensor([True, False, True, False])
    out = lazy(tf.scores(x, y).visible_rows(rows), v, INDEX)
    gx, *_ = torch.autograd.grad(
        out.nan_to_num(0, 0, 0).sum() if name in ("max", "min") else out[out.isfinite()].sum(),
        (x, y, v),
        allow_unused=True,
    )
    same(gx[~rows], torch.zeros(2, 3, dtype=F64))
    assert bool(gx.isfinite().all()) and bool((gx[rows] != 0).any())


def test_a_hidden_column_gets_exactly_zero() -> None:
    x, y, v = (torch.randn(*s, requires_grad=True) for s in ((4, 3), (5, 3), (5, 2)))
    out = tf.fold(tf.scores(x, y).visible(tf.mask.lengths(torch.tensor(3))), tf.SoftmaxSum(v))
    _, gy, gv = torch.autograd.grad(out.sum(), (x, y, v))
    same(gy[3:], torch.zeros(2, 3))
    same(gv[3:], torch.zeros(2, 2))


def test_hidden_infinite_and_nan_operands_do_not_reach_the_gradients() -> None:
    """As padding that nobody initialised."""
    x, y, v = torch.randn(4, 3, dtype=F64), torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    bias = torch.zeros(4, 6, dtype=F64)
    bias[:, 4:] = torch.tensor([torch.nan, torch.inf], dtype=F64)
    for t in (x, y, v, bias):
        t.requires_grad_()
    out = tf.fold((tf.scores(x, y) + bias).visible(tf.mask.lengths(torch.tensor(4))), tf.SoftmaxSum(v))
    up = torch.randn_like(out)
    got = torch.autograd.grad(out, (x, y, v, bias), up)
    want = torch.autograd.grad((x @ y.mT + bias)[:, :4].softmax(-1) @ v[:4], (x, y, v, bias), up)
    for g, w in zip(got, want):
        close64(g, w)


def test_amax_shares_ties_and_max_gives_them_to_its_index() -> None:
    x, y = torch.ones(2, 1, dtype=F64), torch.tensor([[1.0], [3.0], [3.0], [2.0]], dtype=F64, requires_grad=True)
    (shared,) = torch.autograd.grad(tf.scores(x, y).amax(-1).sum(), y)
    same(shared[:, 0], torch.tensor([0.0, 1, 1, 0], dtype=F64))
    (indexed,) = torch.autograd.grad(tf.scores(x, y).max(-1).values.sum(), y)
    same(indexed[:, 0], torch.tensor([0.0, 2, 0, 0], dtype=F64))


def test_kinks_have_torchs_slopes() -> None:
    x, y = torch.ones(1, 1, dtype=F64), torch.tensor([[-1.0], [0.0], [1.0]], dtype=F64, requires_grad=True)
    for fn in (
        lambda s: s.relu(),
        lambda s: s.abs(),
        lambda s: s.clamp(-1, 1),
        lambda s: torch.maximum(s, torch.zeros(1, 1, dtype=F64)),
        lambda s: s.clamp(min=0),
    ):
        (got,) = torch.autograd.grad(fn(tf.scores(x, y)).sum(-1).sum(), y)
        (want,) = torch.autograd.grad(fn(x @ y.mT).sum(), y)
        close64(got, want)


def test_euclidean_distance_zero_has_gradient_zero() -> None:
    x = torch.randn(4, 3, dtype=F64, requires_grad=True)
    (got,) = torch.autograd.grad(tf.scores(x, x, metric="euclidean").sum(-1).sum(), x)
    (want,) = torch.autograd.grad(torch.cdist(x, x).sum(), x)
    close64(got, want, tolerance=1e-8)


def test_graph_can_be_used_twice() -> None:
    x, y = torch.randn(5, 3, dtype=F64, requires_grad=True), torch.randn(6, 3, dtype=F64, requires_grad=True)
    out = (tf.scores(x, y) * 0.5).logsumexp(-1)
    first = torch.autograd.grad(out.sum(), (x, y), retain_graph=True)
    second = torch.autograd.grad(out.sum(), (x, y))
    for a, b in zip(first, second):
        same(a, b)
    with pytest.raises(RuntimeError, match="second time"):
        torch.autograd.grad(out.sum(), (x, y))


def test_no_grad_and_detach_cut_the_graph() -> None:
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    with torch.no_grad():
        s = tf.scores(x, y)
    assert not s.logsumexp(-1).requires_grad
    assert not tf.scores(x, y).detach().logsumexp(-1).requires_grad
    with torch.inference_mode():
        assert tf.scores(x, y).logsumexp(-1).is_inference()
    s = tf.scores(x, y)
    assert s.requires_grad
    with torch.no_grad():
        assert not s.logsumexp(-1).requires_grad


def test_backward_accumulates_into_grad() -> None:
    x, y = torch.randn(5, 3, requires_grad=True), torch.randn(6, 3, requires_grad=True)
    tf.scores(x, y).logsumexp(-1).sum().backward()
    once = x.grad.clone()
    tf.scores(x, y).logsumexp(-1).sum().backward()
    torch.testing.assert_close(x.grad, 2 * once)


def test_saved_for_backward_is_operands_and_rows() -> None:
    x, y, v = (
        torch.randn(700, 4, requires_grad=True),
        torch.randn(900, 4, requires_grad=True),
        torch.randn(900, 2, requires_grad=True),
    )
    kept: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        kept[t.untyped_storage().data_ptr()] = t.untyped_storage().nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        out = (tf.scores(x, y) * 0.5).softmax(-1) @ v
    assert sum(kept.values()) < 8 * (x.nbytes + y.nbytes + v.nbytes + out.nbytes) < 700 * 900 * 4


# ---- what does not exist -------------------------------------------------------------------------------------


def functions() -> dict[str, Callable[[Tensor], Tensor]]:
    y, v = torch.randn(6, 3, dtype=F64), torch.randn(6, 2, dtype=F64)
    return {
        "logsumexp": lambda x: tf.scores(x, y).logsumexp(-1).sum(),
        "softmax_sum": lambda x: (tf.scores(x, y).softmax(-1) @ v).sum(),
        "weighted_sum": lambda x: (tf.scores(x, y).square() @ v).sum(),
        "sum": lambda x: tf.scores(x, y).exp().sum(-1).sum(),
        "max": lambda x: tf.scores(x, y).square().amax(-1).sum(),
        "topk": lambda x: tf.scores(x, y).square().topk(2).values.sum(),
        "variance": lambda x: tf.scores(x, y).var(-1).sum(),
        "cross_entropy": lambda x: F.cross_entropy(tf.scores(x, y), torch.tensor([0, 1, 2, 3])),
        # linear in x: its second derivative is a true zero, in an operand that the first one does not hold
        "mean": lambda x: tf.scores(x, y).mean(-1).sum(),
    }


@pytest.mark.parametrize("name", functions())
def test_second_derivative_is_an_error_and_never_a_zero(name: str) -> None:
    fn = functions()[name]
    x = torch.randn(4, 3, dtype=F64, requires_grad=True)
    (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
    if not g.requires_grad:
        # nothing that a second derivative could be taken of: torch itself says so
        with pytest.raises(RuntimeError, match="does not require grad"):
            torch.autograd.grad(g.square().sum(), x)
        return
    with pytest.raises(GradientError, match="second derivative.*materialize"):
        torch.autograd.grad(g.square().sum(), x)


@pytest.mark.parametrize("name", functions())
def test_nested_functional_gradients_are_an_error(name: str) -> None:
    fn, x = functions()[name], torch.randn(4, 3, dtype=F64)
    with pytest.raises(RuntimeError):
        torch.func.grad(lambda x: torch.func.grad(fn)(x).square().sum())(x)
    with pytest.raises(RuntimeError):
        torch.func.hessian(fn)(x)


@pytest.mark.parametrize("name", functions())
def test_forward_mode_is_an_error_and_never_a_zero(name: str) -> None:
    fn, x = functions()[name], torch.randn(4, 3, dtype=F64)
    with pytest.raises(RuntimeError):
        torch.func.jvp(fn, (x,), (torch.ones_like(x),))
    with torch.autograd.forward_ad.dual_level(), pytest.raises(RuntimeError):
        torch.autograd.forward_ad.unpack_dual(fn(torch.autograd.forward_ad.make_dual(x, torch.ones_like(x))))


def test_materialize_has_derivatives_of_any_order() -> None:
    x, y = torch.randn(4, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    got = torch.func.hessian(lambda x: (tf.scores(x, y) * 2).materialize().logsumexp(-1).sum())(x)
    close64(got, torch.func.hessian(lambda x: (x @ y.mT * 2).logsumexp(-1).sum())(x))


# ---- torch.func ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", functions())
def test_functional_gradient_equals_autograd(name: str) -> None:
    fn = functions()[name]
    x = torch.randn(4, 3, dtype=F64, requires_grad=True)
    close64(torch.func.grad(fn)(x.detach()), torch.autograd.grad(fn(x), x)[0])


@pytest.mark.parametrize("dims", [(0, None, None), (None, 0, None), (None, None, 0), (0, 0, 0), (1, 2, 0)], ids=str)
@pytest.mark.parametrize("name", ["logsumexp", "softmax_sum", "topk", "variance", "gather", "several"])
def test_vmap_over_operands(name: str, dims: tuple[int | None, ...]) -> None:
    lazy, matrix = FOLDS[name]
    index = torch.randint(0, 6, (4,))

    def of(d: int | None, *shape: int) -> Tensor:
        return torch.randn(shape if d is None else (*shape[:d], 5, *shape[d:]), dtype=F64)

    x, y, v = of(dims[0], 4, 3), of(dims[1], 6, 3), of(dims[2], 6, 2)
    if dims == (None, None, 0) and name not in ("softmax_sum", "several"):
        pytest.skip("nothing mapped reaches this fold")
    got = torch.vmap(lambda x, y, v: lazy(tf.scores(x, y), v, index), dims)(x, y, v)
    want = torch.vmap(lambda x, y, v: matrix(x @ y.mT, v, index), dims)(x, y, v)
    close64(got, want)


def test_vmap_over_data_of_every_kind() -> None:
    x, y = torch.randn(4, 3, dtype=F64), torch.randn(6, 3, dtype=F64)
    for shape in ((4, 1), (6,), (1, 6), (4, 6), ()):
        b = torch.randn(5, *shape, dtype=F64)
        got = torch.vmap(lambda b: (tf.scores(x, y) * b).logsumexp(-1))(b)
        close64(got, torch.vmap(lambda b: (x @ y.mT * b).logsumexp(-1))(b), str(shape))


def test_vmap_over_masks() -> None:
    x, y = torch.randn(5, 4, 3, dtype=F64), torch.randn(6, 3, dtype=F64)
    lengths, seen = torch.tensor([1, 2, 6, 0, 3]), torch.rand(5, 4, 6) > 0.5
    got = torch.vmap(lambda x, n, see: tf.scores(x, y).visible(tf.mask.lengths(n), see).logsumexp(-1))(x, lengths, seen)
    m = (x @ y.mT).masked_fill(~(seen & (torch.arange(6) < lengths[:, None, None])), -torch.inf)
    close64(got, m.logsumexp(-1))


@pytest.mark.parametrize("dims", [(0, None), (None, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("name", ["logsumexp", "softmax_sum", "variance", "topk"])
def test_vmap_of_gradients(name: str, dims: tuple[int | None, int | None]) -> None:
    lazy, matrix = FOLDS[name]
    v, index = torch.randn(6, 2, dtype=F64), torch.randint(0, 6, (4,))
    x, y = (torch.randn(*((5,) if d == 0 else ()), n, 3, dtype=F64) for d, n in zip(dims, (4, 6)))

    def per_sample(score: Callable[[Tensor, Tensor], Any], fold: Callable[..., Tensor]) -> tuple[Tensor, ...]:
        f = lambda x, y: fold(score(x, y), v, index).sin().sum()
        return torch.vmap(torch.func.grad(f, argnums=(0, 1)), dims)(x, y)

    for g, w in zip(per_sample(tf.scores, lazy), per_sample(dense, matrix)):
        close64(g, w)


def test_nested_vmap() -> None:
    x, y = torch.randn(2, 3, 4, 5, dtype=F64), torch.randn(3, 6, 5, dtype=F64)
    got = torch.vmap(torch.vmap(lambda x, y: tf.scores(x, y).logsumexp(-1)), (0, None))(x, y)
    close64(got, (x @ y.mT).logsumexp(-1))


def test_functional_vjp_and_jacrev() -> None:
    x, y = torch.randn(4, 3, dtype=F64), torch.randn(6, 3, dtype=F64)
    got = torch.func.jacrev(lambda x: tf.scores(x, y).logsumexp(-1))(x)
    close64(got, torch.func.jacrev(lambda x: (x @ y.mT).logsumexp(-1))(x))


def test_checkpoint_and_threads() -> None:
    x, y = torch.randn(5, 3, dtype=F64, requires_grad=True), torch.randn(6, 3, dtype=F64)
    f = lambda x: tf.scores(x, y).logsumexp(-1).sum()
    (want,) = torch.autograd.grad(f(x), x)
    (got,) = torch.autograd.grad(checkpoint(f, x, use_reentrant=False), x)
    same(got, want)
    with ThreadPoolExecutor(4) as pool:
        for g in pool.map(lambda _: torch.autograd.grad(f(x), x)[0], range(8)):
            same(g, want)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
def test_distances_read_first_without_gradients_still_have_them(metric: str) -> None:
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    y = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    s = tf.scores(x, y, metric=metric)
    with torch.no_grad():
        s.logsumexp(-1)
    distances = torch.cdist(x, y)
    want = distances.square() if metric == "sqeuclidean" else distances
    got = torch.autograd.grad(s.logsumexp(-1).sum(), (x, y))
    for g, w in zip(got, torch.autograd.grad(want.logsumexp(-1).sum(), (x, y)), strict=True):
        torch.testing.assert_close(g, w)
