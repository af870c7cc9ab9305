"""The whole matrix of scores in plain torch operations, differentiable to any order: what `materialize()` gives."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import folds
from ..execute.eager import TORCH
from ..program import Const, Data, Expr, Index, Leaf, Op, Size, walk
from ..program import text as texts
from .core import Scores


def materialize(s: Scores) -> Tensor:
    s._check_unchanged()
    wide = torch.float64 if any(t.dtype == torch.float64 for t in s._operands) else torch.float32
    out = evaluate(s, texts.parse(s._expr), wide).expand(s.shape)
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
        seen &= other >= evaluate(s, texts.parse(lo), wide)
    if hi is not None:
        seen &= other < evaluate(s, texts.parse(hi), wide)
    if test is not None:
        seen &= evaluate(s, texts.parse(test), wide)
    if block is not None:
        seen &= s._operands[block][..., rows // size[0], cols // size[1]]
    return seen


def evaluate(s: Scores, root: Expr, wide: torch.dtype) -> Tensor:
    values: dict[Expr, Any] = {}

    def tensor(value: Any) -> Tensor:
        if isinstance(value, Tensor):
            return value
        return torch.tensor(value, device=s.device, dtype=wide if isinstance(value, float) else None)

    for node in walk(root):
        match node:
            case Leaf():
                values[node] = s._operands[node.rows].to(wide) @ s._operands[node.cols].to(wide).mT
            case Data():
                t = s._operands[node.operand]
                values[node] = (
                    t.to(wide) if t.is_floating_point() else t if t.dtype == torch.bool else t.to(torch.int64)
                )
            case Const():
                values[node] = node.value
            case Index():
                at = torch.arange(s._n if node.axis == "row" else s._k, device=s.device)
                values[node] = at.unsqueeze(-1) if node.axis == "row" else at
            case Size():
                values[node] = s._n if node.axis == "row" else s._k
            case Op():
                args = [tensor(values[a]) for a in node.operands]
                if node.name == "float":
                    values[node] = args[0].to(wide)
                elif node.name == "gumbel":
                    seed, stream, position, column = args
                    values[node] = folds.gumbel(seed, stream, position, column, wide)
                else:
                    values[node] = TORCH[node.name][0](*args)
    return tensor(values[root])
