"""The whole matrix of scores in plain torch operations, differentiable to any order: what `materialize()` gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import folds
from ..execute.eager import TORCH
from ..program import text as texts
from .core import Scores


def materialize(s: Scores) -> Tensor:
    s._check_unchanged()
    wide = torch.float64 if any(t.dtype == torch.float64 for t in s._operands) else torch.float32
    out = evaluate(s, s._expr, wide).expand(s.shape)
    if s._mask is not None:
        hidden = ~visible(s, wide)
        out = out & ~hidden if out.dtype == torch.bool else out.masked_fill(hidden, -float("inf"))
    return out


def visible(s: Scores, wide: torch.dtype) -> Tensor:
    """The boolean matrix of what a mask shows."""
    assert s._mask is not None
    axis, lo, hi, block, size, test = s._mask
    rows, cols = torch.arange(s._n, device=s.device).unsqueeze(-1), torch.arange(s._k, device=s.device)
    other = cols if axis == "row" else rows
    seen = torch.ones(s.shape, dtype=torch.bool, device=s.device)
    if lo is not None:
        seen &= other >= evaluate(s, lo, wide)
    if hi is not None:
        seen &= other < evaluate(s, hi, wide)
    if test is not None:
        seen &= evaluate(s, test, wide)
    if block is not None:
        seen &= s._operands[block][..., rows // size[0], cols // size[1]]
    return seen


def evaluate(s: Scores, expr: str, wide: torch.dtype) -> Tensor:
    """An expression for all rows and columns. What each node is comes as constants, so that torch.compile traces it."""
    values: list[Any] = []

    def tensor(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return torch.tensor(value, device=s.device, dtype=wide if isinstance(value, float) else None)

    for tag, *rest in texts.listing(expr):
        if tag == "leaf":
            rows, cols = rest
            value: Any = s._operands[rows].to(wide) @ s._operands[cols].to(wide).mT
        elif tag == "data":
            t = s._operands[rest[0]]
            value = t.to(wide) if t.is_floating_point() else t if t.dtype == torch.bool else t.to(torch.int64)
        elif tag == "const":
            value = rest[0]
        elif tag == "index":
            at = torch.arange(s._n if rest[0] == "row" else s._k, device=s.device)
            value = at.unsqueeze(-1) if rest[0] == "row" else at
        elif tag == "size":
            value = s._n if rest[0] == "row" else s._k
        else:
            name, numbers = rest
            args = [tensor(values[i]) for i in numbers]
            if name == "float":
                value = args[0].to(wide)
            elif name == "gumbel":
                seed, stream, position, column = args
                value = folds.gumbel(seed, stream, position, column, wide)
            else:
                value = TORCH[name][0](*args)
        values.append(value)
    return tensor(values[-1])
