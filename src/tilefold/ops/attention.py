"""Scaled dot-product attention, without the [Sq, Sk] scores (Dao et al., FlashAttention, 2022)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict, overload

from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..folds import SoftmaxSum
from ..scores import fold, mask, scores
from ..scores.api import check_points
from ..scores.core import autocast
from ..scores.mask import ALIGNMENTS, Mask

if TYPE_CHECKING:
    from typing_extensions import Unpack

Causal = bool | Literal["top_left", "bottom_right"]


class Options(TypedDict, total=False):
    causal: Causal
    scale: float | Tensor | None
    window: tuple[int | None, int | None] | None
    softcap: float | None
    bias: Tensor | None
    mask: Tensor | Mask | None


@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[False] = ..., **options: Unpack[Options]
) -> Tensor: ...
@overload
def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: Literal[True], **options: Unpack[Options]
) -> tuple[Tensor, Tensor]: ...


def attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    causal: Causal = False,
    scale: float | Tensor | None = None,
    window: tuple[int | None, int | None] | None = None,
    softcap: float | None = None,
    bias: Tensor | None = None,
    mask: Tensor | Mask | None = None,
    return_lse: bool = False,
) -> Any:
    """softmax(scale q k^T + bias) v of each head, [B, H, Sq, Dv] in q's type.

    Args:
        q: [B, H, Sq, D]
        k: [B, Hkv, Sk, D]; H is a multiple of Hkv, and head h reads key head h // (H / Hkv)
        v: [B, Hkv, Sk, Dv]
        causal: "top_left": query i sees keys j <= i; "bottom_right": the last query sees all keys.
            True: either, for Sq = Sk only.
        scale: factor of q.k, any number or a tensor broadcastable to [B, H, Sq, Sk] (differentiable);
            default 1 / sqrt(D)
        window: (left, right) keys visible beside a query's own place, both inclusive; None: no bound on that side.
            Aligned as `causal`, top_left without it.
        softcap: c tanh(s / c) in the place of the scaled s
        bias: added to the scores, broadcastable to [B, H, Sq, Sk]; differentiable
        mask: a boolean tensor broadcastable to [B, H, Sq, Sk], True = visible, or one of `tilefold.mask`:
            lengths [B] or [B, H]; segments [S], [B, S] or [B, H, S]; a block table [(B, H,) ..]
        return_lse: also give the log-sum-exp of each query's scores, [B, H, Sq] float32, differentiable
    Returns:
        A query that sees no key gives 0 (log-sum-exp -inf) and gets gradient 0.
    Raises:
        ShapeError: for shapes, devices or data types that do not go together
        OptionError: for an unknown alignment, or causal=True with Sq != Sk
    """
    check_points({"q": q, "k": k})
    if not isinstance(v, Tensor):
        raise TypeError(explain("v", type(v).__name__, "a tensor"))
    for name, t in (("q", q), ("k", k), ("v", v)):
        if t.dim() != 4:
            raise ShapeError(explain(name, f"shape {tuple(t.shape)}", "four dimensions, [B, H, S, D]"))
    heads, kv_heads = q.shape[1], k.shape[1]
    if k.shape[:3] != v.shape[:3] or q.shape[0] != k.shape[0]:
        was = f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
        raise ShapeError(explain("q, k, v", was, "[B, H, Sq, D], [B, Hkv, Sk, D], [B, Hkv, Sk, Dv]"))
    if kv_heads == 0 or heads % kv_heads:
        raise ShapeError(
            explain("k", f"{kv_heads} heads for {heads} query heads", "a number of heads that divides q's")
        )
    per_head = _Heads(heads, kv_heads, (q.shape[0], heads, q.shape[2], k.shape[2]))
    align = _alignment(causal, q.shape[2], k.shape[2])
    q, k, v = autocast(q), autocast(k), autocast(v)
    grouped = heads != kv_heads
    if grouped:
        q, k, v = q.reshape(q.shape[0], *per_head.groups, *q.shape[2:]), k.unsqueeze(2), v.unsqueeze(2)
    s = scores(q, k) * (q.shape[-1] ** -0.5 if scale is None else per_head("scale", scale))
    s = s.softcap(softcap)
    if bias is not None:
        if not isinstance(bias, Tensor) or not bias.is_floating_point():
            was = f"a tensor of {bias.dtype}" if isinstance(bias, Tensor) else type(bias).__name__
            raise ShapeError(explain("bias", was, "a floating-point tensor; `mask` takes booleans"))
        s = s + per_head("bias", bias)
    if causal:
        s = s.visible(masks.causal(align))
    if window is not None:
        if not isinstance(window, (tuple, list)) or len(window) != 2:
            raise OptionError(explain("window", repr(window), "(left, right), numbers of keys or None"))
        s = s.visible(masks.window(*window, align=align))
    if mask is not None:
        s = s.visible(per_head("mask", mask))
    out, lse = fold(s, SoftmaxSum(v, return_lse=True))
    if grouped:
        out, lse = out.flatten(1, 2), lse.flatten(1, 2)
    if out.dtype != q.dtype:
        out = out.to(q.dtype)
    return (out, lse) if return_lse else out


masks = mask


def _alignment(causal: Causal, queries: int, keys: int) -> str:
    if causal is True and queries != keys:
        was = f"True with Sq = {queries} and Sk = {keys}"
        raise OptionError(explain("causal", was, " or ".join(map(repr, ALIGNMENTS)) + ": the two differ when Sq != Sk"))
    if isinstance(causal, bool):
        return "top_left"
    if causal not in ALIGNMENTS:
        raise OptionError(explain("causal", repr(causal), "False, True, " + " or ".join(map(repr, ALIGNMENTS))))
    return causal


class _Heads(NamedTuple):
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
                return masks.Segments(
                    *(self._split(argument, t.unsqueeze(-2) if t.dim() == 2 else t, -2) for t in (m.rows, m.cols))
                )
            case masks.Blocks():
                return masks.Blocks(self._split(argument, m.table, -3), m.size)
        return m

    @property
    def groups(self) -> tuple[int, int]:
        return self.kv_heads, self.heads // self.kv_heads

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
