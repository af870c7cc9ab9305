"""What folds make of scores, as text."""

from __future__ import annotations

from typing import Any

from ..program import Output
from ..program.text import MaskText, constant, dump, parse, program
from .fold import lookup

Options = tuple[tuple[str, Any], ...]


@constant
def folded(
    kinds: tuple[str, ...],
    outputs: tuple[tuple[str, str, Options, tuple[str | None, ...], int | None], ...],
    mask: MaskText | None,
) -> tuple[str, tuple[int, ...]]:
    """The text of the Program of these folds, over the operands that it reads, and their numbers.

    Args:
        outputs: (expression, fold, options, extras, payload operand) each
    """
    made = (
        (fold, _lowered(expr, fold, options, extras), options, payload)
        for expr, fold, options, extras, payload in outputs
    )
    text: tuple[str, tuple[int, ...]] = program(kinds, tuple(made), mask)
    return text


def _lowered(text: str, fold: str, options: Options, extras: tuple[str | None, ...]) -> str:
    """`Fold.lower` of the fold of that name and options."""
    s = parse(text)
    made = lookup(Output(fold, s, options)).lower(s, *(None if e is None else parse(e) for e in extras))
    return dump(made)
