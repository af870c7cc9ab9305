"""Keys and values in pages of a cache, which a table names (Kwon et al., PagedAttention, 2023).

Scores are made over a stand-in: a tensor of the keys' logical shape that has no memory. The Program then takes the
pages in its place.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..program import text
from ..scores.api import Assembled
from ..scores.core import autocast
from ..scores.debug import can_look_at
from ..scores.mask import Lengths
from .attention_scores import Layout

CACHES = {"bhsd": "[pages, Hkv, page_size, D]", "bshd": "[pages, page_size, Hkv, D]"}


def check_pages(q: Any, keys: list[Any], values: list[Any], table: Any, mask: Any, layout: Layout) -> None:
    """What must hold of a table and the caches that it names the pages of."""
    if layout not in CACHES:
        raise OptionError(explain("layout", f"{layout!r} with block_table", " or ".join(map(repr, CACHES))))
    if len(keys) != 1 or len(values) != 1:
        raise OptionError(explain("k, v", "lists of shards with block_table", "one cache of keys and one of values"))
    for name, t in (("q", q), ("k", keys[0]), ("v", values[0]), ("block_table", table)):
        if not isinstance(t, Tensor):
            raise TypeError(explain(name, type(t).__name__, "a tensor"))
    for name, t in (("k", keys[0]), ("v", values[0])):
        if t.dim() != 4 or 0 in t.shape[:3] or t.shape[:3] != keys[0].shape[:3]:
            was = f"shape {tuple(t.shape)} with block_table"
            raise ShapeError(explain(name, was, f"{CACHES[layout]}, with as many pages of one size in k and v"))
    if table.dtype not in (torch.int32, torch.int64) or table.dim() != 2 or table.shape[0] != q.shape[0]:
        was = f"{table.dtype} of shape {tuple(table.shape)}"
        raise ShapeError(explain("block_table", was, f"int32 or int64 [B, pages of an entry] with B = {q.shape[0]}"))
    if table.device != q.device:
        raise ShapeError(explain("block_table", f"a tensor on {table.device}", f"one on {q.device}, as q"))
    keys_at = 2 if layout == "bhsd" else 1
    room = table.shape[1] * keys[0].shape[keys_at]
    if isinstance(mask, Lengths) and can_look_at(mask.lengths) and mask.lengths.numel():
        longest = int(mask.lengths.max())
        if longest > room:
            was = f"a length of {longest}"
            raise OptionError(explain("mask", was, f"at most {room}, the keys that block_table has pages for"))


def stand_in(cache: Tensor, table: Tensor) -> Tensor:
    """Of a cache [pages, H, size, D] and a table [B, P] a tensor [B, H, P size, D], which is not to be read.

    It has the type of a product under autocast; the cache itself is read as it is.
    """
    pages, heads, size, d = cache.shape
    return autocast(cache.new_empty(())).expand(table.shape[0], heads, table.shape[1] * size, d)


def over_pages(made: Assembled, caches: list[Tensor], table: Tensor) -> Assembled:
    """What folds scores over stand-ins, with the caches [pages, H, size, D] in their place.

    Raises:
        OptionError: where other columns than these take part
    """
    program, columns = text.paged(made.program)
    if len(columns) != 2:
        raise OptionError(explain("score_mod", "a function that adds other keys", "one of the scores' own keys"))
    more = len(made.sizes) - 4  # a dimension for the heads of a group
    operands = list(made.operands)
    for i, t in zip(columns, caches, strict=True):
        operands[i] = t.unsqueeze(2) if more else t
    operands.append(table[:, None, None, None] if more else table[:, None, None])
    return made._replace(program=program, operands=operands)
