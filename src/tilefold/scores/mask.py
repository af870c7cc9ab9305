"""Structured masks: which columns a row sees. A loop skips the tiles that a mask hides.

Use them with `Scores.visible(mask, ...)`. A boolean tensor (True = visible) also works there, and is read tile by tile.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..program import text
from .debug import can_look_at

ALIGNMENTS = ("top_left", "bottom_right")
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


# row i stands at column i + offset: "top_left" 0, "bottom_right" K - N, or integers [.., N or 1]
Align = str | Tensor


@dataclass(frozen=True)
class Causal:
    """Row i sees columns j <= i + offset."""

    align: Align


@dataclass(frozen=True)
class Window:
    """Row i sees i + offset - left <= j <= i + offset + right; None: no bound on that side."""

    left: int | None
    right: int | None
    align: Align


@dataclass(frozen=True)
class Interval:
    """Row i sees columns start[i] <= j < stop[i]."""

    start: Tensor
    stop: Tensor


@dataclass(frozen=True)
class Lengths:
    """Every row of batch entry b sees columns j < lengths[b]."""

    lengths: Tensor


@dataclass(frozen=True)
class Segments:
    """A row sees the columns of its own segment."""

    rows: Tensor
    cols: Tensor


@dataclass(frozen=True)
class Blocks:
    """Row i sees column j where table[i // size[0], j // size[1]] is True."""

    table: Tensor
    size: tuple[int, int]


Mask = Causal | Window | Interval | Lengths | Segments | Blocks


def _aligned(align: str, argument: str = "align") -> str:
    if align not in ALIGNMENTS:
        raise OptionError(explain(argument, repr(align), " or ".join(map(repr, ALIGNMENTS))))
    return align


def _integers(argument: str, t: Any) -> None:
    if not isinstance(t, Tensor):
        raise TypeError(explain(argument, type(t).__name__, "a tensor of integers"))
    if t.dtype not in INTEGERS:
        raise ShapeError(explain(argument, f"a tensor of {t.dtype}", "a tensor of integers, uint8 or signed"))


def causal(align: str = "top_left") -> Causal:
    """A causal mask: row i sees columns j <= i + offset.

    Args:
        align: "top_left": offset 0, as is_causal of scaled_dot_product_attention;
            "bottom_right": offset K - N, the last row sees every column, as flash-attention
    Raises:
        OptionError: for another align.
    """
    return Causal(_aligned(align))


def window(left: int | None, right: int | None, *, align: str = "top_left") -> Window:
    """A sliding window, inclusive on both sides: row i sees i + offset - left <= j <= i + offset + right.

    Args:
        left, right: how many columns on each side; None: all. (W - 1, 0) is a causal window of W tokens.
        align: as in `causal`
    Raises:
        OptionError: for a negative width or another align.
    """
    for name, width in (("left", left), ("right", right)):
        if width is not None and (not isinstance(width, int) or width < 0):
            raise OptionError(explain(name, repr(width), "a number of columns >= 0, or None for no bound"))
    return Window(left, right, _aligned(align))


def interval(start: Tensor, stop: Tensor) -> Interval:
    """An interval of its own for each row: row i sees columns start[i] <= j < stop[i], none where stop <= start.

    Args:
        start, stop: [.., N] integers
    Raises:
        ShapeError: for tensors that are not of integers.
    """
    _integers("start", start)
    _integers("stop", stop)
    return Interval(start, stop)


def lengths(lengths: Tensor) -> Lengths:
    """Padding: in batch entry b only the columns j < lengths[b] are visible.

    Args:
        lengths: integers, of the scores' batch shape (or broadcastable to it)
    Raises:
        ShapeError: for a tensor that is not of integers.
    """
    _integers("lengths", lengths)
    return Lengths(lengths)


def segments(rows: Tensor, cols: Tensor | None = None) -> Segments:
    """Packed sequences: row i sees the columns j of its own segment, cols[j] == rows[i].

    Args:
        rows: [.., N] integers, the segment of each row
        cols: [.., K] integers that never decrease along the last axis; default: rows
    Raises:
        ShapeError: for tensors that are not of integers.
    """
    cols = rows if cols is None else cols
    _integers("rows", rows)
    _integers("cols", cols)
    return Segments(rows, cols)


def blocks(table: Tensor, size: tuple[int, int]) -> Blocks:
    """A block mask: row i sees column j where table[.., i // size[0], j // size[1]] is True.

    Args:
        table: [.., ceil(N / size[0]), ceil(K / size[1])] boolean
        size: rows and columns of a block
    Raises:
        OptionError: for a size below 1.
    """
    if not isinstance(size, (tuple, list)) or len(size) != 2 or min(size) < 1:
        raise OptionError(explain("size", str(size), "two numbers >= 1"))
    return Blocks(table, (int(size[0]), int(size[1])))


def offset(align: str) -> str:
    """The number that is added to the row's index, as an expression."""
    return text.number(0, "int") if align == "top_left" else text.apply("sub", text.size("col"), text.size("row"))


def of_segments(mask: Segments) -> Interval:
    """The columns of each row's segment, by two searches on the device."""
    rows, cols = mask.rows, mask.cols
    if can_look_at(cols) and bool((cols[..., 1:] < cols[..., :-1]).any()):
        raise OptionError(
            explain("segments(cols)", "numbers that decrease", "numbers that never decrease: packed segments in order")
        )
    lead = torch.broadcast_shapes(rows.shape[:-1], cols.shape[:-1])
    rows = rows.expand(*lead, rows.shape[-1]).contiguous()
    cols = cols.expand(*lead, cols.shape[-1]).contiguous()
    return Interval(torch.searchsorted(cols, rows, side="left"), torch.searchsorted(cols, rows, side="right"))
