"""A user's own fold, registered by name from outside the package, does what the built-in ones do."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from accuracy import close64, same
from torch import Tensor

import tilefold as tf
from tilefold import folds

F64 = torch.float64
EXAMPLE = Path(__file__).parent.parent / "examples" / "own_fold.py"


@pytest.fixture(scope="module")
def own() -> Any:
    spec = importlib.util.spec_from_file_location("own_fold", EXAMPLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    yield module.MeanOfTop3
    folds.fold._registry.pop("example.mean_of_top3")


def reference(m: Tensor) -> Tensor:
    return m.topk(3, -1).values.mean(-1)


def test_example_runs() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=True)
    assert "mean of the three best" in done.stdout


def test_own_fold_over_tiles_and_batches(own: Any) -> None:
    x, y = torch.randn(2, 40, 5, dtype=F64), torch.randn(2500, 5, dtype=F64)
    close64(tf.fold(tf.scores(x, y), own()), reference(x @ y.mT))


def test_own_fold_has_a_gradient(own: Any) -> None:
    x, y = torch.randn(6, 3, dtype=F64, requires_grad=True), torch.randn(9, 3, dtype=F64, requires_grad=True)
    t = torch.tensor(0.7, dtype=F64, requires_grad=True)
    up = torch.randn(6, dtype=F64)
    got = torch.autograd.grad(tf.fold((tf.scores(x, y) / t).tanh(), own()), (x, y, t), up)
    for g, w in zip(got, torch.autograd.grad(reference((x @ y.mT / t).tanh()), (x, y, t), up)):
        close64(g, w)


def test_own_fold_beside_others_in_one_pass(own: Any) -> None:
    x, y = torch.randn(6, 3, dtype=F64), torch.randn(1100, 3, dtype=F64)
    both = tf.fold(tf.scores(x, y), top=own(), lse=tf.LogSumExp())
    close64(both.top, reference(x @ y.mT))
    close64(both.lse, (x @ y.mT).logsumexp(-1))


def test_own_fold_under_a_mask(own: Any) -> None:
    x, y = torch.randn(5, 3, dtype=F64), torch.randn(5, 3, dtype=F64)
    got = tf.fold(tf.scores(x, y).visible(tf.mask.causal()), own())
    m = x @ y.mT
    want = torch.stack([m[i, : i + 1].topk(min(3, i + 1)).values.mean() for i in range(5)])
    close64(got, want)


def test_own_fold_is_found_by_name_in_a_program(own: Any) -> None:
    assert folds.registered()["example.mean_of_top3"] is own
    x, y = torch.randn(5, 3), torch.randn(7, 3)
    fn = torch.compile(lambda x, y: tf.fold(tf.scores(x, y), own()), backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(fn(x, y), reference(x @ y.mT))
    torch._dynamo.reset()


def test_own_fold_under_vmap(own: Any) -> None:
    x, y = torch.randn(4, 5, 3, dtype=F64), torch.randn(7, 3, dtype=F64)
    close64(torch.vmap(lambda x: tf.fold(tf.scores(x, y), own()))(x), reference(x @ y.mT))


def test_own_fold_obeys_the_laws(own: Any) -> None:
    fold, s = own(), torch.randint(-3, 4, (1, 2, 9)).double()
    cols, start = torch.arange(9), own().init((1, 2), F64, torch.device("cpu"))
    whole = fold.finish(fold.step(start, s, cols, None, False))
    for cut in range(10):
        parts = [
            fold.step(start, s[..., a:b], cols[a:b], None, False) if a < b else start for a, b in ((0, cut), (cut, 9))
        ]
        for g, w in zip(fold.finish(fold.merge(*parts)), whole):
            same(g, w)


def test_a_fold_without_a_gradient_says_so() -> None:
    class Last(tf.Fold):
        name = "example.last"
        state = (("v", 0.0),)

        def step(self, state: Any, s: Tensor, cols: Tensor, visible: Tensor | None, own: bool) -> Any:
            return (s[..., -1].clone(),)

        def merge(self, a: Any, b: Any) -> Any:
            return b

    tf.register(Last)
    try:
        x, y = torch.randn(5, 3, requires_grad=True), torch.randn(7, 3)
        out = tf.fold(tf.scores(x, y), Last())
        torch.testing.assert_close(out, (x @ y.mT)[:, -1])
        with pytest.raises(NotImplementedError, match=r"'example\.last' has no gradient"):
            out.sum().backward()
    finally:
        folds.fold._registry.pop("example.last")


def test_a_name_that_is_taken_is_refused(own: Any) -> None:
    with pytest.raises(ValueError, match="taken"):

        @tf.register
        class Other(tf.Fold):
            name = "logsumexp"
            step = merge = lambda *a: ()
