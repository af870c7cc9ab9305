"""The operator boundary: torch.compile without a graph break, export, and the operator checks of torch itself."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from accuracy import same
from spellings import DISCRETE, LAZY, SPELLINGS, env
from torch import Tensor

import tilefold as tf
from tilefold.program import Data, Index, Leaf, Mask, Output, Program, op

F64 = torch.float64


@pytest.fixture(autouse=True)
def fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def close(a: Tensor, b: Tensor) -> None:
    torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4, equal_nan=True)


def check(fn: Callable[..., Any], args: tuple[Tensor, ...], dynamic: bool | None = None) -> None:
    """Compiled in one graph, value and gradients equal those of the plain call."""
    compiled = torch.compile(fn, backend="aot_eager", fullgraph=True, dynamic=dynamic)
    want, got = fn(*args), compiled(*args)
    close(got, want)
    if want.requires_grad:
        leaves = [t for t in args if t.requires_grad]
        up = torch.randn_like(want)
        for g, w in zip(
            torch.autograd.grad(got, leaves, up, allow_unused=True),
            torch.autograd.grad(want, leaves, up, allow_unused=True),
        ):
            assert (g is None) == (w is None)
            if g is not None:
                close(g, w)


# torch.compile takes a second or more for each: those that differ in how they are traced
TRACED = (
    "s.logsumexp(-1)",
    "torch.logsumexp",
    "logsumexp of columns, keepdim",
    "logsumexp of all",
    "s.T.logsumexp",
    "s.softmax(-1) @ v",
    "matmul(F.softmax)",
    "softmax of columns",
    "torch.gather(log_softmax)",
    "F.cross_entropy",
    "F.nll_loss",
    "s.argmax(-1)",
    "s.topk",
    "torch.max(dim)",
    "s.gather",
    "s @ v",
    "torch.matmul(s, v)",
    "u.T @ s",
    "einsum",
    "s.sum()",
    "torch.mean(-1)",
    "s.std(-1)",
    "(s > 0).sum(-1)",
    "s + row",
    "s * col",
    "tile + s",
    "tile - s",
    "s / t",
    "t * s",
    "torch.add(alpha)",
    "1 - s",
    "1 / s",
    "2 ** s",
    "s ** 3",
    "maximum(s, tile)",
    "minimum(tile, s)",
    "where(mask, s, number)",
    "where(s > 0, s, s / 10)",
    "masked_fill",
    "gelu tanh",
    "softplus",
    "clamp",
    "both sliced",
    "rows by index",
    "unsqueeze",
    "sum of two products",
)


@pytest.mark.parametrize("name", TRACED)
def test_spelling_compiles_in_one_graph(name: str) -> None:
    e = env()
    check(lambda x, y: SPELLINGS[name](tf.scores, _with(e, x, y)), (e.x, e.y))


@pytest.mark.parametrize(
    "name", ["s.logsumexp(-1)", "t * s", "F.cross_entropy", "s.topk", "both sliced", "s.T.logsumexp"]
)
def test_spelling_compiles_with_symbolic_sizes(name: str) -> None:
    e = env()
    check(lambda x, y: SPELLINGS[name](tf.scores, _with(e, x, y)), (e.x, e.y), dynamic=True)


@pytest.mark.parametrize(
    "name",
    ["fold of several", "softmax sum with lse", "index arithmetic", "cosine", "sqeuclidean", "euclidean", "outer L1"],
)
def test_lazy_spelling_compiles_in_one_graph(name: str) -> None:
    e = env()
    check(lambda x, y: LAZY[name][0](_with(e, x, y)), (e.x, e.y))


def _with(e: Any, x: Tensor, y: Tensor) -> Any:
    return type(e)(x, y, e.v, e.u, e.row, e.col, e.tile, e.t, e.mask, e.labels)


MASKED: dict[str, Callable[[], tuple[Any, ...]]] = {
    "causal": lambda: (tf.mask.causal("bottom_right"),),
    "window": lambda: (tf.mask.window(3, 1),),
    "lengths": lambda: (tf.mask.lengths(torch.tensor([5, 9])),),
    "segments": lambda: (tf.mask.segments(torch.arange(9) // 3, torch.arange(11) // 3),),
    "blocks": lambda: (tf.mask.blocks(torch.rand(3, 4) > 0.3, (4, 3)),),
    "boolean": lambda: (torch.rand(9, 11) > 0.4,),
    "two": lambda: (tf.mask.causal("bottom_right"), tf.mask.lengths(torch.tensor([5, 9]))),
}


@pytest.mark.parametrize("name", MASKED)
def test_masked_scores_compile_in_one_graph(name: str) -> None:
    masks = MASKED[name]()
    x, y, v = (torch.randn(2, n, d, requires_grad=True) for n, d in ((9, 4), (11, 4), (11, 3)))
    check(lambda x, y, v: tf.fold(tf.scores(x, y).visible(*masks), tf.SoftmaxSum(v)), (x, y, v))


@pytest.mark.parametrize(
    "made",
    [
        lambda w: tf.mask.window(w, w - 2),
        lambda w: tf.mask.window(None, w, align="bottom_right"),
        lambda w: tf.mask.blocks(torch.eye(6, dtype=torch.bool)[: -(-12 // w), : -(-14 // w)], (w, w)),
    ],
    ids=["window", "open window", "blocks"],
)
def test_width_of_a_mask_may_be_a_symbolic_number(made: Any) -> None:
    q, k = torch.randn(1, 2, 12, 4), torch.randn(1, 2, 14, 4)
    compiled = torch.compile(lambda w: tf.attention(q, k, k, mask=made(w)), backend="aot_eager", fullgraph=True)
    for w in (3, 4, 5):
        torch.testing.assert_close(compiled(w), tf.attention(q, k, k, mask=made(w)))


def test_views_of_a_language_models_loss_compile() -> None:
    h, w, labels = (
        torch.randn(2, 9, 6, requires_grad=True),
        torch.randn(40, 6, requires_grad=True),
        torch.randint(0, 40, (16,)),
    )
    loss = lambda h, w: F.cross_entropy(tf.scores(h, w)[..., :-1, :].contiguous().float().view(-1, w.shape[0]), labels)
    check(loss, (h, w))
    check(loss, (h, w), dynamic=True)


def test_tensors_of_a_fixed_size_compile_with_symbolic_sizes() -> None:
    x, y, shown = torch.randn(6, 4), torch.randn(9, 4), torch.ones(6, 9, dtype=torch.bool).tril(2)
    check(lambda x, y: (tf.scores(x, y) + torch.ones(6, 1)).logsumexp(-1), (x, y), dynamic=True)
    check(lambda x, y: tf.fold(tf.scores(x, y), tf.Gather(torch.zeros(6, dtype=torch.int64))), (x, y), dynamic=True)
    check(lambda x, y: tf.scores(x, y).visible(torch.ones(6, 9) > 0, shown).logsumexp(-1), (x, y), dynamic=True)


def test_module_with_a_learnable_temperature_compiles() -> None:
    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.w = torch.nn.Parameter(torch.randn(12, 4))
            self.t = torch.nn.Parameter(torch.tensor(0.5))

        def forward(self, x: Tensor) -> Tensor:
            return (tf.scores(x, self.w) * self.t.exp()).logsumexp(-1).mean()

    head, x = Head(), torch.randn(7, 4)
    torch.compile(head, backend="aot_eager", fullgraph=True)(x).backward()
    got = [p.grad.clone() for p in head.parameters()]
    head.zero_grad()
    head(x).backward()
    for g, p in zip(got, head.parameters()):
        close(g, p.grad)


def test_new_sizes_compile_once_more_and_then_never() -> None:
    """torch itself compiles a second time, with symbolic sizes; nothing of ours adds to that."""
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    fn = torch.compile(lambda x, y: (tf.scores(x, y) * 0.5 + 1).logsumexp(-1), backend=counter, fullgraph=True)
    for n, k in ((5, 7), (6, 9), (11, 8), (30, 40), (50, 1500)):
        x, y = torch.randn(n, 3, requires_grad=True), torch.randn(k, 3)
        close(fn(x, y), (x @ y.mT * 0.5 + 1).logsumexp(-1))
    assert counter.frame_count <= 3


def test_new_number_of_rows_compiles_once_with_dynamic_shapes() -> None:
    counter = torch._dynamo.testing.CompileCounterWithBackend("aot_eager")
    fn = torch.compile(lambda x, y, v: tf.scores(x, y).softmax(-1) @ v, backend=counter, fullgraph=True, dynamic=True)
    for n in (5, 6, 11, 30):
        x, y, v = torch.randn(n, 3), torch.randn(2 * n, 3), torch.randn(2 * n, 2)
        close(fn(x, y, v), (x @ y.mT).softmax(-1) @ v)
    assert counter.frame_count == 1


def test_new_sizes_make_no_new_program() -> None:
    Program.parse.cache_clear()
    for n, k in ((5, 7), (6, 9), (11, 8)):
        (tf.scores(torch.randn(n, 3), torch.randn(k, 3)) * 0.5).logsumexp(-1)
    assert Program.parse.cache_info().misses == 1


class Exported(torch.nn.Module):
    def forward(self, x: Tensor, y: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        s = tf.scores(x, y) * 0.5
        return s.softmax(-1) @ v, s.argmax(-1)


def test_export_keeps_one_operator_and_runs() -> None:
    args = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
    program = torch.export.export(Exported(), args)
    assert "tilefold.fold" in program.graph_module.code
    for got, want in zip(program.module()(*args), Exported()(*args)):
        close(got, want)


def test_export_with_dynamic_sizes() -> None:
    n, k = torch.export.Dim("n", min=2), torch.export.Dim("k", min=2)
    args = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
    program = torch.export.export(Exported(), args, dynamic_shapes=({0: n}, {0: k}, {0: k}))
    args = torch.randn(50, 3), torch.randn(20, 3), torch.randn(20, 2)
    for got, want in zip(program.module()(*args), Exported()(*args)):
        close(got, want)


def test_exported_program_survives_a_file(tmp_path: Any) -> None:
    args = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
    torch.export.save(torch.export.export(Exported(), args), tmp_path / "fold.pt2")
    for got, want in zip(torch.export.load(tmp_path / "fold.pt2").module()(*args), Exported()(*args)):
        close(got, want)


def test_exported_program_loads_where_tilefold_is_only_imported(tmp_path: Any) -> None:
    args = torch.randn(5, 3), torch.randn(7, 3), torch.randn(7, 2)
    torch.export.save(torch.export.export(Exported(), args), tmp_path / "fold.pt2")
    load = f"import torch, tilefold; torch.export.load({str(tmp_path / 'fold.pt2')!r})"
    assert (
        subprocess.run(
            [sys.executable, "-c", load], env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
        ).returncode
        == 0
    )


def operator_cases() -> dict[str, tuple[list[Tensor], Program, list[int], str]]:
    x, y, v = torch.randn(2, 5, 3, dtype=F64), torch.randn(7, 3, dtype=F64), torch.randn(7, 2, dtype=F64)
    s = Leaf(0, 1)
    lower = Index("row") - 2
    cases = {
        "softmax_sum": ([x, y, v], (Output("softmax_sum", s * 0.5, (("neutral", True),), 2),), None, "float64"),
        "logsumexp and max": ([x, y], (Output("logsumexp", s), Output("max", op("tanh", s))), None, "float64 float64"),
        "topk": ([x, y], (Output("topk", s, (("k", 3),)),), None, "float64"),
        "count": ([x, y], (Output("count", op("gt", s, 0.0)),), None, "float64"),
        "masked weighted sum": (
            [x, y, v],
            (Output("weighted_sum", s, (), 2),),
            Mask("row", lower, Index("row") + 1),
            "float64",
        ),
        "half payload": ([x.float(), y.float(), v.half()], (Output("weighted_sum", s, (), 2),), None, "float16"),
        "column sums": ([x, y], (Output("sum", s, (), None, "col", 1),), None, "float64"),
        "gradient of a tile": (
            [x, y, torch.randn(5, 7, dtype=F64)],
            (Output("sum", s * Data(2, "tile"), (), None, "tile", 2),),
            None,
            "float64",
        ),
    }
    kinds = ("rows", "cols", "cols")
    made = {}
    for name, (tensors, outputs, mask, types) in cases.items():
        names = kinds[: len(tensors)] if name != "gradient of a tile" else ("rows", "cols", "tile")
        made[name] = (tensors, Program(names, outputs, mask), [2, 5, 7], types)
    return made


@pytest.mark.parametrize("name", operator_cases())
def test_operator_passes_torchs_own_checks(name: str) -> None:
    tensors, program, sizes, types = operator_cases()[name]
    differentiable = all(o.axis == "row" and o.fold != "count" for o in program.outputs)
    tensors = [t.requires_grad_(differentiable) for t in tensors]
    # the gradient of one operator is another one, which has none of its own
    tests = ["test_schema", "test_autograd_registration", "test_faketensor"] + (
        ["test_aot_dispatch_dynamic"] if differentiable else []
    )
    torch.library.opcheck(torch.ops.tilefold.fold.default, (tensors, program.text, sizes, types), test_utils=tests)


@pytest.mark.parametrize("name", operator_cases())
def test_traced_results_have_the_shapes_types_and_strides_of_real_ones(name: str) -> None:
    tensors, program, sizes, types = operator_cases()[name]
    real = torch.ops.tilefold.fold(tensors, program.text, sizes, types)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = torch.ops.tilefold.fold([mode.from_tensor(t) for t in tensors], program.text, sizes, types)
    assert [(t.shape, t.dtype, t.stride()) for t in fake] == [(t.shape, t.dtype, t.stride()) for t in real]


def test_discrete_results_have_no_gradient_when_compiled() -> None:
    e = env()
    for name in sorted(DISCRETE)[:2]:
        out = torch.compile(
            lambda x, y, name=name: SPELLINGS[name](tf.scores, _with(e, x, y)), backend="aot_eager", fullgraph=True
        )(e.x, e.y)
        assert not out.requires_grad
        same(out, SPELLINGS[name](tf.scores, e))


def test_second_derivative_is_an_error_when_compiled() -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3)
    fn = torch.compile(lambda x: tf.scores(x, y).logsumexp(-1).sum(), backend="aot_eager", fullgraph=True)
    with pytest.raises(RuntimeError):
        (g,) = torch.autograd.grad(fn(x), x, create_graph=True)
        torch.autograd.grad(g.square().sum(), x)


def test_compiled_autocast_computes_in_its_type() -> None:
    x, y = torch.randn(5, 4), torch.randn(6, 4)

    def fn(x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return tf.scores(x, y).logsumexp(-1)

    same(torch.compile(fn, backend="aot_eager", fullgraph=True)(x, y), fn(x, y))
    assert not torch.equal(fn(x, y), tf.scores(x, y).logsumexp(-1))


def test_matmul_that_a_compiler_can_not_tell_apart_says_so() -> None:
    x, v = torch.randn(5, 4), torch.randn(5, 5)
    with pytest.raises(Exception, match=r"torch\.matmul"):
        torch.compile(lambda x: v @ tf.scores(x, x), backend="aot_eager", fullgraph=True)(x)
    check(lambda x: torch.matmul(tf.scores(x, x), v), (x,))


def test_warmed_calls_do_not_parse_or_build_programs_again() -> None:
    x, y = torch.randn(5, 4), torch.randn(6, 4)
    fn: Callable[[], Tensor] = lambda: (tf.scores(x, y) * 0.3).visible(tf.mask.causal("bottom_right")).logsumexp(-1)
    fn()
    before = Program.parse.cache_info().misses
    for _ in range(3):
        fn()
    assert Program.parse.cache_info().misses == before


@pytest.mark.parametrize("dynamic", [False, True])
def test_materialize_traces(dynamic: bool) -> None:
    x, y, b = torch.randn(2, 5, 3), torch.randn(7, 3), torch.randn(5, 1)

    def plain(x: Tensor) -> Tensor:
        return (tf.scores(x, y) * 2 + b).tanh().materialize()

    def masked(x: Tensor) -> Tensor:
        return tf.scores(x, y, metric="euclidean").visible(tf.mask.causal("top_left")).materialize()

    for fn in (plain, masked):
        compiled = torch.compile(fn, fullgraph=True, backend="aot_eager", dynamic=dynamic)
        torch.testing.assert_close(compiled(x), fn(x))
