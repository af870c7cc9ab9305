"""Sizes and references for the GPU leg."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from accuracy import accurate
from torch import Tensor

ON_GPU = torch.cuda.is_available()
T = TypeVar("T")


def pick(real: T, small: T) -> T:
    """The real size on a GPU; a small one where the test's body itself is tried on a CPU."""
    return real if ON_GPU else small


def randn(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, grad: bool = False) -> Tensor:
    made = torch.randn(*shape, device=device, dtype=torch.float64 if dtype == torch.float64 else torch.float32).to(
        dtype
    )
    return made.requires_grad_(grad)


def integers(*shape: int, device: torch.device, dtype: torch.dtype = torch.float32, largest: int = 2) -> Tensor:
    """Small integers: every product and sum is exact, so that ties and indices can be compared bit by bit."""
    return torch.randint(-largest, largest + 1, shape, device=device).to(dtype)


def sampled(n: int, count: int, device: torch.device) -> Tensor:
    """Some row numbers, the first and the last among them."""
    inner = torch.randint(0, n, (max(0, count - 2),), device=device)
    return torch.cat([torch.tensor([0, n - 1], device=device), inner]).unique()


def gradients_agree(
    got: Tensor, want: Tensor, plain: Tensor, ours: Any, wide: Any, what: str, theirs: Any = None
) -> None:
    """Gradients of `got`, of float64 and of plain PyTorch for one upstream gradient, by the project's criterion."""
    up = torch.randn(got.shape, device=got.device).to(got.dtype)
    found = torch.autograd.grad(got, ours, up)
    right = torch.autograd.grad(want, wide, up.double())
    other = torch.autograd.grad(plain, ours if theirs is None else theirs, up.to(plain.dtype))
    for i, (f, r, o) in enumerate(zip(found, right, other)):
        assert f.dtype == o.dtype
        accurate(f, r, o, f"{what}, gradient {i}")
