"""Which launches the warp-specialised loop takes, and with which tiles."""

from __future__ import annotations

import importlib
import math
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from ... import folds
from .. import select
from ..triton import generate
from ..triton.launch import Kernel, kernel_of, number_types, operand_types, pointer
from . import resolve, rows

LONG = {torch.float16: gl.float16, torch.bfloat16: gl.bfloat16}
VECTORS = (torch.float32, torch.float16, torch.bfloat16)  # types of columns' numbers that come with their tiles


@dataclass(frozen=True)
class Constants:
    """What a loop is compiled for; the compiler sees it as one constant."""

    fns: ModuleType  # the generated functions

    @cached_property
    def cache_key(self) -> str:
        """What Triton keeps a compiled kernel by: the functions' sources and all numbers."""
        numbers = [(f.name, getattr(self, f.name)) for f in fields(self) if f.name != "fns"]
        functions = [f.cache_key for _, f in sorted(vars(self.fns).items()) if hasattr(f, "cache_key")]
        return f"{functions}{numbers}"


@dataclass(frozen=True)
class Config(Constants):
    """Of the loop over columns."""

    bm: int
    bk: int
    bd: int
    dv: int
    bdv: int
    groups: int
    stages: int
    stretches: int  # parts of a tile that a lane folds by itself; 0: rows are folded whole
    turns: bool  # groups multiply one after another
    c_loaded: bool  # the columns' numbers come with their tiles
    payload: bool
    mask: bool
    tested: bool
    sees_mask: bool
    reverse: bool
    split: bool
    kept: int
    x_dims: tuple[int, ...]
    y_dims: tuple[int, ...]
    v_dims: tuple[int, ...]
    c_dims: tuple[int, ...]
    rows: int
    row_types: tuple[tuple[int, int], ...]
    cols: int
    col_types: tuple[tuple[int, int], ...]
    scalars: int
    scalar_types: tuple[tuple[int, int], ...]
    state: tuple[tuple[float | int, bool, bool], ...]  # first value, whether an integer, whether of each lane
    fills: tuple[float, ...]
    page: int  # columns of a page; 0: columns lie in a row
    rounded: int  # the state that is the sum of the weights as they are multiplied with the payload; -1: none


class GluonKernel(Kernel):
    ast = GluonASTSource


@dataclass(frozen=True)
class Tiles:
    """The choice, and why."""

    bm: int
    bk: int
    groups: int
    stages: int
    stretches: int
    turns: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.groups} x {self.bm} x {self.bk}, rows resident, warps specialised, {self.stages} stages: {self.reason}"


@dataclass
class Launch:
    """Everything of one launch but the pointers."""

    kernel: Kernel
    grid: int
    described: tuple[
        tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...], Any], ...
    ]  # operand, sizes, strides, tile, layout
    absent: tuple[int, ...]  # places of descriptors that there are none of
    pages: tuple[tuple[int, ...], Any]  # the table's number, if there is one, and its strides
    pointers: tuple[tuple[tuple[int, ...], Any], ...]  # of x, y, row, column and scalar operands: numbers, strides
    tail: tuple[Any, ...]
    outputs: tuple[tuple[int, tuple[int, ...], torch.dtype], ...]
    parts: tuple[tuple[tuple[int, ...], torch.dtype], ...]
    merge: tuple[Kernel, int, tuple[Any, ...]] | None
    resolve: tuple[int, Kernel, int, tuple[Any, ...]] | None  # the result that it mends first
    tiles: Tiles
    source: generate.Source

    def __call__(self, operands: Sequence[Tensor], results: list[Any], device: torch.device) -> None:
        made = tuple([torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.outputs])
        for out, t in zip(self.outputs, made, strict=True):
            results[out[0]] = t
        parts = tuple([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.parts])
        args: list[Any] = [TensorDescriptor(operands[i], list(size), list(stride), list(tile), layout)
                           for i, size, stride, tile, layout in self.described]  # fmt: skip
        for place in self.absent:
            args.insert(place, None)
        given = [a for numbers, strides in self.pointers for a in (tuple([operands[i] for i in numbers]), strides)]
        table, strides = self.pages
        pages = tuple([operands[i] for i in table]), strides
        self.kernel(self.grid, device, (*args, *given[4:], *pages, parts or made, *self.tail))
        if self.merge is not None:
            kernel, grid, tail = self.merge
            kernel(grid, device, (made, parts, *tail))
        if self.resolve is not None:
            result, kernel, grid, tail = self.resolve
            kernel(grid, device, (made[result], *given, *tail))

    def __str__(self) -> str:
        return f"{self.tiles}; {self.grid} blocks" + (", columns split" if self.merge else "")


TILE = 128  # columns of the largest tile
STRIP = 64  # features, 128 bytes: as wide as a swizzle is
SWIZZLED = 8  # rows of shared memory after which a swizzle repeats: less can't be loaded by itself
COLUMNS = 1 << 30  # of which twice the number is counted
L2 = 30 << 20  # bytes of the second-level cache that columns may take


def serves(
    source: generate.Source, tensors: Sequence[Tensor], aligned: dict[int, bool], kept: int, k: int, page: int
) -> bool:
    """Whether the loop computes this: one product of 16-bit operands up to 256 features, an interval of columns per row."""
    if page and not (page == k or page % TILE == 0 or (TILE % page == 0 and page >= SWIZZLED)):
        return False
    if len(source.leaves) != 1 or source.lists or source.tile or source.mask == 2 or kept > 3 or k > COLUMNS:
        return False
    if len(source.payloads) > 1 or (source.payloads and (len(source.fills) > 1 or source.tested)):
        return False  # of a payload only what intervals hide is zeroed, and what a test hides may be NaN
    x, y = source.x[source.leaves[0][0]], source.y[source.leaves[0][1]]
    used = (x, y, *(source.y[b] for b in source.payloads))
    if tensors[x].dtype != tensors[y].dtype or len(source.x) > 1:
        return False
    if not all(
        tensors[i].dtype in LONG and aligned[i] and 8 <= tensors[i].shape[-1] <= select.RESIDENT_D for i in used
    ):
        return False
    return groups_of(source, tensors[x].shape[-1], tensors[used[2]].shape[-1] if source.payloads else 0) > 0


REGISTERS = {3: 130, 2: 200}  # of a thread, by groups, that a tile may take; the rest are addresses, bounds and states


def groups_of(source: generate.Source, d: int, dv: int) -> int:
    """How many groups of 64 rows there are registers for; 0: not even two."""
    widest = max(select.block(d), select.block(dv) if dv else 0)
    bk = 64 if dv and widest > 128 else 128
    scores = bk // 2
    outputs = len(source.fills)
    # of a lane: two rows, a quarter of the columns
    held = scores * outputs + 4 * (outputs - 1) + len(source.col) * bk // 4
    held += scores * (source.operations[0] > BUSY)
    if dv:
        held += scores // 2 + select.block(dv) // 2  # weights in 16 bits, the accumulator
    most = 3 if widest <= (64 if dv else 128) else 2
    return next((g for g in range(most, 1, -1) if held <= REGISTERS[g]), 0)


BARRIERS = 1024  # bytes of shared memory left for them
BUSY = 6  # operations of an expression beyond which its temporaries are another tile of scores


def tiles(
    source: generate.Source, n: int, d: int, dv: int, every: Sequence[folds.Fold], limits: select.Limits
) -> Tiles:
    bd, bdv = select.block(d), select.block(dv) if dv else 0
    bk = 64 if max(bd, bdv) > 128 and dv else 128
    stretches = 0
    if not dv and all(f.commutative for f in every):
        # exponentials of one stretch start while the maximum of the other is looked for
        stretches = 2 if any(f.cost.exps for f in every) else 1
    groups = min(groups_of(source, d, dv), 2 if n <= 128 else 3)
    chosen = Tiles(64, bk, groups, 0, stretches, dv > 0 and max(bd, bdv) > 128)
    t = replace(chosen, **{k: v for k, v in select.forced() if hasattr(chosen, k)})
    held = (4 if t.groups == 3 else t.groups) * t.bm * bd * 2 + (dv > 0) * 16 * t.bk + BARRIERS
    stage = t.bk * ((bd + bdv) * 2 + (len(source.col) == 1) * 4)
    stages = t.stages or max(1, min(4, (limits.shared - held) // stage))
    return replace(t, stages=stages, reason=f"{(held + stages * stage) >> 10} of {limits.shared >> 10} KiB shared")


def of_loop(fold: folds.Fold, name: str, default: Any) -> Any:
    """What a fold's Triton module says for this loop: LANES, states that each lane keeps for itself; ROUNDED, a state that the loop makes."""
    return getattr(importlib.import_module(str(fold.jit)), name, default)


WAITED = 2  # tiles' time that an item takes beside its tiles: its first loads, and its results
MERGED = 0.1  # and a part, to be joined with the others


def split(row_tiles: int, entries: int, k: int, t: Tiles, limits: select.Limits) -> int:
    """Into how many parts columns are split: so many that all ends soonest, and where rows of an entry fill several tiles, whose
    states are long, only if blocks alone leave a third of the units idle."""
    tiles_k = math.ceil(k / t.bk)
    blocks = row_tiles * entries
    if tiles_k < 4 or (row_tiles > 1 and blocks * 3 >= limits.units * 2):
        return 1

    def time(size: int) -> float:
        parts = math.ceil(tiles_k / size)
        return math.ceil(blocks * parts / limits.units) * (size + WAITED) + MERGED * parts

    if row_tiles > 1:
        size = math.ceil(tiles_k / max(1, min(limits.units // blocks, tiles_k // 2)))
    else:
        size = min((math.ceil(tiles_k / parts) for parts in range(1, min(tiles_k, limits.units) + 1)), key=time)
    return math.ceil(tiles_k / size)


def launch(
    source: generate.Source,
    every: Sequence[folds.Fold],
    operands: Sequence[Tensor],
    numbers: Sequence[int],
    groups: dict[str, tuple[int, ...]],
    strides: dict[str, Any],
    n: int,
    k: int,
    kept: tuple[int, ...],
    outs: tuple[tuple[int, tuple[int, ...], torch.dtype], ...],
    causal: bool,
    limits: select.Limits,
    merge: Any,
) -> Launch:
    """Plans a launch that `serves` let through.

    Args:
        every: the folds of the outputs
        numbers: of each operand of the piece among `operands`
        groups, strides: the piece's operands by kind, and their strides: own ones, then those of the batch
        merge: makes the launch that joins the states of splits, of (parts, count of parts)
    """
    module = generate.load(source.text)
    tensors = [operands[i] for i in numbers]
    (x, y), payload = source.leaves[0], source.payloads
    dv = tensors[source.y[payload[0]]].shape[-1] if payload else 0
    d = tensors[source.x[x]].shape[-1]
    t = tiles(source, n, d, dv, every, limits)
    bd, bdv = select.block(d), select.block(dv) if dv else 16
    lead = len(kept)
    entries = math.prod(kept)

    def described(group: str, e: int, length: int, tile: tuple[int, int], page: int = 0) -> tuple[tuple[int, ...], Any]:
        """The batch dimensions that an operand has, and its descriptor, which has a dimension of pages behind them."""
        i, own = groups[group][e], strides[group][e]
        dims = tuple(j for j in range(lead) if own[2 + j] != 0)
        if 0 < page < tile[0]:
            tile = page, min(tile[1], STRIP)
        pages, along = ((tensors[i].shape[0],), (own[-1],)) if page else ((), ())
        size = (*(kept[j] for j in dims), *pages, page or length, tensors[i].shape[-1])
        stride = (*(own[2 + j] for j in dims), *along, own[0], 1)
        block = (*(1 for _ in (*dims, *pages)), *tile)
        layout = gl.NVMMASharedLayout.get_default_for(list(block), LONG[tensors[i].dtype])
        return dims, (numbers[i], size, stride, block, layout)

    x_dims, x_d = described("x", x, n, (t.bm, bd))
    page = tensors[groups["y"][y]].shape[-2] if groups["block"] else 0
    y_dims, y_d = described("y", y, k, (t.bk, bd), page)
    v_dims, v_d = described("y", payload[0], k, (t.bk, bdv), page) if payload else ((), None)
    c_dims, c_d = column_descriptor(tensors, numbers, groups["col"], strides["col"], kept, k, t.bk)
    row_tiles = math.ceil(n / (t.bm * t.groups))
    splits = split(row_tiles, entries, k, t, limits)
    vectors = OPERANDS[2:]
    types = {g: tuple((source.types[i], int(g != "scalar" and s[0] == 1)) for i, s in zip(groups[g], strides[g], strict=True))
             for g in vectors}  # fmt: skip
    names = [(f, name, v) for f in every for name, v, *_ in generate.jit_state(f, source.loop)]
    init = [(v, isinstance(v, int), bool(payload) and name in of_loop(f, "LANES", ())) for f, name, v in names]
    rounded = next((i for i, (f, name, _) in enumerate(names) if name == of_loop(f, "ROUNDED", None)), -1)
    parts: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    if splits > 1:
        widths = [(dv,) if code < 0 else () for code in source.states]
        kinds = [torch.int32 if integer else torch.float32 for _, integer, _ in init] + [torch.float32] * len(payload)
        parts = tuple(((splits, entries * n, *w), kind) for w, kind in zip(widths, kinds, strict=True))
    config = Config(
        module, t.bm, t.bk, bd, dv, bdv, t.groups, t.stages, t.stretches, t.turns, c_d is not None, bool(payload), source.mask == 1, source.tested,
        any(f.sees_mask for f in every), causal, splits > 1, lead, x_dims, y_dims, v_dims, c_dims, len(source.row), types["row"], len(source.col),
        types["col"], len(source.scalar), types["scalar"], tuple(init), source.fills, page, rounded if payload else -1,
    )  # fmt: skip
    given = (x_d, y_d, v_d, c_d)
    signature: list[Any] = [
        f"tensordesc<{pointer(operands[d[0]].dtype)[1:]}{list(d[3])},{d[4]!r}>" if d else "constexpr" for d in given
    ]
    last = (*vectors, "block")
    signature += operand_types([[tensors[i] for i in groups[g]] for g in last], [strides[g] for g in last])
    targets = parts or tuple((shape, dtype) for _, shape, dtype in outs)
    marks = {(len(signature), e): 16 for e in range(len(targets))}
    signature += [tuple(pointer(dtype) for _, dtype in targets), *number_types(source.floats, source.ints)]
    signature += [tuple("fp32" for _ in source.unit), "i32", "i32", tuple("i32" for _ in kept), *["i32"] * 5]
    shared = math.prod(kept[j] for j in range(lead) if j not in y_dims)  # entries that read the same columns
    section = max(1, min(entries, L2 // max(1, k * (bd + dv) * 2) * shared))
    items = row_tiles * splits * entries
    kernel = kernel_of(rows.rows_kernel, signature, marks, (config,), source.text, 4, 1, kind=GluonKernel)
    tail = (source.floats, source.ints, source.unit, n, k, kept, items, entries, row_tiles, splits, section)
    pointers = tuple((tuple(numbers[i] for i in groups[g]), strides[g]) for g in OPERANDS)
    made = merge(parts, splits) if parts else None
    mend = (
        resolve_launch(module, source, every, tensors, groups, strides, types, outs, (n, k, kept, entries * n))
        if t.stretches
        else None
    )
    absent = tuple(j for j, d in enumerate(given) if d is None)
    return Launch(
        kernel,
        min(items, limits.units),
        tuple(d for d in given if d),
        absent,
        (tuple(numbers[i] for i in groups["block"]), strides["block"]),
        pointers,
        tail,
        outs,
        parts,
        made,
        mend,
        t,
        source,
    )


def column_descriptor(
    tensors: Sequence[Tensor],
    numbers: Sequence[int],
    cols: tuple[int, ...],
    strides: Sequence[tuple[int, ...]],
    kept: tuple[int, ...],
    k: int,
    bk: int,
) -> tuple[tuple[int, ...], Any]:
    """The batch dimensions and the descriptor of the columns' numbers, if they are one operand that lies side by side."""
    if len(cols) != 1:
        return (), None
    (i,), (own,) = cols, strides
    t, dims = tensors[i], tuple(j for j in range(len(kept)) if own[1 + j] != 0)
    size = t.element_size()
    if own[0] != 1 or t.dtype not in VECTORS or t.data_ptr() % 16 or any(own[1 + j] * size % 16 for j in dims):
        return (), None
    block = (*(1 for _ in dims), bk)
    layout = gl.NVMMASharedLayout(0, 8 * size, len(block))
    return dims, (numbers[i], (*(kept[j] for j in dims), k), (*(own[1 + j] for j in dims), 1), block, layout)


def resolve_launch(
    module: ModuleType,
    source: generate.Source,
    every: Sequence[folds.Fold],
    tensors: Sequence[Tensor],
    groups: dict[str, tuple[int, ...]],
    strides: dict[str, Any],
    types: dict[str, Any],
    outs: Sequence[tuple[int, tuple[int, ...], torch.dtype]],
    sizes: tuple[int, int, tuple[int, ...], int],
) -> tuple[int, Kernel, int, tuple[Any, ...]] | None:
    """What settles the columns that a fold's functions leave open."""
    if len(every) > 1 or not hasattr(importlib.import_module(str(every[0].jit)), "UNSETTLED"):
        return None
    n, k, kept, count = sizes
    given = [[tensors[i] for i in groups[g]] for g in OPERANDS]
    signature = [
        "*i64",
        *operand_types(given, [strides[g] for g in OPERANDS]),
        *number_types(source.floats, source.ints),
    ]
    signature += ["i32", "i32", tuple("i32" for _ in kept), "i64"]
    d = tensors[source.x[0]].shape[-1]
    constants = (
        module.row_part, module.bounds, module.score, module.test, source.tested, source.mask, len(source.row), types["row"],
        len(source.col), types["col"], len(source.scalar), types["scalar"], len(kept), d, select.block(d), RESOLVED, 64,
    )  # fmt: skip
    return (
        every[0].columns[0],
        kernel_of(resolve.resolve_kernel, signature, {(0,): 16}, constants, source.text, 4, 1),
        math.ceil(count / RESOLVED),
        (source.floats, source.ints, n, k, kept, count),
    )


OPERANDS = ("x", "y", "row", "col", "scalar")
RESOLVED = 1024  # rows of a program that looks for unsettled ones
