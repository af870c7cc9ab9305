"""A draw from softmax(s / t) for each row: the arg-max of s + t * Gumbel noise (Gumbel, 1954; Maddison et al., 2014).

The noise of a pair depends on (seed, stream of the row, position, column) alone: Philox-4x32-10 with the seed as its
key and the other three as its counter. So neither tiles nor batch nor backend change a draw. E = -log1p(-u) with
u = (r + 1/2) / 2^32, and the noise is -log E: the tail is right to 20 nats below the top.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from ..errors import OptionError, explain
from ..program import Expr, Index, op
from .fold import register
from .maximum import ArgMax


@register
class Sample(ArgMax):
    """A column of each row, drawn with probability softmax(s_i / t_i)_j, [.., N] int64.

    Args:
        seed: int (its lowest 64 bits count), or an integer tensor of one element or one per row [.., N]
        stream: [.., N] integers, what tells rows apart; default: the row's number
        position: int or [.., N] integers, for example the token's place in its sequence; default 0
        temperature: t, a number or [.., N], finite and >= 0; at 0 the arg-max; None: 1
    """

    name = "sample"
    differentiable = ()
    extra_names = ("seed", "stream", "position", "temperature")

    def __init__(
        self,
        seed: int | Tensor = 0,
        stream: Tensor | None = None,
        position: int | Tensor = 0,
        temperature: float | Tensor | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(seed, (int, Tensor)):
            raise OptionError(explain("seed", f"{seed!r}", "an int or a tensor of integers"))
        if isinstance(temperature, (int, float)) and not 0 <= temperature < math.inf:
            raise OptionError(explain("temperature", str(temperature), "a finite number >= 0"))
        # any int, as the 64 bits of a key
        self.seed = seed if isinstance(seed, Tensor) else (seed + 2**63) % 2**64 - 2**63
        self.stream, self.position, self.temperature = stream, position, temperature

    @property
    def extras(self) -> tuple[Tensor | float | None, ...]:
        return self.seed, self.stream, self.position, self.temperature

    def lower(self, s: Expr, *extras: Expr | None) -> Expr:
        seed, stream, position, temperature = extras
        noise = op("gumbel", seed, Index("row") if stream is None else stream, position, Index("col"))
        # s / t + noise has the same arg-max where t > 0
        return s + (noise if temperature is None else temperature * noise)


def philox(seed: Tensor, counter: tuple[Tensor, ...]) -> Tensor:
    """The first word of Philox-4x32-10 (Salmon et al., 2011), as an int64 tensor of 32-bit values.

    Args:
        seed: 64-bit keys
        counter: up to four tensors of 32-bit words; missing ones are 0
    """
    low = 0xFFFFFFFF
    zero = torch.zeros((), dtype=torch.int64, device=seed.device)
    c0, c1, c2, c3 = (*(c.to(torch.int64) & low for c in counter), *(zero,) * (4 - len(counter)))
    k0, k1 = seed.to(torch.int64) & low, (seed.to(torch.int64) >> 32) & low
    for _ in range(10):
        hi0, lo0 = _multiply(c0, 0xD2511F53)
        hi1, lo1 = _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = hi1 ^ c1 ^ k0, lo1, hi0 ^ c3 ^ k1, lo0
        k0, k1 = (k0 + 0x9E3779B9) & low, (k1 + 0xBB67AE85) & low
    return c0


def _multiply(a: Tensor, b: int) -> tuple[Tensor, Tensor]:
    """High and low word of a 32 x 32 bit product, without leaving int64."""
    low = a * (b & 0xFFFF)  # < 2^48
    high = a * (b >> 16)
    mid = (low >> 16) + (high & 0xFFFFFFFF)
    return (high >> 32 << 16) + (mid >> 16) & 0xFFFFFFFF, ((mid & 0xFFFF) << 16) | (low & 0xFFFF)


def gumbel(seed: Tensor, stream: Tensor, position: Tensor, column: Tensor, dtype: torch.dtype) -> Tensor:
    """Gumbel noise, broadcast over its arguments."""
    word = philox(seed, (column, stream, position))
    u = (word.to(torch.float64) + 0.5) * 2.0**-32
    return -torch.log(-torch.log1p(-u)).to(dtype)
