"""The recipes of examples/recipes.py against float64 on the whole matrix, with their gradients."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

RECIPES = runpy.run_path(str(Path(__file__).resolve().parents[1] / "examples" / "recipes.py"))
DOUBLE = torch.float64


def square(x: Tensor, y: Tensor) -> Tensor:
    return (x.unsqueeze(-2) - y.unsqueeze(-3)).square().sum(-1)


def root(d: Tensor) -> Tensor:
    return torch.where(d > 0, torch.where(d > 0, d, 1.0).sqrt(), 0.0)


def plain_mmd(x: Tensor, y: Tensor, sigma: Any) -> Tensor:
    def mean(a: Tensor, b: Tensor) -> Tensor:
        return torch.exp(-square(a, b) / (2 * sigma**2)).mean()

    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


PLAIN: dict[str, Callable[..., Any]] = {
    "rbf_matvec": lambda x, y, v, sigma: torch.exp(-square(x, y) / (2 * sigma**2)) @ v,
    "laplace_matvec": lambda x, y, v, sigma: torch.exp(-root(square(x, y)) / sigma) @ v,
    "chamfer": lambda x, y: square(x, y).amin(-1).mean(-1) + square(x, y).amin(-2).mean(-1),
    "mmd": plain_mmd,
    "sinkhorn_step": lambda x, y, g, log_b, eps: -eps * ((g - square(x, y)) / eps + log_b).logsumexp(-1),
}


def arguments(name: str, n: int, k: int, d: int, batch: tuple[int, ...] = ()) -> list[Any]:
    def leaf(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=DOUBLE, requires_grad=True)

    points = [leaf(*batch, n, d), leaf(*batch, k, d)]
    if name.endswith("matvec"):
        return [*points, leaf(*batch, k, 3), torch.tensor(1.3, dtype=DOUBLE, requires_grad=True)]
    if name == "mmd":
        return [*points, torch.tensor(1.3, dtype=DOUBLE, requires_grad=True)]
    if name == "sinkhorn_step":
        return [*points, leaf(k), leaf(k), 0.7]
    return points


@pytest.mark.parametrize("name", list(PLAIN))
@pytest.mark.parametrize("sizes", [(1, 1, 1), (30, 40, 3), (7, 1100, 17)], ids=str)
def test_recipe_and_its_gradients(name: str, sizes: tuple[int, int, int]) -> None:
    given = arguments(name, *sizes)
    got, want = RECIPES[name](*given), PLAIN[name](*given)
    torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-10)
    leaves = [t for t in given if isinstance(t, Tensor)]
    found, right = (torch.autograd.grad(out.square().sum(), leaves) for out in (got, want))
    torch.testing.assert_close(found, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("name", ["rbf_matvec", "laplace_matvec", "chamfer"])
def test_recipe_in_batches(name: str) -> None:
    given = arguments(name, 12, 9, 3, (2, 2))
    torch.testing.assert_close(RECIPES[name](*given), PLAIN[name](*given), rtol=1e-10, atol=1e-10)


def test_matvec_of_a_vector() -> None:
    x, y, v = torch.randn(9, 2, dtype=DOUBLE), torch.randn(7, 2, dtype=DOUBLE), torch.randn(7, dtype=DOUBLE)
    for name in ("rbf_matvec", "laplace_matvec"):
        torch.testing.assert_close(RECIPES[name](x, y, v, 1.3), PLAIN[name](x, y, v, 1.3))


def test_a_cloud_is_at_distance_zero_from_itself() -> None:
    x = torch.randn(50, 3) * 10 + 100
    assert RECIPES["chamfer"](x, x) < 1e-4 * x.square().sum(-1).max()
    assert RECIPES["mmd"](x.double(), x.double()).abs() < 1e-12


def test_sinkhorn_converges_to_a_plan_with_the_right_sums() -> None:
    x, y = torch.rand(30, 2, dtype=DOUBLE), torch.rand(20, 2, dtype=DOUBLE)
    log_a, log_b = torch.rand(30, dtype=DOUBLE).log_softmax(0), torch.rand(20, dtype=DOUBLE).log_softmax(0)
    g = torch.zeros(20, dtype=DOUBLE)
    for _ in range(200):
        f = RECIPES["sinkhorn_step"](x, y, g, log_b, 0.2)
        g = RECIPES["sinkhorn_step"](y, x, f, log_a, 0.2)
    plan = ((f.unsqueeze(1) + g - square(x, y)) / 0.2 + log_a.unsqueeze(1) + log_b).exp()
    torch.testing.assert_close(plan.sum(0), log_b.exp())
    torch.testing.assert_close(plan.sum(1), log_a.exp(), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", list(PLAIN))
def test_recipe_is_two_lines(name: str) -> None:
    source = inspect.getsource(RECIPES[name])
    body = source.split('"""')[-1].strip().splitlines()
    assert len(body) == 2
