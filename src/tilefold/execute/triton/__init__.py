"""The portable Triton executor: `run` has the signature and the results of eager.run.

generate.py   the source of a Program's pointwise expressions          rows.py, tile.py   the loops
plan.py       tensors to launches                                      launch.py          compiling and launching
lists.py      long lists of top-k                                      chunks.py          payloads of many features
pack.py       few rows of entries that share columns                   streamed.py        the loop for many features
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ... import folds
from ...program import Program
from .. import eager
from . import chunks, generate, lists, plan

__all__ = ["explain_tiles", "generated_source", "run", "why_not"]


def why_not(program: Program, operands: Sequence[Tensor]) -> str | None:
    """Why this executor can't run a Program, or None."""
    for o in program.outputs:
        fold = folds.lookup(o)
        if fold.jit is None:
            return f"the fold {o.fold!r} has no Triton form"
        if plan.long_list(o) and len(program.outputs) > 1:
            return f"{o.fold} with k = {dict(o.options)['k']} does not combine with other folds; k <= {plan.COMBINABLE_K} does"
    if any(t.device != operands[0].device for t in operands):
        return "the operands are on several devices"
    for i, (kind, t) in enumerate(zip(program.operands, operands, strict=True)):
        if kind in ("rows", "cols") and not (t.dtype.is_floating_point and t.element_size() >= 2):
            return f"operand {i} is {t.dtype}; the loops multiply float16, bfloat16, float32 and float64"
    return None


def run(
    program: Program,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    payload_dtypes: Sequence[torch.dtype],
) -> list[Tensor]:
    """The results of all outputs, in order; see eager.run."""
    if math.prod(batch) * n * k == 0 or any(t.shape[-1] == 0 for t in operands):
        return eager.run(program, operands, batch, n, k, payload_dtypes)
    if lists.serves(program, operands, batch, n, k):
        return lists.run_long_list(program, operands, batch, n, k)
    launches, count = _launches(program, operands, batch, n, k, payload_dtypes)
    results: list[Tensor] = [operands[0]] * count
    device = operands[0].device
    for launch in launches:
        launch(operands, results, device)
    return results


def _launches(
    program: Program,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    payload_dtypes: Sequence[torch.dtype],
) -> tuple[list[Any], int]:
    make = chunks.launches if chunks.serves(program, operands, batch) else plan.plan
    return make(program, operands, batch, n, k, payload_dtypes)


def explain_tiles(
    program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int
) -> tuple[str, ...]:
    """The tiles of each launch, and why; nothing is computed."""
    if math.prod(batch) * n * k == 0 or any(t.shape[-1] == 0 for t in operands):
        return ("nothing to compute",)
    if lists.serves(program, operands, batch, n, k):
        return (lists.explain(program, operands, batch, n, k),)
    types = [operands[0].dtype if o.payload is None else operands[o.payload].dtype for o in program.outputs]
    launches, _ = _launches(program, operands, batch, n, k, types)
    return tuple(map(str, launches))


def generated_source(program: Program) -> str:
    """The Triton source made for a Program's expressions, all launches one after another."""
    none: tuple[tuple[int, ...], ...] = tuple(() for _ in program.outputs)
    return "\n\n".join(generate.source_of(p.program, False).text for p in plan.pieces(program, none))
