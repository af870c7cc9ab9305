"""How results are compared.

A result is accurate when its largest error against float64 on materialised scores is at most twice that of plain
PyTorch in the same type, plus 8 eps of the largest value; and when its mean error, sign kept, is as small as
independent roundings make it.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor


def same(got: Tensor, want: Tensor) -> None:
    """Equal values, types and shapes, NaN equal to NaN."""
    assert got.shape == want.shape, f"shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def accurate(got: Tensor, want: Tensor, plain: Tensor, what: str = "result", slack: float = 8.0) -> None:
    """The project's criterion.

    Args:
        got: tilefold's result
        want: the same in float64 on materialised scores
        plain: the same by plain PyTorch in the type of the operands
        slack: units of eps * max|want| beyond twice plain's error
    """
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    if not got.is_floating_point():
        assert torch.equal(got, want.to(got.dtype)), f"{what}: {got} instead of {want}"
        return
    eps = torch.finfo(got.dtype).eps
    got, want, plain = got.detach().double(), want.detach().double(), plain.detach().double()
    special = ~want.isfinite()
    # infinities and NaN: the same ones in the same places
    torch.testing.assert_close(
        got[special], want[special], rtol=0, atol=0, equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
    got, want, plain = got[~special], want[~special], plain[~special]
    if want.numel() == 0:
        return
    assert bool(got.isfinite().all()), f"{what}: {int((~got.isfinite()).sum())} values are not finite"
    error, theirs = got - want, (plain - want).nan_to_num(0.0, 0.0, 0.0)
    bound = 2 * theirs.abs().max().item() + slack * eps * want.abs().max().item()
    worst = error.abs().max().item()
    assert worst <= bound, (
        f"{what}: error {worst:.3e}, allowed {bound:.3e} (plain PyTorch {theirs.abs().max().item():.3e})"
    )
    mean = abs(error.mean().item())
    allowed = 2 * abs(theirs.mean().item()) + bound / math.sqrt(want.numel())
    if eps == torch.finfo(torch.float64).eps:
        allowed += eps * want.abs().max().item()  # the reference is float64 too, and rounds
    assert mean <= allowed, f"{what}: mean error {mean:.3e}, allowed {allowed:.3e}"


def close64(got: Tensor, want: Tensor, what: str = "result", tolerance: float = 1e-11) -> None:
    """Float64 against float64."""
    assert got.shape == want.shape, f"{what}: shape {tuple(got.shape)}, expected {tuple(want.shape)}"
    got, want = got.detach(), want.detach()
    scale = want[want.isfinite()].abs().max().item() if bool(want.isfinite().any()) else 1.0
    torch.testing.assert_close(
        got, want, rtol=tolerance, atol=tolerance * max(scale, 1e-3), equal_nan=True, msg=lambda m: f"{what}: {m}"
    )
