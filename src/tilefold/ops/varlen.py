"""Sequences of different lengths packed one behind the other, as flash-attention's cu_seqlens give them."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import OptionError, ShapeError, explain
from ..scores.debug import can_look_at


class Packed(NamedTuple):
    """For each of the T query tokens, [T] int64: the keys start <= j < stop of its sequence, and its own place there.

    top_left, bottom_right    added to the token's number, its key with the sequences' first or last tokens aligned
    sequence                  the number of its sequence, that of the last for tokens behind it
    """

    start: Tensor
    stop: Tensor
    top_left: Tensor
    bottom_right: Tensor
    sequence: Tensor


def check_cu_seqlens(name: str, cu: Any, tokens: int, device: torch.device) -> None:
    """Starts of the sequences and the end of the last: [n + 1] integers from 0 to `tokens` that never decrease."""
    if not isinstance(cu, Tensor):
        raise TypeError(explain(name, type(cu).__name__, "a tensor of integers"))
    if cu.dim() != 1 or cu.shape[0] < 1 or cu.is_floating_point() or cu.dtype == torch.bool:
        raise ShapeError(explain(name, f"{cu.dtype} of shape {tuple(cu.shape)}", "integers [n + 1] for n sequences"))
    if cu.device != device:
        raise ShapeError(explain(name, f"a tensor on {cu.device}", f"one on {device}, as q"))
    if can_look_at(cu):
        numbers = cu.tolist()
        if numbers[0] != 0 or numbers != sorted(numbers) or numbers[-1] > tokens:
            was = f"{numbers}" if len(numbers) <= 8 else f"{numbers[:4]} .. {numbers[-3:]}"
            raise OptionError(explain(name, was, f"numbers from 0 to at most {tokens} that never decrease"))


def pack(cu_seqlens_q: Tensor, cu_seqlens_k: Tensor, queries: int) -> Packed:
    """O(T) numbers, made on the device without waiting for it. A token behind the last sequence sees no key."""
    q, k = (torch.cat([cu, cu[-1:]]).to(torch.int64) for cu in (cu_seqlens_q, cu_seqlens_k))
    token = torch.arange(queries, device=q.device)
    sequence = torch.searchsorted(q[1:-1], token, right=True)
    start, stop = k[sequence], k[sequence + 1]
    last = max(cu_seqlens_q.shape[0] - 2, 0)
    return Packed(start, stop, start - q[sequence], stop - q[sequence + 1], sequence.clamp(max=last))
