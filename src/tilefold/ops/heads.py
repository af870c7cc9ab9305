"""Query heads that share key heads: what is given over [B, H, ..], in groups [B, Hkv, H / Hkv, ..]."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from ..errors import ShapeError, explain
from ..scores import mask as masks


class Heads(NamedTuple):
    """What is given over [B, H, ..], as the scores take it: in groups [B, Hkv, H / Hkv, ..] where heads share keys."""

    heads: int
    kv_heads: int
    shape: tuple[int, int, int, int]  # [B, H, Sq, Sk]

    def __call__(self, argument: str, m: Any) -> Any:
        match m:
            case Tensor():
                fits = [a == 1 or a == b for a, b in zip(reversed(m.shape), reversed(self.shape))]
                if m.dim() > 4 or not all(fits):
                    may_be = f"a shape that broadcasts to [B, H, Sq, Sk] = {list(self.shape)}"
                    raise ShapeError(explain(argument, f"shape {tuple(m.shape)}", may_be))
                return self._split(argument, m, -3)
            case masks.Lengths():  # [B] and [B, S] serve every head
                t = m.lengths
                return masks.Lengths(self._split(argument, t.unsqueeze(-1) if t.dim() == 1 else t, -1))
            case masks.Segments():
                return masks.Segments(self._rows(argument, m.rows), self._rows(argument, m.cols))
            case masks.Interval():
                return masks.Interval(self._rows(argument, m.start), self._rows(argument, m.stop))
            case masks.Blocks():
                return masks.Blocks(self._split(argument, m.table, -3), m.size)
        return m

    @property
    def grouped(self) -> bool:
        return self.heads != self.kv_heads

    @property
    def groups(self) -> tuple[int, int]:
        return self.kv_heads, self.heads // self.kv_heads

    def _rows(self, argument: str, t: Tensor) -> Tensor:
        """[S], [B, S] or [B, H, S]."""
        return self._split(argument, t.unsqueeze(-2) if t.dim() == 2 else t, -2)

    def _split(self, argument: str, t: Tensor, dim: int) -> Tensor:
        if t.dim() < -dim:
            return t
        if t.shape[dim] != 1 and t.shape[dim] != self.heads:
            raise ShapeError(
                explain(argument, f"shape {tuple(t.shape)}", f"{self.heads} heads (or 1) in dimension {dim}")
            )
        if self.heads == self.kv_heads:
            return t
        groups = (1, 1) if t.shape[dim] == 1 else self.groups
        return t.reshape(*t.shape[:dim], *groups, *t.shape[dim + 1 or t.dim() :])
