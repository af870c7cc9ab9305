"""Views of scores: slices and reshapes become views of the operands."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..errors import FoldError, LabelError, ShapeError, explain
from ..program import text
from .core import TOO_MANY, Scores, map_texts, settled
from .debug import can_look_at

_OF_ROWS, _OF_COLS = ("rows", "row", "tile"), ("cols", "col", "tile")


def _has_axis(kind: str, t: Tensor, axis: str) -> int | None:
    """The dimension of an operand that runs along the rows or columns, if it does."""
    if kind in ("rows", "cols"):
        return -2 if kind == {"row": "rows", "col": "cols"}[axis] else None
    d = -2 if axis == "row" else -1
    return d if kind in ({"row": _OF_ROWS, "col": _OF_COLS}[axis]) and t.shape[d] != 1 else None


def _no_blocks(s: Scores, what: str) -> None:
    if "block" in s._kinds:
        raise FoldError(f"{what}: scores with a block mask can't be sliced or reshaped; slice first, then mask")


def getitem(s: Scores, key: Any) -> Any:
    """A view of the scores; two index tensors pick single scores, as they do from a tensor."""
    key = key if isinstance(key, tuple) else (key,)
    if any(k is None for k in key):
        raise FoldError(f"scores[None]: use scores.unsqueeze(dim) on a batch axis, or {TOO_MANY}")
    if any(k is Ellipsis for k in key):
        at = next(i for i, k in enumerate(key) if k is Ellipsis)
        key = (*key[:at], *(slice(None),) * (s.dim() - len(key) + 1), *key[at + 1 :])
    key = (*key, *(slice(None),) * (s.dim() - len(key)))
    if len(key) > s.dim():
        raise IndexError(explain("scores[...]", f"{len(key)} indices", f"at most {s.dim()}"))
    *lead, row, col = key
    if isinstance(row, Tensor) and isinstance(col, Tensor):
        return _pairs(s, lead, row, col)
    for axis, part in (("row", row), ("col", col)):
        s = _take(s, axis, part)
    for d in reversed(range(len(lead))):
        s = _take_batch(s, d, lead[d])
    return s


def _pairs(s: Scores, lead: list[Any], row: Tensor, col: Tensor) -> Tensor:
    """s[row, col] for two index tensors: one score for each pair."""
    if lead or row.dtype == torch.bool or col.dtype == torch.bool or row.is_floating_point() or col.is_floating_point():
        was = f"{len(lead)} batch axes, and tensors of {row.dtype} and {col.dtype}"
        raise FoldError(
            explain("scores[rows, columns]", was, "2-D scores and two integer index tensors; or scores.gather")
        )
    row, col = torch.broadcast_tensors(row, col)
    at = torch.where(col < 0, col + s._k, col).reshape(-1, 1)
    return _select(s, "row", row.reshape(-1), s._n).gather(-1, at).reshape(row.shape)


def _take(s: Scores, axis: str, part: Any) -> Scores:
    """A slice of the rows or columns, or the rows that a 1-D tensor names."""
    length = s._n if axis == "row" else s._k
    if isinstance(part, slice):
        start, stop, step = part.indices(length)
        if (start, stop, step) == (0, length, 1):
            return s
        if step < 1:
            raise FoldError(explain(f"scores[...] ({axis}s)", f"step {step}", "a positive step"))
        _no_blocks(s, "scores[...]")
        new = len(range(start, stop, step))
        operands = []
        for t, kind in zip(s._operands, s._kinds, strict=True):
            d = _has_axis(kind, t, axis)
            at: tuple[Any, ...] = () if d is None else (..., slice(start, stop, step), *(slice(None),) * (-1 - d))
            operands.append(t if d is None else t[at])
        expr, mask = _numbered(s, axis, length, start, step)
        return s._with(
            operands=tuple(operands), expr=expr, mask=mask, versions=s._versions, **{"n" if axis == "row" else "k": new}
        )
    if isinstance(part, Tensor) and part.dim() == 1 and not part.is_floating_point():
        return _select(s, axis, part, length)
    if isinstance(part, int):
        raise FoldError(
            explain(
                "scores[...]",
                f"the integer {part} on the {axis} axis",
                f"a slice: scores[{_keeping(axis, part)}] keeps the axis",
            )
        )
    raise FoldError(
        explain("scores[...]", type(part).__name__, f"slices and 1-D index or boolean tensors; or {TOO_MANY}")
    )


def _keeping(axis: str, i: int) -> str:
    """The slice of one row or column, as it is written."""
    one = f"{i}:" if i == -1 else f"{i}:{i + 1}"
    return f"..., {one}, :" if axis == "row" else f"..., {one}"


def _pointwise_along(s: Scores, axis: str) -> Scores:
    """An interval of visible indices along an axis means nothing once that axis is reordered: it becomes a test."""
    return s if s._mask is None or s._mask[0] == axis else s._with(mask=text.pointwise(s._mask))


def _numbered(s: Scores, axis: str, length: int, start: int, step: int) -> tuple[str, text.MaskText | None]:
    """The expression and the mask of scores whose index i is start + step * i of the `length` of a whole."""
    length, start, step = settled(length), settled(start), settled(step)
    expr, mask = _places(s, axis, length, lambda e: text.moved(e, axis, start, step))
    return expr, None if mask is None else text.interval_of_slice(mask, axis, start, step)


def columns_of(s: Scores, start: int, total: int) -> Scores:
    """The scores as those of the columns from `start` on of `total`: indices, sizes and masks are the whole's."""
    _no_blocks(s, "column shards")
    expr, mask = _numbered(s, "col", total, start, 1)
    return s._with(expr=expr, mask=mask)


def _places(
    s: Scores, axis: str, length: int, change: Callable[[str | None], str | None]
) -> tuple[str, text.MaskText | None]:
    """The expression and the mask, changed where they read an index of the axis, whose size is fixed at `length`."""
    return map_texts(s, lambda e: change(text.sized(e, axis, length)) if text.places(e, axis) else e)


def _select(s: Scores, axis: str, index: Tensor, length: int) -> Scores:
    if index.dtype == torch.bool:
        if index.shape[0] != length:
            raise IndexError(explain("scores[mask]", f"a mask of {index.shape[0]}", f"{length}, the number of {axis}s"))
        index = index.nonzero().squeeze(-1)
    elif can_look_at(index) and index.numel():
        low, high = (int(v) for v in index.aminmax())
        if low < -length or high >= length:
            raise LabelError(
                explain(f"scores[index] ({axis}s)", f"values from {low} to {high}", f"{-length} to {length - 1}")
            )
    index = torch.where(index < 0, index + length, index)
    _no_blocks(s, "scores[...]")
    operands, kinds = [], list(s._kinds)
    for t, kind in zip(s._operands, s._kinds, strict=True):
        d = _has_axis(kind, t, axis)
        operands.append(t if d is None else t.index_select(d, index))
    number = len(operands)
    operands.append(index.unsqueeze(-1) if axis == "row" else index.unsqueeze(-2))
    kinds.append(axis)
    expr, mask = _places(_pointwise_along(s, axis), axis, length, lambda e: text.indexed(e, axis, number))
    return s._with(
        operands=tuple(operands),
        kinds=tuple(kinds),
        expr=expr,
        mask=mask,
        **{"n" if axis == "row" else "k": index.shape[0]},
    )


def _take_batch(s: Scores, d: int, part: Any) -> Scores:
    """A slice or an entry of batch dimension d."""
    if isinstance(part, slice) and part == slice(None):
        return s
    if not isinstance(part, (int, slice)):
        raise FoldError(
            explain(
                "scores[...]", f"{type(part).__name__} on a batch axis", "an integer or a slice; index the operands"
            )
        )
    size = s._batch[d]
    if isinstance(part, int) and not -size <= part < size:
        raise IndexError(explain("scores[...]", str(part), f"{-size} to {size - 1}"))
    operands = []
    for t in s._operands:
        own = d - (len(s._batch) - (t.dim() - 2))
        if own < 0:
            operands.append(t)
        elif t.shape[own] == 1:
            operands.append(t.squeeze(own) if isinstance(part, int) else t)
        else:
            operands.append(t.select(own, part) if isinstance(part, int) else t[(slice(None),) * own + (part,)])
    left = [] if isinstance(part, int) else [len(range(*part.indices(size)))]
    return s._with(operands=tuple(operands), batch=(*s._batch[:d], *left, *s._batch[d + 1 :]), versions=s._versions)


def reshape(s: Scores, shape: tuple[Any, ...]) -> Scores:
    if len(shape) == 1 and isinstance(shape[0], torch.dtype):
        return s.to(shape[0])
    if len(shape) == 1 and isinstance(shape[0], (tuple, list, torch.Size)):
        shape = tuple(shape[0])
    total = math.prod(s.shape)
    if -1 in shape:
        known = math.prod([n for n in shape if n != -1])
        shape = tuple([total // max(known, 1) if n == -1 else n for n in shape])
    if math.prod(shape) != total:
        raise ShapeError(explain("shape", str(tuple(shape)), f"a shape of {total} scores"))
    if tuple(shape) == tuple(s.shape):
        return s
    if len(shape) < 2 or shape[-1] != s._k:
        raise FoldError(
            explain(
                "reshape", f"{tuple(s.shape)} to {tuple(shape)}", f"a shape whose last axis stays {s._k}; or {TOO_MANY}"
            )
        )
    *batch, n, _ = shape
    if n == s._n:
        return _reshape_batch(s, tuple(batch))
    return _regroup_rows(s, tuple(batch), n)


def _reshape_batch(s: Scores, batch: tuple[int, ...]) -> Scores:
    """Only the batch dimensions change."""
    operands = []
    for t in s._operands:
        lead = t.shape[:-2]
        if math.prod(lead) == 1:
            operands.append(t.reshape(t.shape[-2:]))
        else:
            operands.append(t.expand(*s._batch, *t.shape[-2:]).reshape(*batch, *t.shape[-2:]))
    return s._with(operands=tuple(operands), batch=batch, versions=s._versions)


def _regroup_rows(s: Scores, batch: tuple[int, ...], n: int) -> Scores:
    """Rows and batch dimensions regrouped, as in logits.view(-1, vocabulary); the column side may have no batch."""
    for t, kind in zip(s._operands, s._kinds, strict=True):
        if kind in ("cols", "col", "block") and math.prod(t.shape[:-2]) != 1:
            was = f"an operand per column with batch shape {tuple(t.shape[:-2])}"
            raise FoldError(
                explain("reshape", was, f"column operands without a batch when rows are regrouped; or {TOO_MANY}")
            )
        if kind == "tile" and t.shape[-2] != 1 and math.prod(t.shape[:-2]) != math.prod(s._batch):
            was = f"an [N, K] operand of shape {tuple(t.shape)} that the batch {s._batch} shares"
            may_be = "one that need not be copied for every entry; reshape first and add it then"
            raise FoldError(explain("reshape", was, may_be))
    rows = torch.arange(s._n, device=s.device).unsqueeze(-1)
    s, number = _pointwise_along(s, "row"), len(s._operands)
    expr, mask = _places(s, "row", s._n, lambda e: text.indexed(e, "row", number))
    operands, kinds = list(s._operands), list(s._kinds)
    if (expr, mask) != (s._expr, s._mask):
        operands.append(rows)
        kinds.append("row")
    made = []
    for i, (t, kind) in enumerate(zip(operands, kinds, strict=True)):
        if kind in ("cols", "col"):
            made.append(t.reshape(t.shape[-2:]))
        elif math.prod(t.shape[:-1]) == 1 and kind not in ("rows", "row"):
            made.append(t.reshape(1, t.shape[-1]))
        else:
            made.append(t.expand(*s._batch, s._n, t.shape[-1]).reshape(*batch, n, t.shape[-1]))
            if kind == "scalar":
                kinds[i] = "row"
                expr, mask = _scalar_to_row(expr, mask, i)
    return s._with(operands=tuple(made), kinds=tuple(kinds), expr=expr, mask=mask, batch=batch, n=n)


def _scalar_to_row(expr: str, mask: text.MaskText | None, operand: int) -> tuple[str, text.MaskText | None]:
    change: Callable[[str | None], str | None] = lambda e: text.scalar_to_row(e, operand)
    if mask is not None:
        axis, lo, hi, block, size, test = mask
        mask = (axis, change(lo), change(hi), block, size, change(test))
    changed = change(expr)
    assert changed is not None
    return changed, mask


def flatten(s: Scores, start_dim: int, end_dim: int) -> Scores:
    first, last = s._dim(start_dim), s._dim(end_dim)
    return reshape(s, (*s.shape[:first], math.prod(s.shape[first : last + 1]), *s.shape[last + 1 :]))


def unsqueeze(s: Scores, dim: int) -> Scores:
    at = dim % (s.dim() + 1)
    if at > s.dim() - 2:
        raise FoldError(explain("unsqueeze", f"dim {dim}", f"a batch axis, at most {s.dim() - 2}; or {TOO_MANY}"))
    return _reshape_batch(s, (*s._batch[:at], 1, *s._batch[at:]))


def squeeze(s: Scores, dim: int | None) -> Scores:
    if dim is None:
        if 1 in (s._n, s._k):
            raise FoldError(explain("squeeze", f"shape {tuple(s.shape)}", f"dim=, a batch axis; or {TOO_MANY}"))
        return _reshape_batch(s, tuple(n for n in s._batch if n != 1))
    at = s._dim(dim)
    if s.shape[at] != 1:
        return s
    if at >= s.dim() - 2:
        raise FoldError(explain("squeeze", f"dim {dim}", f"a batch axis; or {TOO_MANY}"))
    return _reshape_batch(s, (*s._batch[:at], *s._batch[at + 1 :]))
