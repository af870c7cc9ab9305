"""What a fold makes of the scores before it folds them, as text."""

from __future__ import annotations

from typing import Any

from ..program import Output
from ..program.text import constant, dump, parse
from .fold import lookup


@constant
def lowered(text: str, fold: str, options: tuple[tuple[str, Any], ...], extras: tuple[str | None, ...]) -> str:
    """`Fold.lower` of the fold of that name and options."""
    s = parse(text)
    made = lookup(Output(fold, s, options)).lower(s, *(None if e is None else parse(e) for e in extras))
    return dump(made)
