"""Which sums of a gradient Program the loop that keeps columns takes, and with which tiles."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ...program import Data, Leaf, Mask, Output, Program, walk
from .. import select
from ..triton import generate, plan
from ..triton.launch import Kernel, number_types, operand_types, pointer
from . import columns, passes
from .plan import BARRIERS, L2, LONG, Constants, GluonKernel

COLUMNS = 128  # of a block: two groups of 64
FINISHED = 2048  # elements of a program that gives the sums per row their type
SCAN = 1024  # rows whose bounds are looked at together


@dataclass(frozen=True)
class Config(Constants):
    """What the loop is compiled for."""

    m: int
    bd: int
    bdv: int
    bdo: int
    d: int
    dv: int
    stages: int
    exchanges: int
    strips: int  # parts of a tile's rows whose expressions are made one after another
    leaves: int
    dtype: Any
    mask: bool
    tested: bool
    kept: int
    summed: int
    x_sum: int  # the expressions that are summed with X, with G, and with the columns for each row; -1: not wanted
    g_sum: int
    row_sum: int
    summed_from: int  # 0: rows sum Y, 1: W
    x_dims: tuple[int, ...]
    g_dims: tuple[int, ...]
    y_dims: tuple[int, ...]
    w_dims: tuple[int, ...]
    o_dims: tuple[int, ...]
    rows: int
    row_types: tuple[tuple[int, int], ...]
    kinds: tuple[
        int, ...
    ]  # of the rows' operands, then of what row_part gives: -1 not read, 0 float, 1 integer, 2 boolean
    cols: int
    col_types: tuple[tuple[int, int], ...]
    scalars: int
    scalar_types: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Tiles:
    m: int
    stages: int
    exchanges: int
    strips: int
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.m} x 2 x 64, columns resident, warps specialised, {self.stages} stages: {self.reason}"


@dataclass(frozen=True)
class Choice:
    """The outputs that the loop makes, by what they are."""

    outputs: tuple[int, ...]
    leaves: tuple[Leaf, ...]
    by_x: int | None  # numbers of outputs: summed per column with X, with G, per row
    by_g: int | None
    by_row: int | None
    summed: tuple[int, ...]  # batch dimensions


def choose(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...]) -> Choice | None:
    """The outputs of a gradient Program for this loop, or None."""
    mask = program.mask or Mask()
    if mask.axis != "row" or mask.block is not None:
        return None
    sums = [
        j for j, o in enumerate(program.outputs) if o.fold == "weighted_sum" and o.axis != "tile" and o.like is not None
    ]
    leaves: list[Leaf] = []
    for j in sums:
        leaves += [e for e in walk(program.outputs[j].expr) if isinstance(e, Leaf) and e not in leaves]
    xs, ys = [e.rows for e in leaves], [e.cols for e in leaves]
    if not 1 <= len(leaves) <= 2 or len({*xs}) < len(leaves) or len({*ys}) < len(leaves):
        return None
    by_column = {o.payload: j for j in sums if (o := program.outputs[j]).axis == "col" and o.payload in xs}
    by_row = [j for j in sums if (o := program.outputs[j]).axis == "row" and o.payload in ys]
    if not by_column or len(by_row) > 1:
        return None
    patterns = [plan.summed_dimensions(program.outputs[j], operands, batch) for j in by_column.values()]
    if any(p != patterns[0] for p in patterns):
        return None
    if any(plan.summed_dimensions(program.outputs[j], operands, batch) for j in by_row):
        by_row = []
    made = tuple(sorted([*by_column.values(), *by_row]))
    chosen = [program.outputs[j] for j in made]
    every = list(walk(*(o.expr for o in chosen), *mask.roots))
    if {e for e in every if isinstance(e, Leaf)} != {*leaves} or any(
        isinstance(e, Data) and e.kind == "tile" for e in every
    ):
        return None
    return Choice(made, tuple(leaves), by_column.get(xs[0]), by_column.get(xs[1]) if len(xs) > 1 else None,
                  by_row[0] if by_row else None, patterns[0])  # fmt: skip


def tiles(d: int, dv: int, vectors: int, row_sum: int, source: generate.Source, limits: select.Limits) -> Tiles | None:
    """The tiles of D features of the first product and Dv of the second (0: there is none), or None where they do not fit."""
    bd, bdv = select.block(d), select.block(dv) if dv else 0
    m = 64 if max(bd, bdv) > 64 else 128
    scores = m // 2
    held = scores * (1 + (dv > 0)) + (bd + bdv) // 2
    if held > 200 or (bd > 128 and bdv):
        return None
    chosen = Tiles(m, 0, 2 if m == 64 else 1, 4)
    t = replace(chosen, **{k: v for k, v in select.forced() if hasattr(chosen, k)})
    fixed = COLUMNS * (bd + bdv) * 2 + BARRIERS
    if row_sum:
        width = select.block(row_sum)
        fixed += t.exchanges * COLUMNS * t.m * 2 + 2 * 64 * (width // 2 if t.m == 64 else width) * 4
    stage = t.m * ((bd + bdv) * 2 + vectors * 4)
    stages = t.stages or min(3, (limits.shared - fixed) // stage)
    if stages < 1:
        return None
    return replace(t, stages=stages, reason=f"{(fixed + stages * stage) >> 10} of {limits.shared >> 10} KiB shared")


@dataclass
class Launch:
    """Everything of one launch but the pointers."""

    kernel: Kernel
    grid: int
    described: tuple[Any, ...]  # of x, g, y, w: operand, sizes, strides, tile, layout; or None
    added: tuple[int, tuple[int, ...], torch.dtype, Any] | None  # the sum per row: place, shape, type, descriptor
    finish: tuple[Kernel, int, tuple[Any, ...]] | None  # of the sum per row
    ranges: tuple[Kernel, int, tuple[Any, ...]] | None
    pointers: tuple[tuple[tuple[int, ...], Any], ...]  # of row, column and scalar operands: numbers, strides
    tail: tuple[Any, ...]
    outputs: tuple[tuple[int, tuple[int, ...], torch.dtype] | None, ...]  # the sums with X and with G
    tiles: Tiles
    source: generate.Source

    def __call__(self, operands: Sequence[Tensor], results: list[Any], device: torch.device) -> None:
        made = [None if o is None else torch.empty(o[1], dtype=o[2], device=device) for o in self.outputs]
        given = [a for numbers, strides in self.pointers for a in (tuple([operands[i] for i in numbers]), strides)]
        args: list[Any] = [d and TensorDescriptor(operands[d[0]], *map(list, d[1:4]), d[4]) for d in self.described]
        rows = None
        if self.added is not None:
            rows = torch.zeros(self.added[1], dtype=torch.float32, device=device)
            args.append(TensorDescriptor(rows, *map(list, self.added[3][:3]), self.added[3][3]))
        else:
            args.append(None)
        seen = None
        if self.ranges is not None:
            kernel, grid, tail = self.ranges
            seen = torch.empty(8 * grid, dtype=torch.int32, device=device)
            kernel(grid, device, (seen, *given[:2], *given[4:], *tail))
        self.kernel(self.grid, device, (*args, seen, *given, tuple(made), *self.tail))
        for o, t in zip(self.outputs, made, strict=True):
            if o is not None:
                results[o[0]] = t
        if self.added is not None and self.finish is not None:
            place, shape, dtype, _ = self.added
            results[place] = torch.empty(shape, dtype=dtype, device=device)
            kernel, grid, tail = self.finish
            kernel(grid, device, (results[place], rows, *tail))

    def __str__(self) -> str:
        return f"{self.tiles}; {self.grid} blocks"


def launch(program: Program, choice: Choice, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int,
           places: Sequence[Sequence[int]], shapes: Sequence[Any], limits: select.Limits) -> Launch | None:  # fmt: skip
    """Plans the sums that `choose` found; None where operands or tiles do not fit the loop."""
    expressions = list(dict.fromkeys(program.outputs[j].expr for j in choice.outputs))
    scores = Program(program.operands, tuple(Output("sum", e) for e in expressions), program.mask)
    part, numbers = scores.prune()
    tensors = [operands[i] for i in numbers]
    source = generate.source_of(part, False)
    groups = {"x": source.x, "y": source.y, "row": source.row, "col": source.col, "scalar": source.scalar}
    every = [i for g in groups for i in groups[g]]
    if any(t.dtype == torch.float64 for t in tensors):
        return None
    rows_batch = plan.batch_strides(
        torch.empty((*batch, 1, 1), device="meta"), batch
    )  # of the sum per row, in units of N x D
    lead = [*(plan.batch_strides(tensors[i], batch) for i in every), rows_batch]
    dims = [d for d in range(len(batch)) if d not in choice.summed]
    kept, kept_strides = plan.collapse(dims, batch, lead)
    summed, summed_strides = plan.collapse(choice.summed, batch, lead)
    if len(kept) + len(summed) > 3:
        return None
    place = {i: at for at, i in enumerate(every)}
    own = {i: plan._strides_of(part.operands[i], tensors[i], False) for i in every}
    full = {i: (*own[i], *kept_strides[place[i]], *summed_strides[place[i]]) for i in every}
    strides = {g: tuple(full[i] for i in members) for g, members in groups.items()}
    x = [source.x[a] for a, _ in source.leaves]
    y = [source.y[b] for _, b in source.leaves]
    for i in (*x, *y):
        t = tensors[i]
        size = t.element_size()
        aligned = (
            all(s * size % 16 == 0 for s in (own[i][0], *full[i][2:])) and own[i][1] == 1 and t.data_ptr() % 16 == 0
        )
        if t.dtype not in LONG or t.dtype != tensors[x[0]].dtype or not aligned or t.shape[-1] < 8:
            return None
    if any(any(full[i][2 + len(kept) :]) for i in y):
        return None
    mask = part.mask or Mask()
    intervals = {e.operand for e in walk(*(e for e in (mask.lo, mask.hi) if e is not None)) if isinstance(e, Data)}
    own_dims = {"row": 1, "scalar": 0}
    if any(any(full[i][own_dims[part.operands[i]] + len(kept) :]) for i in intervals):
        return None  # intervals that differ along dimensions that are summed
    kinds = tuple(source.types[i] if e in source.row_read else -1 for e, i in enumerate(source.row))
    if 1 in kinds or 3 in source.row_values:
        return None
    d, dv = tensors[x[0]].shape[-1], tensors[x[1]].shape[-1] if len(x) > 1 else 0
    row_output = None if choice.by_row is None else program.outputs[choice.by_row]
    source_of_rows = 0 if row_output is None or numbers[y[0]] == row_output.payload else 1
    d_rows = 0 if row_output is None else (d, dv)[source_of_rows]
    vectors = sum(v >= 0 for v in kinds) + len(source.row_values) + 2 * (source.mask == 1)
    t = tiles(d, dv, vectors, d_rows, source, limits)
    if t is None:
        return None
    bd, bdv = select.block(d), select.block(dv) if dv else 16
    width = select.block(d_rows) if d_rows else 16
    every_size = (*kept, *summed)

    def described(i: int, length: int, tile: tuple[int, int]) -> tuple[tuple[int, ...], Any]:
        at = tuple(j for j in range(len(every_size)) if full[i][2 + j] != 0)
        size = (*(every_size[j] for j in at), length, tensors[i].shape[-1])
        stride = (*(full[i][2 + j] for j in at), own[i][0], 1)
        block = (*(1 for _ in at), *tile)
        layout = gl.NVMMASharedLayout.get_default_for(list(block), LONG[tensors[i].dtype])
        return at, (numbers[i], size, stride, block, layout)

    x_dims, x_d = described(x[0], n, (t.m, bd))
    y_dims, y_d = described(y[0], k, (COLUMNS, bd))
    g_dims, g_d = described(x[1], n, (t.m, bdv)) if dv else ((), None)
    w_dims, w_d = described(y[1], k, (COLUMNS, bdv)) if dv else ((), None)
    o_dims: tuple[int, ...] = ()
    o_d: Any = None
    if row_output is not None:
        unit_strides = (*kept_strides[-1], *summed_strides[-1])
        o_dims = tuple(j for j in range(len(every_size)) if every_size[j] != 1)
        block = (*(1 for _ in o_dims), 64, width // 2 if t.m == 64 else width)
        layout = gl.NVMMASharedLayout.get_default_for(list(block), gl.float32)
        o_d = (
            (*(every_size[j] for j in o_dims), n, d_rows),
            (*(unit_strides[j] * n * d_rows for j in o_dims), d_rows, 1),
            block,
            layout,
        )
    index = {e: i for i, e in enumerate(expressions)}
    at_of = lambda j: -1 if j is None else index[program.outputs[j].expr]
    by_x, by_g, by_row = at_of(choice.by_x), at_of(choice.by_g), at_of(choice.by_row)
    unit = lambda g, s: int(g != "scalar" and s[0] == 1)
    types = {g: tuple((source.types[i], unit(g, full[i])) for i in groups[g]) for g in ("row", "col", "scalar")}
    config = Config(
        generate.load(source.text), t.m, bd, bdv, width, d, dv, t.stages, t.exchanges, t.strips, len(x), LONG[tensors[x[0]].dtype], source.mask == 1, source.tested, len(kept),
        len(summed), by_x, by_g, by_row, source_of_rows, x_dims, g_dims, y_dims, w_dims, o_dims, len(source.row), types["row"],
        kinds + source.row_values, len(source.col), types["col"], len(source.scalar), types["scalar"],
    )  # fmt: skip
    outs = tuple(None if j is None else (places[j][0], *shapes[j][0]) for j in (choice.by_x, choice.by_g))
    tensor = lambda dtype, d: f"tensordesc<{pointer(dtype)[1:]}{list(d[-2])},{d[-1]!r}>" if d else "constexpr"
    dtype = tensors[x[0]].dtype
    signature: list[Any] = [tensor(dtype, item) for item in (x_d, g_d, y_d, w_d)] + [tensor(torch.float32, o_d)]
    signature += ["*i32" if source.mask == 1 else "constexpr"]
    vectors_of = ("row", "col", "scalar")
    signature += operand_types([[tensors[i] for i in groups[g]] for g in vectors_of], [strides[g] for g in vectors_of])
    signature += [
        tuple("constexpr" if o is None else pointer(o[2]) for o in outs),
        *number_types(source.floats, source.ints),
    ]
    marks = {(12, e): 16 for e, o in enumerate(outs) if o is not None}
    signature += [
        tuple("fp32" for _ in source.unit),
        "i32",
        "i32",
        tuple("i32" for _ in kept),
        tuple("i32" for _ in summed),
        *["i32"] * 6,
    ]
    count, inner, col_tiles = math.prod(kept), math.prod(summed), math.ceil(k / COLUMNS)
    section = max(1, min(count, L2 // max(1, n * inner * ((bd + bdv) * 2 + d_rows * 4))))
    items = col_tiles * count
    tail = (
        source.floats,
        source.ints,
        source.unit,
        n,
        k,
        kept,
        summed,
        items,
        col_tiles,
        count,
        math.ceil(n / t.m),
        section,
        inner,
    )
    seen = None
    if source.mask == 1:
        row_scalar = ("row", "scalar")
        kinds_of = [
            "*i32",
            *operand_types([[tensors[i] for i in groups[g]] for g in row_scalar], [strides[g] for g in row_scalar]),
        ]
        kinds_of += [*number_types(source.floats, source.ints), "i32", "i32", tuple("i32" for _ in kept), "i32"]
        numbers_of = (len(source.row), types["row"], len(source.scalar), types["scalar"], len(kept), t.m, COLUMNS, SCAN)
        kernel = kernel_of(
            (source.text, numbers_of),
            Kernel,
            passes.ranges_kernel,
            kinds_of,
            {(0,): 16},
            (config.fns.bounds, *numbers_of),
        )
        seen = kernel, items, (source.floats, source.ints, n, k, kept, col_tiles)
    added = finish = None
    if row_output is not None:
        shape, kind = shapes[choice.by_row][0]
        added = (places[choice.by_row][0], shape, kind, o_d)
        size = math.prod(shape)
        kernel = kernel_of(
            (),
            Kernel,
            passes.finish_kernel,
            [pointer(kind), "*fp32", "fp32", "i64"],
            {(0,): 16, (1,): 16, (3,): 8},
            (FINISHED,),
        )
        finish = kernel, math.ceil(size / FINISHED), (source.unit[by_row], size)
    pointers = tuple((tuple(numbers[i] for i in groups[g]), strides[g]) for g in vectors_of)
    made = kernel_of(config, GluonKernel, columns.columns_kernel, signature, marks, (config,))
    return Launch(
        made, min(items, limits.units), (x_d, g_d, y_d, w_d), added, finish, seen, pointers, tail, outs, t, source
    )


def kernel_of(
    key: Any, kind: type[Kernel], fn: Any, signature: Sequence[Any], marks: dict[Any, int], constants: tuple[Any, ...]
) -> Kernel:
    """The kernel of these types; `key` stands for its constants."""
    full = (fn.__name__, key, repr(signature), tuple(marks.items()))
    if full not in _kernels:
        _kernels[full] = kind(fn, signature, marks, constants, 4, 1)
    return _kernels[full]


_kernels: dict[Any, Kernel] = {}
