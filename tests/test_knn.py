"""tf.knn against exact distances in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import tilefold as tf

METRICS = ["sqeuclidean", "euclidean", "dot", "cosine"]
SIMILAR = ("dot", "cosine")


def exact(x: Tensor, y: Tensor, metric: str) -> Tensor:
    """The whole matrix in float64, by differences."""
    x, y = x.double(), y.double()
    if metric == "dot":
        return x @ y.mT
    if metric == "cosine":
        return F.normalize(x, dim=-1) @ F.normalize(y, dim=-1).mT
    square = (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)
    return square if metric == "sqeuclidean" else square.sqrt()


def is_nearest(value: Tensor, index: Tensor, x: Tensor, y: Tensor, k: int, metric: str) -> None:
    """Judged by the value gap of what was chosen: discrete outputs may differ where scores tie to rounding."""
    all_ = exact(x, y, metric)
    best = all_.topk(k, -1, largest=metric in SIMILAR).values
    eps = torch.finfo(value.dtype).eps
    size = (
        all_.abs().amax().item()
        if metric in SIMILAR
        else (x.double().square().sum(-1).amax() + y.double().square().sum(-1).amax()).item()
    )
    size = math.sqrt(size) if metric == "euclidean" else size
    assert index.dtype == torch.int64 and value.shape == index.shape == best.shape
    assert (index.sort(-1).values.diff(dim=-1) > 0).all(), "a neighbour twice"
    chosen = all_.gather(-1, index)
    torch.testing.assert_close(chosen, best, rtol=0, atol=8 * eps * size)
    torch.testing.assert_close(
        value.double(), chosen, rtol=16 * eps, atol=16 * eps * (1e-3 if metric not in SIMILAR else size)
    )
    step = value.diff(dim=-1)
    assert (step <= 0 if metric in SIMILAR else step >= 0).all(), "not in order"


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("k", [1, 2, 10, 32, 33, 100])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_nearest_neighbours(metric: str, k: int, dtype: torch.dtype) -> None:
    x, y = torch.randn(41, 12, dtype=dtype), torch.randn(1100, 12, dtype=dtype)
    value, index = tf.knn(x, y, k, metric=metric)
    assert value.dtype == dtype
    is_nearest(value, index, x, y, k, metric)
    if dtype == torch.float64:
        right = exact(x, y, metric).topk(k, -1, largest=metric in SIMILAR)
        assert torch.equal(index, right.indices)


@pytest.mark.parametrize("d", [1, 3, 17, 100, 513])
def test_any_number_of_features(d: int) -> None:
    x, y = torch.randn(20, d), torch.randn(300, d)
    is_nearest(*tf.knn(x, y, 5), x, y, 5, "sqeuclidean")


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_operands_are_exact_inputs(metric: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(30, 64).to(dtype), torch.randn(500, 64).to(dtype)
    value, index = tf.knn(x, y, 7, metric=metric)
    assert value.dtype == torch.float32
    is_nearest(value, index, x, y, 7, metric)


@pytest.mark.parametrize("metric", ["sqeuclidean", "euclidean"])
@pytest.mark.parametrize("shift", [100.0, 1e4])
def test_far_from_the_origin_the_order_is_that_of_the_differences(metric: str, shift: float) -> None:
    x, y = torch.randn(50, 8) + shift, torch.randn(400, 8) + shift
    value, index = tf.knn(x, y, 10, metric=metric)
    right = exact(x, y, metric)
    torch.testing.assert_close(value.double(), right.topk(10, -1, largest=False).values, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(right.gather(-1, index), value.double(), rtol=1e-5, atol=1e-6)


def test_ties_go_to_the_lowest_index() -> None:
    y = torch.randint(0, 3, (500, 2)).float()
    x = torch.randint(0, 3, (40, 2)).float()
    value, index = tf.knn(x, y, 60)
    whole = exact(x, y, "sqeuclidean")
    right = whole.sort(dim=-1, stable=True)
    assert torch.equal(index, right.indices[:, :60])
    assert torch.equal(value.double(), right.values[:, :60])


@pytest.mark.parametrize("metric", METRICS)
def test_a_point_is_its_own_neighbour_at_distance_zero(metric: str) -> None:
    x = torch.randn(200, 16) * 30 + 1000
    value, index = tf.knn(x, x, 1, metric=metric)
    if metric in ("sqeuclidean", "euclidean"):
        assert torch.equal(index.squeeze(-1), torch.arange(200)) and torch.equal(value, torch.zeros_like(value))
    if metric == "cosine":
        torch.testing.assert_close(value, torch.ones_like(value))


def test_k_of_all_columns_is_a_sort() -> None:
    x, y = torch.randn(9, 4, dtype=torch.float64), torch.randn(300, 4, dtype=torch.float64)
    value, index = tf.knn(x, y, 300)
    right = exact(x, y, "sqeuclidean").sort(-1)
    assert torch.equal(index, right.indices)
    torch.testing.assert_close(value, right.values)


def test_k_up_to_2048() -> None:
    x, y = torch.randn(3, 4, dtype=torch.float64), torch.randn(5000, 4, dtype=torch.float64)
    _, index = tf.knn(x, y, 2048)
    assert torch.equal(index, exact(x, y, "sqeuclidean").topk(2048, -1, largest=False).indices)


@pytest.mark.parametrize(
    "shapes",
    [((3, 20, 5), (3, 50, 5)), ((20, 5), (3, 50, 5)), ((3, 20, 5), (50, 5)), ((2, 1, 20, 5), (3, 50, 5))],
    ids=str,
)
@pytest.mark.parametrize("metric", METRICS)
def test_batches_broadcast(shapes: tuple[tuple[int, ...], tuple[int, ...]], metric: str) -> None:
    x, y = (torch.randn(s, dtype=torch.float64) for s in shapes)
    value, index = tf.knn(x, y, 4, metric=metric)
    right = exact(x, y, metric).topk(4, -1, largest=metric in SIMILAR)
    assert torch.equal(index, right.indices)
    torch.testing.assert_close(value, right.values)


@pytest.mark.parametrize("metric", METRICS)
def test_distances_are_differentiable(metric: str) -> None:
    x = torch.randn(10, 6, dtype=torch.float64, requires_grad=True)
    y = torch.randn(30, 6, dtype=torch.float64, requires_grad=True)
    value, index = tf.knn(x, y, 3, metric=metric)
    right = exact(x, y, metric).topk(3, -1, largest=metric in SIMILAR).values
    up = torch.randn(10, 3, dtype=torch.float64)
    found, expected = (torch.autograd.grad(v, (x, y), up) for v in (value, right))
    torch.testing.assert_close(found, expected)
    assert not index.requires_grad


def test_gradient_at_distance_zero_is_zero() -> None:
    x = torch.randn(5, 3, requires_grad=True)
    value, _ = tf.knn(x, x.detach(), 1, metric="euclidean")
    (g,) = torch.autograd.grad(value.sum(), x)
    assert torch.equal(g, torch.zeros_like(x))


def test_candidates_are_ranked_in_chunks_of_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    import importlib

    x, y = torch.randn(41, 12, dtype=torch.float64), torch.randn(110, 12, dtype=torch.float64)
    whole = tf.knn(x, y, 5)
    monkeypatch.setattr(importlib.import_module("tilefold.ops.knn"), "CANDIDATE_ELEMENTS", 5 * 12 * 7)
    torch.testing.assert_close(tf.knn(x, y, 5), whole, rtol=0, atol=0)


def test_no_row() -> None:
    value, index = tf.knn(torch.zeros(0, 4), torch.zeros(9, 4), 3)
    assert value.shape == index.shape == (0, 3)


@pytest.mark.parametrize("metric", METRICS)
def test_row_of_nan_spoils_only_itself(metric: str) -> None:
    x, y = torch.randn(12, 5), torch.randn(60, 5)
    x[4, 2] = math.nan
    value, index = tf.knn(x, y, 3, metric=metric)
    keep = torch.arange(12) != 4
    clean, clean_index = tf.knn(x[keep], y, 3, metric=metric)
    assert torch.equal(index[keep], clean_index)
    torch.testing.assert_close(value[keep], clean)
    assert value[4].isnan().all() and index[4].min() >= 0 and index[4].max() < 60


@pytest.mark.parametrize(
    ("changes", "error", "names"),
    [
        ({"k": 0}, ValueError, "k: got 0"),
        ({"k": 51}, ValueError, "k: got 51.*K = 50"),
        ({"k": 4000}, ValueError, "k: got 4000"),
        ({"metric": "l2"}, ValueError, "metric: got 'l2'.*euclidean"),
        ({"y": torch.zeros(50, 6)}, RuntimeError, "D = 5 and 6"),
        ({"x": torch.zeros(5)}, RuntimeError, "x: "),
        ({"x": torch.zeros(20, 5, dtype=torch.int32)}, RuntimeError, "x: .*int32"),
        ({"x": torch.zeros(2, 20, 5), "y": torch.zeros(3, 50, 5)}, RuntimeError, "x, y"),
    ],
)
def test_bad_input_is_named(changes: dict[str, Any], error: type[Exception], names: str) -> None:
    given: dict[str, Any] = {"x": torch.zeros(20, 5), "y": torch.zeros(50, 5), "k": 3, **changes}
    with pytest.raises(error, match=names):
        tf.knn(**given)
