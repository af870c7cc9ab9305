"""What a Program costs, counted from its structure and sizes: fused, and with the [N, K] scores written to memory."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .. import folds
from ..machine import Counts
from ..program import Data, Leaf, Op, Program, walk

EXPS = {
    "exp": 1,
    "exp2": 1,
    "expm1": 1,
    "log": 1,
    "log2": 1,
    "log1p": 1,
    "tanh": 2,
    "sigmoid": 2,
    "erf": 1,
    "gumbel": 2,
    "pow": 2,
}


def _product_dtype(a: Tensor, b: Tensor) -> str:
    return str(torch.promote_types(a.dtype, b.dtype)).removeprefix("torch.")


def _flops(program: Program, operands: Sequence[Tensor], pairs: float) -> tuple[tuple[str, float], ...]:
    """Multiply-add flops of every product, by data type."""
    total: dict[str, float] = {}
    for leaf in program.leaves():
        x, y = operands[leaf.rows], operands[leaf.cols]
        dtype = _product_dtype(x, y)
        total[dtype] = total.get(dtype, 0.0) + 2.0 * pairs * x.shape[-1]
    for o in program.outputs:
        if o.payload is not None:
            v = operands[o.payload]
            dtype = _product_dtype(v, v)
            total[dtype] = total.get(dtype, 0.0) + 2.0 * pairs * v.shape[-1]
    return tuple(sorted(total.items()))


def _result_bytes(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> float:
    total = 0.0
    rows = math.prod(batch)
    for o in program.outputs:
        length = {"row": n, "col": k, "tile": n * k}[o.axis] * rows
        for r in folds.lookup(o).results if o.axis == "row" else (folds.Result(),):
            width = operands[o.payload].shape[-1] if o.payload is not None and r.kind == "payload" else 1
            width = dict(o.options)["k"] if r.kind == "list" else width
            total += float(length) * width * (8 if r.type == "int" else 4)
    return total


def fused(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> Counts:
    """One pass: each operand is read once, each result written once; a mask is not taken into account."""
    pairs = float(math.prod(batch)) * n * k
    nodes = [x for x in walk(*program.roots()) if isinstance(x, Op) and len(x.varies) == 2]
    cost = [folds.lookup(o).cost for o in program.outputs]
    return Counts(
        flops=_flops(program, operands, pairs),
        bytes=sum(float(t.numel()) * t.element_size() for t in operands)
        + _result_bytes(program, operands, batch, n, k),
        exps=pairs * (sum(EXPS.get(x.name, 0) for x in nodes) + sum(c.exps for c in cost)),
        ops=pairs * (len(nodes) + sum(c.ops for c in cost)),
        launches=len({o.axis for o in program.outputs}),
    )


def materialised(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> Counts:
    """The same in plain torch: every product and pointwise operation writes a matrix, every reader reads it again."""
    once = fused(program, operands, batch, n, k)
    made = [x for x in walk(*program.roots()) if isinstance(x, (Leaf, Op)) and len(x.varies) == 2]
    reads = sum(len([a for a in x.args if len(a.varies) == 2 and not isinstance(a, Data)]) for x in made)
    reads += sum(2 if folds.lookup(o).cost.exps else 1 for o in program.outputs)
    moved = matrix_bytes(program, operands, batch, n, k) * (len(made) + reads)
    return Counts(once.flops, once.bytes + moved, once.exps, once.ops, len(made) + len(program.outputs))


def matrix_bytes(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> float:
    """The size of one [N, K] matrix of scores in the operands' type."""
    size = max(
        (
            torch.promote_types(operands[leaf.rows].dtype, operands[leaf.cols].dtype).itemsize
            for leaf in program.leaves()
        ),
        default=4,
    )
    return float(math.prod(batch)) * n * k * size
