"""From a Program and tensors to launches.

A Program is cut into pieces, one launch each: outputs of one axis that sum over the same batch dimensions. A piece for the columns is the
transposed Program. What a call needs beyond pointers is planned once per (Program, shapes, strides, types) and kept.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import triton.language as tl
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor

from ... import folds
from ...program import Mask, Output, Program
from .. import select
from . import generate, pack, rows, streamed
from .launch import INTERPRETED, Kernel, kernel_of, number_types, operand_types, pointer

COMBINABLE_K = 32
PLANS = 512  # call plans kept
I32 = 2**31 - 1


@dataclass(frozen=True)
class Piece:
    """A launch's Program, the operands it takes, and the outputs of the whole that it makes."""

    program: Program
    operands: tuple[int, ...]
    flipped: bool
    outputs: tuple[int, ...]
    summed: tuple[int, ...]  # batch dimensions


@functools.lru_cache(maxsize=2048)
def pieces(program: Program, summed: tuple[tuple[int, ...], ...], without: tuple[int, ...] = ()) -> tuple[Piece, ...]:
    """The launches of a Program whose outputs sum over these batch dimensions each; none for the outputs in `without`."""
    groups: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    for j, o in enumerate(program.outputs):
        if j not in without:
            groups.setdefault((o.axis, summed[j]), []).append(j)
    turned = program.transpose() if any(o.axis == "col" for o in program.outputs) else program
    made = []
    for (axis, dims), members in groups.items():
        whole = turned if axis == "col" else program
        outputs = tuple(replace(whole.outputs[j], like=None) for j in members)
        part, kept = Program(whole.operands, outputs, whole.mask, whole.pages).prune()
        made.append(Piece(part, kept, axis == "col", tuple(members), dims))
    return tuple(made)


def summed_dimensions(o: Output, operands: Sequence[Tensor], batch: tuple[int, ...]) -> tuple[int, ...]:
    if o.like is None:
        return ()
    like = operands[o.like]
    missing = len(batch) - (like.dim() - 2)
    return tuple(d for d in range(len(batch)) if batch[d] != 1 and (d < missing or like.shape[d - missing] == 1))


def batch_strides(t: Tensor, batch: tuple[int, ...]) -> list[int]:
    missing = len(batch) - (t.dim() - 2)
    return [0 if d < missing or t.shape[d - missing] == 1 else t.stride(d - missing) for d in range(len(batch))]


def collapse(
    dims: Sequence[int], batch: tuple[int, ...], strides: Sequence[list[int]]
) -> tuple[tuple[int, ...], list[list[int]]]:
    """Sizes of these batch dimensions, and each operand's strides along them, without those of size 1 and with neighbours joined where
    every operand lies so that one stride serves both."""
    sizes: list[int] = []
    kept: list[list[int]] = [[] for _ in strides]
    for d in dims:
        if batch[d] == 1:
            continue
        if sizes and all(k[-1] == s[d] * batch[d] for k, s in zip(kept, strides, strict=True)):
            sizes[-1] *= batch[d]
            for k, s in zip(kept, strides, strict=True):
                k[-1] = s[d]
        else:
            sizes.append(batch[d])
            for k, s in zip(kept, strides, strict=True):
                k.append(s[d])
    return tuple(sizes), kept


def tf32_allowed() -> bool:
    """Whether torch lets float32 products use TF32, by its newer setting or its older one."""
    try:
        own = torch.backends.cuda.matmul.fp32_precision
        if own == "none":
            own = torch.backends.fp32_precision
        return bool(own == "tf32")
    except (AttributeError, RuntimeError):
        return bool(torch.backends.cuda.matmul.allow_tf32)


def product_cast(a: torch.dtype, b: torch.dtype) -> int:
    """How two operands are multiplied: 0 as they are, 1 in float32, 2 in float64."""
    if torch.float64 in (a, b):
        return 2
    if a != b or (INTERPRETED and a == torch.bfloat16):
        return 1
    return 0


def needs_multiply_add(a: torch.dtype, b: torch.dtype, tf32: bool) -> bool:
    wide = torch.promote_types(a, b)
    return wide == torch.float64 or (wide == torch.float32 and not tf32)


@dataclass(frozen=True)
class Written:
    """Of a launch whose result is a part of the scores: rows and columns of a block, the part, batch dimensions, and the units."""

    block: tuple[int, int]
    part: tuple[int, int, int, int]
    kept: tuple[int, ...]
    summed: tuple[int, ...]
    kept_count: int
    units: int


@dataclass
class Launch:
    """Everything of one launch but the pointers."""

    kernel: Kernel
    grid: int
    pointers: tuple[tuple[int, ...], ...]  # operand numbers of x, y, row, col, tile, scalar, block
    strides: tuple[Any, ...]
    tail: tuple[Any, ...]  # after the outputs and parts
    outputs: tuple[tuple[int, tuple[int, ...], torch.dtype], ...]  # place in the results, shape, type
    parts: tuple[tuple[tuple[int, ...], torch.dtype], ...] = ()
    merge: tuple[Kernel, int, tuple[Any, ...]] | None = None
    tiles: select.Tiles | None = None
    source: generate.Source | None = None
    written: Written | None = None  # where the scores themselves are the result
    described: tuple[int, int, list[int], list[int]] | None = (
        None  # operands that come as tensor descriptors, and their tiles
    )

    def __call__(self, operands: Sequence[Tensor], results: list[Any], device: torch.device) -> None:
        made = tuple([torch.empty(shape, dtype=dtype, device=device) for _, shape, dtype in self.outputs])
        for out, t in zip(self.outputs, made, strict=True):
            results[out[0]] = t
        parts = tuple([torch.empty(shape, dtype=dtype, device=device) for shape, dtype in self.parts])
        if self.written is not None:
            self.fill(operands, made, self.written.part, device)
            return
        args = (*self._descriptors(operands), *self._operands(operands), () if parts else made, parts)
        self.kernel(self.grid, device, (*args, *self.tail))
        if self.merge is not None:
            kernel, grid, tail = self.merge
            kernel(grid, device, (made, parts, *tail))

    def _descriptors(self, operands: Sequence[Tensor]) -> tuple[Any, Any]:
        if self.described is None:
            return None, None
        x, y, x_tile, y_tile = self.described
        return tuple(
            TensorDescriptor(t, list(t.shape[-2:]), list(t.stride()[-2:]), tile)
            for t, tile in ((operands[x], x_tile), (operands[y], y_tile))
        )  # type: ignore[return-value]

    def __post_init__(self) -> None:
        self._template = [a for strides in self.strides for a in ((), strides)]
        self._slots = [(2 * g, numbers) for g, numbers in enumerate(self.pointers) if numbers]

    def _operands(self, operands: Sequence[Tensor]) -> list[Any]:
        args = list(self._template)
        for at, numbers in self._slots:
            args[at] = tuple([operands[i] for i in numbers])
        return args

    def fill(
        self,
        operands: Sequence[Tensor],
        outs: tuple[Tensor, ...],
        part: tuple[int, int, int, int],
        device: torch.device,
        seen: Tensor | None = None,
    ) -> None:
        """Writes the scores of a part (row0, rows_end, col0, cols_end), of [N, K] or beyond its end, where they are 0."""
        w = self.written
        assert w is not None
        row_tiles, col_tiles = math.ceil((part[1] - part[0]) / w.block[0]), math.ceil((part[3] - part[2]) / w.block[1])
        args = self._operands(operands)
        if self.described is not None:
            grid = min(w.units, row_tiles * col_tiles)
            args = [*self._descriptors(operands), *args, outs]
            end: tuple[Any, ...] = (row_tiles, col_tiles, select.STREAMED_GROUP, grid)
        else:
            grid = row_tiles * col_tiles * w.kept_count
            args += [outs, outs[0] if seen is None else seen]
            end = (w.kept, w.summed, w.kept_count, row_tiles, col_tiles)
        self.kernel(grid, device, (*args, *self.tail, *part, *end))

    def __str__(self) -> str:
        blocks = "" if self.written else f"; {self.grid} blocks"
        return f"{self.tiles}{blocks}" + (", columns split" if self.merge else "")

    def scores(self, operands: Sequence[Tensor], shape: tuple[int, ...], device: torch.device) -> tuple[Tensor, Tensor]:
        """A chunk of scores and which of them are visible."""
        s = torch.empty(shape, dtype=self.outputs[0][2], device=device)
        seen = torch.empty(shape, dtype=torch.int8, device=device)
        assert self.written is not None
        self.fill(operands, (s,), self.written.part, device, seen)
        return s, seen


def _strides_of(kind: str, t: Tensor, flipped: bool) -> tuple[int, ...]:
    """Strides of a tensor's last dimensions, as its kind is read; 0 along a dimension of size 1 that is broadcast."""
    down = t.stride(-2) if t.shape[-2] != 1 else 0
    along = t.stride(-1) if t.shape[-1] != 1 else 0
    match kind:
        case "rows" | "cols":
            return t.stride(-2), t.stride(-1)
        case "row":
            return (along if flipped else down,)
        case "col":
            return (down if flipped else along,)
        case "scalar":
            return ()
    return (along, down) if flipped else (down, along)


GROUPS = ("x", "y", "row", "col", "tile", "scalar", "block")


def _signature(groups: dict[str, tuple[int, ...]], tensors: Sequence[Tensor], strides: dict[str, Any], aligned: dict[int, bool],
               first: list[Any]) -> tuple[list[Any], dict[tuple[int, ...], int]]:  # fmt: skip
    signature = list(first)
    marks: dict[tuple[int, ...], int] = {}
    for group in GROUPS:
        at = len(signature)
        for e, i in enumerate(groups[group]):
            if aligned.get(i):
                marks[(at, e)] = 16
                for f, s in enumerate(strides[group][e]):
                    if not (f == 1 and s == 1):
                        marks[(at + 1, e, f)] = 16 // tensors[i].element_size()
        signature += operand_types([[tensors[i] for i in groups[group]]], [strides[group]])
    return signature, marks


def plan_piece(piece: Piece, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, places: Sequence[Sequence[int]],
               shapes: Sequence[Sequence[tuple[tuple[int, ...], torch.dtype]]], limits: select.Limits, tf32: bool,
               chunk: tuple[int, int, int, int] | None = None, padded: bool = False) -> Launch:  # fmt: skip
    """Plans one piece.

    chunk     (row0, rows_end, col0, cols_end): only the scores of that part, with their visibility
    padded    scores whose parts, all of them multiples of 16 columns, `fill` writes
    """
    program = piece.program
    tensors = [operands[i] for i in piece.operands]
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    rows_d = max((t.shape[-1] for t, kind in zip(tensors, program.operands, strict=True) if kind == "rows"), default=0)
    source = generate.source_of(
        program,
        wide == torch.float64,
        "quick" if limits.matrix in (0, 9) and rows_d <= select.RESIDENT_D else "",
        any(
            t.dtype == torch.float32
            for t, kind in zip(tensors, program.operands, strict=True)
            if kind in ("rows", "cols")
        ),
    )
    module = generate.load(source.text)
    if piece.flipped:
        n, k = k, n
    mask = program.mask or Mask()
    groups: dict[str, tuple[int, ...]] = {
        "x": source.x, "y": source.y, "row": source.row, "col": source.col, "tile": source.tile, "scalar": source.scalar,
        "block": tuple(i for i in (mask.block, program.pages) if i is not None),
    }  # fmt: skip
    every = [i for g in GROUPS for i in groups[g]]
    lead = [batch_strides(tensors[i], batch) for i in every]
    paged = groups["y"] if program.pages is not None else ()
    for number, i in enumerate(every):
        if i in paged:
            lead[number][0] = 0  # a page stands where the entry would
    dims = [d for d in range(len(batch)) if d not in piece.summed]
    kept, kept_strides = collapse(dims, batch, lead)
    summed, summed_strides = collapse(piece.summed, batch, lead)
    page = tensors[paged[0]].shape[-2] if paged else 0
    strides: dict[str, Any] = {}
    aligned: dict[int, bool] = {}
    number = 0
    big = False
    for g in GROUPS:
        made = []
        for i in groups[g]:
            t = tensors[i]
            own = _strides_of(program.operands[i], t, piece.flipped)
            full = (*own, *kept_strides[number], *summed_strides[number], *((t.stride(0),) if i in paged else ()))
            made.append(full)
            number += 1
            if g in ("x", "y", "tile"):
                size = t.element_size()
                fits = all(s * size % 16 == 0 for s in (own[0], *full[2:]))
                aligned[i] = fits and own[1] == 1 and t.data_ptr() % 16 == 0
            if g in ("x", "y"):
                big = big or 512 * own[0] + t.shape[-1] * own[1] > I32
        strides[g] = tuple(made)
    kept_count = math.prod(kept)
    tile_output = program.outputs[0].axis == "tile"

    casts = tuple(product_cast(tensors[source.x[a]].dtype, tensors[source.y[b]].dtype) for a, b in source.leaves)
    slow = any(
        needs_multiply_add(tensors[source.x[a]].dtype, tensors[source.y[b]].dtype, tf32) for a, b in source.leaves
    )
    slow = (
        slow
        or any(tensors[source.y[b]].dtype == torch.float32 and not tf32 for b in source.payloads)
        or wide == torch.float64
    )
    leaf_cols = {b for _, b in source.leaves}
    size_of = lambda i: (tensors[i].shape[-1], tensors[i].element_size())
    need = select.Need(
        rows=tuple(size_of(i) for i in source.x),
        cols=tuple(size_of(source.y[b]) for b in sorted(leaf_cols)),
        leaves=len(source.leaves),
        outputs=len(program.outputs),
        payloads=tuple((*size_of(source.y[b]), b in leaf_cols) for b in source.payloads),
        slow_product=slow,
        wide=wide.itemsize,
        state=source.registers,
        lists=source.lists,
        masked=source.mask > 0,
        tiles=len(source.tile),
        summed=bool(piece.summed),
        turned=piece.flipped,
        heavy=any(f.cost.ops >= 5 for f in map(folds.lookup, program.outputs)),
        ops=sum(f.cost.ops for f in map(folds.lookup, program.outputs)) + source.operations[0],
        exps=sum(f.cost.exps for f in map(folds.lookup, program.outputs)) + source.operations[1],
    )
    if (
        limits.matrix == 9
        and not (tile_output or piece.summed or mask.block is not None)
        and ("loop", "portable") not in select.forced()
    ):
        from ..hopper import plan as hopper  # Gluon is imported where it serves

        if hopper.serves(source, tensors, aligned, len(kept), k, page):
            own = generate.source_of(program, False, "specialised" if len(program.outputs) == 1 else "")
            every = [folds.lookup(o) for o in program.outputs]
            outs = tuple(item for j in range(len(piece.outputs)) for item in _outputs(places[j], shapes[j]))
            dv_own = tuple(tensors[own.y[b]].shape[-1] for b in own.payloads)

            def join(parts: Sequence[Any], splits: int) -> tuple[Kernel, int, tuple[Any, ...]]:
                bdv = tuple(select.block(d) for d in dv_own)
                return _merge_launch(
                    generate.load(own.text), own, outs, parts, dv_own, bdv, 1, kept_count * n, splits, tl.float32
                )

            reverse = own.mask == 1 and mask.hi is not None
            return hopper.launch(
                own, every, operands, piece.operands, groups, strides, n, k, kept, outs, reverse, limits, join
            )
    t = select.tiles(need, limits, select.forced())
    dims_of = lambda i: (
        tensors[i].shape[-1],
        select.block(tensors[i].shape[-1]),
        select.block(tensors[i].shape[-1]) != tensors[i].shape[-1],
        int(tensors[i].stride(-1) == 1),
    )
    xdim, ydim = tuple(dims_of(i) for i in source.x), tuple(dims_of(i) for i in source.y)
    dv = tuple(tensors[source.y[b]].shape[-1] for b in source.payloads)
    slices = max((math.ceil(d / b) for d, b in zip(dv, t.bdv, strict=True)), default=1)
    pay = []
    for a, b in enumerate(source.payloads):
        dtype = tensors[source.y[b]].dtype
        cast = 2 if wide == torch.float64 else 1 if INTERPRETED and dtype == torch.bfloat16 else 0
        covers = dv[a] == t.bdv[a] and slices == 1
        pay.append(
            (
                b,
                b in leaf_cols and t.bdv[a] == ydim[b][1] and slices == 1,
                cast,
                not (covers or (slices * t.bdv[a] == dv[a])),
            )
        )
    bd = t.bd
    # a type, and whether neighbours along the vector (along the columns, for a tile) lie side by side
    unit = lambda g, s: int(g == "tile" and s[1] == 1 or g in ("row", "col") and s[0] == 1)
    types = lambda g: tuple((source.types[i], unit(g, s)) for i, s in zip(groups[g], strides[g], strict=True))
    wide_tl = tl.float64 if wide == torch.float64 else tl.float32
    precision = "tf32" if tf32 else "ieee"
    blocks = (0, 0) if mask.block is None else mask.block_size
    described = None
    written = tile_output and padded and source.mask < 2 and not blocks[0]  # as a loop over tiles of scores
    if (
        not (t.resident or kept or summed or slow or paged)
        and (written or not tile_output)
        and t.described
        and casts
        and casts[0] == 0
    ):
        a, b = (source.x[source.leaves[0][0]], source.y[source.leaves[0][1]])
        if aligned[a] and aligned[b] and tensors[a].shape[-1] >= t.bd and min(n, k) >= 16:
            described = (piece.operands[a], piece.operands[b], [t.bn, t.bd], [t.bk, t.bd])
    descriptors = ["constexpr", "constexpr"] if described is None else [
        f"tensordesc<{pointer(operands[i].dtype)[1:]}{list(shape)}>" for i, shape in zip(described[:2], described[2:], strict=True)
    ]  # fmt: skip
    signature, marks = _signature(
        groups, tensors, strides, aligned, [] if tile_output and described is None else descriptors
    )
    floats, ints = number_types(source.floats, source.ints)
    units = tuple("fp32" for _ in source.unit)
    leaf = tuple((*pair, c) for pair, c in zip(source.leaves, casts, strict=True))
    counts = (
        len(source.row),
        types("row"),
        len(source.col),
        types("col"),
        len(source.tile),
        types("tile"),
        len(source.scalar),
        types("scalar"),
    )
    pointers = tuple(tuple(piece.operands[i] for i in groups[g]) for g in GROUPS)
    packed = tuple(strides[g] for g in GROUPS)
    sizes = (tuple("i32" for _ in kept), tuple("i32" for _ in summed))

    if tile_output:
        fast = padded and limits.matrix > 0 and not (t.resident or slow)
        bn, bk = (t.bn, t.bk) if fast else (min(t.bn, 64), min(t.bk, 64))
        part = chunk or (0, n, 0, k)
        outs = tuple(item for j in range(len(piece.outputs)) for item in _outputs(places[j], shapes[j]))
        # what torch.empty gives starts on a multiple of 16 bytes
        marks |= {(len(signature), e): 16 for e in range(len(outs))}
        signature += [tuple(pointer(d) for _, _, d in outs)]
        head = (
            module.row_part,
            module.bounds,
            module.score,
            module.test,
            source.tested,
            leaf,
            xdim,
            ydim,
            *counts,
            source.mask,
        )
        if described is not None:
            function = streamed.streamed_tiles_kernel
            signature += [floats, ints, *["i32"] * 10]
            constants: tuple[Any, ...] = (*head, len(outs), bn, bk, bd, big, wide_tl, precision)
            warps, stages = t.warps, min(t.stages, 3)  # beside the tile on its way out
        else:
            function = rows.tiles_kernel
            signature += ["*i8", floats, ints, *["i32"] * 6, *sizes, *["i32"] * 3]
            fill = tuple(-math.inf if chunk else 0.0 for _ in program.outputs)
            bd = t.bd if fast else 32 if slow else 64
            constants = (
                *head,
                blocks,
                fill,
                chunk is not None,
                len(kept),
                len(summed),
                bn,
                bk,
                bd,
                big,
                wide_tl,
                precision,
            )
            warps, stages = (t.warps, t.stages) if fast else (4, 2)
        if padded:
            marks |= {(function.arg_names.index(name),): 16 for name in ("col0", "cols_end")}
        return Launch(
            kernel_of(function, signature, marks, constants, source.text, warps, stages),
            0,
            pointers,
            packed,
            (source.floats, source.ints, n, k),
            outs,
            tiles=t,
            source=source,
            described=described,
            written=Written((bn, bk), part, kept, summed, kept_count, limits.units),
        )

    row_tiles = math.ceil(n / t.bn)
    # both sides through descriptors, and nothing that cuts the columns of a row: one loop over all tiles of a unit
    persistent = described is not None and not (source.lists or source.mask or blocks[0] or dv)
    if persistent:
        splits, group = select.parts(row_tiles, k // t.bk, t, limits, rows_d)
        count_parts = splits + (k % t.bk != 0)
        split = True
    else:
        splits, chunk_k, group = select.split(row_tiles * kept_count * slices, k, t, limits, bool(summed))
        count_parts = splits
        split = splits > 1
    group = min(group, row_tiles)
    reverse = source.mask == 1 and mask.hi is not None
    outs = tuple(item for j in range(len(piece.outputs)) for item in _outputs(places[j], shapes[j]))
    state_types = [
        torch.int32 if isinstance(v, int) or v == "place" else wide
        for f in map(folds.lookup, program.outputs)
        for _, v, *_ in generate.jit_state(f)
    ]
    state_types += [wide] * len(dv)
    parts = []
    for code, dtype in zip(source.states, state_types, strict=True):
        width = (dv[-1 - code],) if code < 0 else (code,) if code else ()
        parts.append(((count_parts, kept_count * n, *width), dtype))
    out_types = tuple(pointer(d) for _, _, d in outs)
    part_types = tuple(pointer(d) for _, d in parts)
    marks |= {(len(signature) + split, e): 16 for e in range(len(parts) if split else len(outs))}
    signature += [() if split else out_types, part_types if split else (), floats, ints, units, "i32", "i32"]
    if persistent:
        signature += ["i32"] * 4
        constants = (
            module.row_part, module.score, module.test, source.tested, module.start, module.step, module.flat, module.nest,
            leaf, xdim, ydim, *counts, source.states, t.bn, t.bk, bd, big, wide_tl, precision,
        )  # fmt: skip
        blocks_run = min(limits.units, max(splits, 1) * row_tiles)
        kernel = kernel_of(streamed.streamed_kernel, signature, marks, constants, source.text, t.warps, t.stages, t.cap)
        tail: tuple[Any, ...] = (source.floats, source.ints, source.unit, n, k, row_tiles, splits, group, blocks_run)
    else:
        signature += [*sizes, *["i32"] * 5]
        constants = (
            module.row_part, module.bounds, module.score, module.test, source.tested, module.start, module.step, module.flat, module.finish,
            leaf, xdim, ydim, len(leaf_cols), tuple(pay), dv, t.bdv, *counts, source.mask, blocks, page, source.results, source.states,
            len(kept), len(summed), slices > 1, split, t.resident, described is not None and not source.lists, reverse, t.bn, t.bk, bd, big, wide_tl, precision,
        )  # fmt: skip
        blocks_run = row_tiles * splits * kept_count * slices
        kernel = kernel_of(rows.rows_kernel, signature, marks, constants, source.text, t.warps, t.stages, t.cap)
        tail = (
            source.floats,
            source.ints,
            source.unit,
            n,
            k,
            kept,
            summed,
            kept_count,
            row_tiles,
            splits,
            chunk_k,
            group,
        )
    merge = None
    if split:
        merge = _merge_launch(module, source, outs, parts, dv, t.bdv, slices, kept_count * n, count_parts, wide_tl)
    return Launch(
        kernel,
        blocks_run,
        pointers,
        packed,
        tail,
        outs,
        tuple(parts) if split else (),
        merge,
        t,
        source,
        described=described,
    )


def _merge_launch(module: Any, source: generate.Source, outs: Sequence[Any], parts: Sequence[Any], dv: tuple[int, ...], bdv: tuple[int, ...],
                  slices: int, count: int, splits: int, wide: Any) -> tuple[Kernel, int, tuple[Any, ...]]:  # fmt: skip
    """What joins the states of the splits of `count` rows, and gives the results."""
    bn = 16 if dv or source.lists else 128
    constants = (module.nest, module.merge, module.finish, dv, bdv, source.results, source.states, slices > 1, bn, wide)
    marks = {(a, e): 16 for a, made in enumerate((outs, parts)) for e in range(len(made))}
    types = [tuple(pointer(o[-1]) for o in outs), tuple(pointer(p[-1]) for p in parts)]
    units = tuple("fp32" for _ in source.unit)
    kernel = kernel_of(rows.merge_kernel, [*types, units, "i64", "i32"], marks, constants, source.text, 4, 1)
    return kernel, math.ceil(count / bn) * slices, (source.unit, count, splits)


def _outputs(
    places: Sequence[int], shapes: Sequence[tuple[tuple[int, ...], torch.dtype]]
) -> list[tuple[int, tuple[int, ...], torch.dtype]]:
    return [(p, *s) for p, s in zip(places, shapes, strict=True)]


def result_shapes(o: Output, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, wide: torch.dtype,
                  dtype: torch.dtype) -> list[tuple[tuple[int, ...], torch.dtype]]:  # fmt: skip
    """Shape and type of each result of an output."""
    width = () if o.payload is None else (operands[o.payload].shape[-1],)
    if o.axis != "row" or o.like is not None:
        like = None if o.like is None else operands[o.like]
        lead = batch if like is None else (1,) * (len(batch) - like.dim() + 2) + tuple(like.shape[:-2])
        tail = (n, k) if o.axis == "tile" else ({"row": n, "col": k}[o.axis], *width)
        return [((*lead, *tail), dtype if width or o.axis == "tile" else wide)]
    made = []
    for r in folds.lookup(o).results:
        kind = wide if r.type == "float" else torch.int64
        match r.kind:
            case "payload":
                made.append(((*batch, n, *width), dtype))
            case "list":
                made.append(((*batch, n, dict(o.options)["k"]), kind))
            case _:
                made.append(((*batch, n), kind))
    return made


def long_list(o: Output) -> bool:
    return o.fold in ("topk", "bottomk") and dict(o.options)["k"] > COMBINABLE_K


def results_of(
    program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, dtypes: Sequence[torch.dtype]
) -> tuple[list[list[tuple[tuple[int, ...], torch.dtype]]], list[range]]:
    """For each output the shapes and types of its results, and their places among all results."""
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    shapes = [result_shapes(o, operands, batch, n, k, wide, d) for o, d in zip(program.outputs, dtypes, strict=True)]
    starts = [sum(map(len, shapes[:j])) for j in range(len(shapes))]
    return shapes, [range(s, s + len(x)) for s, x in zip(starts, shapes, strict=True)]


def call_key(program: Program, operands: Sequence[Tensor], *more: Any) -> Any:
    """What a plan of a call depends on."""
    return (
        id(program),
        *more,
        select.forced(),
        *[(t.dtype, t.shape, t.stride(), t.data_ptr() % 16, t.device) for t in operands],
    )


def remember(plans: dict[Any, Any], key: Any, made: Any) -> Any:
    """Keeps a plan, instead of the oldest where there are PLANS of them."""
    if len(plans) >= PLANS:
        plans.pop(next(iter(plans)))
    plans[key] = made
    return made


def _sums_along_both(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, places: Sequence[Sequence[int]],
                     shapes: Any, limits: select.Limits) -> tuple[Any, tuple[int, ...]] | None:  # fmt: skip
    """A launch that makes sums along the columns and along the rows together, and which outputs those are."""
    kept_out = {("loop", "portable"), ("ordered", True)} & {*select.forced()}
    if limits.matrix != 9 or kept_out or torch.are_deterministic_algorithms_enabled():
        return None
    if not any(o.axis == "col" and o.fold == "weighted_sum" for o in program.outputs):
        return None
    from ..hopper import columns_plan  # Gluon is imported where it serves

    choice = columns_plan.choose(program, operands, batch)
    made = choice and columns_plan.launch(program, choice, operands, batch, n, k, places, shapes, limits)
    return (made, choice.outputs) if choice and made else None


_plans: dict[Any, tuple[Any, list[Any], int]] = {}


def plan(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int,
         payload_dtypes: Sequence[torch.dtype], without: tuple[int, ...] = ()) -> tuple[list[Any], int]:  # fmt: skip
    """The launches of a call but for the outputs in `without`, and how many results the Program has."""
    tf32 = torch.float32 in [t.dtype for t in operands] and tf32_allowed()
    fixed_order = torch.are_deterministic_algorithms_enabled()
    key = call_key(program, operands, batch, n, k, tf32, fixed_order, *payload_dtypes, without)
    known = _plans.get(key)
    if known is not None and known[0] is program:
        return known[1], known[2]
    device = operands[0].device
    limits = select.limits_of(device.type, device.index)
    shapes, places = results_of(program, operands, batch, n, k, payload_dtypes)
    patterns = tuple(summed_dimensions(o, operands, batch) for o in program.outputs)
    packed = pack.packing(program, operands, batch, n)
    taken: tuple[Any, ...] = (program, operands, batch, n)
    if packed is not None:
        taken = (packed.program, packed.operands(operands), packed.batch, packed.n)
    launches: list[Any] = []
    sums = _sums_along_both(program, operands, batch, n, k, places, shapes, limits) if not without else None
    if sums is not None:
        launches, without = [sums[0]], sums[1]
    launches += [
        plan_piece(p, *taken[1:], k, [places[j] for j in p.outputs], [shapes[j] for j in p.outputs], limits, tf32)
        for p in pieces(taken[0], patterns, without)
    ]
    if packed is not None:
        launches = [pack.Packed(launch, packed) for launch in launches]
    remember(_plans, key, (program, launches, sum(map(len, shapes))))
    return launches, sum(map(len, shapes))
