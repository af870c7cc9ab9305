"""Top-k with a long list (k > 32): a chunk of scores at a time, from which the fold's torch form takes the best.

A chunk [rows, columns] of scores is written by tiles_kernel into a buffer of at most BUFFER bytes and merged into the list of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from ... import folds
from ...program import Output, Program
from .. import select
from . import plan

BUFFER = 64 << 20


def run_long_list(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> list[Tensor]:
    o = program.outputs[0]
    fold = folds.lookup(o)
    device = operands[0].device
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    limits = select.limits_of(device.type, device.index)
    tf32 = any(t.dtype == torch.float32 for t in operands) and plan.tf32_allowed()
    scores = Program(program.operands, (Output("sum", o.expr, axis="tile"),), program.mask)
    (piece,) = plan.pieces(scores, ((),))
    entries = math.prod(batch)
    columns = min(k, max(4 * dict(o.options)["k"], 8192))
    height = max(1, min(n, BUFFER // (entries * columns * (wide.itemsize + 1))))
    made = [torch.empty(shape, dtype=dtype, device=device) for shape, dtype in plan.result_shapes(o, operands, batch, n, k, wide, wide)]
    for n0 in range(0, n, height):
        n1 = min(n, n0 + height)
        state = fold.init((entries, n1 - n0), wide, device)
        for k0 in range(0, k, columns):
            k1 = min(k, k0 + columns)
            shape = (entries, n1 - n0, k1 - k0)
            launch = plan.plan_piece(piece, operands, batch, n, k, [[0]], [[(shape, wide)]], limits, tf32, (n0, n1, k0, k1))
            s, seen = launch.scores(operands, shape, device)
            state = fold.step(state, s, torch.arange(k0, k1, device=device), None if program.mask is None else seen.bool(), True)
        for target, value in zip(made, fold.finish(state), strict=True):
            target[..., n0:n1, :] = value.reshape(*batch, n1 - n0, -1)
    return made
