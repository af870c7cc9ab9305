"""What the arguments of `attention` say about a query and a key: checks, and the scores that they make."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..program import text
from ..scores import Scores, scores
from ..scores import mask as masks
from ..scores.api import DTYPES, check_points
from ..scores.core import number
from ..scores.mask import ALIGNMENTS, Align, Mask
from ..scores.views import columns_of
from .heads import Heads
from .varlen import check_cu_seqlens, pack

Causal = bool | Literal["top_left", "bottom_right"]
Layout = Literal["bhsd", "bshd", "thd"]
SHAPES = {
    "bhsd": "[B, H, Sq, D], [B, Hkv, Sk, D], [B, Hkv, Sk, Dv]",
    "bshd": "[B, Sq, H, D], [B, Sk, Hkv, D], [B, Sk, Hkv, Dv]",
    "thd": "[Tq, H, D], [Tk, Hkv, D], [Tk, Hkv, Dv]",
}
LETTERS = {"bhsd": "[B, H, S, D]", "bshd": "[B, S, H, D]", "thd": "[T, H, D]"}


def heads_first(t: Tensor, layout: Layout) -> Tensor:
    """[B, H, S, D] of a tensor in any layout."""
    match layout:
        case "bshd":
            return t.transpose(1, 2)
        case "thd":
            return t.transpose(0, 1).unsqueeze(0)
    return t


def check_tensor(argument: str, t: Tensor, device: torch.device) -> None:
    """That a tensor is dense and lies where q does."""
    if t.layout != torch.strided:
        raise ShapeError(explain(argument, f"a tensor of layout {t.layout}", "a dense tensor; see Tensor.to_dense"))
    if t.device != device:
        raise ShapeError(explain(argument, f"a tensor on {t.device}", f"one on {device}, as q"))


def check_operands(q: Any, keys: list[Any], values: list[Any], layout: Layout) -> None:
    """What must hold of q, and of each shard of the keys and values."""
    if not isinstance(layout, str) or layout not in SHAPES:
        raise OptionError(explain("layout", repr(layout), ", ".join(map(repr, SHAPES))))
    if len(keys) != len(values) or not keys:
        raise ShapeError(
            explain("k, v", f"lists of {len(keys)} and {len(values)}", "as many shards of each, at least one")
        )
    names = [("k", "v")] if len(keys) == 1 else [(f"k[{i}]", f"v[{i}]") for i in range(len(keys))]
    dims, heads_at = (3, 1) if layout == "thd" else (4, 1 if layout == "bhsd" else 2)
    for (key, value), k, v in zip(names, keys, values):
        check_points({"q": q, key: k})
        if not isinstance(v, Tensor):
            raise TypeError(explain(value, type(v).__name__, "a tensor"))
        for name, t in (("q", q), (key, k), (value, v)):
            if t.dim() != dims:
                may_be = f"{'three' if dims == 3 else 'four'} dimensions, {LETTERS[layout]}"
                raise ShapeError(explain(name, f"shape {tuple(t.shape)}", may_be))
        check_tensor(value, v, q.device)
        if v.dtype not in DTYPES:
            raise ShapeError(explain(value, f"a tensor of {v.dtype}", "float16, bfloat16, float32 or float64"))
        alike = k.shape[:-1] == v.shape[:-1] and k.shape[heads_at] == keys[0].shape[heads_at]
        alike = alike and v.shape[-1] == values[0].shape[-1]
        if not alike or (dims == 4 and (q.shape[0] != k.shape[0])):
            was = f"shapes {tuple(q.shape)}, {tuple(k.shape)}, {tuple(v.shape)}"
            raise ShapeError(explain(f"q, {key}, {value}", was, SHAPES[layout]))
    heads, kv_heads = q.shape[heads_at], keys[0].shape[heads_at]
    if heads != kv_heads and (kv_heads == 0 or heads % kv_heads):
        was = f"{kv_heads} heads for {heads} query heads"
        raise ShapeError(explain(names[0][0], was, "a number of heads that divides q's"))


def check_packing(q: Tensor, keys: list[Tensor], layout: Layout, cu_seqlens_q: Any, cu_seqlens_k: Any) -> None:
    """That cu_seqlens stand beside the layout "thd" alone, and fit the tokens."""
    if (layout == "thd") != (cu_seqlens_q is not None):
        was = f"{layout!r} {'without' if cu_seqlens_q is None else 'with'} cu_seqlens_q"
        raise OptionError(explain("layout", was, "'thd' with it, 'bhsd' or 'bshd' without"))
    if cu_seqlens_q is not None:
        check_cu_seqlens("cu_seqlens_q", cu_seqlens_q, q.shape[0], q.device)
    if cu_seqlens_k is None:
        return
    if cu_seqlens_q is None:
        raise OptionError(explain("cu_seqlens_k", "given without cu_seqlens_q", "both, or None"))
    check_cu_seqlens("cu_seqlens_k", cu_seqlens_k, sum(k.shape[0] for k in keys), q.device)
    if cu_seqlens_k.shape != cu_seqlens_q.shape:
        was = f"{cu_seqlens_k.shape[0]} numbers"
        raise ShapeError(explain("cu_seqlens_k", was, f"{cu_seqlens_q.shape[0]}, as cu_seqlens_q"))


class Rule(NamedTuple):
    """How a query and a key make a score; tensors are over [B, H, Sq, Sk] of all keys, in the heads' groups.

    alibi    slopes, and where a query stands among the keys
    keys     their number, over all shards
    """

    keys: int
    scale: float | Tensor
    softcap: float | None
    alibi: tuple[Tensor, Align] | None
    bias: Tensor | None
    score_mod: Callable[[Scores], Scores] | None
    visible: tuple[Mask | Tensor, ...]

    def scores(self, q: Tensor, k: Tensor, start: int = 0) -> Scores:
        """The scores of k, which are the keys from `start` on; columns count from 0, see `numbered`."""

        def part(t: Any) -> Any:
            whole = not isinstance(t, Tensor) or k.shape[-2] == self.keys or t.dim() == 0 or t.shape[-1] == 1
            return t if whole else t.narrow(-1, start, k.shape[-2])

        s: Scores = scores(q, k) * part(self.scale)
        s = s.softcap(self.softcap)
        if self.alibi is not None:
            s = _alibi(s, *self.alibi)
        if self.bias is not None:
            s = s + part(self.bias)
        if self.score_mod is not None:
            s = _modified(s, self.score_mod)
        return s.visible(*map(part, self.visible))

    def numbered(self, s: Scores, start: int) -> Scores:
        """Scores of a shard with its place among all keys."""
        return columns_of(s, start, self.keys)


def _alibi(s: Scores, slopes: Tensor, align: Align) -> Scores:
    s, here = s._place(align)
    s, slope = s._add_data(slopes, argument="alibi_slopes")
    away = text.apply("abs", text.apply("sub", here, text.index("col")))
    return s._with(expr=text.apply("sub", s._expr, text.apply("mul", slope, away)))


def _modified(s: Scores, score_mod: Callable[[Scores], Scores]) -> Scores:
    try:
        made = score_mod(s)
    except TypeError as error:
        if error.__traceback__ is None or error.__traceback__.tb_next is not None:
            raise  # from inside the function
        raise OptionError(explain("score_mod", str(error), "a function of the scores alone")) from None
    if not isinstance(made, Scores) or made.shape != s.shape:
        was = f"a function that returned {type(made).__name__} of shape {tuple(getattr(made, 'shape', ()))}"
        raise OptionError(explain("score_mod", was, f"one that returns scores of the same shape {tuple(s.shape)}"))
    return made


def score_rule(
    heads: Heads,
    width: int,
    device: torch.device,
    *,
    causal: Causal,
    scale: float | Tensor | None,
    window: tuple[int | None, int | None] | None,
    softcap: float | None,
    bias: Tensor | None,
    alibi_slopes: Tensor | None,
    mask: Tensor | Mask | None,
    score_mod: Callable[[Scores], Scores] | None,
    cu_seqlens: tuple[Tensor | None, Tensor | None],
    shards: int,
) -> Rule:
    """The arguments of `attention`, checked; `width`: features of a query, `device`: where it lies."""
    batch, _, queries, keys = heads.shape
    cu_seqlens_q, cu_seqlens_k = cu_seqlens
    same = queries == keys if cu_seqlens_q is None else cu_seqlens_k is None or cu_seqlens_k is cu_seqlens_q
    align = _alignment(causal, same, heads, cu_seqlens_q is not None)
    if bias is not None and (not isinstance(bias, Tensor) or not bias.is_floating_point()):
        was = f"a tensor of {bias.dtype}" if isinstance(bias, Tensor) else type(bias).__name__
        raise ShapeError(explain("bias", was, "a floating-point tensor; `mask` takes booleans"))
    if isinstance(scale, Tensor) and scale.is_complex():
        raise ShapeError(explain("scale", f"a tensor of {scale.dtype}", "real numbers"))
    if scale is not None and not isinstance(scale, Tensor):
        number(scale, "scale", "a number, a tensor, or None for 1 / sqrt(D)")
    for name, given in (("bias", bias), ("scale", scale), ("mask", mask)):
        if isinstance(given, Tensor):
            check_tensor(name, given, device)
    if window is not None and (not isinstance(window, (tuple, list)) or len(window) != 2):
        raise OptionError(explain("window", repr(window), "(left, right), numbers of keys or None"))
    band = None if window is None else masks.window(*window)
    slopes = None if alibi_slopes is None else _check_slopes(alibi_slopes, heads, cu_seqlens_q)
    mask = _check_mask(mask, heads, shards, cu_seqlens_q is not None)

    packed = None
    if cu_seqlens_q is not None:
        packed = pack(cu_seqlens_q, cu_seqlens_q if cu_seqlens_k is None else cu_seqlens_k, queries)

    def place(name: Align) -> Align:
        """Where a query stands among the keys of its own sequence."""
        if not isinstance(name, str):
            return name
        if packed is not None:
            return packed.top_left if name == "top_left" else packed.bottom_right
        if name == "bottom_right" and isinstance(mask, masks.Lengths):
            return mask.lengths.to(torch.int64).unsqueeze(-1) - queries
        return name

    visible: list[Mask | Tensor] = []
    if packed is not None:
        visible.append(masks.Interval(packed.start, packed.stop))
    if causal:
        visible.append(masks.Causal(place(align)))
    if band is not None:
        visible.append(masks.Window(band.left, band.right, place(align)))
    match mask:
        case None:
            pass
        case masks.Causal():
            visible.append(masks.Causal(place(mask.align)))
        case masks.Window():
            visible.append(masks.Window(mask.left, mask.right, place(mask.align)))
        case _:
            visible.append(mask)
    alibi = None
    if slopes is not None:
        per_query = slopes[packed.sequence].mT if packed is not None and slopes.dim() == 2 else slopes.unsqueeze(-1)
        alibi = heads("alibi_slopes", per_query.unsqueeze(-1)), place("bottom_right")
    return Rule(
        keys,
        max(width, 1) ** -0.5 if scale is None else heads("scale", scale),
        softcap,
        alibi,
        None if bias is None else heads("bias", bias),
        score_mod,
        tuple(visible),
    )


def _alignment(causal: Causal, same: bool, heads: Heads, packed: bool) -> str:
    if causal is True and not same:
        was = "True with cu_seqlens_k" if packed else f"True with Sq = {heads.shape[2]} and Sk = {heads.shape[3]}"
        raise OptionError(explain("causal", was, " or ".join(map(repr, ALIGNMENTS)) + ": the two differ when Sq != Sk"))
    if isinstance(causal, bool):
        return "top_left"
    if causal not in ALIGNMENTS:
        raise OptionError(explain("causal", repr(causal), "False, True, " + " or ".join(map(repr, ALIGNMENTS))))
    return causal


def _check_slopes(slopes: Any, heads: Heads, cu_seqlens_q: Tensor | None) -> Tensor:
    if not isinstance(slopes, Tensor):
        raise TypeError(explain("alibi_slopes", type(slopes).__name__, "a tensor [H] or [B, H]"))
    batch = heads.shape[0] if cu_seqlens_q is None else max(cu_seqlens_q.shape[0] - 1, 1)
    # sizes one by one: torch.compile guards a symbolic size only where it is compared
    fits = slopes.dim() in (1, 2) and slopes.shape[-1] == heads.heads
    fits = fits and (slopes.dim() == 1 or slopes.shape[0] == batch)
    if not fits or not slopes.is_floating_point():
        was = f"{slopes.dtype} of shape {tuple(slopes.shape)}"
        may_be = f"floating-point numbers [{heads.heads}] or [{batch}, {heads.heads}]"
        raise ShapeError(explain("alibi_slopes", was, may_be))
    return slopes


def _check_mask(given: Any, heads: Heads, shards: int, packed: bool) -> Mask | Tensor | None:
    """The mask in the heads' groups; over shards, with column numbers of all keys."""
    mask: Mask | Tensor | None = None if given is None else heads("mask", given)
    if packed and isinstance(mask, masks.Lengths):
        raise OptionError(explain("mask", "lengths beside cu_seqlens_q", "cu_seqlens_k that say the lengths"))
    if shards > 1 and isinstance(mask, masks.Blocks):
        raise OptionError(explain("mask", "a block mask over a list of keys", "another mask, or keys in one tensor"))
    if shards > 1 and isinstance(mask, masks.Segments):
        if mask.cols.shape[-1] != heads.shape[3]:
            was = f"segments of {mask.cols.shape[-1]} columns"
            raise ShapeError(explain("mask", was, f"Sk = {heads.shape[3]} over all shards"))
        return masks.of_segments(mask)
    return mask
