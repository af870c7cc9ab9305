"""Sums of scores times a payload of many features, over rows, over columns or both: scores are written once, a chunk at a time.
Plain sums of the same scores come with them.

    P = score(X Y^T, ..) [R, C]       one launch of tiles_kernel or streamed_tiles_kernel, in the payload's type; hidden scores are 0
    row outputs  acc[rows] += P V[cols]
    col outputs  acc[cols] += P^T X[rows]      by torch's matrix product; accumulators are float32 and rounded once

The loop in rows.py makes all scores again for each 256 features of a payload, on each axis: a backward pass of 4096 features would make
them 32 times, here it makes them once. Traffic: P out, and in again for each output; the payloads once a chunk; an accumulator in and out
for each chunk that adds to it. Memory: BUFFER bytes for P, and accumulators where an output has a narrower type and several chunks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...program import Const, Expr, Leaf, Output, Program, walk
from .. import select
from . import generate, plan

BUFFER = 64 << 20  # bytes of scores that are in memory at a time
ROWS = 16384  # of a chunk, at most
COLUMNS = 2048  # of a chunk, at least, where there are as many: all accumulators of its rows are read and written once a chunk
STEP = 256  # columns of a chunk are a multiple of it, so that its rows are aligned
COUNTING = {"bn": 64, "bk": 64, "warps": 4, "stages": 1}  # tiles that only count what a mask leaves; larger ones spill
OTHER = {"row": "col", "col": "row"}


def _even(length: int, most: int) -> int:
    """The size, a multiple of STEP and at most `most`, of as few equal parts as make up a length."""
    parts = math.ceil(length / max(STEP, most // STEP * STEP))
    return math.ceil(length / parts / STEP) * STEP


def size(n: int, k: int, width: int) -> tuple[int, int]:
    """Rows and columns of a chunk whose scores take `width` bytes each: as many rows as leave COLUMNS columns of BUFFER, then columns."""
    if "chunk" in (forced := dict(select.forced())):
        return forced["chunk"]
    rows = _even(n, min(ROWS, BUFFER // (width * min(COLUMNS, _even(k, COLUMNS)))))
    return rows, _even(k, BUFFER // (width * rows))


def serves(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...]) -> bool:
    """Whether some of a Program's outputs are made here."""
    return bool(outputs(program, operands, batch))


def outputs(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The numbers of the outputs that are made here: sums with a payload where features come in several slices or are streamed, and
    plain sums of the same scores."""
    if math.prod(batch) != 1:
        return ()
    heavy = [o for o in program.outputs if o.fold == "weighted_sum" and _features(o, operands) > select.RESIDENT_D]
    scored = {generate.peel(o.expr)[1] for o in heavy}
    return tuple(
        j
        for j, o in enumerate(program.outputs)
        if o in heavy or (o.fold == "sum" and o.axis in OTHER and generate.peel(o.expr)[1] in scored)
    )


def _features(o: Output, operands: Sequence[Tensor]) -> int:
    leaves = [operands[leaf.rows].shape[-1] for leaf in walk(o.expr) if isinstance(leaf, Leaf)]
    return max(operands[o.payload].shape[-1], *leaves, 0)


@dataclass(frozen=True)
class Sum:
    """An output: unit * sum of P v, or of P, over the columns (axis "row") or the rows (axis "col")."""

    place: int  # among the results
    shape: tuple[int, ...]
    dtype: torch.dtype
    axis: str
    payload: int | None
    scores: int  # number of P
    unit: float
    wide: torch.dtype  # in which products are accumulated
    direct: bool  # products are added in the result itself

    @property
    def size(self) -> tuple[int, int]:
        """Of the result as a matrix."""
        return (self.shape[-1], 1) if self.payload is None else (self.shape[-2], self.shape[-1])


@dataclass(frozen=True)
class Chunks:
    """The launches of these outputs, all but the pointers."""

    scores: plan.Launch
    types: tuple[torch.dtype, ...]  # of each P
    sums: tuple[Sum, ...]
    seen: tuple[plan.Launch, ...]  # how many scores a row, a column has, where a mask may hide all of them
    blocks: dict[str, tuple[tuple[int, int], ...]]  # rows, columns of the chunks
    columns: int  # of P
    outer: str  # axis of the outer loop

    def __str__(self) -> str:
        rows = self.blocks["row"][0][1]
        return f"scores written once a chunk of {rows} x {self.columns}, products by the matrix library; {self.scores.tiles}"

    def __call__(self, operands: Sequence[Tensor], results: list[Any], device: torch.device) -> None:
        counts: list[Any] = [None, None]
        for launch in self.seen:
            launch(operands, counts, device)
        rows = self.blocks["row"][0][1]
        buffers = tuple([torch.empty((rows, self.columns), dtype=t, device=device) for t in self.types])
        accs = []
        for s in self.sums:
            results[s.place] = torch.empty(s.shape, dtype=s.dtype, device=device)
            length = self.blocks[s.axis][0][1] if s.axis == self.outer else s.size[0]
            shape = (length, s.size[1])
            accs.append(results[s.place].view(s.size) if s.direct else torch.empty(shape, dtype=s.wide, device=device))
        inner = OTHER[self.outer]
        for outside in self.blocks[self.outer]:
            outer_payloads = self._payloads(operands, self.outer, outside, counts)
            for inside in self.blocks[inner]:
                payloads = outer_payloads | self._payloads(operands, inner, inside, counts)
                at = {self.outer: outside, inner: inside}
                (row0, rows_end), (col0, cols_end) = at["row"], at["col"]
                self.scores.fill(operands, buffers, (row0, rows_end, col0, col0 + self.columns), device)
                for s, acc in zip(self.sums, accs, strict=True):
                    p = buffers[s.scores][: rows_end - row0, : cols_end - col0]
                    first, end = at[s.axis]
                    over, every = at[OTHER[s.axis]], self.blocks[OTHER[s.axis]]
                    target = acc[first:end] if s.direct or s.axis == inner else acc[: end - first]
                    p = p if s.axis == "row" else p.mT
                    v = None if s.payload is None else payloads[s.axis, s.payload]
                    _add(target, p, v, s.unit, over is every[0])
                    if over is every[-1] and not s.direct:
                        results[s.place].view(s.size)[first:end] = target

    def _payloads(
        self, operands: Sequence[Tensor], axis: str, block: tuple[int, int], counts: list[Any]
    ) -> dict[Any, Tensor]:
        """The parts of the payloads along an axis, with 0 where a mask hides all: padding may hold anything, and 0 * NaN is NaN."""
        made = {}
        for s in self.sums:
            if s.payload is not None and OTHER[s.axis] == axis and (s.axis, s.payload) not in made:
                v = _matrix(operands[s.payload])[slice(*block)].to(self.types[s.scores])
                if (count := counts[axis == "col"]) is not None:
                    v = v.masked_fill((count.view(-1)[slice(*block)] == 0)[:, None], 0.0)
                made[s.axis, s.payload] = v
        return made


def _matrix(t: Tensor) -> Tensor:
    return t.view(t.shape[-2:])


def _add(target: Tensor, p: Tensor, v: Tensor | None, unit: float, first: bool) -> None:
    """target + unit * p @ v, or the sums of p's rows, in its place; the `first` replaces what it holds."""
    if v is None:
        more = p.sum(-1, keepdim=True, dtype=target.dtype)
        torch.mul(more, unit, out=target) if first else target.add_(more, alpha=unit)
        return
    factors = {"beta": 0.0 if first else 1.0, "alpha": unit, "out": target}
    if target.dtype == p.dtype:
        torch.addmm(target, p, v, **factors)
    elif p.is_cuda:
        torch.addmm(target, p, v, out_dtype=target.dtype, **factors)
    else:  # a product of that kind is there for GPUs alone
        torch.addmm(target, p.to(target.dtype), v.to(target.dtype), **factors)


_plans: dict[Any, tuple[Program, list[Any], int]] = {}


def launches(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int,
             payload_dtypes: Sequence[torch.dtype]) -> tuple[list[Any], int]:  # fmt: skip
    """The launches of a call that `serves` says yes to, and how many results they make."""
    tf32 = torch.float32 in [t.dtype for t in operands] and plan.tf32_allowed()
    key = plan.call_key(program, operands, batch, n, k, tf32, *payload_dtypes)
    known = _plans.get(key)
    if known is not None and known[0] is program:
        return known[1], known[2]
    mine = outputs(program, operands, batch)
    others, count = plan.plan(program, operands, batch, n, k, payload_dtypes, mine)
    made = [*others, _chunks(program, operands, batch, n, k, payload_dtypes, mine, tf32)]
    plan.remember(_plans, key, (program, made, count))
    return made, count


def _chunks(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int,
            payload_dtypes: Sequence[torch.dtype], mine: tuple[int, ...], tf32: bool) -> Chunks:  # fmt: skip
    device = operands[0].device
    limits = select.limits_of(device.type, device.index)
    double = any(t.dtype == torch.float64 for t in operands)
    shapes, places = plan.results_of(program, operands, batch, n, k, payload_dtypes)
    scored: dict[tuple[Expr, torch.dtype], int] = {}
    found = []
    for j in sorted(mine, key=lambda j: program.outputs[j].payload is None):
        o = program.outputs[j]
        unit, expr = generate.peel(o.expr)
        if o.payload is not None:
            dtype = torch.float64 if double else operands[o.payload].dtype
            number = scored.setdefault((expr, dtype), len(scored))
        else:  # of those that are made anyway
            number = next(i for (e, _), i in scored.items() if e == expr)
        found.append((j, unit, number))
    types = tuple(dtype for _, dtype in scored)
    rows, columns = size(n, k, sum(t.itemsize for t in types))
    blocks = {
        axis: tuple((a, min(length, a + step)) for a in range(0, length, step))
        for axis, length, step in (("row", n, rows), ("col", k, columns))
    }
    sums = []
    for j, unit, number in found:
        o, (shape, dtype) = program.outputs[j], shapes[j][0]
        wide = torch.promote_types(types[number], torch.float32)
        alone = len(blocks[OTHER[o.axis]]) == 1
        direct = dtype == wide or (alone and dtype == types[number])
        sums.append(Sum(places[j][0], shape, dtype, o.axis, o.payload, number, unit, wide, direct))

    def held(outer: str) -> int:
        """Elements of all accumulators."""
        return sum(s.size[1] * (blocks[s.axis][0][1] if s.axis == outer else s.size[0]) for s in sums if not s.direct)

    def planned(exprs: Sequence[Expr], axes: Sequence[str], out: Sequence[Any], **options: Any) -> list[plan.Launch]:
        """Sums of these expressions along these axes, with results 0, 1, .. of the shapes and types `out`."""
        whole = Program(
            program.operands, tuple(Output("sum", e, axis=a) for e, a in zip(exprs, axes, strict=True)), program.mask
        )
        return [
            plan.plan_piece(
                p,
                operands,
                batch,
                n,
                k,
                [[j] for j in p.outputs],
                [[out[j]] for j in p.outputs],
                limits,
                tf32,
                **options,
            )
            for p in plan.pieces(whole, ((),) * len(exprs))
        ]

    (scores,) = planned([e for e, _ in scored], ["tile"] * len(scored), [((n, k), t) for t in types], padded=True)
    seen: list[plan.Launch] = []
    if program.mask is not None:
        with select.using(**dict(select.forced()) | COUNTING):
            seen = planned([Const(1.0)] * 2, ["row", "col"], [((n,), torch.float32), ((k,), torch.float32)])
    return Chunks(scores, types, tuple(sums), tuple(seen), blocks, columns, min(("row", "col"), key=held))
