"""Top-k that is a Program's only output: by threshold (threshold.py) where that pays, else a chunk of scores at a time.

By threshold: six kernels a round of rows, then one look at the flags of rows that it could not settle (too many equal
scores, too few visible ones); their row tiles are made again by chunks. That look waits for the device, so a CUDA graph
takes the other ways.

By chunks: a chunk [rows, columns] of scores is written by tiles_kernel into a buffer of at most BUFFER bytes and merged
into the list of its rows by the fold's torch form.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ... import folds
from ...program import Output, Program
from .. import select
from . import plan, threshold
from .chunks import BUFFER
from .launch import Kernel, kernel_of, number_types

SEGMENTS = 256 << 20  # bytes of kept chunks in a round of rows
WORTH = 1 << 27  # scores from which it saves more than its launches cost (0.15 ms) against a list in registers
WORTH_LONG = 1 << 22  # and against chunks, which write all scores
FLAGGED = 64  # rows that are made again together
POSITIONS = 1 << 15  # places of a row's segments that a block selects from
SORTED = 2048  # members of a row that a block sorts


@dataclass(frozen=True)
class Choice:
    """Whether to select by threshold, and with what: `reason` says it in words. Counts are per row."""

    pays: bool
    reason: str
    sample: int = 0  # columns of the sample
    rank: int = 0  # tau is the rank-th largest of it
    kept: float = 0.0  # columns that are expected to reach tau
    chunks: int = 0  # room for chosen chunks
    c: int = 0  # columns of a chunk
    splits: int = 1
    capacity: int = 0  # of a segment
    groups: int = 1  # of the sample: its maxima are groups * BK / 2 numbers


def blocks(t: select.Tiles) -> int:
    """Blocks that run on a unit at a time."""
    return 2 if t.cap else 1


def rank(expected: float) -> int:
    """The least r with P(Poisson(expected) >= r) < 1e-6, where `expected` of the k best fall into the sample."""
    term, r, below = math.exp(-expected), 0, 0.0
    while r < expected or 1.0 - below >= 1e-6:
        below += term
        r += 1
        term *= expected / r
    return max(1, r)


def too_small(scores: int, best: int) -> str | None:
    worth = WORTH if best <= plan.COMBINABLE_K else WORTH_LONG
    return (
        None if scores >= worth else f"{scores} scores, fewer than {worth}: too small for the launches of a threshold"
    )


@functools.lru_cache(maxsize=1024)
def choose(rows: int, k: int, best: int, t: select.Tiles, units: int, forced: bool = False) -> Choice:
    """Of `rows` rows (over all batch entries) with k columns each the `best` largest scores."""
    if not forced and (small := too_small(rows * k, best)) is not None:
        return Choice(False, small)
    c = min(8, t.bk // 4)
    if 16 * best * c > k and not forced:
        return Choice(False, f"k = {best} of {k} columns: a threshold would keep most of them")
    share = min(1.0, best * c / k)
    # as many columns as fill `best` chunks where they fall at random
    needed = -(k / c) * math.log1p(-share) if share < 0.9 else 4.0 * best
    part = 32 if k >= 1 << 18 else 16
    tiles = max(1, k // part // t.bk)
    r = rank(needed * tiles * t.bk / k)
    row_tiles = math.ceil(rows / t.bn)
    tiles_k = math.ceil(k / t.bk)
    splits = t.splits or max(1, min(units * blocks(t) // row_tiles, tiles_k // 8))
    half = t.bk // 2  # numbers that a group of tiles leaves
    groups = min(tiles, max(splits, math.ceil(8 * r / half)))
    tiles = tiles // groups * groups
    sample = tiles * t.bk
    r = min(rank(needed * sample / k), groups * half)
    kept = r * k / sample
    while True:
        splits = math.ceil(tiles_k / math.ceil(tiles_k / splits))
        most = (
            k / sample * (r + 5 * math.sqrt(r) + 6) / (splits * t.bk // c)
        )  # of a segment, in all but one row of about a million
        capacity = 1 << max(3, math.ceil(most + 6 * math.sqrt(most) + 4) - 1).bit_length()
        if splits == 1 or splits * capacity * (t.bk // c) <= POSITIONS:
            break
        splits = max(1, splits // 2)
    if capacity * (t.bk // c) > POSITIONS:
        return Choice(False, f"a threshold keeps about {kept:.0f} columns a row: more than a block selects from")
    chunks = 1 << (best + max(2, best // 8)).bit_length()
    reason = (
        f"threshold: the {r}th best of {sample} sampled columns keeps about {kept:.0f} columns a row; chunks of {c}, {splits} splits, "
        f"segments of {capacity}"
    )
    return Choice(True, reason, sample, r, kept, chunks, c, splits, capacity, groups)


def scores_of(program: Program) -> Program:
    return Program(program.operands, (Output("sum", program.outputs[0].expr, axis="tile"),), program.mask)


@dataclass
class _Scores:
    """What the kernels share: pointers, strides, and the constants that describe a Program's scores."""

    launch: plan.Launch
    constants: dict[str, Any]
    types: list[Any]
    marks: dict[tuple[int, ...], int]
    kept: tuple[int, ...]
    kept_count: int
    tiles: select.Tiles
    key: str
    shared: dict[str, Any]

    def kernel(
        self, fn: Any, more: Sequence[Any], marks: Sequence[int], warps: int, stages: int, cap: int = 0, **extra: Any
    ) -> Kernel:
        """`more`: types of the arguments behind the operands; `marks`: which of them are pointers to whole allocations."""
        names = fn.arg_names[len(self.types) + len(more) :]
        values = self.constants | self.shared | extra
        at = len(self.types)
        return kernel_of(
            fn,
            [*self.types, *more],
            self.marks | {(at + m,): 16 for m in marks},
            tuple(values[n] for n in names),
            self.key,
            warps,
            stages,
            cap,
        )


def prepare(
    program: Program,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    limits: select.Limits,
    tf32: bool,
) -> _Scores:
    (piece,) = plan.pieces(scores_of(program), ((),))
    shape = (*batch, n, k)
    launch = plan.plan_piece(
        piece, operands, batch, n, k, [[0]], [[(shape, torch.float32)]], limits, tf32, (0, n, 0, k)
    )
    kernel, source = launch.kernel, launch.source
    assert source is not None and launch.tiles is not None and launch.written is not None
    constants = dict(zip(kernel.fn.arg_names[len(kernel.signature) :], kernel.constants, strict=True))
    sides = 2 * len(plan.GROUPS)
    marks = {path: number for path, number in kernel.aligned.items() if path[0] < sides}
    tensors = [operands[i] for i in piece.operands]
    slow = any(
        plan.needs_multiply_add(tensors[source.x[a]].dtype, tensors[source.y[b]].dtype, tf32) for a, b in source.leaves
    )
    widest = max((tensors[i].shape[-1] for i in source.x), default=0)
    bytes_of = [
        sum(select.block(tensors[i].shape[-1]) * tensors[i].element_size() for i in side)
        for side in (source.x, source.y)
    ]
    t = tiles(launch.tiles, widest, bytes_of[0], bytes_of[1], limits, slow)
    shared = {"RESIDENT": t.resident, "BN": t.bn, "BK": t.bk, "BD": t.bd}
    return _Scores(
        launch,
        constants,
        list(kernel.signature[:sides]),
        marks,
        launch.written.kept,
        launch.written.kept_count,
        t,
        source.text,
        shared,
    )


def tiles(given: select.Tiles, d: int, x_bytes: int, y_bytes: int, limits: select.Limits, slow: bool) -> select.Tiles:
    """128 rows; 128 columns where two blocks fit a unit, so that one's compares run beside the other's products, else so many that
    loads run at least two tiles ahead. Without matrix units what the row loop takes. x_bytes, y_bytes: of all features of a row, a column.
    """
    forced = dict(select.forced())
    if limits.matrix == 0 or slow:
        made = select.Tiles(given.bn, given.bk, given.bd, (), given.resident, given.warps, given.stages)
    elif d > select.RESIDENT_D:
        stages = (limits.shared - 2048) // (256 * 64 * 2)
        made = select.Tiles(128, 128, 64, (), False, 8, max(1, min(4, stages)))
    else:
        room = limits.shared - 2048
        fits = lambda bk, count: (room // count - 128 * x_bytes) // (bk * y_bytes)
        if fits(128, 2) >= 2:
            made = select.Tiles(128, 128, 64, (), True, 8, min(3, fits(128, 2)), cap=128 if limits.warp == 32 else 0)
        else:
            bk = next((b for b in (128, 64, 32) if fits(b, 1) >= 3), 32)
            made = select.Tiles(128, bk, 64, (), True, 8, max(1, min(4, fits(bk, 1))))
    return replace(
        made,
        **{f: v for f, v in forced.items() if f in ("bn", "bk", "bd", "resident", "warps", "stages", "cap", "splits")},
    )


@dataclass
class _Plan:
    scores: _Scores
    choice: Choice
    sample: Kernel
    tau: Kernel
    append: Kernel
    select: Kernel
    rescore: Kernel
    sort: Kernel | None
    members: int
    part: int  # members that a block of rescore_kernel takes
    taus: int  # rows of a block of tau_kernel


_plans: dict[Any, tuple[Program, _Plan | str]] = {}


def _plan(
    program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, forced: bool = False
) -> _Plan | str:
    """The kernels of a selection by threshold, or why it does not pay."""
    if any(t.dtype == torch.float64 for t in operands):
        return "float64 scores have no keys of 64 bits with their columns"
    tf32 = any(t.dtype == torch.float32 for t in operands) and plan.tf32_allowed()
    device = operands[0].device
    key = plan.call_key(program, operands, batch, n, k, tf32, forced)
    known = _plans.get(key)
    if known is not None and known[0] is program:
        return known[1]
    o = program.outputs[0]
    best = dict(o.options)["k"]
    limits = select.limits_of(device.type, device.index)
    s = prepare(program, operands, batch, n, k, limits, tf32)
    t = s.tiles
    c = choose(math.prod(batch) * n, k, best, t, limits.units, forced)
    if not c.pays:
        return plan.remember(_plans, key, (program, c.reason))[1]
    source = s.launch.source
    assert source is not None
    floats, ints = number_types(source.floats, source.ints)
    numbers = [floats, ints, "i32", "i32", tuple("i32" for _ in s.kept)]
    slots = t.bk // c.c
    members = c.chunks * c.c
    part = min(
        members,
        32 if limits.matrix == 0 else 64 if t.resident and sum(d[1] for d in s.constants["YDIM"]) > 128 else 128,
    )
    width = c.groups * t.bk // 2
    wide = max(2, 1 << (width - 1).bit_length())
    taus = max(1, 4096 // wide)
    length = 1 << (c.splits * c.capacity * slots - 1).bit_length()
    sort = None
    if members <= SORTED:
        negated = folds.lookup(o).sign < 0  # type: ignore[attr-defined]
        sort = kernel_of(
            threshold.sort_kernel,
            ["*i64", "*fp32", "*i64", *["i32"] * 5],
            {(0,): 16},
            (t.bn, members, negated),
            "",
            4 if members > 256 else 1,
            1,
        )
    made = _Plan(
        s, c,
        s.kernel(threshold.sample_kernel, ["*fp32", *numbers, *["i32"] * 6], [0], t.warps, t.stages, t.cap),
        kernel_of(threshold.tau_kernel, ["*fp32", "*fp32", "i32", "i32", "i32"], {(0,): 16, (1,): 16}, (taus, wide), "", 4, 1),
        s.kernel(threshold.append_kernel, ["*fp32", "*i64", "*i32", *numbers, *["i32"] * 6], [0, 1, 2], t.warps, t.stages, t.cap, C=c.c, ASM=limits.matrix > 0 and torch.version.hip is None),
        kernel_of(
            threshold.select_kernel, ["*i64", "*i32", "*i32", "*i8", *["i32"] * 5], {(i,): 16 for i in range(4)},
            (c.capacity, t.bn, slots, length, c.chunks), "", max(1, min(16, length // 512)), 1,
        ),
        s.kernel(threshold.rescore_kernel, ["*i32", "*i64", *numbers, "i32", "i32", "i32"], [0, 1], 4, 1, C=c.c, B=part),
        sort, members, part, taus,
    )  # fmt: skip
    return plan.remember(_plans, key, (program, made))[1]


def why_not_threshold(
    program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int
) -> str | None:
    """Why a Program is not selected by threshold, or None."""
    if len(program.outputs) != 1 or program.outputs[0].fold not in ("topk", "bottomk"):
        return "a threshold serves top-k alone, without other folds"
    if (small := too_small(math.prod(batch) * n * k, dict(program.outputs[0].options)["k"])) is not None:
        return small
    if operands[0].is_cuda and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured, and a threshold's flags are read by the host"
    made = _plan(program, operands, batch, n, k)
    return made if isinstance(made, str) else None


def serves(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> bool:
    """Whether run_long_list is the way for a Program: its list is too long for registers, or a threshold is faster."""
    o = program.outputs[0]
    if len(program.outputs) != 1 or o.fold not in ("topk", "bottomk"):
        return False
    return plan.long_list(o) or why_not_threshold(program, operands, batch, n, k) is None


def explain(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> str:
    if (reason := why_not_threshold(program, operands, batch, n, k)) is not None:
        return f"a chunk of scores at a time: {reason}"
    made = _plan(program, operands, batch, n, k)
    assert isinstance(made, _Plan)
    return f"{made.choice.reason}; {made.scores.tiles}"


def run_threshold(
    program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, forced: bool = False
) -> list[Tensor]:
    """Selects by threshold; what that leaves open is made by chunks, or, where it is most of a short list's rows, in registers."""
    p = _plan(program, operands, batch, n, k, forced)
    if isinstance(p, str):
        raise ValueError(p)
    o = program.outputs[0]
    made = [
        torch.empty(shape, dtype=dtype, device=operands[0].device)
        for shape, dtype in plan.result_shapes(o, operands, batch, n, k, torch.float32, torch.float32)
    ]
    flags = phases(p, operands, made, batch, n, k, o)
    bn = p.scores.tiles.bn
    if bool(flags.any()):  # waits for the device
        open_rows = flags.view(math.prod(batch), -1)[:, :n].amax(0)
        height = min(FLAGGED, bn)
        blocks = torch.nn.functional.pad(open_rows, (0, -n % height)).view(-1, height).amax(1).nonzero()[:, 0].tolist()
        if dict(o.options)["k"] <= plan.COMBINABLE_K and len(blocks) * height * 8 > n:
            launches, count = plan.plan(program, operands, batch, n, k, [torch.float32])
            results: list[Any] = [None] * count
            for launch in launches:
                launch(operands, results, operands[0].device)
            return results
        _by_chunks(program, operands, batch, n, k, made, [(b * height, min(n, (b + 1) * height)) for b in blocks])
    return made


def phases(
    p: _Plan,
    operands: Sequence[Tensor],
    made: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    o: Output,
    mark: Any = None,
) -> Tensor:
    """All rounds; gives the flag of every row, those of row tiles behind the last row included. `mark(name)` is called between kernels."""
    s, c, t = p.scores, p.choice, p.scores.tiles
    source, device = s.launch.source, operands[0].device
    assert source is not None
    best = dict(o.options)["k"]
    sign = folds.lookup(o).sign  # type: ignore[attr-defined]
    row_tiles = math.ceil(n / t.bn)
    total = row_tiles * s.kept_count
    slots = t.bk // c.c
    units = select.limits_of(device.type, device.index).units * blocks(t)
    each = max(1, SEGMENTS // (c.splits * c.capacity * t.bn * slots * 8))
    each = each // units * units if each > units else each  # whole waves
    rounds = min(total, each)
    flags = torch.empty(total * t.bn, dtype=torch.int8, device=device)
    group = c.sample // t.bk // c.groups
    new = functools.partial(torch.empty, device=device)
    rows = rounds * t.bn
    sampled = new((rows, c.groups * t.bk // 2), dtype=torch.float32)
    tau = new(rows, dtype=torch.float32)
    segments = new((rounds, c.splits, c.capacity, t.bn, slots), dtype=torch.int64)
    counts = new((rounds, c.splits, t.bn, slots), dtype=torch.int32)
    chosen = new((rows, c.chunks), dtype=torch.int32)
    keys = new((rows, p.members), dtype=torch.int64)
    tiles_k = math.ceil(k / t.bk)
    chunk = math.ceil(tiles_k / c.splits) * t.bk
    sides = s.launch._operands(operands)
    head = (source.floats, source.ints, n, k, s.kept)
    mark = mark or (lambda name: None)
    for tile0 in range(0, total, rounds):
        count = min(rounds, total - tile0)
        mark("")
        p.sample(
            count * c.groups, device, (*sides, sampled, *head, tile0, row_tiles, count, c.groups, group, k // c.sample)
        )
        p.tau(math.ceil(count * t.bn / p.taus), device, (sampled, tau, count * t.bn, c.groups * t.bk // 2, c.rank))
        mark("sample")
        p.append(
            count * c.splits,
            device,
            (*sides, tau, segments, counts, *head, tile0, row_tiles, count, c.splits, chunk, c.capacity),
        )
        mark("append")
        mine = flags[tile0 * t.bn :]
        p.select(count * t.bn, device, (segments, counts, chosen, mine, n, row_tiles, tile0, c.splits, best))
        p.rescore(
            count * t.bn * (p.members // p.part), device, (*sides, chosen, keys, *head, tile0, row_tiles, p.members)
        )
        if p.sort is not None:
            p.sort(count * t.bn, device, (keys, made[0], made[1], n, row_tiles, tile0, p.members, best))
        else:
            _sort(keys[: count * t.bn], made, tile0 * t.bn, row_tiles * t.bn, n, best, sign)
        mark("select")
    return flags


def _sort(keys: Tensor, made: Sequence[Tensor], first: int, padded: int, n: int, best: int, sign: float) -> None:
    """sort_kernel for more members than a block sorts. Rows first .. of entries of `padded` rows each, of which n count."""
    top = keys.topk(best, -1).values
    high = (top >> 32).to(torch.int32)
    values = torch.where(high < 0, high ^ 0x7FFFFFFF, high).view(torch.float32)
    empty = top == -(2**63)
    values = torch.where(empty, -math.inf, values) * sign
    columns = torch.where(empty, -1, 0x7FFFFFFF - (top & 0x7FFFFFFF))
    for target, value in zip(made, (values, columns), strict=True):
        flat = target.view(-1, n, best)
        for entry in range(first // padded, (first + len(keys) - 1) // padded + 1):
            a, b = max(first, entry * padded), min(first + len(keys), entry * padded + n)
            if a < b:
                flat[entry, a - entry * padded : b - entry * padded] = value[a - first : b - first]


def run_long_list(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int) -> list[Tensor]:
    """A top-k that `serves` says yes to."""
    if why_not_threshold(program, operands, batch, n, k) is None:
        return run_threshold(program, operands, batch, n, k)
    o = program.outputs[0]
    wide = torch.float64 if any(t.dtype == torch.float64 for t in operands) else torch.float32
    made = [
        torch.empty(shape, dtype=dtype, device=operands[0].device)
        for shape, dtype in plan.result_shapes(o, operands, batch, n, k, wide, wide)
    ]
    entries = math.prod(batch)
    columns = min(k, max(4 * dict(o.options)["k"], 8192))
    height = max(1, min(n, BUFFER // (entries * columns * (wide.itemsize + 1))))
    _by_chunks(program, operands, batch, n, k, made, [(n0, min(n, n0 + height)) for n0 in range(0, n, height)])
    return made


def _by_chunks(program: Program, operands: Sequence[Tensor], batch: tuple[int, ...], n: int, k: int, made: Sequence[Tensor],
               ranges: Sequence[tuple[int, int]]) -> None:  # fmt: skip
    """Fills these ranges of rows."""
    o = program.outputs[0]
    fold = folds.lookup(o)
    device = operands[0].device
    wide = made[0].dtype
    limits = select.limits_of(device.type, device.index)
    tf32 = any(t.dtype == torch.float32 for t in operands) and plan.tf32_allowed()
    (piece,) = plan.pieces(scores_of(program), ((),))
    entries = math.prod(batch)
    for n0, n1 in ranges:
        columns = min(k, max(4 * dict(o.options)["k"], 8192, BUFFER // (entries * (n1 - n0) * (wide.itemsize + 1))))
        state = fold.init((entries, n1 - n0), wide, device)
        for k0 in range(0, k, columns):
            k1 = min(k, k0 + columns)
            shape = (entries, n1 - n0, k1 - k0)
            launch = plan.plan_piece(
                piece, operands, batch, n, k, [[0]], [[(shape, wide)]], limits, tf32, (n0, n1, k0, k1)
            )
            s, seen = launch.scores(operands, shape, device)
            state = fold.step(
                state, s, torch.arange(k0, k1, device=device), None if program.mask is None else seen.bool(), True
            )
        for target, value in zip(made, fold.finish(state), strict=True):
            target[..., n0:n1, :] = value.reshape(*batch, n1 - n0, -1)
