"""Tiles of the portable loops, computed from the sizes of a Program's operands, what its folds hold, and the machine.

registers   a tile of scores per leaf and output, the accumulators, the state: spread over a block's
            threads
shared      the resident rows, and `stages` tiles of what is streamed
blocks      a split of the columns where the rows alone would leave units idle
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

RESIDENT_D = 256  # wider rows are streamed: a resident tile and its partners would not fit beside each other
PAYLOAD_SLICE = 256  # an accumulator of more columns does not fit in registers
MINIMUM = 16  # of every side of a product
OTHER_REGISTERS = 16  # indices, bounds, loop state
RESERVED = 2048  # bytes of shared memory for the reductions of an output
FULL = 1.0  # share of a thread's registers that may be planned
SLACK = 40  # the compiler takes more where it may


@dataclass(frozen=True)
class Need:
    """What decides the tiles, for one launch. Sizes in elements, `size` in bytes of an element."""

    rows: tuple[tuple[int, int], ...]  # (D, bytes of an element) of the row operands
    cols: tuple[tuple[int, int], ...]  # of the column operands
    leaves: int
    outputs: int
    payloads: tuple[tuple[int, int, bool], ...]  # (Dv, bytes of an element, whether it is also a leaf's operand)
    slow_product: bool  # float32 at full accuracy, or float64: no matrix units
    wide: int  # bytes of a score
    state: int  # registers per row
    lists: bool
    masked: bool
    tiles: int  # [N, K] operands
    summed: bool  # batch entries are looped over
    turned: bool  # sums per column: the rows' data lies along the tile's columns
    heavy: bool  # some fold keeps more than the scores alive in a step
    ops: float  # per score, of folds and expressions: arithmetic, at the rate of compares
    exps: float


@dataclass(frozen=True)
class Tiles:
    """The choice, and why."""

    bn: int
    bk: int
    bd: int
    bdv: tuple[int, ...]
    resident: bool
    warps: int
    stages: int
    reason: str = ""
    described: bool = False  # tiles come through tensor descriptors where the operands allow it
    cap: int = 0  # registers of a thread at most, so that two blocks fit a unit; 0: as many as the compiler likes
    splits: int = 0  # 0: by `split`
    group: int = 0

    def __str__(self) -> str:
        how = "resident rows" if self.resident else f"features in steps of {self.bd}"
        return f"{self.bn} x {self.bk}, {how}, {self.warps} warps, {self.stages} stages: {self.reason}"


@dataclass(frozen=True)
class Limits:
    """What selection reads of a machine."""

    units: int
    shared: int
    threads_registers: int  # 32-bit registers a thread may have
    warp: int
    matrix: int  # matrix units: 0 none (interpreter), 8 synchronous, 9 asynchronous from shared memory, 10


INTERPRETER = Limits(units=4, shared=1 << 20, threads_registers=255, warp=32, matrix=0)


@functools.lru_cache(maxsize=64)
def limits_of(device_type: str, index: int | None) -> Limits:
    if device_type != "cuda":
        return INTERPRETER
    p = torch.cuda.get_device_properties(index)
    shared = int(getattr(p, "shared_memory_per_block_optin", 0)) or (64 << 10 if torch.version.hip else 99 << 10)
    if torch.version.hip:
        return Limits(p.multi_processor_count, min(shared, 64 << 10), 512, 64, 8)
    return Limits(p.multi_processor_count, shared, 255, 32, min(p.major, 10) if p.major != 12 else 8)


_override: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar("tilefold_tiles", default=None)


@contextlib.contextmanager
def using(**fields: Any) -> Iterator[None]:
    """Forces fields of Tiles for calls inside and their gradients: for tests and the sweep that checks the selection.

    `ordered` leaves out loops that add in any order. A gradient takes what its forward call was given.
    """
    token = _override.set(fields)
    try:
        yield
    finally:
        _override.reset(token)


def forced() -> tuple[tuple[str, Any], ...]:
    return tuple(sorted((_override.get() or {}).items()))


def block(d: int, largest: int = 1 << 30) -> int:
    """The power of two that covers d, at least what a product takes."""
    return min(largest, max(MINIMUM, 1 << max(0, d - 1).bit_length()))


@functools.lru_cache(maxsize=4096)
def tiles(need: Need, limits: Limits, override: tuple[tuple[str, Any], ...] = ()) -> Tiles:
    """The tiles of the row loop for a launch."""
    chosen = (
        _interpreter(need) if limits.matrix == 0 else _slow(need, limits) if need.slow_product else _fast(need, limits)
    )
    if not override:
        return chosen
    made = replace(chosen, **{k: v for k, v in dict(override).items() if hasattr(chosen, k)})
    return made


def _slices(need: Need, largest: int) -> tuple[int, ...]:
    return tuple(block(d, largest) for d, _, _ in need.payloads)


def _interpreter(need: Need) -> Tiles:
    d = max((d for d, _ in need.rows), default=0)
    return Tiles(
        32,
        32,
        64,
        _slices(need, PAYLOAD_SLICE),
        d <= RESIDENT_D,
        4,
        1,
        "the interpreter: small, so that tests see many",
    )


def _slow(need: Need, limits: Limits) -> Tiles:
    """Products by multiply-add: the inner steps are unrolled, so that larger tiles take many seconds to compile."""
    bdv = _slices(need, 64)
    bn, bk = (32, 32) if bdv or need.wide == 8 else (64, 32)
    d = max((d for d, _ in need.rows), default=0)
    reason = "no matrix units for this type: small tiles, 16 features a step"
    return Tiles(bn, bk, 16, bdv, d <= 16, 4, 1, reason)


def _fast(need: Need, limits: Limits) -> Tiles:
    if max((d for d, _ in need.rows), default=0) > RESIDENT_D:
        return _streamed(need, limits)
    bdv = _slices(need, PAYLOAD_SLICE)
    fitting: list[tuple[tuple[float, float, float, float, int], Tiles]] = []
    for bn, bk, warps, stages in itertools.product((128, 64, 32), (256, 128, 64, 32), (8, 4), (3, 2, 1)):
        t = Tiles(bn, bk, 64, bdv, True, warps, stages)
        found = clocks(need, t, limits)
        if found is not None:
            fitting.append((found, t))
    if not fitting:
        return _streamed(need, limits)
    least = min(found[0] for found, _ in fitting)
    close = [(found, t) for found, t in fitting if found[0] <= CLOSE * least]
    (_, matrix, vector, load, blocks), best = max(close, key=lambda c: (c[1].bn * c[1].bk, c[1].stages, -c[0][0]))
    held = shared(need, best, limits.warp) >> 10
    reason = (
        f"{held} of {limits.shared >> 10} KiB shared, about {registers(need, best, limits)} of "
        f"{limits.threads_registers} registers, {blocks} blocks a unit; clocks a tile: products {matrix:.0f}, "
        f"arithmetic {vector:.0f}, loads {load:.0f}"
    )
    return replace(best, reason=reason)


def shared(need: Need, t: Tiles, lanes: int = 32) -> int:
    """Bytes of shared memory: resident rows, streamed tiles, and a weight tile between two products."""
    rows = sum(t.bn * block(d) * size for d, size in need.rows)
    cols = sum(t.bk * block(d) * size for d, size in need.cols)
    pay = sum(t.bk * b * size for b, (_, size, whole) in zip(t.bdv, need.payloads, strict=True) if not whole)
    # with the warps of 64 lanes of gfx942 one stage waits in registers
    return rows + max(1, t.stages - lanes // 64) * (cols + pay)


def registers(need: Need, t: Tiles, limits: Limits) -> int:
    """32-bit registers of a thread: scores, accumulators, states and the addresses of what is loaded."""
    threads = t.warps * limits.warp
    words = need.wide // 4
    plain = need.outputs - len(need.payloads)  # folds beside the products, each with its own copy of the scores
    copies = max(1, need.leaves) + 2 * need.tiles + max(0, plain - 1) + need.heavy
    scores = t.bn * t.bk * words * copies
    weights = t.bn * t.bk * words // 2 if need.payloads else 0  # in 16 bits, beside the scores they come from
    accumulators = sum(t.bn * b * words for b in t.bdv)
    state = t.bn * need.state * 4  # each of four lanes that share a row keeps a copy
    pay = sum(t.bk * b * size for b, (_, size, whole) in zip(t.bdv, need.payloads, strict=True) if not whole)
    addresses = (
        2 * (sum(t.bk * block(d) * size for d, size in need.cols) + pay) // 16
    )  # 64 bits for each 16 bytes of a tile
    return (
        (scores + weights + accumulators + state + addresses) // threads
        + OTHER_REGISTERS
        + 6 * max(0, t.stages - 2)
        + 28 * need.masked
        + 16 * need.summed
    )


# A clock and unit: 16-bit matrix, compares, exponentials, bytes from the second-level cache, bytes of shared memory.
FLOPS, OPS, EXPS, BYTES, SHARED_BYTES = 4096, 64, 16, 72, 128
# Fitted to 31 timings of attention forward, both halves of its backward and arg-max on an H200 (D = 128, 2026-11-30,
# docs/measured.md): the share of a tile's arithmetic that does not run beside products, for two blocks a unit, for one
# block of two groups, for one block of one group.
EXPOSED_TWO_BLOCKS, EXPOSED_TWO_GROUPS, EXPOSED_ALONE = 0.17, 0.54, 0.92
LIGHT = 12  # operations per score up to which 128 x 256 scores fit in registers beside their temporaries
BUSY = 40  # operations per score, and eight for each fold, beyond which even 128 x 128 spill
STEP = 32.0  # clocks of a step beside its work
WAITING = {1: 1.34, 2: 1.09}  # factor of few stages: loads are waited for
CLOSE = 1.08  # among tiles this close the largest is taken: it reads least from the cache


def clocks(need: Need, t: Tiles, limits: Limits) -> tuple[float, float, float, float, int] | None:
    """Clocks of a unit per 128 x 128 scores, and their parts; None for tiles that don't fit.

    Where two blocks share a unit, or two groups of four warps a block, one's arithmetic runs beside the other's
    products.
    """
    held = shared(need, t, limits.warp)
    if limits.matrix == 10:
        held += len(t.bdv) * t.bn * t.bk * 4  # weights and factors go through shared memory to the tensor memory
    if held > limits.shared - RESERVED * need.outputs:
        return None
    r = registers(need, t, limits)
    if r > limits.threads_registers * FULL:
        return None
    if limits.matrix == 9 and t.bn < t.warps // 4 * 64:
        return None  # a group of four warps issues one product of 64 rows
    threads = t.warps * limits.warp
    blocks = int(min(limits.shared // max(held, 1), 65536 // (threads * min(255, r + SLACK)), 4))
    matrix = (
        2.0
        * t.bn
        * t.bk
        * (sum(block(d) for d, _ in need.rows) / max(1, len(need.rows)) * need.leaves + sum(t.bdv))
        / FLOPS
    )
    vector = t.bn * t.bk * (need.ops / OPS + need.exps / EXPS)
    step = replace(t, stages=1)
    loaded = shared(need, step) - sum(t.bn * block(d) * size for d, size in need.rows)  # bytes of one step
    # every 64 rows of a product read their columns again; rows come from shared memory, weights from registers
    read = sum(t.bn * block(d) * size for d, size in need.rows) + t.bn / 64 * loaded
    read += t.bn / 64 * sum(t.bk * b * size for b, (_, size, whole) in zip(t.bdv, need.payloads, strict=True) if whole)
    load = max(loaded / BYTES, (loaded + read) / SHARED_BYTES)
    if blocks >= 2:
        total = max(matrix, vector, load) + EXPOSED_TWO_BLOCKS * min(matrix, vector)
    else:
        total = max(matrix, load) + (EXPOSED_TWO_GROUPS if t.warps == 8 else EXPOSED_ALONE) * vector
    total = (total + STEP) * WAITING.get(t.stages, 1.0)
    return total * 16384 / (t.bn * t.bk), matrix, vector, load, max(1, blocks)


def _streamed(need: Need, limits: Limits) -> Tiles:
    size = max(size for _, size in (*need.rows, *need.cols))
    bdv = _slices(need, PAYLOAD_SLICE)
    if need.payloads:
        bn, bk = (64, 64) if max(bdv) > 128 or need.leaves > 1 else (128, 64)
    else:
        light = need.leaves == 1 and need.outputs <= 2 and need.ops <= LIGHT
        if light and not (need.lists or need.heavy or need.turned) and limits.matrix >= 9:
            bn, bk = 128, 256
        else:
            bn, bk = (128 if need.ops + 8 * need.outputs <= BUSY else 64), 128
    bd = max(16, 128 // size)
    stages = 3 if need.payloads else 4  # three and four measured equal on an H200: 0.98 to 0.99 of cuBLAS (2026-11)
    waiting = limits.warp // 64

    def held(stages: int) -> int:
        return max(1, stages - waiting) * (
            (bn + bk) * bd * size + sum(bk * b * s for b, (_, s, _) in zip(bdv, need.payloads, strict=True))
        )

    while stages > 1 and held(stages) > limits.shared - 2048:
        stages -= 1
    features = max(d for d, _ in need.rows)
    reason = f"{features} features: both sides streamed, {bd * size} bytes a step"
    return Tiles(bn, bk, bd, bdv, False, 8, stages, reason, described=limits.matrix >= 9)


MERGE = 1200  # clocks for a row's state to be written, read and joined
STREAMED_GROUP = 8  # row tiles that share columns in the second-level cache; 16 is within 1 % on an H200 (2026-11)


def parts(row_tiles: int, tiles_k: int, t: Tiles, limits: Limits, features: int) -> tuple[int, int]:
    """(parts of the columns, row tiles that run together) of the persistent loop.

    Of the sizes of a part the one that ends soonest: small parts spread evenly over the units, and each costs a merge.
    """
    group = t.group or STREAMED_GROUP
    if tiles_k == 0 or t.splits:
        return min(t.splits, tiles_k), group
    tile = 2.0 * t.bn * t.bk * features / FLOPS

    def clocks(size: int) -> float:
        splits = math.ceil(tiles_k / size)
        return math.ceil(row_tiles * splits / limits.units) * size * tile + splits * MERGE

    return math.ceil(tiles_k / min(range(1, min(tiles_k, 64) + 1), key=clocks)), group


def split(row_blocks: int, k: int, t: Tiles, limits: Limits, summed: bool) -> tuple[int, int, int]:
    """(splits, columns of each, row tiles that run together).

    Columns are split where row blocks alone fill less than two thirds of the units, at least four tiles each. Long
    streamed sums are cut into pieces that row tiles of a group share in the second-level cache.
    """
    tiles_k = max(1, math.ceil(k / t.bk))
    if t.splits:
        chunk = math.ceil(tiles_k / min(t.splits, tiles_k)) * t.bk
    elif row_blocks * 3 < limits.units * 2 and tiles_k >= 8:
        splits = min(limits.units * 2 // max(1, row_blocks), tiles_k // 4)
        chunk = math.ceil(tiles_k / max(1, splits)) * t.bk
    elif not t.resident and not t.bdv and tiles_k >= 64:
        chunk = max(4, math.ceil(tiles_k / 32)) * t.bk
    else:
        chunk = tiles_k * t.bk
    group = t.group or (1 << 30 if t.resident else 16)
    return max(1, math.ceil(k / chunk)), chunk, group
