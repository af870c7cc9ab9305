"""A Program run tile by tile in PyTorch, on any device: the default on a CPU, and what other executors are checked by.

A tile of scores and its temporaries stay in the cache. What varies only with the row is computed once per row tile,
what varies with nothing once. Outputs per row keep a state per row tile; sums per column go to their accumulator tile
by tile, so that a backward pass evaluates each score once for both sides.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter, methodcaller
from types import CodeType
from typing import Any

import torch
from torch import Tensor

from .. import folds
from ..program import Const, Data, Expr, Index, Leaf, Mask, Op, Program, Size, op, walk

# pointwise functions; those with True may write over a dying argument
TORCH: dict[str, tuple[Callable[..., Tensor], bool]] = {
    **{
        name: (getattr(torch, torch_name), True)
        for name, torch_name in {
            "add": "add", "sub": "sub", "mul": "mul", "div": "div", "pow": "pow",
            "maximum": "maximum", "minimum": "minimum",
            "neg": "neg", "abs": "abs", "square": "square", "exp": "exp", "exp2": "exp2", "log": "log", "log2": "log2",
            "log1p": "log1p", "expm1": "expm1", "sqrt": "sqrt", "rsqrt": "rsqrt", "reciprocal": "reciprocal",
            "tanh": "tanh", "sigmoid": "sigmoid", "erf": "erf", "sin": "sin", "cos": "cos", "sign": "sign",
        }.items()
    },
    **{
        name: (getattr(torch, torch_name), False)
        for name, torch_name in {
            "relu": "relu", "eq": "eq", "ne": "ne", "lt": "lt", "le": "le", "gt": "gt", "ge": "ge",
            "and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not",
            "isnan": "isnan", "isinf": "isinf", "where": "where",
        }.items()
    },
    "floordiv": (lambda a, b: torch.div(a, b, rounding_mode="floor"), False),
}  # fmt: skip


@dataclass(frozen=True)
class _Step:
    """One node: `fn` of the slots `args`, into slot `out`; `reuse` is the argument whose tile may be overwritten.

    over    `fn` as the method of its first argument that overwrites it, if that is the one; much less host time than
            out=
    """

    node: Expr
    out: int
    fn: Callable[..., Any] | None
    args: tuple[int, ...]
    reuse: int | None
    over: Callable[..., Any] | None


@dataclass(frozen=True)
class _Plan:
    """A Program with its nodes in order, sorted by what they vary with."""

    program: Program
    count: int
    fixed: tuple[_Step, ...]
    per_row: tuple[_Step, ...]
    per_col: tuple[_Step, ...]
    per_tile: tuple[_Step, ...]
    roots: tuple[int, ...]
    owned: tuple[bool, ...]
    lo: int | None
    hi: int | None
    test: int | None
    folds: tuple[folds.Fold, ...]
    plain: bool  # one result tensor a row result: no sums over the columns, no `like`


@functools.lru_cache(maxsize=1024)
def _plan(text: str) -> _Plan:
    """By the Program's text, whose hash is remembered."""
    program = Program.parse(text)
    nodes = list(walk(*program.roots()))
    slot = {n: i for i, n in enumerate(nodes)}
    roots = tuple(slot[o.expr] for o in program.outputs)
    mask = program.mask or Mask()
    pinned = {slot[e] for e in mask.roots}
    last: dict[int, int] = {}
    for i, node in enumerate(nodes):
        for a in node.args:
            last[slot[a]] = i
    tile = frozenset(("row", "col"))

    def temporary(i: int) -> bool:
        # a tile that this pass made itself, float, and nobody reads again
        n = nodes[i]
        return n.varies == tile and n.type == "float" and isinstance(n, (Op, Leaf)) and i not in pinned

    groups: dict[frozenset[str], list[_Step]] = {
        frozenset(): [],
        frozenset(("row",)): [],
        frozenset(("col",)): [],
        tile: [],
    }
    for i, node in enumerate(nodes):
        args = tuple(slot[a] for a in node.args)
        reuse = None
        fn: Callable[..., Any] | None = None
        if isinstance(node, Op) and node.name in TORCH:
            fn, has_out = TORCH[node.name]
            if has_out and temporary(i):
                reuse = next((a for a in args if temporary(a) and last[a] == i and a not in roots), None)
        over = None
        if reuse is not None and reuse == args[0] and fn is not None:
            over = getattr(Tensor, f"{fn.__name__}_", None)
        groups[node.varies].append(_Step(node, i, fn, args, reuse, over))
    owned = tuple(temporary(r) and r not in last and r not in roots[j + 1 :] for j, r in enumerate(roots))
    at: Callable[[Expr | None], int | None] = lambda e: None if e is None else slot[e]
    return _Plan(
        program,
        len(nodes),
        tuple(groups[frozenset()]),
        tuple(groups[frozenset(("row",))]),
        tuple(groups[frozenset(("col",))]),
        tuple(groups[tile]),
        roots,
        owned,
        at(mask.lo),
        at(mask.hi),
        at(mask.test),
        tuple(folds.lookup(o) for o in program.outputs),
        all(o.axis == "row" and o.like is None for o in program.outputs),
    )


class _Box:
    """A box of batch entries and the part of each operand that belongs to it.

    lead    the batch dimension of its tensors: () for one entry, else (count,), or (1,) in what all entries share
    paged   operands whose first dimension counts pages; their part of an entry is [pages, size, D]
    """

    __slots__ = ("lead", "operands", "size", "start")

    def __init__(
        self, operands: Sequence[Tensor], start: tuple[int, ...], size: tuple[int, ...], paged: Sequence[int] = ()
    ) -> None:
        self.start, self.size, self.lead = start, size, _lead(size)
        part = [self._pages(t) if i in paged else self._part(t) for i, t in enumerate(operands)] if size else operands
        self.operands: Sequence[Tensor] = part

    def _pages(self, t: Tensor) -> Tensor:
        for d in range(1, t.dim() - 2):
            t = t.select(1, self.start[d] if t.shape[1] != 1 else 0)
        return t

    def _part(self, t: Tensor) -> Tensor:
        """t[start : start + size] over the batch, flattened; dimensions that t lacks are broadcast."""
        lead = t.dim() - 2
        for d in range(lead):
            j = len(self.size) - lead + d
            if t.shape[d] != 1 and t.shape[d] != self.size[j]:
                t = t.narrow(d, self.start[j], self.size[j])
        for change in _over_box(t.shape[:-2], self.size):
            t = change(t)
        return t

    def over_batch(self, value: Tensor) -> Tensor:
        """A result [*lead, ..] as [*size, ..]."""
        return value if self.size == self.lead else value.reshape(*self.size, *value.shape[len(self.lead) :])


def _lead(size: tuple[int, ...]) -> tuple[int, ...]:
    """The batch dimension of a box's tensors: () for one entry, else (count,)."""
    count = math.prod(size)
    return (count,) if count > 1 else ()


def _over_box(lead: tuple[int, ...], size: tuple[int, ...]) -> Iterator[Callable[[Tensor], Tensor]]:
    """What makes a tensor [*size or 1s, A, B] with batch dimensions `lead` one of [*_lead(size), A, B]."""
    if not _lead(size):
        if lead:
            yield methodcaller("flatten", 0, -2)
    elif not lead:
        yield methodcaller("unsqueeze", 0)
    else:
        if math.prod(lead) > 1 and lead != size:  # 1: one for the whole box, broadcast by the consumer
            yield methodcaller("expand", *size, -1, -1)
        yield methodcaller("flatten", 0, -3)


def _boxes(
    operands: Sequence[Tensor], batch: tuple[int, ...], target: int, paged: Sequence[int] = ()
) -> Iterator[_Box]:
    """The batch in boxes of about `target` entries: whole last dimensions, a part of one, one of each leading one."""
    size = [1] * len(batch)
    for d in reversed(range(len(batch))):
        size[d] = max(1, min(batch[d], target // math.prod(size[d + 1 :])))
        if size[d] < batch[d]:
            break
    for start in itertools.product(*(range(0, b, s) for b, s in zip(batch, size, strict=True))):
        yield _Box(operands, start, tuple(min(s, b - o) for o, s, b in zip(start, size, batch, strict=True)), paged)


def _wide(t: Tensor, dtype: torch.dtype) -> Tensor:
    return t.to(dtype) if t.is_floating_point() else t if t.dtype in (torch.bool, torch.int64) else t.to(torch.int64)


def _matmul(a: Tensor, b: Tensor, out: Tensor | None) -> Tensor:
    """a [*lead, M, D] @ b [*lead, D, J]."""
    if a.dim() == 2:
        return torch.mm(a, b, out=out)
    count = max(a.shape[0], b.shape[0])
    return torch.bmm(a.expand(count, -1, -1), b.expand(count, -1, -1), out=out)


class _Accumulator:
    """A result that boxes and tiles add to: [*batch of `like`, length(, width)], wide."""

    def __init__(
        self,
        shape: tuple[int, ...],
        batch: tuple[int, ...],
        like: Tensor | None,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        lead = batch if like is None else (1,) * (len(batch) - like.dim() + 2) + tuple(like.shape[:-2])
        self.value = torch.zeros(*lead, *shape, dtype=dtype, device=device)
        self.lead = lead
        self.batch = batch

    def view(self, box: _Box) -> tuple[Tensor, tuple[int, ...]]:
        """The part that a box adds to, and the batch dimensions to sum a contribution [*size, ...] over."""
        part = self.value
        summed = []
        for d, (have, want) in enumerate(zip(self.lead, self.batch, strict=True)):
            if have == want:
                part = part.narrow(d, box.start[d], box.size[d])
            elif box.size[d] > 1:
                summed.append(d)
        return part, tuple(summed)

    def add(self, box: _Box, index: tuple[slice, ...], value: Tensor) -> None:
        """Adds value [*lead, ..] at `index` of the last dimensions."""
        part, summed = self.view(box)
        value = box.over_batch(value)
        if summed:
            value = value.sum(summed, keepdim=True)
        at: tuple[Any, ...] = (..., *index)
        part[at].add_(value)

    def add_product(self, box: _Box, index: slice, p: Tensor, v: Tensor) -> None:
        """Adds p [*lead, J, M] @ v [*lead, M, Dv] to the rows `index`."""
        part, _ = self.view(box)
        if not box.lead:
            _flat(part[..., index, :]).addmm_(p, v)
            return
        self.add(box, (index, slice(None)), _matmul(p, v, None))


def _flat(t: Tensor) -> Tensor:
    """The matrix of a tensor whose leading dimensions are all 1, without a copy."""
    for _ in range(t.dim() - 2):
        t = t[0]
    return t


def tiles(n: int, k: int, element: int, cache: int) -> tuple[int, int]:
    """Rows and columns of a tile: about half the cache in one tile of scores, columns first, at least 16 rows.

    Args:
        element: bytes of a score
        cache: bytes of cache that the tile shares with its temporaries
    """
    bk = max(1, min(k, 1024))
    bn = max(16, cache // (2 * element * bk))
    return max(1, min(n, bn)), bk


CACHE = 4 << 20  # second-level caches of a few cores; measured best between 2 and 8 MiB on 2 cores, 2026-11


def _tiling(n: int, k: int, wide: torch.dtype) -> tuple[int, int, int]:
    """Rows and columns of a tile, and how many batch entries of one tile go together."""
    bn, bk = tiles(n, k, wide.itemsize, CACHE)
    return bn, bk, max(1, CACHE // (2 * wide.itemsize) // (bn * bk)) if (bn, bk) == (n, k) else 1


def _widest(types: Sequence[torch.dtype]) -> torch.dtype:
    return torch.float64 if torch.float64 in types else torch.float32


def run(
    program: Program,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    payload_dtypes: Sequence[torch.dtype],
    read: tuple[bool, ...] = (),
) -> list[Tensor]:
    """The results of all outputs, in order.

    Args:
        operands: tensors of the kinds that the Program names
        batch, n, k: sizes that the operands broadcast to
        payload_dtypes: per output the type of its payload or tile result; the others are float32, float64 or int64
        read: of each result, whether somebody reads it, others may be None; (): all are
    """
    if operands[0].is_cpu and torch._C._get_tracing_state() is None:  # a jit trace has tensors for sizes
        shapes, types = tuple([t.shape for t in operands]), tuple([t.dtype for t in operands])
        straight = _if_one_tile(program.text, batch, n, k, shapes, types, tuple(payload_dtypes), read)
        if straight is not None:
            return straight(operands, n, k)
    plan = _plan(program.text)
    device, wide = operands[0].device, _widest([t.dtype for t in operands])
    bn, bk, per_box = _tiling(n, k, wide)
    empty = math.prod(batch) * n * k == 0
    results = [
        _allocate(o, f, operands, batch, n, k, wide, d, device)
        for o, f, d in zip(program.outputs, plan.folds, payload_dtypes, strict=True)
    ]
    if empty:
        _finish_empty(plan, operands, batch, n, k, wide, results)
        return _flatten(program, results, payload_dtypes)
    paged = () if program.pages is None else [i for i, kind in enumerate(program.operands) if kind == "cols"]
    for box in _boxes(operands, batch, 1 if paged else per_box, paged):
        _run_box(plan, box, n, k, bn, bk, wide, results)
    return _flatten(program, results, payload_dtypes)


def _allocate(
    o: Any,
    fold: folds.Fold,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    wide: torch.dtype,
    dtype: torch.dtype,
    device: torch.device,
) -> Any:
    like = None if o.like is None else operands[o.like]
    if o.axis == "tile":
        return _Accumulator((n, k), batch, like, wide, device)
    length = n if o.axis == "row" else k
    if o.axis == "col" or like is not None:
        shape = (length,) if o.payload is None else (length, operands[o.payload].shape[-1])
        return _Accumulator(shape, batch, like, wide, device)
    made = []
    for r in fold.results:
        kind = wide if r.type == "float" else torch.int64
        match r.kind:
            case "payload":
                made.append(torch.empty(*batch, n, operands[o.payload].shape[-1], dtype=dtype, device=device))
            case "list":
                made.append(torch.empty(*batch, n, dict(o.options)["k"], dtype=kind, device=device))
            case _:
                made.append(torch.empty(*batch, n, dtype=kind, device=device))
    return made


def _flatten(program: Program, results: list[Any], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    flat: list[Tensor] = []
    for o, r, dtype in zip(program.outputs, results, dtypes, strict=True):
        if isinstance(r, _Accumulator):
            flat.append(r.value.to(dtype) if o.payload is not None or o.axis == "tile" else r.value)
        else:
            flat.extend(r)
    return flat


def _finish_empty(
    plan: _Plan,
    operands: Sequence[Tensor],
    batch: tuple[int, ...],
    n: int,
    k: int,
    wide: torch.dtype,
    results: list[Any],
) -> None:
    """No score at all: every row gets the result of the initial state."""
    for fold, made in zip(plan.folds, results, strict=True):
        if isinstance(made, _Accumulator):
            continue
        state = fold.init((*batch, n), wide, operands[0].device)
        for r, target, value in zip(fold.results, made, fold.finish(state), strict=True):
            if r.kind == "payload":
                empty = torch.zeros_like(target, dtype=wide)
                target.copy_(empty if value is None else empty * value.unsqueeze(-1))
            else:
                target.copy_(value)


class _Visible:
    """Which tiles a mask leaves, from the bounds of its rows (or columns)."""

    def __init__(self, mask: Mask, lo: Tensor | None, hi: Tensor | None, own: int, other: int, tile: int) -> None:
        self.axis = mask.axis
        self.tile = tile
        bounds: list[list[int] | None] = []
        for values, pick in ((lo, "amin"), (lo, "amax"), (hi, "amin"), (hi, "amax")):
            if values is None:
                bounds.append(None)
                continue
            # [1 or Bt, own]: pad to whole tiles with the last value
            flat = values.reshape(-1, values.shape[-2 if mask.axis == "row" else -1]).expand(-1, own)
            pad = -own % tile
            flat = torch.cat((flat, flat[:, -1:].expand(-1, pad)), 1) if pad else flat
            bounds.append(getattr(flat.reshape(flat.shape[0], -1, tile), pick)((0, 2)).tolist())
        self.lo_min, self.lo_max, self.hi_min, self.hi_max = bounds

    def kind(self, n0: int, n1: int, k0: int, k1: int) -> str:
        """ "none", "some" or "all" of the tile may be visible."""
        own, start, stop = (n0 // self.tile, k0, k1) if self.axis == "row" else (k0 // self.tile, n0, n1)
        if (
            self.lo_min is not None
            and self.lo_min[own] >= stop
            or self.hi_max is not None
            and self.hi_max[own] <= start
        ):
            return "none"
        if (self.lo_max is None or self.lo_max[own] <= start) and (self.hi_min is None or self.hi_min[own] >= stop):
            return "all"
        return "some"


def _run_box(
    plan: _Plan,
    box: _Box,
    n: int,
    k: int,
    bn: int,
    bk: int,
    wide: torch.dtype,
    results: list[Any],
) -> None:
    """Folds a box of the batch into `results`."""
    outputs, mask = plan.program.outputs, plan.program.mask
    values: list[Any] = [None] * plan.count
    here = _Context(box, wide, n, k, plan.program.pages)
    _evaluate(plan.fixed, values, here)
    visible = None
    if mask is not None and (plan.lo is not None or plan.hi is not None):
        # the bounds of all rows at once: O(N) integers
        scratch = list(values)
        _evaluate(plan.per_row if mask.axis == "row" else plan.per_col, scratch, here)
        bound = [None if s is None else _as_tensor(scratch[s], wide, here.device) for s in (plan.lo, plan.hi)]
        own, other, tile = (n, k, bn) if mask.axis == "row" else (k, n, bk)
        visible = _Visible(mask, bound[0], bound[1], own, other, tile)
    for n0 in range(0, n, bn):
        n1 = min(n, n0 + bn)
        here.at_rows(n0, n1)
        _evaluate(plan.per_row, values, here)
        states: list[Any] = [None] * len(outputs)
        accs: list[Tensor | None] = [None] * len(outputs)
        for k0 in range(0, k, bk):
            k1 = min(k, k0 + bk)
            how = "all" if visible is None else visible.kind(n0, n1, k0, k1)
            if how == "none":
                continue
            here.at_columns(k0, k1)
            block = None
            if mask is not None and mask.block is not None:
                block = here.block(mask.block, mask.block_size)
                if not bool(block.any()):
                    continue
            _evaluate(plan.per_col, values, here)
            _evaluate(plan.per_tile, values, here)
            seen = None if mask is None else _seen(mask, plan, values, here, how, block)
            _fold_tile(plan, values, here, seen, states, accs, results)
        for j, (o, fold) in enumerate(zip(outputs, plan.folds, strict=True)):
            if o.axis != "row":
                continue
            state, acc = states[j], accs[j]
            if state is None:  # no tile of these rows was visible
                device = box.operands[0].device
                state = fold.init((*box.lead, n1 - n0), wide, device)
                if o.payload is not None:
                    width = box.operands[o.payload].shape[-1]
                    acc = torch.zeros(*box.lead, n1 - n0, width, dtype=wide, device=device)
            _store(fold, results[j], box, slice(n0, n1), state, acc)


def _as_tensor(value: Any, wide: torch.dtype, device: torch.device) -> Tensor:
    """A value as a tile, of one row or column too; a Python float keeps its 64 bits where scores do."""
    if isinstance(value, Tensor):
        return value if value.dim() > 1 else value.reshape(1, -1)
    return torch.tensor(value, dtype=wide if isinstance(value, float) else None, device=device).reshape(1, 1)


def _seen(mask: Mask, plan: _Plan, values: list[Any], here: _Context, how: str, block: Tensor | None) -> Tensor | None:
    """The boolean tile of visible scores, or None where all are."""
    tests = []
    if how == "some":
        other = here.columns if mask.axis == "row" else here.rows
        if plan.lo is not None:
            tests.append(other >= values[plan.lo])
        if plan.hi is not None:
            tests.append(other < values[plan.hi])
    if block is not None:
        tests.append(block)
    if plan.test is not None:
        tests.append(_as_tensor(values[plan.test], here.wide, here.device))
    if not tests:
        return None
    seen = _as_tensor(functools.reduce(torch.logical_and, tests), here.wide, here.device)
    return None if block is None and plan.test is None and bool(seen.all()) else seen


_NOTHING = torch.empty(0, dtype=torch.int64)


def _fold_tile(
    plan: _Plan,
    values: list[Any],
    here: _Context,
    seen: Tensor | None,
    states: list[Any],
    accs: list[Tensor | None],
    results: list[Any],
) -> None:
    shape = (*here.box.lead, here.n1 - here.n0, here.k1 - here.k0)
    hidden = None if seen is None else ~seen
    for j, (o, fold) in enumerate(zip(plan.program.outputs, plan.folds, strict=True)):
        s = values[plan.roots[j]]
        own = plan.owned[j] and isinstance(s, Tensor) and s.shape == shape and s.dtype == here.wide
        if not own:
            s = _whole(here.box.lead, here.wide, here.device, s, *shape[-2:])
        s, own = _hide(s, hidden, fold.fill, own)
        if o.axis == "tile":
            results[j].add(here.box, (slice(here.n0, here.n1), slice(here.k0, here.k1)), s)
        elif o.axis == "col":
            if o.payload is None:
                results[j].add(here.box, (slice(here.k0, here.k1),), s.sum(-2))
            else:
                v = _without(here.operand(o.payload, "rows"), hidden, -1)
                results[j].add_product(here.box, slice(here.k0, here.k1), s.mT, v)
        else:
            cols, seen_by_fold = here.columns if fold.sees_columns else _NOTHING, seen if fold.sees_mask else None
            first = states[j] is None
            made = fold.lift(s, cols, seen_by_fold, own) if first else fold.step(states[j], s, cols, seen_by_fold, own)
            if o.payload is None:
                states[j] = made
                continue
            states[j], alpha, p = made
            acc, v = accs[j], _without(here.operand(o.payload, "cols"), hidden, -2)
            if acc is None:
                accs[j] = _matmul(p, v, None)
                continue
            if alpha is not None:
                acc.mul_(alpha.unsqueeze(-1))
            if acc.dim() == 2:
                acc.addmm_(p, v)
            else:
                acc.baddbmm_(p, v.expand(acc.shape[0], -1, -1))


def _whole(lead: tuple[int, ...], wide: torch.dtype, device: torch.device, s: Any, n: int, k: int) -> Tensor:
    """A tile of scores that may be smaller, of another type or a number; not to be written to."""
    return _as_tensor(s, wide, device).to(wide).expand(*lead, n, k)


def _hide(s: Tensor, hidden: Tensor | None, fill: float, own: bool) -> tuple[Tensor, bool]:
    """The tile with `fill` where it is hidden, and whether it may be overwritten."""
    if hidden is None:
        return s, own
    return s.masked_fill_(hidden, fill) if own else s.masked_fill(hidden, fill), True


def _without(v: Tensor, hidden: Tensor | None, axis: int) -> Tensor:
    """A payload tile with 0 in the rows that nobody here sees: padding may hold anything, and 0 * NaN is NaN."""
    if hidden is None:
        return v
    unseen = hidden.all(axis)
    return v.masked_fill(unseen.unsqueeze(-1), 0.0) if bool(unseen.any()) else v


def _store(fold: folds.Fold, made: Any, box: _Box, rows: slice, state: Any, acc: Tensor | None) -> None:
    finished = fold.finish(state)
    if isinstance(made, _Accumulator):
        value = finished[0] if acc is None else acc if finished[0] is None else acc * finished[0].unsqueeze(-1)
        made.add(box, (rows,) if acc is None else (rows, slice(None)), value)
        return
    for r, target, value in zip(fold.results, made, finished, strict=True):
        if r.kind == "payload":
            assert acc is not None
            value = acc if value is None else acc.mul_(value.unsqueeze(-1))
        for d, (start, size) in enumerate(zip(box.start, box.size, strict=True)):
            target = target.narrow(d, start, size)
        tail = target[..., rows] if r.kind == "row" else target[..., rows, :]
        tail.copy_(box.over_batch(value))


KEPT = 4096  # numbers of a tile that are kept from call to call


def _numbers(start: int, stop: int, device: torch.device) -> Tensor:
    # what a GPU holds may belong to a graph that is being captured, and the numbers of all rows may be many
    if device.type != "cpu" or stop - start > KEPT:
        return torch.arange(start, stop, device=device)
    return _kept_numbers(start, stop)


@functools.lru_cache(maxsize=256)
def _kept_numbers(start: int, stop: int) -> Tensor:
    return torch.arange(start, stop, device="cpu")


class _Context:
    """Where the pass stands: a box, rows n0..n1, columns k0..k1 (at first all); and the operands' parts there."""

    __slots__ = (
        "_buffers", "_cols", "_cols_wide", "_rows", "_rows_wide",
        "box", "device", "k", "k0", "k1", "n", "n0", "n1", "pages", "wide",
    )  # fmt: skip

    def __init__(self, box: _Box, wide: torch.dtype, n: int, k: int, pages: int | None = None) -> None:
        self.box, self.wide, self.n, self.k, self.device = box, wide, n, k, box.operands[0].device
        self.pages = pages
        self._buffers: dict[int, Tensor] = {}
        self.at_rows(0, n)
        self.at_columns(0, k)

    def at_rows(self, n0: int, n1: int) -> None:
        self.n0, self.n1 = n0, n1
        self._rows: Tensor | None = None
        self._rows_wide: dict[int, Tensor] = {}

    def at_columns(self, k0: int, k1: int) -> None:
        self.k0, self.k1 = k0, k1
        self._cols: Tensor | None = None
        self._cols_wide: dict[int, Tensor] = {}

    @property
    def rows(self) -> Tensor:
        """[BN, 1] the rows' numbers."""
        if self._rows is None:
            self._rows = _numbers(self.n0, self.n1, self.device).unsqueeze(-1)
        return self._rows

    @property
    def columns(self) -> Tensor:
        """[BK] the columns' numbers."""
        if self._cols is None:
            self._cols = _numbers(self.k0, self.k1, self.device)
        return self._cols

    def operand(self, i: int, kind: str) -> Tensor:
        """The tile of a "rows" or "cols" operand, wide."""
        store, start, stop = (
            (self._rows_wide, self.n0, self.n1) if kind == "rows" else (self._cols_wide, self.k0, self.k1)
        )
        t = store.get(i)
        if t is None:
            t = self.box.operands[i]
            if kind == "cols" and self.pages is not None:
                t = self._of_pages(t, self.box.operands[self.pages])
            elif stop - start != t.shape[-2]:
                t = t[..., start:stop, :]
            t = store[i] = t if t.dtype == self.wide else t.to(self.wide)
        return t

    def _of_pages(self, t: Tensor, table: Tensor) -> Tensor:
        """The tile's columns of pages [pages, size, D]. A page that no row sees may have any number."""
        size = t.shape[-2]
        first, end = self.k0 // size, -(-self.k1 // size)
        wanted = table[0, first:end].long().clamp(0, t.shape[0] - 1)
        return t[wanted].flatten(0, 1)[self.k0 - first * size : self.k1 - first * size]

    def block(self, i: int, size: tuple[int, int]) -> Tensor:
        table = self.box.operands[i]
        return table[..., self.rows // size[0], self.columns // size[1]].bool()

    def data(self, node: Data) -> Tensor:
        t = self.box.operands[node.operand]
        if node.kind in ("row", "tile") and t.shape[-2] != 1:
            t = t[..., self.n0 : self.n1, :]
        if node.kind in ("col", "tile") and t.shape[-1] != 1:
            t = t[..., self.k0 : self.k1]
        return _wide(t, self.wide)

    def leaf(self, node: Leaf, slot: int) -> Tensor:
        """The product of two tiles, in the memory of the last such tile."""
        x, y = self.operand(node.rows, "rows"), self.operand(node.cols, "cols")
        buffer = self._buffers.get(slot)
        if buffer is not None and buffer.shape[-2:] != (x.shape[-2], y.shape[-2]):
            buffer = None
        made = self._buffers[slot] = _matmul(x, y.mT, buffer)
        return made


def _evaluate(steps: tuple[_Step, ...], values: list[Any], here: _Context) -> None:
    for step in steps:
        node = step.node
        match node:
            case Op():
                fn, args = _operation(step, node.name, values, here.box.lead, here.wide, here.device)
                values[step.out] = fn(*args)
            case Leaf():
                values[step.out] = here.leaf(node, step.out)
            case Data():
                values[step.out] = here.data(node)
            case Const():
                values[step.out] = node.value
            case Index():
                values[step.out] = here.rows if node.axis == "row" else here.columns
            case Size():
                values[step.out] = here.n if node.axis == "row" else here.k


def _operation(
    step: _Step, name: str, values: list[Any], lead: tuple[int, ...], wide: torch.dtype, device: torch.device
) -> tuple[Callable[..., Any], list[Any]]:
    """The function of a pointwise operation and its arguments, as torch takes them fastest."""
    given = [values[a] for a in step.args]
    if step.fn is None:
        return functools.partial(_special, name, wide, device), given
    args = _tensors(name, given, wide, device)
    fn = step.fn
    if step.reuse is not None:
        target = values[step.reuse]
        # a tile may still be one for the whole box while another argument has one per entry
        if target.shape[:-2] == lead or all(a.shape[0] == 1 for a in args if isinstance(a, Tensor) and a.dim() == 3):
            place = next(i for i, a in enumerate(args) if a is target)
            fn = functools.partial(_into, step.fn, place) if step.over is None else step.over
    exact = wide == torch.float64 and step.node.type == "float" and name in ("add", "sub", "mul", "div", "pow")
    if exact and any(isinstance(a, Tensor) and not a.is_floating_point() for a in args):
        fn = functools.partial(_in_float64, fn)  # an integer beside a float would be a float32
    return fn, args


def _into(fn: Callable[..., Any], target: int, *args: Any) -> Any:
    return fn(*args, out=args[target])


def _in_float64(fn: Callable[..., Any], *args: Any) -> Any:
    return fn(*[a.double() if isinstance(a, Tensor) and not a.is_floating_point() else a for a in args])


def _tensors(name: str, args: list[Any], wide: torch.dtype, device: torch.device) -> list[Any]:
    """torch functions take a number as second argument; where it does not, or all are numbers, make tensors."""
    if all(isinstance(a, Tensor) for a in args):
        return args
    fixed = list(args)
    if name in ("add", "mul") and not isinstance(fixed[0], Tensor):
        fixed.reverse()
    needs = name in ("maximum", "minimum", "and", "or", "xor", "isnan", "isinf", "where") or not isinstance(
        fixed[0], Tensor
    )
    if not needs:
        if name in ("add", "sub", "mul", "div") and isinstance(fixed[1], float) and fixed[0].dtype == wide:
            fixed[1] = _constant(fixed[1], wide)
        return fixed
    return [
        a if isinstance(a, Tensor) else torch.tensor(a, device=device, dtype=wide if isinstance(a, float) else None)
        for a in fixed
    ]


@functools.lru_cache(maxsize=256)
def _constant(value: float, dtype: torch.dtype) -> Tensor:
    """A number as torch takes it fastest, on every device: a Python number costs a tensor at each call."""
    return torch.tensor(value, dtype=dtype, device="cpu")


def _special(name: str, wide: torch.dtype, device: torch.device, *args: Any) -> Any:
    if name == "float":
        return _as_tensor(args[0], wide, device).to(wide)
    if name == "gumbel":
        seed, stream, position, column = (_as_tensor(a, wide, device) for a in args)
        return folds.gumbel(seed, stream, position, column, wide)
    raise ValueError(f"operation {name!r} is not known to the eager executor")


CPU = torch.device("cpu")
Straight = Callable[[Sequence[Tensor], int, int], list[Tensor]]


@functools.lru_cache(maxsize=1024)
def _if_one_tile(
    text: str,
    batch: tuple[int, ...],
    n: int,
    k: int,
    shapes: tuple[tuple[int, ...], ...],
    types: tuple[torch.dtype, ...],
    payload_dtypes: tuple[torch.dtype, ...],
    read: tuple[bool, ...],
) -> Straight | None:
    """`_straight`, where one tile holds all scores; None elsewhere."""
    bn, bk, per_box = _tiling(n, k, _widest(types))
    if (bn, bk) != (n, k) or not 0 < math.prod(batch) <= per_box:
        return None
    return _straight(text, batch, tuple(tuple(s[:-2]) for s in shapes), types, payload_dtypes, read)


@functools.lru_cache(maxsize=1024)
def _straight(
    text: str,
    batch: tuple[int, ...],
    leads: tuple[tuple[int, ...], ...],
    types: tuple[torch.dtype, ...],
    payload_dtypes: tuple[torch.dtype, ...],
    read: tuple[bool, ...],
) -> Straight | None:
    """A function of (operands, N, K) that runs a Program on a CPU whose scores lie in one tile, a line per operation.

    None: not for results per column, and not with a mask of blocks or columns in pages.

    Args:
        leads: the batch dimensions of each operand
        read: see `run`
    """
    program = Program.parse(text)
    mask = program.mask
    if not _plan(text).plain or program.pages is not None or (mask is not None and mask.block is not None):
        return None
    plan = _plan(text if mask is None else Program(program.operands, program.outputs, _as_test(mask)).text)
    w = _Writer(plan, batch, _widest(types))
    w.operands(leads, types)
    w.nodes()
    w.results(payload_dtypes, mask is not None and mask.test is None, read)
    exec(_compiled("def straight(operands, n, k):\n    " + "\n    ".join(w.lines)), w.known)
    made: Straight = w.known["straight"]
    return made


class _Writer:
    """The lines of a function of `_straight`.

    What `_operation` decides depends on batch dimensions and types alone; it is asked here, with 2 rows and 3 columns.
        known    what the names stand for that stay as they are: functions and numbers
        small    what all names stand for here
    """

    SIZES = {"rows": (2, 1), "cols": (3, 1), "row": (2, 1), "col": (1, 3), "tile": (2, 3), "scalar": (1, 1)}

    def __init__(self, plan: _Plan, batch: tuple[int, ...], wide: torch.dtype) -> None:
        self.plan, self.batch, self.lead, self.wide = plan, batch, _lead(batch), wide
        self.times = _times if self.lead else torch.mm
        self.known: dict[str, Any] = {"batch": batch, "nothing": _NOTHING, "hide": _hide, "without": _without}
        self.small: dict[str, Any] = {"n": 2, "k": 3}
        self.lines: list[str] = []
        self.slots = [f"v{i}" for i in range(plan.count)]  # the name of each node's value

    def name(self, value: Any) -> str:
        new = f"c{len(self.known)}"
        self.known[new] = self.small[new] = value
        return new

    def line(self, out: str, fn: Callable[..., Any], *args: str) -> None:
        self.small[out] = fn(*[self.small[a] for a in args])
        self.lines.append(f"{out} = {self.name(fn)}({', '.join(args)})")

    def operands(self, leads: Sequence[tuple[int, ...]], types: Sequence[torch.dtype]) -> None:
        self.lines.append(f"{', '.join(f't{i}' for i in range(len(types)))}, = operands")
        rest = self.name(-1)
        for i, (kind, lead, dtype) in enumerate(zip(self.plan.program.operands, leads, types, strict=True)):
            self.small[t := f"t{i}"] = torch.ones(*lead, *self.SIZES[kind], dtype=dtype, device=CPU)
            if lead and not self.lead and kind in ("rows", "cols"):  # a matrix the fastest way
                self.line(t, Tensor.view, t, "n" if kind == "rows" else "k", rest)
            else:
                for change in _over_box(lead, self.batch):
                    self.line(t, change, t)
            if dtype not in (self.wide, torch.bool, torch.int64):
                self.line(t, functools.partial(_wide, dtype=self.wide), t)

    def nodes(self) -> None:
        plan, slots, lead, wide = self.plan, self.slots, self.lead, self.wide
        values: list[Any] = [None] * plan.count
        for step in (*plan.fixed, *plan.per_row, *plan.per_col, *plan.per_tile):
            out = slots[step.out]
            match step.node:
                case Op(name=name, operands=given) if any(isinstance(a, Size) for a in given):
                    fn = functools.partial(_of_sizes, step, name, lead, wide)
                    self.line(out, fn, *(slots[a] for a in step.args))
                case Op(name=name):
                    of, args = _operation(step, name, values, lead, wide, CPU)
                    names = [next((slots[a] for a in step.args if values[a] is x), None) for x in args]
                    self.line(out, of, *(have or self.name(x) for have, x in zip(names, args, strict=True)))
                case Leaf(rows=rows, cols=cols):
                    self.line("turned", attrgetter("mT"), f"t{cols}")
                    self.line(out, self.times, f"t{rows}", "turned")
                case Data(operand=i):
                    slots[step.out] = f"t{i}"
                case Index(axis="row"):
                    self.line(out, _row_numbers, "n")
                case Index():
                    self.line(out, _col_numbers, "k")
                case Const(value=value):
                    slots[step.out] = self.name(value)
                case Size(axis=axis):
                    slots[step.out] = "n" if axis == "row" else "k"
            values[step.out] = self.small[slots[step.out]]

    def results(self, dtypes: Sequence[torch.dtype], interval: bool, read: tuple[bool, ...]) -> None:
        """The folds' lines; `interval`: a mask that is nothing else, so that all may be visible."""
        plan, lead, wide, lines = self.plan, self.lead, self.wide, self.lines
        masked = plan.test is not None
        if plan.test is not None:
            self.line("seen", functools.partial(_as_tensor, wide=wide, device=CPU), self.slots[plan.test])
            if interval:
                lines.append("seen = None if seen.all() else seen")
            lines.append("hidden = None if seen is None else ~seen")
        returned: list[str] = []
        for j, (o, fold, dtype) in enumerate(zip(plan.program.outputs, plan.folds, dtypes, strict=True)):
            s = self.slots[plan.roots[j]]
            like = self.small[s]
            own = "False"
            if not isinstance(like, Tensor) or like.shape != (*lead, 2, 3) or like.dtype != wide:
                self.line("s", functools.partial(_whole, lead, wide, CPU), s, "n", "k")
                s = "s"
            elif plan.owned[j]:
                own = "True"
            if masked:
                lines.append(f"s, own = hide({s}, hidden, {self.name(fold.fill)}, {own})")
                s, own = "s", "own"
            columns = f"{self.name(_col_numbers)}(k)" if fold.sees_columns else "nothing"
            visible = "seen" if masked and fold.sees_mask else "None"
            made = [f"r{j}_{i}" for i in range(len(fold.results))]
            mine = read[len(returned) : len(returned) + len(made)] or (True,) * len(made)
            call = f"{self.name(fold.whole)}({s}, {columns}, {visible}, {own}, {mine})"
            if o.payload is None:
                lines.append(f"{', '.join(made)}, = {call}")
            else:
                v = f"without(t{o.payload}, hidden, -2)" if masked else f"t{o.payload}"
                lines.append(f"({', '.join(made)},), p = {call}")
                lines.append(f"acc = {self.name(self.times)}(p, {v})")
            for r, result, is_read in zip(made, fold.results, mine, strict=True):
                if not is_read:
                    returned.append("None")
                    continue
                if result.kind == "payload":
                    lines.append(f"{r} = acc if {r} is None else acc.mul_({r})")
                    if dtype != wide:
                        lines.append(f"{r} = {r}.to({self.name(dtype)})")
                if self.batch != lead:
                    width = "" if result.kind == "row" else f", {r}.shape[-1]"
                    lines.append(f"{r} = {r}.reshape(*batch, n{width})")
                elif result.kind == "row":
                    lines.append(f"{r} = {r} if {r}.dim() == {len(lead) + 1} else {r}.reshape(*batch, n)")
                returned.append(f"{r}.contiguous()")  # a fold may give views of its state
        lines.append(f"return [{', '.join(returned)}]")


@functools.lru_cache(maxsize=256)
def _compiled(source: str) -> CodeType:
    return compile(source, "<a straight line of operations>", "exec")


def _as_test(mask: Mask) -> Mask:
    """The mask with its interval as a pointwise test."""
    test = mask.test
    for name, bound in (("ge", mask.lo), ("lt", mask.hi)):
        if bound is not None:
            here = op(name, Index("col" if mask.axis == "row" else "row"), bound)
            test = here if test is None else op("and", here, test)
    return Mask(test=test)


def _of_sizes(step: _Step, name: str, lead: tuple[int, ...], wide: torch.dtype, *given: Any) -> Any:
    """An operation on N or K, which may be other numbers at each call."""
    values: list[Any] = [None] * step.out
    for a, value in zip(step.args, given, strict=True):
        values[a] = value
    fn, args = _operation(step, name, values, lead, wide, CPU)
    return fn(*args)


def _times(p: Tensor, v: Tensor) -> Tensor:
    return _matmul(p, v, None)


def _row_numbers(n: int) -> Tensor:
    return _numbers(0, n, CPU).unsqueeze(-1)


def _col_numbers(k: int) -> Tensor:
    return _numbers(0, k, CPU)
