"""Dropout of scores: which are dropped is made again wherever it is needed, and never stored."""

from __future__ import annotations

import math

from torch import Tensor

from ..program import text
from .core import Scores


def dropped(s: Scores, p: float, seed: Tensor, entry: Tensor) -> tuple[Scores, Scores]:
    """The scores with -inf in the place of a share p, and the scores themselves over the same operands.

    Whether a score is dropped depends on (seed, entry, row, column) alone. The noise of folds/sample.py is
    -log(-log(1 - u)) with u uniform, and falls as u grows: u >= p where it is at most its value at p.

    Args:
        p: 0 < p < 1
        seed: one integer
        entry: a number for each batch entry, [*batch]
    """
    s, key = s._add_data(seed.reshape(1, 1))
    s, number = s._add_data(entry[..., None, None])
    noise = text.apply("gumbel", key, text.index("row"), number, text.index("col"))
    kept = text.apply("le", noise, text.number(-math.log(-math.log1p(-p)), "float"))
    expr = text.apply("where", kept, s._expr, text.number(-math.inf, "float"))
    return s._with(expr=expr), s
