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
                return self._split(argument, m, 2)
            case masks.Lengths():
                return masks.Lengths(self._of_entries(f"{argument}.lengths", m.lengths, 0))
            case masks.Segments():
                name = f"{argument}.segments"
                return masks.Segments(self._of_entries(name, m.rows, 1), self._of_entries(name, m.cols, 1))
            case masks.Interval():
                name = f"{argument}.interval"
                return masks.Interval(self._of_entries(name, m.start, 1), self._of_entries(name, m.stop, 1))
            case masks.Blocks():
                return masks.Blocks(self._split(f"{argument}.blocks", m.table, 2), m.size)
        return m

    @property
    def grouped(self) -> bool:
        return self.heads != self.kv_heads

    @property
    def groups(self) -> tuple[int, int]:
        return self.kv_heads, self.heads // self.kv_heads

    def _of_entries(self, argument: str, t: Tensor, tail: int) -> Tensor:
        """[..], [B, ..] or [B, H, ..] with `tail` dimensions behind; what lacks H serves every head."""
        return self._split(argument, t.unsqueeze(1) if t.dim() == tail + 1 else t, tail)

    def _split(self, argument: str, t: Tensor, tail: int) -> Tensor:
        """[..], [H, ..] or [B, H, ..] with `tail` dimensions behind, in the heads' groups."""
        lead = t.dim() - tail
        # sizes one by one: torch.compile guards a symbolic size only where it is compared
        fits = lead < 1 or t.shape[lead - 1] == 1 or t.shape[lead - 1] == self.heads
        fits = fits and (lead < 2 or t.shape[0] == 1 or t.shape[0] == self.shape[0])
        if lead > 2 or not fits:
            was = f"leading dimensions {tuple(t.shape[:lead])}"
            raise ShapeError(
                explain(argument, was, f"none, or (B, H) = {self.shape[:2]} with 1 for what it serves alike")
            )
        if lead < 1 or self.heads == self.kv_heads:
            return t
        groups = (1, 1) if t.shape[lead - 1] == 1 else self.groups
        return t.reshape(*t.shape[: lead - 1], *groups, *t.shape[lead:])
